"""Layers of threshold units on the CPU, with states as single bits: C, compiled at first use, called by ctypes.

The rows of a batch stand side by side, 32 to a group, and a group's states are one 32-bit word for every element. A
product of weights with −1s and +1s then needs no multiplication: five states are a number from 0 to 31, which selects
one of 32 sums of ±q from a table, for 32 rows in one instruction of AVX-512. Weights are integers q, one 16-bit *digit*
or two, w = Σ_d q_d step_d, so that products are exact, whatever their order (see docs/decisions/0004). The rest, from
the product to the drawn states, is `nsm.functional`, operation by operation.

Blank-out at neurons needs the products of w with z and with ξ z = (z + z')/2, where z' = (2ξ − 1) z: states again, of
which those that are blanked out are turned round. So u = α w·z + b + w·((ξ − p) z) = (α − p + ½) w·z + ½ w·z' + b.
"""

import math
from ctypes import POINTER, Structure, byref, c_int, c_int32, c_int64, c_uint32, c_void_p
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from nsm.kernels import native

SLOTS = 32  # rows in a group
_FIVE, _CHUNK, _UNITS = 5, 20, 4  # states to a table, tables to a 16-bit sum, units at a time: as in bits.c
_LARGEST = 2**15 - 1
_TOGETHER = 16  # groups that share the tables of a dense layer while these are in the cache


# ------------------------------------------------------------------------- the library


def library() -> Any:
    """The compiled code; None where there is no compiler or no AVX-512."""
    found = native.library("bits", "avx512f", "avx512bw", "avx512dq", "bmi2")
    if found is None:
        return None
    found.nsm_draw.restype = found.nsm_unpack.restype = None
    found.nsm_first.argtypes = [POINTER(_Law), c_void_p, c_void_p, c_int64, c_void_p, c_void_p, c_int]
    found.nsm_draw.argtypes = [POINTER(_Noise), c_void_p, c_void_p, c_int64, c_int64, c_void_p]
    found.nsm_layer.argtypes = [POINTER(_Layer), POINTER(_Noise), c_void_p, c_int64, c_void_p]
    found.nsm_unpack.argtypes = [c_void_p, c_int64, c_int64, c_void_p, c_int, c_void_p, c_int]
    return found


class _Noise(Structure):
    _fields_ = [
        ("key", c_uint32 * 2), ("number", c_uint32), ("threads", c_int32), ("groups", c_int64),
        ("inputs", c_void_p), ("samples", c_void_p),
    ]  # fmt: skip


class _Law(Structure):
    _fields_ = [
        ("units", c_int64), ("outputs", c_int64), ("window", c_int64), ("positions", c_int64), ("places", c_int64),
        ("at", c_void_p), ("slope", c_void_p), ("offset", c_void_p),
    ]  # fmt: skip


class _Layer(Structure):
    _fields_ = [
        ("law", _Law), ("below", c_int64), ("channels", c_int64), ("height", c_int64), ("width", c_int64),
        ("top", c_int64), ("left", c_int64), ("rows", c_int64), ("columns", c_int64), ("steps", c_int64),
        ("digits", c_int64), ("together", c_int64), ("bytes", c_int64), ("bound", c_int64), ("wide", c_void_p),
        ("taps", c_void_p), ("tables", c_void_p), ("outside", c_void_p),
    ]  # fmt: skip


# ------------------------------------------------------------------------- weights in digits


