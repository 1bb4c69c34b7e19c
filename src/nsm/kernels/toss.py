"""From a layer's product, or its 2P − 1, to drawn states behind a pool, in one pass over memory: Triton, for CUDA.

    chances(x, k, c, pool)     2P − 1 of the largest state in every window: erf(k x + c), then `functional.pooled`
    fire(x, k, c, pool, rows)  the same, and a state drawn from it
    draw(e, samples, rows)     states from 2P − 1 that all samples share
    cross(x, y, α, b, pool)    sgn(α x + b + y), the largest in every window, with x that all samples share

Products are (rows, height, width, units). Noise is that of `nsm.philox.Keyed`: eight 16-bit lanes from the counter
(block, input, sample, draw), lane ℓ of block j for the element ℓ·blocks + j of a row. A product and the sum
after it are rounded once where `tl.fma` is written, and twice where it is not.
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from nsm.kernels.fire import _erf, _state, per_program

#: Elements or blocks of eight in a program, at least, and its warps.
CHANCES = 256, 4
FIRE = 128, 2
DRAW = 64, 1
CROSS = 1024, 4


@triton.jit
def _place(at, i, j, WIDTH: tl.constexpr, UNITS: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr):
    """Where the unit in line i and column j of the windows ``at`` lies in its row."""
    output = at // UNITS
    corner = output // (WIDTH // RIGHT) * (DOWN * WIDTH) + output % (WIDTH // RIGHT) * RIGHT
    return at if DOWN * RIGHT == 1 else (corner + i * WIDTH + j) * UNITS + at % UNITS


@triton.jit
def _chance(
    X, K, C, row, at, inside,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, UNITS: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr,
    LOCAL: tl.constexpr,
):  # fmt: skip
    """2P − 1 of the elements ``at`` of one row; k and c depend on the position if LOCAL."""
    off = tl.full(at.shape, 1.0, tl.float32)
    e = off
    for i in tl.static_range(DOWN):
        for j in tl.static_range(RIGHT):
            here = _place(at, i, j, WIDTH, UNITS, DOWN, RIGHT)
            x = tl.load(X + row * (SIZE * UNITS) + here, inside, 0).to(tl.float32)
            parameter = here if LOCAL else at % UNITS
            e = _erf(tl.fma(x, tl.load(K + parameter, inside, 0), tl.load(C + parameter, inside, 0)))
            off = off * tl.fma(e, -0.5, 0.5)
    return e if DOWN * RIGHT == 1 else tl.fma(off, -2.0, 1.0)


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
    X, K, C, word, row, at, inside,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, UNITS: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr,
    LOCAL: tl.constexpr,
):  # fmt: skip
    """States of the elements ``at`` by the upper 16 bits of their words, taken with a sign."""
    e = _chance(X, K, C, row, at, inside, SIZE, WIDTH, UNITS, DOWN, RIGHT, LOCAL)
    r = (word.to(tl.int32, bitcast=True) >> 16).to(tl.float32)
    v = tl.fma(e, 32768.0, -(r + 0.5))
    return _state(v >= 0, v)


@triton.jit(do_not_specialize=["number"])
def _fire(
    X, K, C, Z, KEY, INPUTS, SAMPLES, number, elements, blocks,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, UNITS: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr,
    LOCAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """All is loaded before anything is stored: what comes after a store would wait for it."""
    row = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    in0, in1, in2, in3, in4, in5, in6, in7 = _inside(j, blocks, elements)
    zero = tl.zeros_like(j)
    a, b, c, d = tl.philox(tl.load(KEY), j, zero + tl.load(INPUTS + row), zero + tl.load(SAMPLES + row), zero + number)
    z0 = _fire_lane(X, K, C, a << 16, row, j, in0, SIZE, WIDTH, UNITS, DOWN, RIGHT, LOCAL)
    z1 = _fire_lane(X, K, C, a, row, j + blocks, in1, SIZE, WIDTH, UNITS, DOWN, RIGHT, LOCAL)
    z2 = _fire_lane(X, K, C, b << 16, row, j + 2 * blocks, in2, SIZE, WIDTH, UNITS, DOWN, RIGHT, LOCAL)
    z3 = _fire_lane(X, K, C, b, row, j + 3 * blocks, in3, SIZE, WIDTH, UNITS, DOWN, RIGHT, LOCAL)
    z4 = _fire_lane(X, K, C, c << 16, row, j + 4 * blocks, in4, SIZE, WIDTH, UNITS, DOWN, RIGHT, LOCAL)
    z5 = _fire_lane(X, K, C, c, row, j + 5 * blocks, in5, SIZE, WIDTH, UNITS, DOWN, RIGHT, LOCAL)
    z6 = _fire_lane(X, K, C, d << 16, row, j + 6 * blocks, in6, SIZE, WIDTH, UNITS, DOWN, RIGHT, LOCAL)
    z7 = _fire_lane(X, K, C, d, row, j + 7 * blocks, in7, SIZE, WIDTH, UNITS, DOWN, RIGHT, LOCAL)
    z = Z + row * elements + j
    tl.store(z, z0.to(Z.dtype.element_ty), in0)
    tl.store(z + blocks, z1.to(Z.dtype.element_ty), in1)
    tl.store(z + 2 * blocks, z2.to(Z.dtype.element_ty), in2)
    tl.store(z + 3 * blocks, z3.to(Z.dtype.element_ty), in3)
    tl.store(z + 4 * blocks, z4.to(Z.dtype.element_ty), in4)
    tl.store(z + 5 * blocks, z5.to(Z.dtype.element_ty), in5)
    tl.store(z + 6 * blocks, z6.to(Z.dtype.element_ty), in6)
    tl.store(z + 7 * blocks, z7.to(Z.dtype.element_ty), in7)


@triton.jit
def _inside(j, blocks, elements):
    """Whether the elements j, j + blocks, j + 2 blocks, … of a row exist."""
    in0 = j < blocks
    in1, in2, in3 = in0 & (j + blocks < elements), in0 & (j + 2 * blocks < elements), in0 & (j + 3 * blocks < elements)
    in4, in5 = in0 & (j + 4 * blocks < elements), in0 & (j + 5 * blocks < elements)
    in6, in7 = in0 & (j + 6 * blocks < elements), in0 & (j + 7 * blocks < elements)
    return in0, in1, in2, in3, in4, in5, in6, in7


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
    in0, in1, in2, in3, in4, in5, in6, in7 = _inside(j, blocks, elements)
    zero = tl.zeros_like(j)
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


@triton.jit
def _cross(
    X, Y, A, B, Z, inputs, elements,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, UNITS: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr,
    LOCAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < elements
    X, Y = X + row % inputs * (SIZE * UNITS), Y + row * (SIZE * UNITS)
    most = tl.full(at.shape, float("-inf"), tl.float32)
    for i in tl.static_range(DOWN):
        for j in tl.static_range(RIGHT):
            here = _place(at, i, j, WIDTH, UNITS, DOWN, RIGHT)
            x, y = tl.load(X + here, inside, 0).to(tl.float32), tl.load(Y + here, inside, 0).to(tl.float32)
            parameter = here if LOCAL else at % UNITS
            u = x * tl.load(A + parameter, inside, 0) + tl.load(B + parameter, inside, 0) + y
            most = tl.maximum(most, u, propagate_nan=tl.PropagateNan.ALL)
    tl.store(Z + row * elements + at, _state(most >= 0, most).to(Z.dtype.element_ty), inside)


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
    elements, (least, warps) = e[0].numel(), CHANCES
    many = per_program(elements, least)
    grid = len(x), triton.cdiv(elements, many)
    _chances[grid](x, k, c, e, elements, *geometry, many, num_warps=warps, enable_fp_fusion=False)
    return e


def fire(x: Tensor, k: Tensor, c: Tensor, pool: tuple[int, int], rows: Rows, dtype: torch.dtype) -> Tensor:
    """States behind the pool, (rows, height, width, units), of the given type; NaN where x is."""
    shape, geometry = _geometry(x, k, pool)
    z = torch.empty(shape, device=x.device, dtype=dtype)
    elements, (least, warps) = z[0].numel(), FIRE
    blocks = triton.cdiv(elements, 8)
    many = per_program(blocks, least)
    _fire[len(x), triton.cdiv(blocks, many)](
        x, k, c, z, rows.key, rows.inputs, rows.samples, rows.number, elements, blocks, *geometry, many,
        num_warps=warps, enable_fp_fusion=False,
    )  # fmt: skip
    return z


def draw(e: Tensor, samples: int, rows: Rows, dtype: torch.dtype) -> Tensor:
    """States in several samples, (samples, *e.shape), from 2P − 1 of every input, which is not NaN."""
    z = torch.empty(samples, *e.shape, device=e.device, dtype=dtype)
    elements, (least, warps) = e[0].numel(), DRAW
    blocks = triton.cdiv(elements, 8)
    many = per_program(blocks, least)
    _draw[len(e), triton.cdiv(blocks, many)](
        e, z, rows.key, rows.inputs, rows.samples, rows.number, samples, elements, blocks, many,
        num_warps=warps, enable_fp_fusion=False,
    )  # fmt: skip
    return z


def cross(x: Tensor, y: Tensor, alpha: Tensor, bias: Tensor, pool: tuple[int, int]) -> Tensor:
    """States behind the pool, (samples · inputs, height, width, units), of the type of ``y``; NaN where there is one.

    Args:
        x: the product, (inputs, height, width, units), contiguous.
        y: the fluctuation, (samples · inputs, height, width, units), contiguous.
        alpha: the slope of E[u] in x, float32 with units elements, or with height · width · units.
        bias: the offset, likewise.
        pool: height and width of a window.
    """
    shape, geometry = _geometry(y, alpha, pool)
    z = torch.empty(shape, device=y.device, dtype=y.dtype)
    elements, (least, warps) = z[0].numel(), CROSS
    many = per_program(elements, least)
    grid = len(y), triton.cdiv(elements, many)
    _cross[grid](x, y, alpha, bias, z, len(x), elements, *geometry, many, num_warps=warps, enable_fp_fusion=False)
    return z


def _geometry(x: Tensor, k: Tensor, pool: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int | bool, ...]]:
    """The shape of the result, and what a kernel must know of the product."""
    rows, height, width, units = x.shape
    down, right = pool
    local = k.numel() != units
    return (rows, height // down, width // right, units), (height * width, width, units, down, right, local)
