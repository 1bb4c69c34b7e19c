"""What scaling the weights of a trained network does to its error: nothing, says the paper, where units normalise."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from nsm.data import Dataset
from nsm.recipes import Recipe
from nsm.sampling import predict

FACTORS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
#: The way of scaling: the factors it is tried with. "rows" multiplies each unit's weights and bias by a factor of its
#: own, drawn log-uniformly between the given one and its inverse.
WAYS = {"weights": FACTORS, "weights and biases": FACTORS, "output too": (0.1,), "rows": (0.1,)}


@torch.no_grad()
def scale(network: nn.Module, way: str, factor: float, seed: int = 0) -> nn.Module:
    """A copy of a network whose hidden layers are scaled in one of the `WAYS`; the layer ``out`` is not hidden.

    >>> layer = scale(nn.Sequential(nn.Linear(2, 3)), "weights", 0.0)[0]
    >>> bool((layer.weight == 0).all()), bool((layer.bias == 0).any())
    (True, False)
    """
    network, generator = deepcopy(network), torch.Generator().manual_seed(seed)
    for name, module in network.named_modules():
        weight, bias = (getattr(module, kind, None) for kind in ("weight", "bias"))
        if not isinstance(weight, nn.Parameter) or (name == "out" and way != "output too"):
            continue
        by = torch.full((len(weight),), factor)
        if way == "rows":
            by = factor ** (2 * torch.rand(len(weight), generator=generator) - 1)
        weight.mul_(by.to(weight).reshape(-1, *[1] * (weight.dim() - 1)))
        if way != "weights" and isinstance(bias, nn.Parameter):
            bias.mul_(by.to(bias))
    return network


def scaling(networks: Sequence[nn.Module], test: Dataset, recipe: Recipe) -> dict[str, dict[str, list[float]]]:
    """The test error in percent of every network, for every way and factor of `WAYS`."""
    plain = [error_of(network, test, recipe) for network in networks]
    found: dict[str, dict[str, list[float]]] = {}
    for way, factors in WAYS.items():
        for factor in factors:
            errors = plain if factor == 1 else [error_of(scale(n, way, factor), test, recipe) for n in networks]
            found.setdefault(way, {})[str(factor)] = errors
    return found


def error_of(network: nn.Module, test: Dataset, recipe: Recipe, seed: int = 0) -> float:
    """The error in percent, with as many samples and in the precision of the recipe."""
    cuda = torch.cuda.is_available() and recipe.accelerator != "cpu"
    network, test = network.to("cuda" if cuda else "cpu"), test.to("cuda" if cuda else "cpu")
    blocks = (test.batch(slice(k, k + 1000))[0] for k in range(0, len(test), 1000))
    bf16: Any = torch.autocast("cuda" if cuda else "cpu", torch.bfloat16, enabled=recipe.precision == "bf16-mixed")
    with bf16:
        labels = predict(network, blocks, recipe.num_samples, seed=seed).label
    return round(100 * float((labels != test.labels).double().mean()), 6)
