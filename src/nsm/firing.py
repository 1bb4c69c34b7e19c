"""`functional.sample` by the kernels of `nsm.kernels`: the same law and gradient, in fewer passes over memory.

Of a layer with ±1 inputs t is a line in the product, k (w·z) + c. So what follows the product, from t to the drawn
state and back, is one operation each way (`nsm.kernels.operations`), with the 2×2 max-pool after it where there is one.
"""

import math
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Generator, Tensor

from nsm import functional, philox
from nsm.estimators import Estimator, Probability, sgn
from nsm.functional import Draw, Inputs, Site
from nsm.kernels import fire_cpu, operations
from nsm.noise import Bernoulli, Noise, transformed
from nsm.wiring import Convolution, Dense, Wiring

TRITON = find_spec("triton") is not None
_FEW = {"cpu": 2**17, "cuda": 2**20}  # numbers: to call a kernel costs more than to compare them
REACH = 2**31 - 2**24  # of the kernels' indices, which have 32 bits and go on for a little behind the end


def can(
    z: Tensor,
    weight: Tensor,
    *,
    noise: Noise,
    site: Site,
    draw: Draw,
    inputs: Inputs,
    wiring: Wiring,
    estimator: Estimator,
    vmapped: bool = False,
) -> bool:
    """Whether kernels have the law of a layer: t a line in the product, the noise not keyed by who draws it.

    And whether they reach to the end of its product. Of several networks under vmap each by itself is meant: where they
    are one launch, the way from one to the next has 64 bits.
    """
    drawn = functional.resolve_draw(site, draw, fan_in=math.prod(weight.shape[1:]))
    return (
        kernels_take(z, vmapped)
        and z.dim() >= weight.dim() - 1  # else the layer has something to say
        and _outputs(z, weight, wiring) <= REACH
        and inputs == "binary"
        and estimator == Probability()
        and (site == "neuron" or drawn == "moments" or _blanks(z, weight, noise, wiring))
        and philox.source is None
    )


def _outputs(z: Tensor, weight: Tensor, wiring: Wiring) -> int:
    """How many numbers `Wiring.product` has."""
    if isinstance(wiring, Dense):
        return math.prod(z.shape[:-1]) * len(weight)
    return math.prod(z.shape[:-3]) * len(weight) * math.prod(wiring.output_size(z.shape[-2:], weight.shape[-2:]))


def _blanks(z: Tensor, weight: Tensor, noise: Noise, wiring: Wiring) -> bool:
    """Whether there is a kernel that blanks out every synapse, with room to fill up the fan-in of inputs and units."""
    if not (isinstance(wiring, Dense) and type(noise) is Bernoulli and _triton_takes(z)):
        return False
    return (weight.shape[1] + 256) * max(math.prod(z.shape[:-1]), len(weight)) <= REACH


