"""The kernels of `nsm.kernels.operations` for the largest state in windows of 2×2: Triton, for CUDA."""

# kernels are not Python, though they look like it
# pyright: reportArgumentType=false, reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl
from torch import Tensor

from nsm.kernels.fire import _SLOPE, _erf

CHANNELS = 32  # of a tile
WINDOWS = 2  # of a tile, going forward: small tiles, since many of them hide the waiting for memory
BACK_WINDOWS = 8  # of a tile, going back, where each program sums over many


@triton.jit
def _corner(window, H: tl.constexpr, W: tl.constexpr, CH: tl.constexpr):
    """Where the first unit of a window lies: in x, but for its channel, and in its image."""
    column, row = window % (W // 2), window // (W // 2) % (H // 2)
    inner = (2 * row * W + 2 * column) * CH
    return window // ((W // 2) * (H // 2)) * (H * W * CH) + inner, inner


@triton.jit
def _miss(X, K, C, x_at, k_at, inside):
    """1 − P."""
    x = tl.load(X + x_at, inside, 0).to(tl.float32)
    e = _erf(tl.fma(x, tl.load(K + k_at, inside, 0), tl.load(C + k_at, inside, 0)))
    return tl.fma(e, -0.5, 0.5) + (x - x)  # NaN stays


@triton.jit
def _fire_lane(X, K, C, Z, WON, word, window, channel, windows, H: tl.constexpr, W: tl.constexpr, CH: tl.constexpr,
               PLACES: tl.constexpr):  # fmt: skip
    x, inner = _corner(window, H, W, CH)
    inside = (window < windows) & (channel < CH)
    x, k = x + channel, (inner if PLACES else 0) + channel + tl.zeros_like(window)
    K1: tl.constexpr = CH if PLACES else 0
    K2: tl.constexpr = W * CH if PLACES else 0
    v = ((word.to(tl.int32, bitcast=True) >> 16).to(tl.float32) + 32768.5) * (1 / 65536)
    none = _miss(X, K, C, x, k, inside)  # the probability that no unit so far fires
    won = (none >= v).to(tl.int32)
    none = none * _miss(X, K, C, x + CH, k + K1, inside)
    won += (none >= v).to(tl.int32)
    none = none * _miss(X, K, C, x + W * CH, k + K2, inside)
    won += (none >= v).to(tl.int32)
    none = none * _miss(X, K, C, x + (W + 1) * CH, k + K1 + K2, inside)
    fires = none < v
    state = tl.where(none == none, tl.where(fires, 1.0, -1.0), none)
    tl.store(Z + window * CH + channel, state.to(Z.dtype.element_ty), inside)
    tl.store(WON + window * CH + channel, tl.where(fires, won, 0).to(tl.uint8), inside)


@triton.jit
def _fire_pool(X, K, C, KEY, Z, WON, windows, H: tl.constexpr, W: tl.constexpr, CH: tl.constexpr,
               PLACES: tl.constexpr, BW: tl.constexpr, BC: tl.constexpr):  # fmt: skip
    """A program takes eight blocks of BW windows and BC channels, one for each 16 bits of its Philox blocks."""
    i = tl.arange(0, BW)[:, None]
    channel = tl.program_id(1) * BC + tl.arange(0, BC)[None, :]
    counter = (tl.program_id(0) * BW + i) * CH + channel
    zero = tl.zeros_like(counter)
    a, b, c, d = tl.philox(tl.load(KEY), counter, zero, zero, zero)
    i += tl.program_id(0) * (8 * BW)
    _fire_lane(X, K, C, Z, WON, a << 16, i, channel, windows, H, W, CH, PLACES)
    _fire_lane(X, K, C, Z, WON, a, i + BW, channel, windows, H, W, CH, PLACES)
    _fire_lane(X, K, C, Z, WON, b << 16, i + 2 * BW, channel, windows, H, W, CH, PLACES)
    _fire_lane(X, K, C, Z, WON, b, i + 3 * BW, channel, windows, H, W, CH, PLACES)
    _fire_lane(X, K, C, Z, WON, c << 16, i + 4 * BW, channel, windows, H, W, CH, PLACES)
    _fire_lane(X, K, C, Z, WON, c, i + 5 * BW, channel, windows, H, W, CH, PLACES)
    _fire_lane(X, K, C, Z, WON, d << 16, i + 6 * BW, channel, windows, H, W, CH, PLACES)
    _fire_lane(X, K, C, Z, WON, d, i + 7 * BW, channel, windows, H, W, CH, PLACES)


@triton.jit
def _drawn(X, Y, A, B, x_at, k_at, inside):
    x, y = tl.load(X + x_at, inside, 0).to(tl.float32), tl.load(Y + x_at, inside, 0).to(tl.float32)
    return x * tl.load(A + k_at, inside, 0) + tl.load(B + k_at, inside, 0) + y


@triton.jit
def _threshold_pool(X, Y, A, B, Z, WON, windows, H: tl.constexpr, W: tl.constexpr, CH: tl.constexpr,
                    PLACES: tl.constexpr, BW: tl.constexpr, BC: tl.constexpr):  # fmt: skip
    window = tl.program_id(0) * BW + tl.arange(0, BW)[:, None]
    channel = tl.program_id(1) * BC + tl.arange(0, BC)[None, :]
    inside = (window < windows) & (channel < CH)
    x, inner = _corner(window, H, W, CH)
    x, k = x + channel, (inner if PLACES else 0) + channel + tl.zeros_like(window)
    K1: tl.constexpr = CH if PLACES else 0
    K2: tl.constexpr = W * CH if PLACES else 0
    u0, u1 = _drawn(X, Y, A, B, x, k, inside), _drawn(X, Y, A, B, x + CH, k + K1, inside)
    u2 = _drawn(X, Y, A, B, x + W * CH, k + K2, inside)
    u3 = _drawn(X, Y, A, B, x + (W + 1) * CH, k + K1 + K2, inside)
    fires = (u0 >= 0) | (u1 >= 0) | (u2 >= 0) | (u3 >= 0)
    won = tl.where(u0 >= 0, 0, tl.where(u1 >= 0, 1, tl.where(u2 >= 0, 2, 3)))
    whole = u0 + u1 + u2 + u3 - (u0 + u1 + u2 + u3)  # 0, or NaN
    state = tl.where(whole == whole, tl.where(fires, 1.0, -1.0), whole)
    tl.store(Z + window * CH + channel, state.to(Z.dtype.element_ty), inside)
    tl.store(WON + window * CH + channel, tl.where(fires, won, 0).to(tl.uint8), inside)


@triton.jit
def _back_unit(X, K, C, DX, g, won, j: tl.constexpr, x_at, k_at, both):
    """The gradient of one unit of the windows: dx, written, and its shares of dk and dc."""
    mine = both & (won == j)
    x, k = tl.load(X + x_at, both, 0).to(tl.float32), tl.load(K + k_at, both, 0)
    t = x * k + tl.load(C + k_at, both, 0)
    d = tl.where(mine, g * (_SLOPE * tl.exp(-t * t)), 0)
    tl.store(DX + x_at, (d * k).to(DX.dtype.element_ty), both)
    return d * x, d


@triton.jit
def _back_pool(G, WON, X, K, C, DX, PARTS, rows, each, H: tl.constexpr, W: tl.constexpr, CH: tl.constexpr,
               PLACES: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr):  # fmt: skip
    """A program takes ``each`` rows of BC channels, and leaves its sums in PARTS (2, 4, programs, units).

    A row is a window, and a unit a channel; or, with a line for every position, a row is an image and a unit a channel
    of one window of it.
    """
    BLOCKS: tl.constexpr = (CH + BC - 1) // BC
    place = tl.program_id(1) // BLOCKS  # the window in its image
    channel = (tl.program_id(1) % BLOCKS) * BC + tl.arange(0, BC)[None, :]
    first = tl.program_id(0) * each
    end = tl.minimum(first + each, rows)
    K1: tl.constexpr = CH if PLACES else 0
    K2: tl.constexpr = W * CH if PLACES else 0
    dk0, dk1 = tl.zeros((BM, BC), tl.float32), tl.zeros((BM, BC), tl.float32)
    dk2, dk3 = tl.zeros((BM, BC), tl.float32), tl.zeros((BM, BC), tl.float32)
    dc0, dc1 = tl.zeros((BM, BC), tl.float32), tl.zeros((BM, BC), tl.float32)
    dc2, dc3 = tl.zeros((BM, BC), tl.float32), tl.zeros((BM, BC), tl.float32)
    for start in range(first, end, BM):
        row = start + tl.arange(0, BM)[:, None]
        both = (row < end) & (channel < CH)
        window = row * ((H // 2) * (W // 2)) + place if PLACES else row
        at = window * CH + channel
        g, won = tl.load(G + at, both, 0).to(tl.float32), tl.load(WON + at, both, 0)
        x, inner = _corner(window, H, W, CH)
        x, k = x + channel, (inner if PLACES else 0) + channel + tl.zeros_like(row)
        a, b = _back_unit(X, K, C, DX, g, won, 0, x, k, both)
        dk0, dc0 = dk0 + a, dc0 + b
        a, b = _back_unit(X, K, C, DX, g, won, 1, x + CH, k + K1, both)
        dk1, dc1 = dk1 + a, dc1 + b
        a, b = _back_unit(X, K, C, DX, g, won, 2, x + W * CH, k + K2, both)
        dk2, dc2 = dk2 + a, dc2 + b
        a, b = _back_unit(X, K, C, DX, g, won, 3, x + (W + 1) * CH, k + K1 + K2, both)
        dk3, dc3 = dk3 + a, dc3 + b
    units = (H // 2) * (W // 2) * CH if PLACES else CH
    u = place * CH + channel if PLACES else channel
    to = PARTS + tl.program_id(0) * units + u
    step = tl.num_programs(0) * units
    tl.store(to, tl.sum(dk0, 0)[None, :], channel < CH)
    tl.store(to + step, tl.sum(dk1, 0)[None, :], channel < CH)
    tl.store(to + 2 * step, tl.sum(dk2, 0)[None, :], channel < CH)
    tl.store(to + 3 * step, tl.sum(dk3, 0)[None, :], channel < CH)
    tl.store(to + 4 * step, tl.sum(dc0, 0)[None, :], channel < CH)
    tl.store(to + 5 * step, tl.sum(dc1, 0)[None, :], channel < CH)
    tl.store(to + 6 * step, tl.sum(dc2, 0)[None, :], channel < CH)
    tl.store(to + 7 * step, tl.sum(dc3, 0)[None, :], channel < CH)


def fire_pool(x: Tensor, k: Tensor, c: Tensor, key: Tensor, z: Tensor, won: Tensor, height: int, width: int) -> None:
    """States z of the windows, of the type of x, which may have 16 bits; and who won."""
    channels = x.shape[1]
    grid = -(-len(z) // (8 * WINDOWS)), -(-channels // CHANNELS)
    shape = (len(z), height, width, channels, len(k) > channels, WINDOWS, CHANNELS)
    _fire_pool[grid](x, k, c, key, z, won, *shape, num_warps=1, enable_fp_fusion=False)


def threshold_pool(
    x: Tensor, y: Tensor, alpha: Tensor, bias: Tensor, z: Tensor, won: Tensor, height: int, width: int
) -> None:
    """The same with a fluctuation y."""
    channels = x.shape[1]
    grid = -(-len(z) // BACK_WINDOWS), -(-channels // CHANNELS)
    shape = (len(z), height, width, channels, len(alpha) > channels, BACK_WINDOWS, CHANNELS)
    _threshold_pool[grid](x, y, alpha, bias, z, won, *shape, num_warps=2, enable_fp_fusion=False)


def _split(x: Tensor, k: Tensor) -> tuple[int, int]:
    """Rows of the windows that share their units, and the rows of one program of `_back_pool`."""
    units = len(k) if len(k) == x.shape[1] else len(k) // 4
    rows = x.numel() // 4 // units
    programs = max(1, min(-(-rows // BACK_WINDOWS), 1024 * CHANNELS // units))
    return rows, -(-rows // programs)


def pool_parts(x: Tensor, k: Tensor) -> tuple[int, int]:
    """For how many units of a window there are sums, and how many parts of each."""
    rows, each = _split(x, k)
    return 4, -(-rows // each)


def pool_back(
    g: Tensor, won: Tensor, x: Tensor, k: Tensor, c: Tensor, dx: Tensor, sums: Tensor, height: int, width: int
) -> None:
    """Gradient dx, and sums for dk and dc."""
    channels, units = x.shape[1], sums.shape[3]
    rows, each = _split(x, k)
    grid = sums.shape[2], (units // channels) * -(-channels // CHANNELS)
    places = len(k) > channels
    shape = (rows, each, height, width, channels, places, BACK_WINDOWS, CHANNELS)
    _back_pool[grid](g, won, x, k, c, dx, sums, *shape, num_warps=4 if places else 2)
