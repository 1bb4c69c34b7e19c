"""Stages that follow each other on the CPU, with states as bits: `nsm.kernels.bits`."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nsm import functional, philox
from nsm.kernels import bits
from nsm.layers import NSMConv2d, NSMLinear
from nsm.noise import Bernoulli
from nsm.stages import DIGITS, Crossed, Stage
from nsm.wiring import Convolution

Step = Stage | Crossed

_ROWS = 8192  # inputs × samples in one pass: by then a table is looked into often enough
_NUMBERS = 2**24  # of last states in a pass, which come out as numbers
_LARGEST = 1e9  # what is smaller has products of an input, a weight and β that float32 can hold


class Chain:
    """Stages that follow each other from the first draw on, on the CPU, with states as bits.

    Weights have one 16-bit digit in bfloat16 and two in float32; products are exact. What all samples have in common is
    the product of the first stage where units draw by themselves, with noise at neurons the inputs.
    """

    def __init__(self, stages: Sequence[Step], lib: Any, first: bits.First | None, above: Sequence[bits.Layer]) -> None:
        self.stages, self.lib, self.first, self.above = stages, lib, first, above
        last = [layer for layer in (first, *above) if layer][-1]
        self.pictures, self.elements = last.geometry.pooled, last.elements

    def share(self, z: Tensor) -> tuple[Tensor, torch.dtype]:
        """The product of the first layer, or the inputs with their channels last."""
        dtype = functional.product_dtype(z)
        if self.first is None:
            return (z.movedim(1, -1) if z.dim() == 4 else z).flatten(1), dtype
        return self.stages[0].product(z).float(), dtype

    def rows(self, shared: tuple[Tensor, torch.dtype]) -> int:
        """How many rows are best drawn in one pass: as many as keep tables in use, if their last states fit."""
        return max(1, min(_ROWS, _NUMBERS // max(1, self.elements)))

    def take(self, shared: tuple[Tensor, torch.dtype], some: Tensor) -> tuple[int, Any, torch.dtype]:
        """How many inputs there are, and the thresholds of their units, or their states."""
        common, dtype = shared
        width, tiles = _layout(len(some))
        slots = torch.arange(tiles * bits.SLOTS)
        slots = some[torch.where(slots < width, slots % len(some), 0)].view(tiles, bits.SLOTS)
        of_tiles = bits.pack(common, slots) if self.first is None else self.first.thresholds(self.lib, common, slots)
        return len(some), of_tiles, dtype

    def draw(self, shared: tuple[int, Any, torch.dtype], samples: int) -> Tensor:
        """States of the last stage in ``samples`` samples, (samples · inputs, ...)."""
        inputs, states, dtype = shared
        source = philox.source
        if source is None:
            raise RuntimeError("Expected states as bits to be drawn from keyed noise, but got none")
        rows = _slots(source, inputs, samples)
        if self.first is not None:
            states = self.first.draw(self.lib, states, rows, source.next())
        for layer in self.above:
            states = layer(self.lib, states, rows, source.next())
        out = bits.unpack(self.lib, states, rows, inputs * samples, dtype)
        if isinstance(self.stages[-1].layer, NSMLinear):
            return out
        return out.unflatten(1, (*self.pictures, -1)).movedim(-1, 1)


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

    Nor is there one for inputs or parameters that are not finite, or so large that products may not be: a bit cannot be
    NaN.
    """
    dtype = functional.product_dtype(z)
    stages = list(itertools.takewhile(lambda step: isinstance(step, Stage | Crossed), steps))
    if z.device.type != "cpu" or dtype not in DIGITS or not stages:
        return None
    lib = bits.library()
    values = [z, *(v for stage in stages for v in (stage.layer.weight, stage.layer.bias, stage.layer.beta))]
    if lib is None or not all(v is None or (v.abs() < _LARGEST).all() for v in values):
        return None
    first, above, shape = None, list[bits.Layer](), z.shape[1:]
    if isinstance(stages[0], Stage):
        if (first := _first(stages[0], z)) is None:
            return None
        shape = _shape(stages[0], first)
    elif not (z.abs() == 1).all():  # what is promised of states is not checked of what users give
        return None
    for stage in stages[1:] if first else stages:
        if (layer := _above(stage, z.new_empty((1, *shape)), DIGITS[dtype])) is None:
            break
        above.append(layer)
        shape = _shape(stage, layer)
    used = stages[: len(above) + (first is not None)]
    return (Chain(used, lib, first, above), len(used)) if used else None


def _shape(stage: Step, made: bits.First | bits.Layer) -> tuple[int, ...]:
    """The shape of its states, as modules have it."""
    return (made.units,) if isinstance(stage.layer, NSMLinear) else (made.units, *made.geometry.pooled)


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
    return bits.First(geometry, k, c) if min(geometry.pooled) > 0 else None


def _above(stage: Step, z: Tensor, digits: int) -> bits.Layer | None:
    """A stage that reads states like z, (1, C) or (1, C, H, W); None if it is of a kind without a kernel."""
    layer, wiring, weight, shape = stage.layer, stage.layer.wiring, stage.layer.weight.detach(), z.shape[1:]
    picture, blank = len(shape) == 3, layer.noise if type(layer.noise) is Bernoulli else None
    if isinstance(wiring, Convolution):
        known = picture and wiring.groups == 1
    else:
        known = len(shape) == 1 or (picture and stage.flatten)
    exact = layer.inputs == "binary" and bits.fits(weight)
    if not (known and exact) or (isinstance(stage, Crossed) and blank is None):
        return None
    k, c = stage.line(z)  # also for what it says of states that do not fit
    geometry, wide = bits.Geometry(), None
    if isinstance(wiring, Convolution):
        kernel = int(weight.shape[2]), int(weight.shape[3])
        margins = wiring.margins(kernel)
        geometry = bits.Geometry(shape[1], shape[2], kernel, wiring.stride, wiring.dilation, margins, stage.pool)
        if min(geometry.pooled) < 1:
            return None
        if found := bits.widened(geometry, weight):
            geometry, weight, wide = found
    else:
        weight = (weight.unflatten(1, shape).movedim(1, -1).flatten(1) if picture else weight)[..., None, None]
    q, step = bits.digits(weight, digits)
    if isinstance(stage, Stage) or blank is None:
        slope = torch.stack([k * s for s in step.to(k.dtype)])
        return bits.Layer(geometry, q, slope.movedim(-1, 1), c.movedim(-1, 0), None, wide)
    alpha, b = stage.mean
    slope = torch.stack([(alpha + 0.5 - blank.p) * s for s in step] + [(0.5 * s).expand_as(alpha) for s in step])
    return bits.Layer(geometry, q, slope.movedim(-1, 1), b.movedim(-1, 0), blank.bound, wide)
