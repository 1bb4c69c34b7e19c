"""Real data: MNIST in the box, images and event cameras on request, and nothing trusted.

    nsm.data.load("mnist")                               the embedded digits, ±1, no network
    nsm.data.load("cifar10", "train+validation")         what lies under NSM_DATA, in its published form
    nsm.data.get("cifar10")                              fetch it there, every byte checked

The readers are pure functions from bytes to arrays; bad files raise `DataError`, missing ones ``OSError``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nsm.data.augment import random_crop, random_flip, random_shift
    from nsm.data.dataset import Dataset
    from nsm.data.errors import DataError
    from nsm.data.idx import read_idx

_HOME = {  # public name -> the module it lives in
    "DataError": "errors",
    "Dataset": "dataset",
    "random_crop": "augment",
    "random_flip": "augment",
    "random_shift": "augment",
    "read_idx": "idx",
}

__all__ = [
    "DataError",
    "Dataset",
    "random_crop",
    "random_flip",
    "random_shift",
    "read_idx",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"nsm.data.{_HOME[name]}"), name)
    raise AttributeError(f"module 'nsm.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
