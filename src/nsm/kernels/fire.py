"""The kernels of `nsm.kernels.operations` for units by themselves: Triton, for CUDA."""

# kernels are not Python, though they look like it
# pyright: reportArgumentType=false, reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

import math

import triton
import triton.language as tl
from torch import Tensor

from nsm.kernels.native import ERF, REACH

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
_NAN = tl.constexpr(tl.PropagateNan.ALL)

MEMBERS = True  # several networks' tensors, along a first axis, are one launch
PROGRAMS = 2**16 - 1  # along any axis but the first


@triton.jit
def _erf(t):
    """`functional.erf`, with every product and the sum after it rounded once; NaN stays."""
    t = tl.minimum(tl.maximum(t, -_REACH, propagate_nan=_NAN), _REACH, propagate_nan=_NAN)
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
def _state(fires, u):
    """−1 or +1, and NaN where u is."""
    return tl.where(u == u, tl.where(fires, 1.0, -1.0), u)


@triton.jit
def _sixteen(KEY, counter, piece):
    """16 random bits, with their sign: the piece with this number of a Philox block, the lowest bits first."""
    zero = tl.zeros_like(counter)
    a, b, c, d = tl.philox(tl.load(KEY), counter, zero, zero, zero)
    word = tl.where(piece < 4, tl.where(piece < 2, a, b), tl.where(piece < 6, c, d))
    return (tl.where(piece % 2 == 0, word << 16, word).to(tl.int32, bitcast=True) >> 16).to(tl.float32)


@triton.jit
def _fire(X, K, C, KEY, Z, rows, apart, UNITS: tl.constexpr, BG: tl.constexpr):
    """A program takes BG groups of eight units of a row; a group has one Philox block."""
    EACH: tl.constexpr = (UNITS + 7) // 8  # groups of a row
    member = tl.program_id(1).to(tl.int64)
    X, Z, K, C = X + member * rows * UNITS, Z + member * rows * UNITS, K + member * UNITS, C + member * UNITS
    group, piece = tl.program_id(0) * BG + tl.arange(0, BG)[:, None], tl.arange(0, 8)[None, :]
    u = group % EACH * 8 + piece
    at, inside = group // EACH * UNITS + u, (group < rows * EACH) & (u < UNITS)
    x = tl.load(X + at, inside, 0).to(tl.float32)
    t = tl.fma(x, tl.load(K + u, inside, 0), tl.load(C + u, inside, 0))
    v = tl.fma(_erf(t), 32768.0, -(_sixteen(KEY + member * apart, group, piece) + 0.5))
    tl.store(Z + at, _state(v >= 0, v).to(Z.dtype.element_ty), inside)


@triton.jit
def _back(G, X, K, C, DX, PARTS, rows, units, each, BM: tl.constexpr, BU: tl.constexpr):
    """A program takes ``each`` rows of BU units, and leaves its share of the sums in PARTS (2, programs, units)."""
    member = tl.program_id(2).to(tl.int64)
    X, G, DX = X + member * rows * units, G + member * rows * units, DX + member * rows * units
    K, C, PARTS = K + member * units, C + member * units, PARTS + 2 * member * tl.num_programs(1) * units
    u = tl.program_id(0) * BU + tl.arange(0, BU)[None, :]
    inside = u < units
    k, c = tl.load(K + u, inside, 0), tl.load(C + u, inside, 0)
    row = tl.program_id(1) * each + tl.arange(0, BM)[:, None]
    end = tl.minimum(tl.program_id(1) * each + each, rows)
    at, both = row * units + u, (row < end) & inside
    x, g = tl.load(X + at, both, 0), tl.load(G + at, both, 0)
    dk, dc = tl.zeros((BM, BU), tl.float32), tl.zeros((BM, BU), tl.float32)
    for _ in range(0, each, BM):
        x_now, g_now, at_now, both_now = x.to(tl.float32), g.to(tl.float32), at, both
        row += BM
        at, both = row * units + u, (row < end) & inside
        x, g = tl.load(X + at, both, 0), tl.load(G + at, both, 0)  # the next ones: they would wait for the store
        t = x_now * k + c
        d = g_now * (_SLOPE * tl.exp(-t * t))
        tl.store(DX + at_now, (d * k).to(DX.dtype.element_ty), both_now)
        dk += tl.where(both_now, d * x_now, 0)
        dc += tl.where(both_now, d, 0)
    to = PARTS + tl.program_id(1) * units + u
    tl.store(to, tl.sum(dk, 0)[None, :], inside)
    tl.store(to + tl.num_programs(1) * units, tl.sum(dc, 0)[None, :], inside)