def digits(weight: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Integers q and steps with w ≈ Σ_d q_d step_d, (count, units, C, kh, kw) and (count, units), both in float64.

    A step is a power of two, as small as the 16-bit sums allow, so that weights of few bits are what they are, and
    sums of them that are 0 are: with blank-out these have a chance of their own. With one digit the product's error is
    about 10⁻³ ‖w‖ √(fan-in)/28 at most, less than that of bfloat16 weights; a second digit divides it by 512.
    """
    wide = weight.double()
    steps = _in_steps(wide)  # (units, steps, 5)
    chunks = F.pad(steps.abs().sum(-1), (0, -steps.shape[1] % _CHUNK)).unflatten(1, (-1, _CHUNK)).sum(-1)
    room = _LARGEST - _FIVE * _CHUNK / 2  # each weight may be rounded up by a half
    step = (chunks.amax(1) / room).clamp(min=torch.finfo(torch.float32).tiny)
    step = step / step.frexp().mantissa
    found, sizes = [], []
    for _ in range(count):
        q = (wide / step[:, None, None, None]).round()
        wide = wide - q * step[:, None, None, None]
        found.append(q)
        sizes.append(step)
        step = step / 512  # what is left is at most half a step for each weight: 256 of these, of which 100 are a sum
    return torch.stack(found), torch.stack(sizes)


def fits(weight: Tensor) -> bool:
    """Whether the sums of units with these weights, (units, C, kh, kw) or (units, C), are exact in float32."""
    steps = -(-weight.shape[1] // _FIVE) * math.prod(weight.shape[2:])
    return -(-steps // _CHUNK) * 2 * _LARGEST < 2**24


def _in_steps(weight: Tensor) -> Tensor:
    """(units, C, kh, kw) → (units, kh·kw·⌈C/5⌉, 5): the order in which states are looked up."""
    units, channels = weight.shape[:2]
    taps = F.pad(weight.permute(0, 2, 3, 1), (0, -channels % _FIVE))
    return taps.reshape(units, -1, _FIVE)


def _tables(q: Tensor) -> Tensor:
    """(digits, units, C, kh, kw) → (digits, units/4, steps, 4, 32), int16: Σ ±q for every pattern of five bits."""
    signs = (torch.arange(32)[None] >> torch.arange(_FIVE)[:, None] & 1).double() * 2 - 1  # (5, 32)
    sums = torch.stack([_in_steps(digit.double()) for digit in q]) @ signs  # exact: autocast leaves float64 alone
    sums = F.pad(sums.to(torch.int16), (0, 0, 0, 0, 0, -q.shape[1] % _UNITS))
    return sums.unflatten(1, (-1, _UNITS)).transpose(2, 3).contiguous()


# ------------------------------------------------------------------------- layers


@dataclass(frozen=True)
class Geometry:
    """How units see a picture (height, width), and how they are pooled; a dense layer sees one pixel."""

    height: int = 1
    width: int = 1
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    margins: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))  # zeros before and after, for each axis
    pool: tuple[int, int] = (1, 1)

    @property
    def size(self) -> tuple[int, int]:
        """Of the layer's output, before the pool."""
        (top, bottom), (left, right) = self.margins
        reach_h, reach_w = (d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel, strict=True))
        return (
            (self.height + top + bottom - reach_h) // self.stride[0] + 1,
            (self.width + left + right - reach_w) // self.stride[1] + 1,
        )

    @property
    def pooled(self) -> tuple[int, int]:
        """Of the output behind the pool."""
        return self.size[0] // self.pool[0], self.size[1] // self.pool[1]

    def windows(self) -> tuple[Tensor, Tensor]:
        """(outputs, window) row and column of the positions that are pooled."""
        (height, width), (ph, pw) = self.pooled, self.pool
        y = (torch.arange(height) * ph)[:, None, None, None] + torch.arange(ph)[None, None, :, None]
        x = (torch.arange(width) * pw)[None, :, None, None] + torch.arange(pw)[None, None, None, :]
        y, x = torch.broadcast_tensors(y, x)
        return y.reshape(-1, ph * pw), x.reshape(-1, ph * pw)


@dataclass(frozen=True)
class Wide:
    """Which of so many states stands where in a picture (height, width, channels), in which one may stand twice."""

    below: int
    at: Tensor


