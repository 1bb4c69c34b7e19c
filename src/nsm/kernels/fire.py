"""The kernels of `nsm.kernels.operations` for units by themselves: Triton, for CUDA."""

# kernels are not Python, though they look like it
# pyright: reportArgumentType=false, reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

import math

import triton
import triton.language as tl
from torch import Tensor

from nsm.kernels.native import ERF, REACH

BLOCK = 512  # elements that share their Philox blocks' bits of one place

# `nsm.functional.erf`
_REACH = tl.constexpr(REACH)
_SCALE = tl.constexpr(2 / REACH**2)
_C0 = tl.constexpr(ERF[0])
_C1 = tl.constexpr(ERF[1])
_C2 = tl.constexpr(ERF[2])
_C3 = tl.constexpr(ERF[3])
_C4 = tl.constexpr(ERF[4])
_C5 = tl.constexpr(ERF[5])
_C6 = tl.constexpr(ERF[6])
_C7 = tl.constexpr(ERF[7])
_C8 = tl.constexpr(ERF[8])
_C9 = tl.constexpr(ERF[9])
_C10 = tl.constexpr(ERF[10])
_SLOPE = tl.constexpr(2 / math.sqrt(math.pi))


@triton.jit
def _erf(t):
    """`functional.erf`, with every product and the sum after it rounded once."""
    t = tl.minimum(tl.maximum(t, -_REACH), _REACH)
    s = tl.fma(t * t, _SCALE, -1.0)
    p = tl.fma(s, _C10, _C9)
    p = tl.fma(p, s, _C8)
    p = tl.fma(p, s, _C7)
    p = tl.fma(p, s, _C6)
    p = tl.fma(p, s, _C5)
    p = tl.fma(p, s, _C4)
    p = tl.fma(p, s, _C3)
    p = tl.fma(p, s, _C2)
    p = tl.fma(p, s, _C1)
    p = tl.fma(p, s, _C0)
    return t * p


@triton.jit
def _sign(u, x):
    """−1 or +1, and NaN where x is."""
    return tl.where(x == x, tl.where(u >= 0, 1.0, -1.0), x)


@triton.jit
def _fire_lane(X, K, C, Z, word, at, i, size, UNITS: tl.constexpr, BLOCK: tl.constexpr):
    if UNITS % BLOCK == 0:  # a block lies within one row
        unit = at % UNITS + i
    elif BLOCK % UNITS == 0:  # every block begins a row
        unit = i % UNITS
    else:
        unit = (at + i) % UNITS
    inside = at + i < size
    x = tl.load(X + at + i, inside, 0).to(tl.float32)
    t = tl.fma(x, tl.load(K + unit), tl.load(C + unit))
    r = (word.to(tl.int32, bitcast=True) >> 16).to(tl.float32)  # the upper 16 bits, with their sign
    tl.store(Z + at + i, _sign(tl.fma(_erf(t), 32768.0, -(r + 0.5)), x).to(Z.dtype.element_ty), inside)


@triton.jit
def _fire(X, K, C, KEY, Z, size, UNITS: tl.constexpr, BLOCK: tl.constexpr):
    """A program takes eight blocks of elements, one for each 16 bits of its Philox blocks: lowest bits first."""
    i = tl.arange(0, BLOCK)
    zero = tl.zeros_like(i)
    a, b, c, d = tl.philox(tl.load(KEY), tl.program_id(0) * BLOCK + i, zero, zero, zero)
    at = tl.program_id(0) * (8 * BLOCK)
    _fire_lane(X, K, C, Z, a << 16, at, i, size, UNITS, BLOCK)
    _fire_lane(X, K, C, Z, a, at + BLOCK, i, size, UNITS, BLOCK)
    _fire_lane(X, K, C, Z, b << 16, at + 2 * BLOCK, i, size, UNITS, BLOCK)
    _fire_lane(X, K, C, Z, b, at + 3 * BLOCK, i, size, UNITS, BLOCK)
    _fire_lane(X, K, C, Z, c << 16, at + 4 * BLOCK, i, size, UNITS, BLOCK)
    _fire_lane(X, K, C, Z, c, at + 5 * BLOCK, i, size, UNITS, BLOCK)
    _fire_lane(X, K, C, Z, d << 16, at + 6 * BLOCK, i, size, UNITS, BLOCK)
    _fire_lane(X, K, C, Z, d, at + 7 * BLOCK, i, size, UNITS, BLOCK)


