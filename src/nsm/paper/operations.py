"""What one inference costs, in operations: every network of the paper beside its deterministic twin.

The counts come from the modules: an input walks through the network, and each module is charged for what it was given
and what it gave. The conventions, each chosen so that they can be checked by hand:

- A unit with n inputs and a bias sums n terms and the bias: n additions. Where its inputs are ±1 a product with a
  weight is the choice between adding and subtracting and costs nothing; else it is a multiplication. Padding is no
  input.
- An NSM unit makes the two sums of the paper's Figure 1, Σ ξ w z and a Σ w z + b: 2n additions and one multiplication,
  by a. Blanked-out inputs count as if they were added. With Gaussian ξ the noisy sum multiplies n times.
- Random bits: a Bernoulli ξ takes as many as p has binary digits (one for p = 0.5, two for 0.25), a real number 32.
- A threshold, a rectifier and every step of a maximum is a comparison; a sigmoid or a class of the softmax is an
  exponential, and what normalises the softmax counts too. Whoever samples once or not at all needs no softmax.
- Over several samples, what precedes the first draw is computed once: of the first stochastic layer that is Σ w z.
"""

import argparse
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, linear

from nsm.data.catalogue import find
from nsm.estimators import Deterministic
from nsm.layers import NSMConv2d, NSMLayer
from nsm.networks import NoisyRectifier, StochasticSigmoid, build
from nsm.noise import Bernoulli, Noise
from nsm.paper.showing import RESULTS, write
from nsm.recipes import NOISY, Recipe
from nsm.signs import Binarize, Sign

REAL_BITS = 32  # of a random number that is not a Bernoulli's
_PAIRS: list[tuple[str, str, list[str]]] = [  # data, network, units beside the deterministic twin
    ("mnist", "pi-mnist-mlp", ["bNSM", "gNSM", "StNN", "dCNN"]),
    ("mnist", "mnist-cnn", ["bNSM", "gNSM", "SN", "BN", "BD", "wBD", "dCNN"]),
    ("emnist-letters", "mnist-cnn", ["bNSM", "gNSM", "dCNN"]),
    ("nmnist", "mnist-cnn", ["bNSM", "gNSM", "dCNN"]),
    ("cifar10", "cifar-cnn", ["bNSM", "gNSM", "dCNN"]),
    ("cifar100", "cifar-cnn", ["bNSM", "gNSM", "dCNN"]),
    ("dvsgesture", "dvs-cnn", ["bNSM", "gNSM", "dCNN"]),
]


