"""Exact synaptic blank-out: Σ_j ξ_ij w_ij z_j with a ξ ~ Bernoulli(p) of its own for every connection and input.

The definition would draw, store and read (batch, out, in) numbers. Here a ξ is one bit that never leaves a register: 32
of them are one word, made from as many random words as p has binary digits (one for p = ½, two for ¼). With
p = 0.d₁d₂…d_n and words u_n, …, u_1, from the last digit to the first,

    r ← u | r where the digit is 1,   r ← u & r where it is 0,   from r = 0,

sets each bit of r with probability p. Philox's counter is (32 connections and digit, unit, four inputs, 0); its four
words are those of the four inputs.
"""

# kernels are not Python, though they look like it
# pyright: reportArgumentType=false, reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from nsm.kernels.operations import operation, side_by_side

DIGITS, MOST = 16, 31  # of p: from the first on in which it, or 1 − p, has a 1; and in all
FOURS, UNITS = 8, 128  # of a tile: four inputs for each warp, which share the weights in their cache


def digits(p: float) -> tuple[int, int]:
    """The binary digits of p as an integer, and how many they are.

    That is p rounded to 2⁻¹⁶ of itself, and of 1 − p, or to 2⁻³¹.

    >>> digits(0.5), digits(0.75), digits(0.1)
    ((1, 1), (3, 2), (52429, 19))
    """
    count = min(DIGITS - math.frexp(min(p, 1 - p))[1], MOST)
    value = min(max(round(p * 2**count), 1), 2**count - 1)
    while value % 2 == 0:
        value, count = value // 2, count - 1
    return value, count


@triton.jit
def _words(key, block, unit, four, VALUE: tl.constexpr, COUNT: tl.constexpr):
    """A word of 32 ξ for each of four inputs and each unit: the connections 32 block … 32 block + 31."""
    zero = tl.zeros_like(unit + four)
    r0, r1, r2, r3 = zero.to(tl.uint32), zero.to(tl.uint32), zero.to(tl.uint32), zero.to(tl.uint32)
    for d in range(COUNT):  # from the last digit to the first
        u0, u1, u2, u3 = tl.philox(key, zero + (block * COUNT + d), zero + unit, zero + four, zero)
        one = ((VALUE >> d) & 1) != 0
        r0, r1 = tl.where(one, u0 | r0, u0 & r0), tl.where(one, u1 | r1, u1 & r1)
        r2, r3 = tl.where(one, u2 | r2, u2 & r2), tl.where(one, u3 | r3, u3 & r3)
    return r0, r1, r2, r3


@triton.jit
def _add(total, word, bit: tl.constexpr, w, z):
    """Add the term of a connection whose bit is set."""
    return tl.where((word & (1 << bit)) != 0, total + w * z, total)


@triton.jit(do_not_specialize=["rows", "units", "inputs"])
def _blankout(Z, W, KEY, OUT, rows, units, inputs, each, VALUE: tl.constexpr, COUNT: tl.constexpr, BF: tl.constexpr,
              BU: tl.constexpr):  # fmt: skip
    """Four times BF inputs, BU units, ``each`` times 32 connections; Z (rows, inputs) and W (inputs, units).

    What lies outside is computed as the last row and unit, and not stored. That also keeps a compiler from seeing that
    wide loads are possible: it would choose an order of elements for them, and exchange every ξ between threads.
    """
    unit = tl.program_id(1) * BU + 32 * tl.arange(0, BU // 32)[:, None, None] + tl.arange(0, 32)[None, None, :]
    four = tl.program_id(0) * BF + tl.arange(0, BF)[None, :, None]
    key = tl.load(KEY)
    row, last = 4 * four, rows - 1
    z0, z1 = Z + tl.minimum(row, last) * inputs, Z + tl.minimum(row + 1, last) * inputs
    z2, z3 = Z + tl.minimum(row + 2, last) * inputs, Z + tl.minimum(row + 3, last) * inputs
    weights = W + tl.minimum(unit, units - 1)
    t0, t1 = tl.zeros((BU // 32, BF, 32), tl.float32), tl.zeros((BU // 32, BF, 32), tl.float32)
    t2, t3 = tl.zeros((BU // 32, BF, 32), tl.float32), tl.zeros((BU // 32, BF, 32), tl.float32)
    first = tl.program_id(2) * each
    for block in range(first, first + each):
        a, b, c, d = _words(key, block, unit, four, VALUE, COUNT)
        for at in range(32 * block, 32 * block + 32, 8):  # so that the loop fits in a cache
            for bit in tl.static_range(8):
                w = tl.load(weights + (at + bit) * units)
                t0, t1 = _add(t0, a, bit, w, tl.load(z0 + at + bit)), _add(t1, b, bit, w, tl.load(z1 + at + bit))
                t2, t3 = _add(t2, c, bit, w, tl.load(z2 + at + bit)), _add(t3, d, bit, w, tl.load(z3 + at + bit))
            a, b, c, d = a >> 8, b >> 8, c >> 8, d >> 8
    to = OUT + (tl.program_id(2) * rows + row) * units + unit
    tl.store(to, t0, (row < rows) & (unit < units))
    tl.store(to + units, t1, (row + 1 < rows) & (unit < units))
    tl.store(to + 2 * units, t2, (row + 2 < rows) & (unit < units))
    tl.store(to + 3 * units, t3, (row + 3 < rows) & (unit < units))


@operation("blankout_linear")
def blankout_linear(z: Tensor, weight: Tensor, p: float, key: Tensor) -> Tensor:
    """Σ_j ξ_ij w_ij z_j, (batch, out) in float32, for states z (batch, in), weights (out, in) and a key, one int64."""
    (rows, inputs), units = z.shape, len(weight)
    blocks = -(-inputs // 32)
    grid = -(-rows // (4 * FOURS)), -(-units // UNITS)
    splits = max(1, min(blocks, 512 // (grid[0] * grid[1])))
    each = -(-blocks // splits)
    splits = -(-blocks // each)
    inputs = splits * each * 32
    z, weight = (pad(v, (0, inputs - v.shape[1])) if v.shape[1] < inputs else v for v in (z.float(), weight.float()))
    out = torch.empty(splits, rows, units, device=z.device)
    parts = (z.contiguous(), weight.t().contiguous(), key, out, rows, units, inputs, each)
    _blankout[(*grid, splits)](*parts, *digits(p), FOURS, UNITS, num_warps=FOURS)
    return out.sum(0) if splits > 1 else out[0]


blankout_linear.register_fake(lambda z, weight, p, key: z.new_empty(len(z), len(weight), dtype=torch.float32))
side_by_side(blankout_linear)
