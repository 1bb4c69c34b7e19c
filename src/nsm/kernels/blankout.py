"""Exact synaptic blank-out: Σ_j ξ_ij w_ij z_j with a ξ ~ Bernoulli(p) of its own for every connection and input.

The definition would draw, store and read (batch, out, in) numbers. Here a ξ is one bit that never leaves a register: 32
of them are one word, made from as many random words as p has binary digits (one for p = ½, two for ¼). With
p = 0.d₁d₂…d_n and words u_n, …, u_1, from the last digit to the first,

    r ← u | r where the digit is 1,   r ← u & r where it is 0,   from r = 0,

sets each bit of r with probability p. Philox's counter is (128 connections and digit, unit, input, 0); lane ℓ of its
four words holds connections 32 ℓ … 32 ℓ + 31 of the 128.
"""

# kernels are not Python, though they look like it
# pyright: reportArgumentType=false, reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from nsm.kernels.operations import operation

DIGITS = 32  # of p, at most
ROWS, UNITS = 4, 128  # of a tile: sixteen sums a thread, with four words for each


def digits(p: float) -> tuple[int, int]:
    """The binary digits of p as an integer, and how many they are: p rounded to 2⁻³², without trailing zeros.

    >>> digits(0.5), digits(0.75)
    ((1, 1), (3, 2))
    """
    value, count = min(max(round(p * 2**DIGITS), 1), 2**DIGITS - 1), DIGITS
    while value % 2 == 0:
        value, count = value // 2, count - 1
    return value, count


@triton.jit
def _words(key, start, unit, row, VALUE: tl.constexpr, COUNT: tl.constexpr):
    """Four words of 32 ξ for each (input, unit): the connections 128 start … 128 start + 127."""
    zero = tl.zeros_like(unit + row)
    r0, r1, r2, r3 = zero.to(tl.uint32), zero.to(tl.uint32), zero.to(tl.uint32), zero.to(tl.uint32)
    for d in tl.static_range(COUNT):  # from the last digit to the first
        u0, u1, u2, u3 = tl.philox(key, zero + (start * COUNT + d), zero + unit, zero + row, zero)
        if (VALUE >> d) & 1:
            r0, r1, r2, r3 = u0 | r0, u1 | r1, u2 | r2, u3 | r3
        else:
            r0, r1, r2, r3 = u0 & r0, u1 & r1, u2 & r2, u3 & r3
    return r0, r1, r2, r3


@triton.jit
def _add(total, word, Z, W, at, row, unit, rows_in, units_in, inputs, units):
    """Add the terms of 32 connections whose bits are set; eight at a time, so that the loop fits in a cache."""
    for eight in range(0, 32, 8):
        for bit in tl.static_range(8):
            w = tl.load(W + (at + eight + bit) * units + unit, units_in, 0)
            z = tl.load(Z + row * inputs + at + eight + bit, rows_in, 0)
            total = tl.where((word & (1 << bit)) != 0, total + w * z, total)
        word = word >> 8
    return total


@triton.jit(do_not_specialize=["rows", "units", "inputs"])
def _blankout(Z, W, KEY, OUT, rows, units, inputs, each, VALUE: tl.constexpr, COUNT: tl.constexpr, BR: tl.constexpr,
              BU: tl.constexpr):  # fmt: skip
    """BR inputs, BU units, ``each`` times 128 connections; Z (rows, inputs) and W (inputs, units).

    Sizes are not specialised: a compiler that knew of wide loads would choose an order of elements for them, and
    exchange every ξ between threads.
    """
    row = tl.program_id(0) * BR + tl.arange(0, BR)[:, None]
    unit = tl.max_contiguous(tl.program_id(1) * BU + tl.arange(0, BU)[None, :], (1, 1))
    rows_in, units_in = row < rows, unit < units
    key = tl.load(KEY)
    total = tl.zeros((BR, BU), tl.float32)
    first = tl.program_id(2) * each
    for start in range(first, first + each):
        a, b, c, d = _words(key, start, unit, row, VALUE, COUNT)
        at = start * 128
        total = _add(total, a, Z, W, at, row, unit, rows_in, units_in, inputs, units)
        total = _add(total, b, Z, W, at + 32, row, unit, rows_in, units_in, inputs, units)
        total = _add(total, c, Z, W, at + 64, row, unit, rows_in, units_in, inputs, units)
        total = _add(total, d, Z, W, at + 96, row, unit, rows_in, units_in, inputs, units)
    tl.store(OUT + tl.program_id(2) * rows * units + row * units + unit, total, rows_in & units_in)


@operation("blankout_linear")
def blankout_linear(z: Tensor, weight: Tensor, p: float, key: Tensor) -> Tensor:
    """Σ_j ξ_ij w_ij z_j, (batch, out) in float32, for states z (batch, in), weights (out, in) and a key, one int64."""
    (rows, inputs), units = z.shape, len(weight)
    steps = -(-inputs // 128)
    grid = -(-rows // ROWS), -(-units // UNITS)
    splits = max(1, min(steps, 4096 // (grid[0] * grid[1])))
    each = -(-steps // splits)
    splits = -(-steps // each)
    inputs = splits * each * 128
    z, weight = (pad(v, (0, inputs - v.shape[1])) if v.shape[1] < inputs else v for v in (z.float(), weight.float()))
    out = torch.empty(splits, rows, units, device=z.device)
    parts = (z.contiguous(), weight.t().contiguous(), key, out, rows, units, inputs, each)
    _blankout[(*grid, splits)](*parts, *digits(p), ROWS, UNITS, num_warps=1)
    return out.sum(0) if splits > 1 else out[0]


blankout_linear.register_fake(lambda z, weight, p, key: z.new_empty(len(z), len(weight), dtype=torch.float32))
