"""Real data: MNIST in the box, images and event cameras on request, and nothing trusted.

    nsm.data.load("mnist")                               the embedded digits, ±1, no network
    nsm.data.load("cifar10", "train+validation")         what lies under NSM_DATA, in its published form
    nsm.data.get("cifar10")                              fetch it there, every byte checked

The readers are pure functions from bytes to arrays; bad files raise `DataError`, missing ones ``OSError``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nsm.data.augment import random_crop, random_cutout, random_flip, random_shift
    from nsm.data.catalogue import names
    from nsm.data.cifar import read_cifar, read_cifar_pickle
    from nsm.data.dataset import Dataset
    from nsm.data.errors import DataError
    from nsm.data.events import read_aedat, read_events, read_gestures, read_npy_events
    from nsm.data.framing import frames
    from nsm.data.idx import read_idx
    from nsm.data.loading import check, load
    from nsm.data.store import get

_HOME = {  # public name -> the module it lives in
    "DataError": "errors",
    "Dataset": "dataset",
    "check": "loading",
    "frames": "framing",
    "get": "store",
    "load": "loading",
    "names": "catalogue",
    "random_crop": "augment",
    "random_cutout": "augment",
    "random_flip": "augment",
    "random_shift": "augment",
    "read_aedat": "events",
    "read_cifar": "cifar",
    "read_cifar_pickle": "cifar",
    "read_events": "events",
    "read_gestures": "events",
    "read_idx": "idx",
    "read_npy_events": "events",
}

__all__ = [
    "DataError",
    "Dataset",
    "check",
    "frames",
    "get",
    "load",
    "names",
    "random_crop",
    "random_cutout",
    "random_flip",
    "random_shift",
    "read_aedat",
    "read_cifar",
    "read_cifar_pickle",
    "read_events",
    "read_gestures",
    "read_idx",
    "read_npy_events",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"nsm.data.{_HOME[name]}"), name)
    raise AttributeError(f"module 'nsm.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