@triton.jit
def _blank(Z, KEY, OUT, kept, lost, below, size, apart, BG: tl.constexpr):
    """A program takes BG groups of sixteen elements; a group has one Philox block, an element one byte of it."""
    group, piece = tl.program_id(0) * BG + tl.arange(0, BG)[:, None], tl.arange(0, 16)[None, :]
    at, zero, member = 16 * group + piece, tl.zeros_like(group), tl.program_id(1).to(tl.int64)
    Z, OUT = Z + member * size, OUT + member * size
    z = tl.load(Z + at, at < size, 0).to(tl.float32)
    a, b, c, d = tl.philox(tl.load(KEY + member * apart), group, zero, zero, zero)
    word = tl.where(piece < 8, tl.where(piece < 4, a, b), tl.where(piece < 12, c, d))
    r = (word << (24 - 8 * (piece % 4))).to(tl.int32, bitcast=True)  # its byte comes first; ``below`` has no other
    factor = tl.where(r < below, kept, lost)
    tl.store(OUT + at, (factor * z).to(OUT.dtype.element_ty), at < size)


def per_program(size: int, least: int) -> int:
    """How many of ``size`` a program takes, ``least`` or more: along its second axis a card has 65,535 programs."""
    return max(least, triton.next_power_of_2(triton.cdiv(size, PROGRAMS)))


def _members(last: Tensor) -> int:
    """How many networks there are side by side, in tensors with an axis in front."""
    return len(last) if last.dim() == 2 else 1


def fire(x: Tensor, k: Tensor, c: Tensor, key: Tensor, z: Tensor) -> None:
    """States z, of the type of x, which may have 16 bits."""
    (rows, units), groups = x.shape[-2:], 64
    grid = -(-rows * -(-units // 8) // groups), _members(key)
    _fire[grid](x, k, c, key, z, rows, key.stride(0), units, groups, num_warps=2, enable_fp_fusion=False)


def _tiles(rows: int, units: int) -> tuple[int, int, int]:
    """Rows and units of a tile, and the rows of a program: enough programs for a large card, each with enough to do."""
    bm, bu = 8, 32
    some, many = min(-(-rows // bm), 1024 * bu // units), min(-(-rows // 100), 4096 * bu // units, PROGRAMS)
    return bm, bu, -(-rows // max(1, some, many))


def parts(x: Tensor) -> int:
    """How many parts of dk and dc there are."""
    rows, units = x.shape[-2:]
    return -(-rows // _tiles(rows, units)[2])


def fire_back(g: Tensor, x: Tensor, k: Tensor, c: Tensor, dx: Tensor, sums: Tensor) -> None:
    """Gradient dx, and sums for dk and dc."""
    rows, units = x.shape[-2:]
    bm, bu, each = _tiles(rows, units)
    grid = -(-units // bu), sums.shape[-2], _members(c)
    _back[grid](g, x, k, c, dx, sums, rows, units, each, bm, bu, num_warps=1)


def blank(z: Tensor, p: float, key: Tensor, out: Tensor) -> None:
    """(ξ − p) z, in the order of memory."""
    members, groups, below = _members(key), 128, (round(256 * p) - 128) * 2**24
    size = z.numel() // members
    grid = -(-size // (16 * groups)), members
    _blank[grid](z, key, out, 1 - p, -p, below, size, key.stride(0), groups, num_warps=4)
