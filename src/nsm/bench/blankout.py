"""The work of drawing every ξ: exact synaptic blank-out as a kernel, against the masked product."""

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from nsm.bench import checks
from nsm.bench.graphs import Graphed
from nsm.bench.probes import integer_rate
from nsm.bench.timing import Contender, Race, race
from nsm.kernels.operations import new_key

IN, OUT, BATCH, P = 1024, 512, 1000, 0.5

#: Philox-4x32-10 in 32-bit instructions: ten rounds of two products of two words each (high and low), four xors and two
#: sums of keys.
PHILOX_OPERATIONS = 10 * (4 + 4 + 2)


class Absent(Exception):
    """There is nothing to measure here."""


def kernel(p: float) -> tuple[Callable[[Tensor, Tensor], Tensor], float]:
    """The kernel, with a new key for every call, and how many ξ it cuts from a block; `Absent` where there is none."""
    try:
        blankout = import_module("nsm.kernels.blankout")
    except ImportError as error:
        raise Absent(f"there is no kernel: {error}") from None
    return lambda z, weight: blankout.blankout_linear(z, weight, p, new_key(z.device)), 128 / blankout.digits(p)[1]


def masked_product(z: Tensor, weight: Tensor, p: float) -> Tensor:
    """Σ_j ξ_ij w_ij z_j with every ξ_ij of every input drawn, in memory: (batch, out, in) of them."""
    xi = torch.rand(len(z), *weight.shape, device=z.device) < p
    return torch.einsum("bi,boi->bo", z, xi * weight)


def masked_sum(z: Tensor, weight: Tensor, p: float) -> Tensor:
    """The same as a sum of terms, which a compiler can draw and add without memory."""
    xi = torch.rand(len(z), *weight.shape, device=z.device) < p
    return (xi * weight * z[:, None]).sum(-1)


def sums(device: str, p: float, sizes: tuple[int, int, int] = (IN, OUT, BATCH)) -> tuple[Tensor, ...]:
    """Inputs and weights, and the mean and variance of their sums."""
    inputs, outputs, batch = sizes
    random = torch.Generator().manual_seed(0)
    z = (2 * torch.randint(2, (batch, inputs), generator=random) - 1).float().to(device)
    weight = torch.randn(outputs, inputs, generator=random).to(device) / inputs**0.5
    return z, weight, p * z @ weight.T, (p * (1 - p) * weight.square().sum(1)).expand(batch, outputs)


def blankout_race(device: str, rounds: int, sizes: tuple[int, int, int] = (IN, OUT, BATCH)) -> tuple[Race, dict]:
    """The kernel, the masked product, the same sum compiled, and the kernel's share of the integer limit.

    Checked: mean and variance of the sums are the law's.
    """
    run, xi_per_block = kernel(P)
    torch._dynamo.reset()
    z, weight, mean, variance = sums(device, P, sizes)
    compiled: Any = torch.compile(masked_sum)

    def contender(name: str, draw: Callable[[], Tensor]) -> Contender:
        graphed = Graphed(draw, device == "cuda")
        return Contender(name, graphed, lambda: checks.same_moments(graphed(), mean, variance, name))

    found = race(
        {
            "kernel": [contender("kernel", lambda: run(z, weight))],
            "masked product": [contender("masked product, eager", lambda: masked_product(z, weight, P))],
            "compiled": [contender("masked sum, compiled", lambda: compiled(z, weight, P))],
        },
        rounds,
        calls=3,
    )
    drawn = math.prod(sizes) / found.best["kernel"][1].seconds
    operations = PHILOX_OPERATIONS / xi_per_block + 2  # and a test of a bit, and a selection
    limit = integer_rate(device)
    return found, {
        "xi_per_second": drawn,
        "operations_per_xi": operations,
        "integer_limit_per_second": limit,
        "share_of_integer_limit": drawn * operations / limit,
    }