@triton.jit
def _threshold(X, Y, A, B, Z, size, UNITS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size
    x, y = tl.load(X + i, inside, 0).to(tl.float32), tl.load(Y + i, inside, 0).to(tl.float32)
    u = x * tl.load(A + i % UNITS, inside, 0) + tl.load(B + i % UNITS, inside, 0) + y
    tl.store(Z + i, _sign(u, u).to(Z.dtype.element_ty), inside)


@triton.jit
def _back(G, X, K, C, DX, PARTS, rows, units, each, BM: tl.constexpr, BU: tl.constexpr):
    """A program takes ``each`` rows of BU units, and leaves its share of the sums in PARTS (2, programs, units)."""
    u = tl.program_id(1) * BU + tl.arange(0, BU)
    inside = u < units
    k, c = tl.load(K + u, inside, 0)[None, :], tl.load(C + u, inside, 0)[None, :]
    first = tl.program_id(0) * each
    end = tl.minimum(first + each, rows)
    dk, dc = tl.zeros((BM, BU), tl.float32), tl.zeros((BM, BU), tl.float32)
    for start in range(first, end, BM):
        row = start + tl.arange(0, BM)
        at = row[:, None] * units + u[None, :]
        both = (row < end)[:, None] & inside[None, :]
        x, g = tl.load(X + at, both, 0).to(tl.float32), tl.load(G + at, both, 0).to(tl.float32)
        t = x * k + c
        d = g * (_SLOPE * tl.exp(-t * t))
        tl.store(DX + at, (d * k).to(DX.dtype.element_ty), both)
        dk += tl.where(both, d * x, 0)
        dc += tl.where(both, d, 0)
    at = tl.program_id(0) * units + u
    tl.store(PARTS + at, tl.sum(dk, 0), inside)
    tl.store(PARTS + tl.num_programs(0) * units + at, tl.sum(dc, 0), inside)


@triton.jit
def _blank_lane(Z, OUT, word, p, below, at, size):
    z = tl.load(Z + at, at < size, 0).to(tl.float32)
    kept = (word.to(tl.int32, bitcast=True) >> 24) < below  # the upper 8 bits, with their sign
    tl.store(OUT + at, ((kept.to(tl.float32) - p) * z).to(OUT.dtype.element_ty), at < size)


@triton.jit
def _blank_word(Z, OUT, word, p, below, at, size, BLOCK: tl.constexpr):
    _blank_lane(Z, OUT, word << 24, p, below, at, size)
    _blank_lane(Z, OUT, word << 16, p, below, at + BLOCK, size)
    _blank_lane(Z, OUT, word << 8, p, below, at + 2 * BLOCK, size)
    _blank_lane(Z, OUT, word, p, below, at + 3 * BLOCK, size)


@triton.jit
def _blank(Z, KEY, OUT, p, below, size, BLOCK: tl.constexpr):
    """A program takes sixteen blocks of elements, one for each 8 bits of its Philox blocks: lowest bits first."""
    i = tl.arange(0, BLOCK)
    zero = tl.zeros_like(i)
    a, b, c, d = tl.philox(tl.load(KEY), tl.program_id(0) * BLOCK + i, zero, zero, zero)
    at = tl.program_id(0) * (16 * BLOCK) + i
    _blank_word(Z, OUT, a, p, below, at, size, BLOCK)
    _blank_word(Z, OUT, b, p, below, at + 4 * BLOCK, size, BLOCK)
    _blank_word(Z, OUT, c, p, below, at + 8 * BLOCK, size, BLOCK)
    _blank_word(Z, OUT, d, p, below, at + 12 * BLOCK, size, BLOCK)


def fire(x: Tensor, k: Tensor, c: Tensor, key: Tensor, z: Tensor) -> None:
    """States z, of the type of x, which may have 16 bits."""
    size = x.numel()
    grid = (-(-size // (8 * BLOCK)),)
    _fire[grid](x, k, c, key, z, size, x.shape[1], BLOCK, num_warps=4, enable_fp_fusion=False)


def threshold(x: Tensor, y: Tensor, alpha: Tensor, bias: Tensor, z: Tensor) -> None:
    """States z = sgn(α x + b + y)."""
    size, many = x.numel(), 1024
    grid = (-(-size // many),)
    _threshold[grid](x, y, alpha, bias, z, size, x.shape[1], many, num_warps=4, enable_fp_fusion=False)


def _tiles(rows: int, units: int) -> tuple[int, int, int]:
    """Rows and units of a tile, and the rows of a program: enough programs for a large card, and no more."""
    bu = min(128, 1 << (units - 1).bit_length())
    bm = 1024 // bu
    programs = max(1, min(-(-rows // bm), 1024 * bu // units))
    return bm, bu, -(-rows // programs)


def parts(x: Tensor) -> int:
    """How many parts of dk and dc there are."""
    return -(-x.shape[0] // _tiles(*x.shape)[2])


def fire_back(g: Tensor, x: Tensor, k: Tensor, c: Tensor, dx: Tensor, sums: Tensor) -> None:
    """Gradient dx, and sums for dk and dc."""
    rows, units = x.shape
    bm, bu, each = _tiles(rows, units)
    grid = sums.shape[1], -(-units // bu)
    _back[grid](g, x, k, c, dx, sums, rows, units, each, bm, bu, num_warps=4)


def blank(z: Tensor, p: float, key: Tensor, out: Tensor) -> None:
    """(ξ − p) z, in the order of memory."""
    size = z.numel()
    grid = (-(-size // (16 * BLOCK)),)
    _blank[grid](z, key, out, p, round(256 * p) - 128, size, BLOCK, num_warps=4)
