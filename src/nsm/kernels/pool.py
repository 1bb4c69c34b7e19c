"""The kernels of `nsm.kernels.operations` for the largest state in windows of 2×2: Triton, for CUDA."""

# kernels are not Python, though they look like it
# pyright: reportArgumentType=false, reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl
from torch import Tensor

from nsm.kernels.fire import _SLOPE, _erf, _sixteen, _state

CHANNELS = 32  # of a tile, and
WINDOWS = 8


@triton.jit
def _inner(place, W: tl.constexpr, CH: tl.constexpr):
    """Where the first unit of a window lies in its image, but for its channel."""
    return (place // (W // 2) * (2 * W) + place % (W // 2) * 2) * CH


@triton.jit
def _corner(window, H: tl.constexpr, W: tl.constexpr, CH: tl.constexpr):
    """The same in x."""
    P: tl.constexpr = (H // 2) * (W // 2)
    return window // P * (H * W * CH) + _inner(window % P, W, CH)


@triton.jit
def _load(X, at, inside, W: tl.constexpr, CH: tl.constexpr):
    """The four units of windows whose first unit is at ``at``."""
    x0, x1 = tl.load(X + at, inside, 0), tl.load(X + at + CH, inside, 0)
    x2, x3 = tl.load(X + at + W * CH, inside, 0), tl.load(X + at + (W + 1) * CH, inside, 0)
    return x0.to(tl.float32), x1.to(tl.float32), x2.to(tl.float32), x3.to(tl.float32)


@triton.jit
def _lines(K, at, inside, W: tl.constexpr, CH: tl.constexpr, PLACES: tl.constexpr):
    """A number for each of the four units, or the same for all."""
    if PLACES:
        return _load(K, at, inside, W, CH)
    k = tl.load(K + at, inside, 0)
    return k, k, k, k


@triton.jit
def _miss(x, k, c):
    """1 − P."""
    return tl.fma(_erf(tl.fma(x, k, c)), -0.5, 0.5)


@triton.jit
def _fire_pool(X, K, C, KEY, Z, WON, rows, H: tl.constexpr, W: tl.constexpr, CH: tl.constexpr,
               PLACES: tl.constexpr, BW: tl.constexpr, BG: tl.constexpr):  # fmt: skip
    """A program takes BW windows of BG groups of eight channels; a group in a window has one Philox block.

    With a line for every position these are the windows of one place in BW images: a row is an image, else a window.
    """
    P: tl.constexpr = (H // 2) * (W // 2) if PLACES else 1
    row = tl.program_id(0) // P * BW + tl.arange(0, BW)[:, None, None]
    window = row * P + tl.program_id(0) % P
    group, piece = tl.program_id(1) * BG + tl.arange(0, BG)[None, :, None], tl.arange(0, 8)[None, None, :]
    channel = 8 * group + piece
    here = channel < CH
    inside = (row < rows) & here
    at = _corner(window, H, W, CH) + channel
    inner = _inner(tl.program_id(0) % P, W, CH) + channel + tl.zeros_like(row)  # in the shape of x: no exchange
    x0, x1, x2, x3 = _load(X, at, inside, W, CH)
    k0, k1, k2, k3 = _lines(K, inner, here, W, CH, PLACES)
    c0, c1, c2, c3 = _lines(C, inner, here, W, CH, PLACES)
    v = (_sixteen(KEY, window * ((CH + 7) // 8) + group, piece) + 32768.5) * (1 / 65536)
    none = _miss(x0, k0, c0)  # the probability that no unit so far fires
    won = (none >= v).to(tl.int32)
    none *= _miss(x1, k1, c1)
    won += (none >= v).to(tl.int32)
    none *= _miss(x2, k2, c2)
    won += (none >= v).to(tl.int32)
    none *= _miss(x3, k3, c3)
    fires = none < v
    to = window * CH + channel
    tl.store(Z + to, _state(fires, none).to(Z.dtype.element_ty), inside)
    tl.store(WON + to, tl.where(fires, won, 0).to(tl.uint8), inside)


@triton.jit
def _threshold_pool(X, Y, A, B, Z, WON, rows, H: tl.constexpr, W: tl.constexpr, CH: tl.constexpr,
                    PLACES: tl.constexpr, BW: tl.constexpr, BC: tl.constexpr):  # fmt: skip
    """A program takes BW windows, as in `_fire_pool`, and BC channels."""
    P: tl.constexpr = (H // 2) * (W // 2) if PLACES else 1
    row = tl.program_id(0) // P * BW + tl.arange(0, BW)[:, None]
    window = row * P + tl.program_id(0) % P
    channel = tl.program_id(1) * BC + tl.arange(0, BC)[None, :]
    here = channel < CH
    inside = (row < rows) & here
    at, inner = _corner(window, H, W, CH) + channel, _inner(tl.program_id(0) % P, W, CH) + channel
    x0, x1, x2, x3 = _load(X, at, inside, W, CH)
    y0, y1, y2, y3 = _load(Y, at, inside, W, CH)
    a0, a1, a2, a3 = _lines(A, inner, here, W, CH, PLACES)
    b0, b1, b2, b3 = _lines(B, inner, here, W, CH, PLACES)
    u0, u1, u2, u3 = x0 * a0 + b0 + y0, x1 * a1 + b1 + y1, x2 * a2 + b2 + y2, x3 * a3 + b3 + y3
    fires = (u0 >= 0) | (u1 >= 0) | (u2 >= 0) | (u3 >= 0)
    won = tl.where(u0 >= 0, 0, tl.where(u1 >= 0, 1, tl.where(u2 >= 0, 2, 3)))
    state = _state(fires, u0 + u1 + u2 + u3)
    tl.store(Z + window * CH + channel, state.to(Z.dtype.element_ty), inside)
    tl.store(WON + window * CH + channel, tl.where(fires, won, 0).to(tl.uint8), inside)


@triton.jit
def _pick(won, a, b, c, d):
    """That of the unit which won."""
    return tl.where(won < 2, tl.where(won == 0, a, b), tl.where(won == 2, c, d))


@triton.jit
def _zeros(BM: tl.constexpr, BC: tl.constexpr):
    zero = tl.zeros((BM, BC), tl.float32)
    return zero, zero, zero, zero


@triton.jit
def _back_pool(G, WON, X, K, C, DX, PARTS, rows, each, H: tl.constexpr, W: tl.constexpr, CH: tl.constexpr,
               PLACES: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr):  # fmt: skip
    """A program takes ``each`` rows of BC channels, and leaves its sums in PARTS.

    A row is a window, and PARTS (2, 1, programs, channels); or, with a line for every position, a row is an image, and
    PARTS (2, 4, programs, windows of an image · channels).
    """
    BLOCKS: tl.constexpr = (CH + BC - 1) // BC
    P: tl.constexpr = (H // 2) * (W // 2) if PLACES else 1
    place = tl.program_id(0) // BLOCKS  # the window in its image
    channel = (tl.program_id(0) % BLOCKS) * BC + tl.arange(0, BC)[None, :]
    here = channel < CH
    inner = _inner(place, W, CH) + channel
    k0, k1, k2, k3 = _lines(K, inner, here, W, CH, PLACES)
    c0, c1, c2, c3 = _lines(C, inner, here, W, CH, PLACES)
    first = tl.program_id(1) * each
    end = tl.minimum(first + each, rows)
    dk0, dk1, dk2, dk3 = _zeros(BM, BC)
    dc0, dc1, dc2, dc3 = _zeros(BM, BC)
    for start in range(first, end, BM):
        row = start + tl.arange(0, BM)[:, None]
        both = (row < end) & here
        window = row * P + place
        at = _corner(window, H, W, CH)
        x0, x1, x2, x3 = _load(X, at + channel, both, W, CH)
        g, won = (
            tl.load(G + window * CH + channel, both, 0).to(tl.float32),
            tl.load(WON + window * CH + channel, both, 0),
        )
        x = _pick(won, x0, x1, x2, x3)
        k, c = k0, c0
        if PLACES:
            k, c = _pick(won, k0, k1, k2, k3), _pick(won, c0, c1, c2, c3)
        t = x * k + c
        d = tl.where(both, g * (_SLOPE * tl.exp(-t * t)), 0)
        dx = (d * k).to(DX.dtype.element_ty)
        to = DX + at + channel
        tl.store(to, tl.where(won == 0, dx, 0), both)
        tl.store(to + CH, tl.where(won == 1, dx, 0), both)
        tl.store(to + W * CH, tl.where(won == 2, dx, 0), both)
        tl.store(to + (W + 1) * CH, tl.where(won == 3, dx, 0), both)
        if PLACES:
            dk0, dc0 = dk0 + tl.where(won == 0, d * x, 0), dc0 + tl.where(won == 0, d, 0)
            dk1, dc1 = dk1 + tl.where(won == 1, d * x, 0), dc1 + tl.where(won == 1, d, 0)
            dk2, dc2 = dk2 + tl.where(won == 2, d * x, 0), dc2 + tl.where(won == 2, d, 0)
            dk3, dc3 = dk3 + tl.where(won == 3, d * x, 0), dc3 + tl.where(won == 3, d, 0)
        else:
            dk0, dc0 = dk0 + d * x, dc0 + d
    to = PARTS + tl.program_id(1) * P * CH + place * CH + channel
    step = tl.num_programs(1) * P * CH
    KINDS: tl.constexpr = 4 if PLACES else 1
    tl.store(to, tl.sum(dk0, 0)[None, :], here)
    tl.store(to + KINDS * step, tl.sum(dc0, 0)[None, :], here)
    if PLACES:
        tl.store(to + step, tl.sum(dk1, 0)[None, :], here)
        tl.store(to + 2 * step, tl.sum(dk2, 0)[None, :], here)
        tl.store(to + 3 * step, tl.sum(dk3, 0)[None, :], here)
        tl.store(to + 5 * step, tl.sum(dc1, 0)[None, :], here)
        tl.store(to + 6 * step, tl.sum(dc2, 0)[None, :], here)
        tl.store(to + 7 * step, tl.sum(dc3, 0)[None, :], here)


def fire_pool(x: Tensor, k: Tensor, c: Tensor, key: Tensor, z: Tensor, won: Tensor, height: int, width: int) -> None:
    """States z of the windows, of the type of x, which may have 16 bits; and who won."""
    grid, shape = _cut(x, k, height, width)
    _fire_pool[grid](x, k, c, key, z, won, *shape, CHANNELS // 8, num_warps=1, enable_fp_fusion=False)


def threshold_pool(
    x: Tensor, y: Tensor, alpha: Tensor, bias: Tensor, z: Tensor, won: Tensor, height: int, width: int
) -> None:
    """The same with a fluctuation y."""
    grid, shape = _cut(x, alpha, height, width)
    _threshold_pool[grid](x, y, alpha, bias, z, won, *shape, CHANNELS, num_warps=2, enable_fp_fusion=False)


def _cut(x: Tensor, k: Tensor, height: int, width: int) -> tuple[tuple[int, int], tuple[int, ...]]:
    """The programs going forward, and what they are told of shapes."""
    channels, places = x.shape[1], len(k) > x.shape[1]
    windows = (height // 2) * (width // 2) if places else 1  # that have lines of their own
    rows = len(x) // 4 // windows
    grid = -(-rows // WINDOWS) * windows, -(-channels // CHANNELS)
    return grid, (rows, height, width, channels, places, WINDOWS)


def _split(x: Tensor, k: Tensor) -> tuple[int, int]:
    """Rows of the windows that share their units, and the rows of one program of `_back_pool`."""
    units = len(k) if len(k) == x.shape[1] else len(k) // 4
    rows = x.numel() // 4 // units
    programs = max(1, min(-(-rows // WINDOWS), 1024 * CHANNELS // units))
    return rows, -(-rows // programs)


def pool_parts(x: Tensor, k: Tensor) -> tuple[int, int]:
    """For how many units of a window there are sums, and how many parts of each."""
    rows, each = _split(x, k)
    return (1 if len(k) == x.shape[1] else 4), -(-rows // each)


def pool_back(
    g: Tensor, won: Tensor, x: Tensor, k: Tensor, c: Tensor, dx: Tensor, sums: Tensor, height: int, width: int
) -> None:
    """Gradient dx, and sums for dk and dc."""
    channels, units = x.shape[1], sums.shape[3]
    rows, each = _split(x, k)
    grid = (units // channels) * -(-channels // CHANNELS), sums.shape[2]
    places = len(k) > channels
    shape = (rows, each, height, width, channels, places, WINDOWS, CHANNELS)
    _back_pool[grid](g, won, x, k, c, dx, sums, *shape, num_warps=4 if places else 2)
