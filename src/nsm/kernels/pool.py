"""`nsm.kernels.fire` with the 2×2 max-pool after it: from the product of a window of four units to their largest state.

x is (images · height · width, channels), both sizes even: if all four had an axis, torch.compile would
lay them out anew. The units of a window are those at (0, 0), (0, 1), (1, 0) and (1, 1); a line k, c belongs to each
channel, or to each position and channel. The largest of four states is that of the first unit that fires, and the
gradient goes to that unit (to the first of all, if none fires), as through ``max_pool2d``.

    fire_pool(x, k, c, key, h, w)      given x the units are independent: the first to fire is unit j with probability
                                       P_j Π_{i<j} (1 − P_i), and one uniform number of 16 bits decides for all four
    threshold_pool(x, y, α, b, k, c, h, w)   the first with α x + b + y ≥ 0

Both return the states and, for the way back, which unit won.
"""

# kernels are not Python, though they look like it
# pyright: reportArgumentType=false, reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nsm.kernels.fire import _SLOPE, _erf, operation

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


def _outputs(x: Tensor) -> tuple[Tensor, Tensor]:
    """For states and winners, (images · height/2 · width/2, channels)."""
    shape = len(x) // 4, x.shape[1]
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.uint8)


@operation("fire_pool")
def fire_pool(x: Tensor, k: Tensor, c: Tensor, key: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """States of the windows of x, contiguous; and who won."""
    (z, won), channels = _outputs(x), x.shape[1]
    grid = -(-len(z) // (8 * WINDOWS)), -(-channels // CHANNELS)
    shape = (len(z), height, width, channels, len(k) > channels, WINDOWS, CHANNELS)
    _fire_pool[grid](x, k, c, key, z, won, *shape, num_warps=1, enable_fp_fusion=False)
    return z, won


@operation("threshold_pool")
def threshold_pool(
    x: Tensor, y: Tensor, alpha: Tensor, bias: Tensor, k: Tensor, c: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor]:
    """As `fire_pool`, with a fluctuation ``y`` that was drawn by another product."""
    (z, won), channels = _outputs(x), x.shape[1]
    grid = -(-len(z) // BACK_WINDOWS), -(-channels // CHANNELS)
    shape = (len(z), height, width, channels, len(k) > channels, BACK_WINDOWS, CHANNELS)
    _threshold_pool[grid](x, y, alpha, bias, z, won, *shape, num_warps=2, enable_fp_fusion=False)
    return z, won


def _split(won: Tensor, units: int) -> tuple[int, int]:
    """Rows of the windows that share their units, and the rows of one program of `_back_pool`."""
    rows = won.numel() // units
    programs = max(1, min(-(-rows // BACK_WINDOWS), 1024 * CHANNELS // units))
    return rows, -(-rows // programs)


def _window_units(k: Tensor, channels: int) -> int:
    """Units of a kind in a window: its channels; with a line for every position, those of all windows of an image."""
    return channels if len(k) == channels else len(k) // 4


@operation("pool_back")
def pool_back(
    g: Tensor, won: Tensor, x: Tensor, k: Tensor, c: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor]:
    """dx, and parts of dk and dc, (2, 4, parts, units): to be summed over axis 2 for each unit of a window."""
    channels = x.shape[1]
    units = _window_units(k, channels)
    rows, each = _split(won, units)
    dx, parts = torch.empty_like(x), x.new_empty(2, 4, -(-rows // each), units, dtype=torch.float32)
    grid = parts.shape[2], (units // channels) * -(-channels // CHANNELS)
    places = len(k) > channels
    shape = (rows, each, height, width, channels, places, BACK_WINDOWS, CHANNELS)
    _back_pool[grid](g.contiguous(), won, x, k, c, dx, parts, *shape, num_warps=4 if places else 2)
    return dx, parts


fire_pool.register_fake(lambda x, k, c, key, height, width: _outputs(x))
threshold_pool.register_fake(lambda x, y, alpha, bias, k, c, height, width: _outputs(x))


@pool_back.register_fake
def _(g: Tensor, won: Tensor, x: Tensor, k: Tensor, c: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    units = _window_units(k, x.shape[1])
    rows, each = _split(won, units)
    return torch.empty_like(x), x.new_empty(2, 4, -(-rows // each), units, dtype=torch.float32)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    lines = inputs[1:3] if len(inputs) == 6 else inputs[4:6]
    ctx.save_for_backward(output[1], inputs[0], *lines)  # won, x, k, c
    ctx.size = inputs[-2:]
    ctx.mark_non_differentiable(output[1])


def _fire_backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    won, x, k, c = ctx.saved_tensors
    height, width = ctx.size
    dx, parts = pool_back(g.contiguous(), won, x, k, c, height, width)
    sums = parts.sum(2)  # (2, 4, units)
    if len(k) == x.shape[1]:
        dk, dc = sums.sum(1)
    else:  # unit j of the window at (row, column) stands at (2 row + j // 2, 2 column + j % 2)
        dk, dc = sums.view(2, 2, 2, height // 2, width // 2, -1).permute(0, 3, 1, 4, 2, 5).flatten(1)
    return dx, dk, dc, None, None, None


def _threshold_backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    dx, dk, dc, *_ = _fire_backward(ctx, g, _)
    return dx, None, None, None, dk, dc, None, None


fire_pool.register_autograd(_fire_backward, setup_context=_keep)
threshold_pool.register_autograd(_threshold_backward, setup_context=_keep)