def sample(
    z: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    beta: Tensor,
    *,
    noise: Noise,
    site: Site,
    draw: Draw,
    wiring: Wiring,
    generator: Generator | None = None,
    key: Tensor | None = None,
    pooled: bool = False,
    vmapped: bool = False,
) -> Tensor:
    """The states of a layer, or the largest ones in windows of 2×2.

    Arguments are those of `functional.sample`, and: ``key``, 64 random bits of which the kernels' noise is made, drawn
    if None; ``pooled``, whether there is a pool, whose windows then fill the output, and z has four axes; ``vmapped``,
    as in `can`.
    """
    key = operations.new_key(z.device, generator) if key is None else key
    k, c = functional.line(z, weight, bias, beta, noise=noise, wiring=wiring)
    mean = partial(mean_line, k.shape, bias, beta, noise=noise, wiring=wiring)
    k, c = k.flatten(), c.flatten()
    draw = functional.resolve_draw(site, draw, fan_in=math.prod(weight.shape[1:]))
    if pooled and isinstance(wiring, Convolution) and len(k) == len(weight) and _c_sees(wiring, z, weight):
        z, weight = (v.contiguous(memory_format=torch.channels_last) for v in (z, weight))
        if draw == "moments":
            states = operations.fire_pictures(z, weight, k, c, key)[0]
        else:
            noisy = _noisy(z.detach(), noise, generator, key)
            states = operations.threshold_pictures(z, noisy, weight, *mean(), k, c)[0]
        height, width = wiring.output_size(z.shape[2:], weight.shape[2:])
        return wiring.units_back(states.view(len(z), height // 2, width // 2, len(weight)))
    x = wiring.units_last(product(z, weight, wiring)).contiguous()  # (..., units)
    rows, size = (x.flatten(0, -2), x.shape[1:3]) if pooled else (x.reshape(-1, len(k)), ())
    if draw == "moments":
        states = operations.fire_pool(rows, k, c, key, *size)[0] if pooled else operations.fire(rows, k, c, key)
    else:
        y = _fluctuation(z.detach(), x.detach(), weight.detach(), noise, site, wiring, generator, key)
        parts = rows, y.contiguous().view(rows.shape), *mean(), k, c
        if pooled:
            states = operations.threshold_pool(*parts, *size)[0]
        elif (vmapped and x.is_cuda) or x.numel() < _FEW[x.device.type]:
            states = thresholded(*parts)
        else:
            states = _Threshold.apply(*parts) if x.is_cuda else operations.threshold(*parts)
    shape = (len(x), x.shape[1] // 2, x.shape[2] // 2, x.shape[3]) if pooled else x.shape
    return wiring.units_back(states.view(shape))


def mean_line(
    units: torch.Size, bias: Tensor | None, beta: Tensor, *, noise: Noise, wiring: Wiring
) -> tuple[Tensor, Tensor]:
    """Slope α = √2 s β and offset b of E[u] in the product, flat, one for every number of a line of this shape."""
    slope = math.sqrt(2 * noise.variance) * beta.detach()
    b = torch.zeros_like(slope) if bias is None else bias.detach()
    slope, b = (wiring.units_last(wiring.per_unit(v)).float().expand(units).flatten() for v in (slope, b))
    return slope, b


def thresholded(x: Tensor, y: Tensor, alpha: Tensor, bias: Tensor, k: Tensor, c: Tensor) -> Tensor:
    """`operations.threshold` as torch has it: states sgn(α x + b + y), and the gradient of erf t."""
    return Probability()(k * x + c, lambda: alpha * x.detach() + bias + y).to(x.dtype)


class _Threshold(torch.autograd.Function):
    """`operations.threshold` on CUDA: forward in one pass if it is compiled, and back by the kernel of `fire`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, alpha: Tensor, bias: Tensor, k: Tensor, c: Tensor) -> Tensor:
        """sgn(α x + b + y)."""
        ctx.save_for_backward(x, k, c)
        states = sgn(alpha * x + bias + y)
        return states if states.dtype == x.dtype else states.to(x.dtype)  # torch 2.11 has no way back from an idle cast

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Of erf(k x + c)."""
        dx, dk, dc = operations.erf_back(g, *ctx.saved_tensors)
        return dx, None, None, None, dk, dc


def product(z: Tensor, weight: Tensor, wiring: Wiring) -> Tensor:
    """`Wiring.product` with the units last in memory; on CUDA that of small patches is a matrix product."""
    if not isinstance(wiring, Convolution):
        return wiring.product(z, weight)
    if z.is_cuda and not z.requires_grad and wiring.is_plain(z) and math.prod(weight.shape[1:]) <= 32:
        return wiring.product_of_patches(z, weight)
    return wiring.product(z, weight if z.is_cuda else weight.contiguous(memory_format=torch.channels_last))


def _fluctuation(
    z: Tensor,
    x: Tensor,
    weight: Tensor,
    noise: Noise,
    site: Site,
    wiring: Wiring,
    generator: Generator | None,
    key: Tensor,
) -> Tensor:
    """`functional.fluctuation` of exact draws, (..., units); ``x`` is w·z."""
    if site == "synapse" and type(noise) is Bernoulli:
        from nsm.kernels import blankout  # here, since importing Triton takes a while

        kept = blankout.blankout_linear(z.reshape(-1, z.shape[-1]), weight, noise.p, key)
        return kept.view(x.shape) - noise.p * x
    return wiring.units_last(product(_noisy(z, noise, generator, key), weight, wiring))


def _noisy(z: Tensor, noise: Noise, generator: Generator | None, key: Tensor) -> Tensor:
    """(ξ − m) z with a ξ for every input."""
    if type(noise) is Bernoulli and (256 * noise.p).is_integer():
        return operations.blank(z, noise.p, key)
    xi = noise.sample(z.shape, generator=generator, device=z.device, dtype=torch.float32)
    return ((xi - noise.mean) * z).to(z.dtype)


def kernels_take(z: Tensor, vmapped: bool = False) -> bool:
    """Whether there are kernels for a tensor, within the reach of their indices; exports know none.

    Nor do transforms but vmap, of which the caller must know.
    """
    exporting = torch.compiler._is_exporting_flag  # is_exporting() is true of all compilation before torch 2.13
    if exporting or (not vmapped and transformed()) or not isinstance(z, Tensor):  # but what torch.fx traces with
        return False
    return 0 < z.numel() <= REACH and (_triton_takes(z) or _c_takes(z))


def _triton_takes(z: Tensor) -> bool:
    """On CUDA, in at most 32 bits."""
    return TRITON and z.is_cuda and z.dtype != torch.float64


def _c_takes(z: Tensor) -> bool:
    """On the CPU, in 32 bits, where C can be compiled."""
    return z.device.type == "cpu" and functional.product_dtype(z) == torch.float32 and fire_cpu.ready()


def _c_sees(wiring: Convolution, z: Tensor, weight: Tensor) -> bool:
    """Whether the kernels in C know how units see pictures, for a pooled layer's way back."""
    return _c_takes(z) and wiring.is_plain(z) and operations.fill_vectors(weight, z.requires_grad)
