"""From a layer's product to its drawn states, and back, each in one pass over memory: Triton, for training on CUDA.

A unit with the product x = w·z has the erf argument t = k x + c (`nsm.functional.line`). Here x is (rows, units): a row
for every input and, where k and c do not depend on it, every position.

    fire(x, k, c, key)             sgn(2¹⁵ erf(t) − (r + ½)) with 16 random bits r: `functional.toss`
    threshold(x, y, α, b, k, c)    sgn(α x + b + y) with a fluctuation y that another product has drawn
    blank(z, p, key)               (ξ − p) z with ξ ~ Bernoulli(p), 8 random bits each

Going back, d = g (2/√π) exp(−t²) is computed from x, the only large tensor that is kept; dx = d k, and dk = Σ d x and
dc = Σ d are summed in a fixed order. Random bits are those of Philox for the counters 0, 1, … under a 64-bit key that
the caller draws from torch's generator, so that calls, layers and replays of a graph have streams of their own.
"""

# kernels are not Python, though they look like it
# pyright: reportArgumentType=false, reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 512  # elements that share their Philox blocks' bits of one place

# the coefficients of `functional.erf`
_REACH = tl.constexpr(3.25)
_SCALE = tl.constexpr(2 / 3.25**2)
_C0 = tl.constexpr(0.4346407949924469)
_C1 = tl.constexpr(-0.2144598662853241)
_C2 = tl.constexpr(0.15324345231056213)
_C3 = tl.constexpr(-0.11417563259601593)
_C4 = tl.constexpr(0.08258988708257675)
_C5 = tl.constexpr(-0.056849829852581024)
_C6 = tl.constexpr(0.0344330333173275)
_C7 = tl.constexpr(-0.0168057419359684)
_C8 = tl.constexpr(0.010104565881192684)
_C9 = tl.constexpr(-0.008045508526265621)
_C10 = tl.constexpr(0.0030164355412125587)
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


def new_keys(count: int, device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    """A row for each key: 64 random bits, and as many that are not used but keep the keys aligned."""
    given = {} if generator is None else {"generator": generator}  # told of None, torch would not compile all shapes
    return torch.randint(-(2**63), 2**63 - 1, (count, 2), device=device, **given)


def new_key(device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    """One key."""
    return new_keys(1, device, generator)[0]


def operation(name: str) -> Any:
    """Make a function that launches a kernel one of torch's operations, which compiled code calls as it is."""
    return torch.library.custom_op(f"nsm::{name}", mutates_args=())


@operation("fire")
def fire(x: Tensor, k: Tensor, c: Tensor, key: Tensor) -> Tensor:
    """States (rows, units), of the type of ``x``, +1 with probability ½(1 + erf(k x + c)).

    Args:
        x: (rows, units), contiguous.
        k: (units,), float32.
        c: (units,), float32; ±∞ for a unit that is certain.
        key: int64, of which the first is used.
    """
    z, size = torch.empty_like(x), x.numel()
    grid = (-(-size // (8 * BLOCK)),)
    _fire[grid](x, k, c, key, z, size, x.shape[1], BLOCK, num_warps=4, enable_fp_fusion=False)
    return z


@operation("threshold")
def threshold(x: Tensor, y: Tensor, alpha: Tensor, bias: Tensor, k: Tensor, c: Tensor) -> Tensor:
    """States sgn(α x + b + y), whose gradient is that of erf(k x + c); ``alpha`` and ``bias`` are constants to it."""
    z, many = torch.empty_like(x), 1024
    grid = (-(-x.numel() // many),)
    _threshold[grid](x, y, alpha, bias, z, x.numel(), x.shape[1], many, num_warps=4, enable_fp_fusion=False)
    return z


def tiles(rows: int, units: int) -> tuple[int, int, int]:
    """Rows and units of a tile, and the rows of a program: enough programs for a large card, and no more."""
    bu = min(128, 1 << (units - 1).bit_length())
    bm = 1024 // bu
    programs = max(1, min(-(-rows // bm), 1024 * bu // units))
    return bm, bu, -(-rows // programs)


@operation("fire_back")
def fire_back(g: Tensor, x: Tensor, k: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """dx, and the parts whose sums over axis 1 are dk and dc, (2, parts, units)."""
    rows, units = x.shape
    bm, bu, each = tiles(rows, units)
    dx, parts = torch.empty_like(x), x.new_empty(2, -(-rows // each), units, dtype=torch.float32)
    grid = parts.shape[1], -(-units // bu)
    _back[grid](g.contiguous(), x, k, c, dx, parts, rows, units, each, bm, bu, num_warps=4)
    return dx, parts


@operation("blank")
def blank(z: Tensor, p: float, key: Tensor) -> Tensor:
    """(ξ − p) z with ξ = 1 with probability ``p``, a multiple of 1/256, else 0."""
    out, size = torch.empty_like(z), z.numel()
    if out.stride() != z.stride():  # it has gaps, or elements that are shared
        z = torch.empty_like(out).copy_(z)
    grid = (-(-size // (16 * BLOCK)),)
    _blank[grid](z, key, out, p, round(256 * p) - 128, size, BLOCK, num_warps=4)
    return out


fire.register_fake(lambda x, k, c, key: torch.empty_like(x))
threshold.register_fake(lambda x, y, alpha, bias, k, c: torch.empty_like(x))


@fire_back.register_fake
def _(g: Tensor, x: Tensor, k: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    rows, units = x.shape
    return torch.empty_like(x), x.new_empty(2, -(-rows // tiles(rows, units)[2]), units, dtype=torch.float32)


blank.register_fake(lambda z, p, key: torch.empty_like(z))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], *(inputs[1:3] if len(inputs) == 4 else inputs[4:6]))  # x, k, c


def _fire_backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    dx, parts = fire_back(g.contiguous(), *ctx.saved_tensors)
    return dx, parts[0].sum(0), parts[1].sum(0), None


def _threshold_backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    dx, dk, dc, _ = _fire_backward(ctx, g)
    return dx, None, None, None, dk, dc


fire.register_autograd(_fire_backward, setup_context=_keep)
threshold.register_autograd(_threshold_backward, setup_context=_keep)