@dataclass(frozen=True)
class Operations:
    """How many of each kind.

    >>> Operations(additions=3) + 2 * Operations(additions=1, random_bits=5)
    Operations(additions=5, comparisons=0, multiplications=0, exponentials=0, random_bits=10)
    """

    additions: int = 0
    comparisons: int = 0
    multiplications: int = 0
    exponentials: int = 0
    random_bits: int = 0

    def __add__(self, other: "Operations") -> "Operations":
        return Operations(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __rmul__(self, times: int) -> "Operations":
        return Operations(*(times * getattr(self, f.name) for f in fields(self)))


@dataclass(frozen=True)
class Cost:
    """The cost of one module for one input: ``once`` where its input is the same in all samples, ``drawn`` in each."""

    once: Operations = Operations()
    drawn: Operations = Operations()

    @property
    def random(self) -> bool:
        """Whether the module draws anything."""
        return self.drawn.random_bits > 0


def count(network: nn.Module, x: Tensor, num_samples: int = 1) -> Operations:
    """The operations of ``num_samples`` samples of ``network`` for the one input ``x`` (1, …).

    >>> count(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.ones(1, 4))
    Operations(additions=12, comparisons=5, multiplications=0, exponentials=0, random_bits=0)
    """
    shared, repeated, drawing = Operations(), Operations(), False
    seen: list[Cost] = []
    hooks = [
        module.register_forward_hook(lambda m, given, gave: seen.append(_cost(m, given[0], gave)))
        for module in network.modules()
        if not any(True for _ in module.children()) or isinstance(module, nn.Linear | nn.Conv2d)
    ]
    try:
        with torch.no_grad():
            classes = network(x).shape[-1]
    finally:
        for hook in hooks:
            hook.remove()
    for cost in seen:
        if drawing:
            repeated += cost.once + cost.drawn
        else:
            shared, repeated = shared + cost.once, repeated + cost.drawn
        drawing |= cost.random
    if not drawing:
        num_samples = 1  # every further sample is the same
    softmax = Operations(additions=2 * classes - 1, multiplications=classes, exponentials=classes)
    if num_samples > 1:
        repeated += softmax  # its sum, and its share in the average over samples
    return shared + num_samples * repeated + Operations(comparisons=classes - 1)


def _cost(module: nn.Module, given: Tensor, gave: Tensor) -> Cost:
    """What one module is charged for turning ``given`` into ``gave``."""
    units = gave.numel()
    binary = bool((given.abs() == 1).all())
    match module:
        case NSMLayer():
            return _nsm(module, given, units)
        case nn.Linear() | nn.Conv2d():
            terms = _connections(module, given)
            adds = terms if module.bias is not None else terms - units
            return Cost(Operations(additions=adds, multiplications=0 if binary else terms))
        case StochasticSigmoid():
            draw = Operations(comparisons=units, random_bits=REAL_BITS * units)
            return Cost(Operations(exponentials=units), draw)
        case NoisyRectifier():
            return Cost(drawn=Operations(additions=units, comparisons=units, random_bits=REAL_BITS * units))
        case nn.ReLU() | Sign() | Binarize():
            return Cost(Operations(comparisons=units))
        case nn.MaxPool2d():
            return Cost(Operations(comparisons=units * (_window(module) - 1)))
        case nn.AdaptiveAvgPool2d():
            return Cost(Operations(additions=given.numel() - units, multiplications=units))
        case nn.BatchNorm1d() | nn.BatchNorm2d():
            return Cost(Operations(additions=units, multiplications=units))
        case nn.Sigmoid():
            return Cost(Operations(additions=units, multiplications=units, exponentials=units))
        case nn.Flatten() | nn.Identity():
            return Cost()
    if not any(True for _ in module.parameters(recurse=False)) and "parametriz" in type(module).__module__:
        return Cost()  # weight normalisation is done once, before any input comes
    raise TypeError(f"Expected a network of known modules, but got {type(module).__name__}")


def _nsm(layer: NSMLayer, z: Tensor, units: int) -> Cost:
    terms = _connections(layer, z)
    bias = 0 if layer.bias is None else units
    mean = Operations(additions=terms - units + bias, multiplications=units)  # a Σ w z + b
    threshold = Operations(comparisons=units)
    if isinstance(layer.estimator, Deterministic):
        return Cost(mean + threshold)
    draws = z.numel() if layer.site == "neuron" else terms
    noisy = Operations(
        additions=terms,  # the noisy sum, and the other one added to it
        multiplications=0 if isinstance(layer.noise, Bernoulli) else terms,
        random_bits=draws * _bits(layer.noise),
    )
    return Cost(mean, noisy + threshold)


def _bits(noise: Noise) -> int:
    if not isinstance(noise, Bernoulli):
        return REAL_BITS
    numerator, denominator = noise.p.as_integer_ratio()
    return min(denominator.bit_length() - 1, REAL_BITS) if numerator else REAL_BITS


def _connections(layer: nn.Module, z: Tensor) -> int:
    """All inputs of all units together; what lies outside the image is none."""
    ones, weight = torch.ones_like(z, dtype=torch.float64), torch.ones_like(layer.weight, dtype=torch.float64)  # type: ignore[arg-type]
    wiring: Any = layer.wiring if isinstance(layer, NSMConv2d) else layer
    if weight.dim() == 2:
        return int(linear(ones, weight).sum())
    return int(conv2d(ones, weight, None, wiring.stride, wiring.padding, wiring.dilation, wiring.groups).sum())


def _window(pool: nn.MaxPool2d) -> int:
    size: Any = pool.kernel_size
    return size * size if isinstance(size, int) else size[0] * size[1]


# ------------------------------------------------------------------------- the paper's networks


def run(quick: bool = False, seeds: int = 1, num_samples: int = 100, results: Path = RESULTS) -> dict[str, Any]:
    """Count for every network of the paper; nothing is random, so a quick version or more seeds are the same."""
    rows = []
    for data, architecture, units in _PAIRS:
        for unit in units:
            for site in ("neuron", "synapse") if unit in ("bNSM", "gNSM") else ("neuron",):
                rows.append(_row(data, architecture, unit, site, num_samples))
    result = {"about": "operations of one inference", "real_bits": REAL_BITS, "num_samples": num_samples, "rows": rows}
    return write("operations", result, results)


def _row(data: str, architecture: Any, unit: Any, site: Any, num_samples: int) -> dict[str, Any]:
    network = build(Recipe(data=data, network=architecture, unit=unit, site=site)).eval()
    entry = find(data)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(1, *entry.shape, generator=generator)
    x = torch.where(x < 0.5, -1.0, 1.0) if entry.binary else x
    random = unit not in ("BN", "BD", "wBD", "dCNN")
    return {
        "data": data,
        "network": architecture,
        "unit": unit,
        "site": site if unit in NOISY and unit != "BN" else None,
        "one_sample": vars(count(network, x)),
        "all_samples": vars(count(network, x, num_samples)),
        "samples": num_samples if random else 1,
    }


if __name__ == "__main__":
    argparse.ArgumentParser(description=run.__doc__).parse_args()
    print(f"{len(run()['rows'])} networks counted in {RESULTS / 'operations.json'}")