def widened(geometry: Geometry, weight: Tensor) -> tuple[Geometry, Tensor, Wide] | None:
    """The same units on a wider picture, in which all that a row of the kernel reads are the channels of one pixel.

    None where that does not save a sixth of the steps of five, or where a row may reach beyond the picture.
    """
    channels, (high, across) = weight.shape[1], geometry.kernel
    steps, fewer = -(-channels // _FIVE) * across, -(-channels * across // _FIVE)
    if 6 * fewer > 5 * steps or geometry.margins[1] != (0, 0):
        return None
    x = torch.arange(geometry.size[1])[:, None] * geometry.stride[1] + torch.arange(across) * geometry.dilation[1]
    pixels = torch.arange(geometry.height)[:, None, None] * geometry.width + x  # (height, W', kw)
    states = pixels[..., None] * channels + torch.arange(channels)
    stride, dilation = (geometry.stride[0], 1), (geometry.dilation[0], 1)
    wide = replace(geometry, width=len(x), kernel=(high, 1), stride=stride, dilation=dilation)
    source = Wide(geometry.height * geometry.width * channels, states.flatten().to(torch.int32))
    return wide, weight.movedim(-1, 1).flatten(1, 2)[..., None], source


@dataclass(frozen=True)
class Rows:
    """Which row of a batch stands in which slot, and the counters of its noise.

    ``row`` (groups, 32) is −1 in a slot that is left over; ``inputs`` and ``samples`` are int32 of the same shape.
    """

    row: Tensor
    inputs: Tensor
    samples: Tensor
    key: tuple[int, int]

    def noise(self, number: int) -> _Noise:
        """The counters of draw ``number``."""
        return _Noise(
            (c_uint32 * 2)(*self.key), number, torch.get_num_threads(), len(self.row),
            self.inputs.data_ptr(), self.samples.data_ptr(),
        )  # fmt: skip


class _Pooled:
    """What both kinds of layers have: t = slope · product + offset, and a pool."""

    def __init__(self, geometry: Geometry, slope: Tensor, offset: Tensor, at: Tensor) -> None:
        """Slope (digits, units, …) and offset (units, …) are alike for all positions or have (H', W') behind."""
        y, x = geometry.windows()
        self.geometry, self.units, self.outputs = geometry, slope.shape[1], len(y)
        one = slope.dim() == 2 or slope.shape[2:] == (1, 1)
        if not one:
            slope, offset = (
                v[..., y, x].flatten(-2).transpose(-1, -2) for v in (slope, offset.expand(slope.shape[1:]))
            )
        self.slope, self.offset = (v.reshape(-1).float().contiguous() for v in (slope, offset))
        self.at = at.to(torch.int32).contiguous()
        self.law = _Law(
            self.units, self.outputs, y.shape[1], 0 if y.numel() == 0 else geometry.size[0] * geometry.size[1],
            1 if one else y.numel(), self.at.data_ptr(), self.slope.data_ptr(), self.offset.data_ptr(),
        )  # fmt: skip
        self.elements = self.outputs * self.units


class First(_Pooled):
    """The first layer: its product is the same in all samples, so that its thresholds are found once."""

    def __init__(self, geometry: Geometry, slope: Tensor, offset: Tensor) -> None:
        y, x = geometry.windows()
        super().__init__(geometry, slope[None], offset, y * geometry.size[1] + x)

    def thresholds(self, lib: Any, product: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """From the product (inputs, H', W', units), for tiles of 32 inputs: slots (tiles, 32) says which."""
        product, slots = product.float().contiguous(), slots.contiguous()
        thresholds = torch.empty(len(slots), self.elements, SLOTS, dtype=torch.int16)
        can = torch.empty(len(slots), self.elements, dtype=torch.int32)
        _check(lib.nsm_first(
            byref(self.law), product.data_ptr(), slots.data_ptr(), len(slots), thresholds.data_ptr(), can.data_ptr(),
            torch.get_num_threads(),
        ))  # fmt: skip
        return thresholds, can

    def draw(self, lib: Any, thresholds: tuple[Tensor, Tensor], rows: Rows, number: int) -> Tensor:
        """States (groups, elements) as words; the groups use the tiles in turn."""
        most, can = thresholds
        bits = torch.empty(len(rows.row), self.elements, dtype=torch.int32)
        noise = rows.noise(number)
        lib.nsm_draw(byref(noise), most.data_ptr(), can.data_ptr(), len(can), self.elements, bits.data_ptr())
        return bits


class Layer(_Pooled):
    """A layer that reads states: q (digits, units, C, kh, kw) from `digits`, and slopes of t in each digit's product.

    With ``blank``, the ``bound`` of `nsm.Bernoulli` for noise at neurons, slopes are those of u in the products of each
    digit with z, and then of each with z'. ``wide`` says where states stand in a picture that was `widened`.
    """

    def __init__(
        self,
        geometry: Geometry,
        q: Tensor,
        slope: Tensor,
        offset: Tensor,
        blank: tuple[torch.dtype, int] | None = None,
        wide: Wide | None = None,
    ) -> None:
        (top, bottom), (left, right) = geometry.margins
        rows, columns, channels = geometry.height + top + bottom, geometry.width + left + right, q.shape[2]
        fives = -(-channels // _FIVE)
        y, x = geometry.windows()
        at = (y * geometry.stride[0] * columns + x * geometry.stride[1]) * fives
        super().__init__(geometry, slope, offset, at)
        down, right_by = (torch.arange(k) * d for k, d in zip(geometry.kernel, geometry.dilation, strict=True))
        pixels = (down[:, None] * columns + right_by).reshape(-1, 1) * fives
        self.taps = (pixels + torch.arange(fives)).flatten().to(torch.int32)
        self.tables = _tables(q)
        self.wide, self.outside = wide, self._outside(geometry, q, y, x)
        below = wide.below if wide else channels * geometry.height * geometry.width
        self.layer = _Layer(
            self.law, below, channels, geometry.height, geometry.width, top, left, rows, columns, len(self.taps),
            len(q), _TOGETHER if rows * columns == 1 else 1, *((blank[0].itemsize, blank[1]) if blank else (0, 0)),
            None if wide is None else wide.at.data_ptr(), self.taps.data_ptr(), self.tables.data_ptr(),
            None if self.outside is None else self.outside.data_ptr(),
        )  # fmt: skip

    @staticmethod
    def _outside(geometry: Geometry, q: Tensor, y: Tensor, x: Tensor) -> Tensor | None:
        """What the taps outside the picture, which are read as −1, have taken away: (digits, places, units)."""
        if geometry.margins == ((0, 0), (0, 0)):
            return None
        (top, bottom), (left, right) = geometry.margins
        one = F.pad(q.new_ones(1, q.shape[2], geometry.height, geometry.width), (left, right, top, bottom))
        inside = [F.conv2d(one, digit, None, geometry.stride, 0, geometry.dilation)[0] for digit in q]
        missing = q.sum((2, 3, 4))[..., None, None] - torch.stack(inside)  # (digits, units, H', W')
        return missing[..., y, x].flatten(-2).transpose(-1, -2).to(torch.int32).contiguous()

    def __call__(self, lib: Any, below: Tensor, rows: Rows, number: int) -> Tensor:
        """States (groups, elements) as words, from those of the layer below, which the groups use in turn."""
        bits = torch.empty(len(rows.row), self.elements, dtype=torch.int32)
        noise = rows.noise(number)
        _check(lib.nsm_layer(byref(self.layer), byref(noise), below.data_ptr(), len(below), bits.data_ptr()))
        return bits


def pack(states: Tensor, slots: Tensor) -> Tensor:
    """States −1 and +1 (rows, elements) as words (tiles, elements); slots (tiles, 32) says which row stands where."""
    words = torch.zeros(len(slots), states.shape[1], dtype=torch.int64)
    for slot, row in enumerate(slots.unbind(1)):
        words |= (states[row] > 0).long() << slot
    return words.to(torch.int32)  # the lower half of each


def unpack(lib: Any, bits: Tensor, rows: Rows, batch: int, dtype: torch.dtype) -> Tensor:
    """The states as numbers, (batch, elements), in float32 or bfloat16."""
    out = torch.empty(batch, bits.shape[1], dtype=dtype)
    lib.nsm_unpack(
        bits.data_ptr(), *bits.shape, rows.row.data_ptr(), dtype.itemsize, out.data_ptr(), torch.get_num_threads()
    )
    return out


def _check(failed: int) -> None:
    if failed:
        raise MemoryError("no memory for the states of a layer")
