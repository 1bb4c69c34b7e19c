"""Stages that follow each other on the CPU, with states as bits: `nsm.kernels.bits`."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from nsm import functional, philox
from nsm.kernels import bits
from nsm.layers import NSMConv2d, NSMLinear
from nsm.stages import DIGITS, Stage
from nsm.wiring import Convolution


class Chain:
    """Stages that follow each other from the first draw on, on the CPU, with states as bits.

    Weights have one 16-bit digit in bfloat16 and two in float32; products are exact.
    """

    def __init__(self, stages: Sequence[Stage], lib: Any, first: bits.First, above: Sequence[bits.Layer]) -> None:
        self.stages, self.lib, self.first, self.above = stages, lib, first, above

    def share(self, z: Tensor) -> tuple[Tensor, torch.dtype]:
        """The product of the first layer."""
        return self.stages[0].product(z).float(), functional.product_dtype(z)

    def rows(self, shared: tuple[Tensor, torch.dtype]) -> int:
        """How many rows are best drawn in one pass."""
        return 8192

    def take(self, shared: tuple[Tensor, torch.dtype], some: Tensor) -> tuple[int, Any, torch.dtype]:
        """How many inputs there are, and the thresholds of their units."""
        product, dtype = shared
        width, tiles = _layout(len(some))
        slots = torch.arange(tiles * bits.SLOTS)
        slots = some[torch.where(slots < width, slots % len(some), 0)].view(tiles, bits.SLOTS)
        return len(some), self.first.thresholds(self.lib, product, slots), dtype

    def draw(self, shared: tuple[int, Any, torch.dtype], samples: int) -> Tensor:
        """States of the last stage in ``samples`` samples, (samples · inputs, ...)."""
        inputs, thresholds, dtype = shared
        source = philox.source
        if source is None:
            raise RuntimeError("Expected states as bits to be drawn from keyed noise, but got none")
        rows = _slots(source, inputs, samples)
        states = self.first.draw(self.lib, thresholds, rows, source.next())
        for layer in self.above:
            states = layer(self.lib, states, rows, source.next())
        out = bits.unpack(self.lib, states, rows, inputs * samples, dtype)
        if isinstance(self.stages[-1].layer, NSMLinear):
            return out
        height, width = (self.above[-1] if self.above else self.first).geometry.pooled
        return out.unflatten(1, (height, width, -1)).movedim(-1, 1)


def _layout(inputs: int) -> tuple[int, int]:
    """How many rows stand side by side, whole samples of all inputs, and how many tiles of slots they take."""
    width = max(1, bits.SLOTS // inputs) * inputs
    return width, -(-width // bits.SLOTS)


def _slots(source: philox.Keyed, inputs: int, samples: int) -> bits.Rows:
    """Rows of (sample, input) in slots: ``_layout`` of them at a time."""
    width, tiles = _layout(inputs)
    slot = torch.arange(tiles * bits.SLOTS)
    row = torch.arange(-(-inputs * samples // width))[:, None] * width + slot
    row = torch.where((slot < width) & (row < inputs * samples), row, -1).view(-1, bits.SLOTS)
    of_inputs, of_samples = (v.to(torch.int32)[row.clamp(min=0)] for v in (source.inputs, source.samples))
    return bits.Rows(row, of_inputs, of_samples, source.key)


def chain(steps: Sequence[Any], z: Tensor) -> tuple[Chain, int] | None:
    """The longest chain of stages at the beginning of ``steps``, and its length; None where there is no kernel.

    Nor is there one for inputs or parameters that are not finite: a bit cannot be NaN.
    """
    dtype = functional.product_dtype(z)
    stages = list(_leading_stages(steps))
    if z.device.type != "cpu" or dtype not in DIGITS or not stages:
        return None
    lib = bits.library()
    values = [z, *(v for stage in stages for v in (stage.layer.weight, stage.layer.bias, stage.layer.beta))]
    if lib is None or not all(v is None or v.isfinite().all() for v in values):
        return None
    first = _first(stages[0], z)
    if first is None:
        return None
    above: list[bits.Layer] = []
    for under, stage in itertools.pairwise(stages):
        layer = _above(stage, under, above[-1] if above else first, DIGITS[dtype])
        if layer is None:
            break
        above.append(layer)
    used = stages[: 1 + len(above)]
    return Chain(used, lib, first, above), len(used)


def _leading_stages(steps: Iterable[Any]) -> Iterator[Stage]:
    for step in steps:
        if not isinstance(step, Stage):
            return
        yield step


def _first(stage: Stage, z: Tensor) -> bits.First | None:
    """The first stage; a dense layer must have one row for each input."""
    k, c = stage.line(z)
    units = len(stage.layer.weight)
    if isinstance(stage.layer, NSMConv2d):
        if z.dim() != 4:
            return None
        size = stage.layer.wiring.output_size(z.shape[-2:], stage.layer.kernel_size)
        geometry = bits.Geometry(*size, pool=stage.pool)
    elif z.dim() == 2 or stage.flatten:
        geometry = bits.Geometry()
    else:
        return None
    k, c = (v.expand(units) if v.dim() == 0 else v.movedim(-1, 0) for v in (k, c))
    return bits.First(geometry, k, c)


def _above(stage: Stage, under: Stage, below: bits.First | bits.Layer, digits: int) -> bits.Layer | None:
    """A stage that reads the states of ``below``; None if it is of a kind that the kernel does not know."""
    weight, wiring, flat = stage.layer.weight.detach(), stage.layer.wiring, isinstance(under.layer, NSMLinear)
    if stage.layer.inputs != "binary" or not bits.fits(math.prod(weight.shape[1:])):
        return None
    height, width = below.geometry.pooled
    z = weight.new_empty((1, below.units) if flat else (1, below.units, height, width))
    if isinstance(wiring, Convolution):
        if wiring.groups != 1 or flat:
            return None
        kernel = int(weight.shape[2]), int(weight.shape[3])
        margins = wiring.margins(kernel)
        geometry = bits.Geometry(height, width, kernel, wiring.stride, wiring.dilation, margins, stage.pool)
    elif flat or stage.flatten:
        geometry = bits.Geometry()
        weight = (weight if flat else weight.unflatten(1, z.shape[1:]).movedim(1, -1).flatten(1))[..., None, None]
    else:
        return None
    k, c = stage.line(z)
    q, step = bits.digits(weight, digits)
    slope = torch.stack([k * s for s in step.to(k.dtype)])
    return bits.Layer(geometry, q, slope.movedim(-1, 1), c.movedim(-1, 0))
