"""Neural Sampling Machines: deep networks whose only non-linearity is multiplicative noise.

The equations are in :mod:`nsm.functional`; everything else holds parameters for them, draws for them,
repeats them or trains them. Names are loaded when first used, so ``import nsm`` itself is free.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nsm import data as data

__version__ = "0.1.0"

_HOME = {  # public name -> the module it lives in
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name == "data":
        return import_module("nsm.data")
    raise AttributeError(f"module 'nsm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__", "data"]
