"""Neural Sampling Machines: deep networks whose only non-linearity is multiplicative noise.

The equations are in :mod:`nsm.functional`; everything else holds parameters for them, draws for them,
repeats them or trains them. Names are loaded when first used, so ``import nsm`` itself costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nsm import data, functional, metrics, networks
    from nsm.checkpoint import load
    from nsm.estimators import Concrete, Deterministic, Estimator, Probability, StraightThrough
    from nsm.initialization import convert, initialize
    from nsm.layers import NSMConv2d, NSMLinear, deterministic
    from nsm.noise import Bernoulli, Empirical, Gaussian, LogNormal, Noise, Uniform
    from nsm.recipes import Recipe
    from nsm.sampling import Confident, Prediction, predict
    from nsm.signs import Binarize, binarize
    from nsm.training import History, fit

__version__ = "0.1.0"

__all__ = [
    "Bernoulli",
    "Binarize",
    "Concrete",
    "Confident",
    "Deterministic",
    "Empirical",
    "Estimator",
    "Gaussian",
    "History",
    "LogNormal",
    "NSMConv2d",
    "NSMLinear",
    "Noise",
    "Prediction",
    "Probability",
    "Recipe",
    "StraightThrough",
    "Uniform",
    "binarize",
    "convert",
    "data",
    "deterministic",
    "fit",
    "functional",
    "initialize",
    "load",
    "metrics",
    "networks",
    "predict",
]

_NAMES = {
    "checkpoint": ("load",),
    "estimators": ("Concrete", "Deterministic", "Estimator", "Probability", "StraightThrough"),
    "initialization": ("convert", "initialize"),
    "layers": ("NSMConv2d", "NSMLinear", "deterministic"),
    "noise": ("Bernoulli", "Empirical", "Gaussian", "LogNormal", "Noise", "Uniform"),
    "recipes": ("Recipe",),
    "sampling": ("Confident", "Prediction", "predict"),
    "signs": ("Binarize", "binarize"),
    "training": ("History", "fit"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"nsm.{_HOME[name]}"), name)
    if name in __all__:
        return import_module(f"nsm.{name}")
    raise AttributeError(f"module 'nsm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__", "data"]
