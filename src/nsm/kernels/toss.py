"""From a layer's product, or its 2P − 1, to drawn states behind a pool, in one pass over memory: Triton, for CUDA.

    chances(x, k, c, pool)     2P − 1 of the largest state in every window: erf(k x + c), then `functional.pooled`
    fire(x, k, c, pool, rows)  the same, and a state drawn from it
    draw(e, samples, rows)     states from 2P − 1 that all samples share

Products are (rows, height, width, units). Noise is that of `nsm.philox.Keyed`: eight 16-bit lanes from the counter
(block, input, sample, draw), lane ℓ of block j for the element ℓ·blocks + j of a row. Operations are those of
`nsm.functional`, one by one and never fused, so that results are equal bit for bit.
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from nsm.kernels.fire import _C0, _C1, _C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _REACH, _SCALE

_NAN = tl.constexpr(tl.PropagateNan.ALL)

#: Blocks of eight elements in a program, and its warps.
CHANCES = 256, 4
FIRE = 128, 2
DRAW = 64, 1


@triton.jit
def _erf(t):
    t = tl.minimum(tl.maximum(t, -_REACH, propagate_nan=_NAN), _REACH, propagate_nan=_NAN)
    s = t * t * _SCALE - 1
    p = _C10 * s + _C9
    p = p * s + _C8
    p = p * s + _C7
    p = p * s + _C6
    p = p * s + _C5
    p = p * s + _C4
    p = p * s + _C3
    p = p * s + _C2
    p = p * s + _C1
    p = p * s + _C0
    return t * p


@triton.jit
def _chance(
    X, K, C, row, at, inside,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, UNITS: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr,
    LOCAL: tl.constexpr,
):  # fmt: skip
    """2P − 1 of the elements ``at`` of one row; k and c depend on the position if LOCAL."""
    unit, output = at % UNITS, at // UNITS
    corner = output // (WIDTH // RIGHT) * (DOWN * WIDTH) + output % (WIDTH // RIGHT) * RIGHT
    off = tl.full(at.shape, 1.0, tl.float32)
    e = off
    for i in tl.static_range(DOWN):
        for j in tl.static_range(RIGHT):
            here = (corner + i * WIDTH + j) * UNITS + unit
            x = tl.load(X + row * (SIZE * UNITS) + here, inside, 0).to(tl.float32)
            parameter = here if LOCAL else unit
            e = _erf(x * tl.load(K + parameter, inside, 0) + tl.load(C + parameter, inside, 0))
            off = off * (0.5 - 0.5 * e)
    return e if DOWN * RIGHT == 1 else 1 - 2 * off


@triton.jit
def _chances(
    X, K, C, E, elements,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, UNITS: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr,
    LOCAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    e = _chance(X, K, C, row, at, at < elements, SIZE, WIDTH, UNITS, DOWN, RIGHT, LOCAL)
    tl.store(E + row * elements + at, e, at < elements)


@triton.jit
def _fire_lane(
    X, K, C, Z, word, row, at, inside, elements,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, UNITS: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr,
    LOCAL: tl.constexpr,
):  # fmt: skip
    inside = inside & (at < elements)
    e = _chance(X, K, C, row, at, inside, SIZE, WIDTH, UNITS, DOWN, RIGHT, LOCAL)
    r = (word.to(tl.int32, bitcast=True) >> 16).to(tl.float32)  # the upper 16 bits, with their sign
    state = tl.where(e == e, tl.where(32768 * e - (r + 0.5) >= 0, 1.0, -1.0), e)
    tl.store(Z + row * elements + at, state.to(Z.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["number"])
def _fire(
    X, K, C, Z, KEY, INPUTS, SAMPLES, number, elements, blocks,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, UNITS: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr,
    LOCAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    zero, inside = tl.zeros_like(j), j < blocks
    a, b, c, d = tl.philox(tl.load(KEY), j, zero + tl.load(INPUTS + row), zero + tl.load(SAMPLES + row), zero + number)
    _fire_lane(X, K, C, Z, a << 16, row, j, inside, elements, SIZE, WIDTH, UNITS, DOWN, RIGHT, LOCAL)
    _fire_lane(X, K, C, Z, a, row, j + blocks, inside, elements, SIZE, WIDTH, UNITS, DOWN, RIGHT, LOCAL)
    _fire_lane(X, K, C, Z, b << 16, row, j + 2 * blocks, inside, elements, SIZE, WIDTH, UNITS, DOWN, RIGHT, LOCAL)
    _fire_lane(X, K, C, Z, b, row, j + 3 * blocks, inside, elements, SIZE, WIDTH, UNITS, DOWN, RIGHT, LOCAL)
    _fire_lane(X, K, C, Z, c << 16, row, j + 4 * blocks, inside, elements, SIZE, WIDTH, UNITS, DOWN, RIGHT, LOCAL)
    _fire_lane(X, K, C, Z, c, row, j + 5 * blocks, inside, elements, SIZE, WIDTH, UNITS, DOWN, RIGHT, LOCAL)
    _fire_lane(X, K, C, Z, d << 16, row, j + 6 * blocks, inside, elements, SIZE, WIDTH, UNITS, DOWN, RIGHT, LOCAL)
    _fire_lane(X, K, C, Z, d, row, j + 7 * blocks, inside, elements, SIZE, WIDTH, UNITS, DOWN, RIGHT, LOCAL)


@triton.jit
def _most(E, at, inside):
    """The largest r with r + ½ ≤ 2¹⁵ e, from −32769 to 32767."""
    y = 32768 * tl.load(E + at, inside, 0)
    floor = tl.floor(y)
    return floor.to(tl.int32) - (y - floor < 0.5).to(tl.int32)


@triton.jit
def _draw_lane(Z, word, most, at, inside):
    fires = (word.to(tl.int32, bitcast=True) >> 16) <= most
    tl.store(Z + at, tl.where(fires, 1.0, -1.0).to(Z.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["number", "several"])
def _draw(E, Z, KEY, INPUTS, SAMPLES, number, several, elements, blocks, BLOCK: tl.constexpr):
    """One input in all samples: its thresholds stay in registers."""
    own, inputs = tl.program_id(0).to(tl.int64), tl.num_programs(0).to(tl.int64)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    zero, in0 = tl.zeros_like(j), j < blocks
    in1, in2, in3 = in0 & (j + blocks < elements), in0 & (j + 2 * blocks < elements), in0 & (j + 3 * blocks < elements)
    in4, in5 = in0 & (j + 4 * blocks < elements), in0 & (j + 5 * blocks < elements)
    in6, in7 = in0 & (j + 6 * blocks < elements), in0 & (j + 7 * blocks < elements)
    e = E + own * elements
    most0, most1 = _most(e, j, in0), _most(e, j + blocks, in1)
    most2, most3 = _most(e, j + 2 * blocks, in2), _most(e, j + 3 * blocks, in3)
    most4, most5 = _most(e, j + 4 * blocks, in4), _most(e, j + 5 * blocks, in5)
    most6, most7 = _most(e, j + 6 * blocks, in6), _most(e, j + 7 * blocks, in7)
    for s in range(several):
        row = s * inputs + own
        a, b, c, d = tl.philox(
            tl.load(KEY), j, zero + tl.load(INPUTS + row), zero + tl.load(SAMPLES + row), zero + number
        )
        z = Z + row * elements
        _draw_lane(z, a << 16, most0, j, in0)
        _draw_lane(z, a, most1, j + blocks, in1)
        _draw_lane(z, b << 16, most2, j + 2 * blocks, in2)
        _draw_lane(z, b, most3, j + 3 * blocks, in3)
        _draw_lane(z, c << 16, most4, j + 4 * blocks, in4)
        _draw_lane(z, c, most5, j + 5 * blocks, in5)
        _draw_lane(z, d << 16, most6, j + 6 * blocks, in6)
        _draw_lane(z, d, most7, j + 7 * blocks, in7)


# ------------------------------------------------------------------------- for tensors


@dataclass(frozen=True)
class Rows:
    """The counters of the noise of every row: ``inputs`` and ``samples``, int32 (rows,), the draw's number, and a key.

    The key is one int64 on the device.
    """

    inputs: Tensor
    samples: Tensor
    key: Tensor
    number: int


def chances(x: Tensor, k: Tensor, c: Tensor, pool: tuple[int, int]) -> Tensor:
    """2P − 1 behind the pool, (rows, height, width, units) in float32.

    Args:
        x: the product, (rows, height, width, units), contiguous.
        k: the slope of t in it, float32 with units elements, or with height · width · units.
        c: the offset, likewise; ±∞ for a unit that is certain.
        pool: height and width of a window.
    """
    shape, geometry = _geometry(x, k, pool)
    e = torch.empty(shape, device=x.device, dtype=torch.float32)
    elements, (many, warps) = e[0].numel(), CHANCES
    grid = len(x), triton.cdiv(elements, many)
    _chances[grid](x, k, c, e, elements, *geometry, many, num_warps=warps, enable_fp_fusion=False)
    return e


def fire(x: Tensor, k: Tensor, c: Tensor, pool: tuple[int, int], rows: Rows, dtype: torch.dtype) -> Tensor:
    """States behind the pool, (rows, height, width, units), of the given type; NaN where x is."""
    shape, geometry = _geometry(x, k, pool)
    z = torch.empty(shape, device=x.device, dtype=dtype)
    elements, (many, warps) = z[0].numel(), FIRE
    blocks = triton.cdiv(elements, 8)
    _fire[len(x), triton.cdiv(blocks, many)](
        x, k, c, z, rows.key, rows.inputs, rows.samples, rows.number, elements, blocks, *geometry, many,
        num_warps=warps, enable_fp_fusion=False,
    )  # fmt: skip
    return z


def draw(e: Tensor, samples: int, rows: Rows, dtype: torch.dtype) -> Tensor:
    """States in several samples, (samples, *e.shape), from 2P − 1 of every input, which is not NaN."""
    z = torch.empty(samples, *e.shape, device=e.device, dtype=dtype)
    elements, (many, warps) = e[0].numel(), DRAW
    blocks = triton.cdiv(elements, 8)
    _draw[len(e), triton.cdiv(blocks, many)](
        e, z, rows.key, rows.inputs, rows.samples, rows.number, samples, elements, blocks, many,
        num_warps=warps, enable_fp_fusion=False,
    )  # fmt: skip
    return z


def _geometry(x: Tensor, k: Tensor, pool: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int | bool, ...]]:
    """The shape of the result, and what a kernel must know of the product."""
    rows, height, width, units = x.shape
    down, right = pool
    local = k.numel() != units
    return (rows, height // down, width // right, units), (height * width, width, units, down, right, local)
