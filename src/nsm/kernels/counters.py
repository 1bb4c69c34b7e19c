"""The numbers of `nsm.philox.Keyed` on CUDA, without the many passes over memory that Philox in torch takes: Triton.

Row r, of (sample, input), has the counters (block, input, sample, draw) for its blocks 0, 1, … What is drawn first from
every block comes first, then what is drawn second. `blank` and `jitter` put the numbers on states right away.
"""

# kernels are not Python, though they look like it
# pyright: reportArgumentType=false, reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from nsm.kernels.fire import per_program

_BLOCK = 256  # at least


@triton.jit
def _philox(INPUTS, SAMPLES, KEY, number, j):
    row = tl.program_id(0)
    zero = tl.zeros_like(j)
    return tl.philox(tl.load(KEY), j, zero + tl.load(INPUTS + row), zero + tl.load(SAMPLES + row), zero + number)


@triton.jit
def _store_words(OUT, word, lane: tl.constexpr, j, blocks):
    tl.store(
        OUT + (lane * tl.num_programs(0).to(tl.int64) + tl.program_id(0)) * blocks + j, word.to(tl.int64), j < blocks
    )


@triton.jit(do_not_specialize=["number"])
def _words(OUT, INPUTS, SAMPLES, KEY, number, blocks, BLOCK: tl.constexpr):
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    a, b, c, d = _philox(INPUTS, SAMPLES, KEY, number, j)
    _store_words(OUT, a, 0, j, blocks)
    _store_words(OUT, b, 1, j, blocks)
    _store_words(OUT, c, 2, j, blocks)
    _store_words(OUT, d, 3, j, blocks)


@triton.jit
def _lane(word, lane: tl.constexpr, BITS: tl.constexpr):
    """The integer of so many bits with this number in a word: the lowest first; up to the top and back for its sign."""
    return (word << (32 - BITS - BITS * lane)).to(tl.int32, bitcast=True) >> (32 - BITS)


@triton.jit
def _store_lanes(OUT, word, first: tl.constexpr, j, blocks, n, BITS: tl.constexpr):
    for lane in tl.static_range(32 // BITS):
        at = (first + lane) * blocks + j
        to = OUT + tl.program_id(0).to(tl.int64) * n + at
        tl.store(to, _lane(word, lane, BITS).to(OUT.dtype.element_ty), (j < blocks) & (at < n))


@triton.jit(do_not_specialize=["number"])
def _integers(OUT, INPUTS, SAMPLES, KEY, number, blocks, n, BITS: tl.constexpr, BLOCK: tl.constexpr):
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    a, b, c, d = _philox(INPUTS, SAMPLES, KEY, number, j)
    _store_lanes(OUT, a, 0, j, blocks, n, BITS)
    _store_lanes(OUT, b, 32 // BITS, j, blocks, n, BITS)
    _store_lanes(OUT, c, 2 * (32 // BITS), j, blocks, n, BITS)
    _store_lanes(OUT, d, 3 * (32 // BITS), j, blocks, n, BITS)


@triton.jit
def _blank_lanes(Z, OUT, word, first: tl.constexpr, j, blocks, n, p, below, BITS: tl.constexpr):
    for lane in tl.static_range(32 // BITS):
        at = (first + lane) * blocks + j
        inside = (j < blocks) & (at < n)
        kept = (_lane(word, lane, BITS) < below).to(tl.float32)
        z = tl.load(Z + at, inside, 0).to(tl.float32)
        tl.store(OUT + at, ((kept - p) * z).to(OUT.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["number", "states", "below"])
def _blank(
    Z, OUT, INPUTS, SAMPLES, KEY, number, states, p, below, blocks, n, BITS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    Z, OUT = Z + row % states * n, OUT + row * n
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    a, b, c, d = _philox(INPUTS, SAMPLES, KEY, number, j)
    _blank_lanes(Z, OUT, a, 0, j, blocks, n, p, below, BITS)
    _blank_lanes(Z, OUT, b, 32 // BITS, j, blocks, n, p, below, BITS)
    _blank_lanes(Z, OUT, c, 2 * (32 // BITS), j, blocks, n, p, below, BITS)
    _blank_lanes(Z, OUT, d, 3 * (32 // BITS), j, blocks, n, p, below, BITS)


@triton.jit
def _jitter_lane(Z, OUT, normal, lane: tl.constexpr, j, blocks, n, sigma):
    at = lane * blocks + j
    inside = (j < blocks) & (at < n)
    z = tl.load(Z + at, inside, 0).to(tl.float32)
    xi = 1 + sigma * normal
    tl.store(OUT + at, ((xi - 1) * z).to(OUT.dtype.element_ty), inside)


@triton.jit
def _normals(first, second):
    """Two N(0, 1) by Box and Muller."""
    radius = tl.sqrt(-2 * tl.log((first.to(tl.float32) + 0.5) * 2.3283064365386963e-10))  # 2⁻³²
    angle = second.to(tl.float32) * 1.4629180792671596e-09  # 2π · 2⁻³²
    return radius * tl.cos(angle), radius * tl.sin(angle)


@triton.jit(do_not_specialize=["number", "states"])
def _jitter(Z, OUT, INPUTS, SAMPLES, KEY, number, states, sigma, blocks, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    Z, OUT = Z + row % states * n, OUT + row * n
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    a, b, c, d = _philox(INPUTS, SAMPLES, KEY, number, j)
    first, second = _normals(a, b)
    third, fourth = _normals(c, d)
    _jitter_lane(Z, OUT, first, 0, j, blocks, n, sigma)
    _jitter_lane(Z, OUT, second, 1, j, blocks, n, sigma)
    _jitter_lane(Z, OUT, third, 2, j, blocks, n, sigma)
    _jitter_lane(Z, OUT, fourth, 3, j, blocks, n, sigma)


def words(inputs: Tensor, samples: Tensor, key: Tensor, number: int, blocks: int) -> tuple[Tensor, ...]:
    """Four words of 32 bits for every row and block, (rows, blocks) in int64.

    Args:
        inputs: Number of each row's input, int32.
        samples: Number of its sample, int32.
        key: One int64.
        number: Of the draw.
        blocks: For each row.
    """
    out = torch.empty(4, len(inputs), blocks, dtype=torch.int64, device=inputs.device)
    many = per_program(blocks, _BLOCK)
    _words[len(inputs), triton.cdiv(blocks, many)](out, inputs, samples, key, number, blocks, many, num_warps=4)
    return out.unbind()


def integers(inputs: Tensor, samples: Tensor, key: Tensor, number: int, n: int, kind: torch.dtype) -> Tensor:
    """``n`` integers for every row, (rows, n) of int8, int16 or int32: all blocks' first ones, then the second."""
    bits = 8 * kind.itemsize
    blocks = triton.cdiv(n * bits, 128)
    many = per_program(blocks, _BLOCK)
    out = torch.empty(len(inputs), n, dtype=kind, device=inputs.device)
    grid = len(inputs), triton.cdiv(blocks, many)
    _integers[grid](out, inputs, samples, key, number, blocks, n, bits, many, num_warps=4)
    return out


def blank(
    inputs: Tensor,
    samples: Tensor,
    key: Tensor,
    number: int,
    z: Tensor,
    p: float,
    bound: tuple[torch.dtype, int],
    dtype: torch.dtype,
) -> Tensor:
    """(ξ − p) z for every row, (rows, n) of ``dtype``, with ξ = 1 where an integer is below its ``bound``, else 0.

    ``p`` and ``bound`` are those of `nsm.Bernoulli`. ``z`` is (states, n), contiguous; row r has the state r modulo
    their number.
    """
    (kind, below), n = bound, z.shape[1]
    bits = 8 * kind.itemsize
    blocks = triton.cdiv(n * bits, 128)
    many = per_program(blocks, _BLOCK)
    out = torch.empty(len(inputs), n, dtype=dtype, device=z.device)
    grid = len(inputs), triton.cdiv(blocks, many)
    _blank[grid](z, out, inputs, samples, key, number, len(z), p, below, blocks, n, bits, many, num_warps=4)
    return out


def jitter(
    inputs: Tensor, samples: Tensor, key: Tensor, number: int, z: Tensor, sigma: float, dtype: torch.dtype
) -> Tensor:
    """(ξ − 1) z, as `blank` does it, with the ξ ~ N(1, σ²) of `nsm.Gaussian`."""
    n = z.shape[1]
    blocks = triton.cdiv(n, 4)
    many = per_program(blocks, _BLOCK)
    out = torch.empty(len(inputs), n, dtype=dtype, device=z.device)
    _jitter[len(inputs), triton.cdiv(blocks, many)](
        z, out, inputs, samples, key, number, len(z), sigma, blocks, n, many, num_warps=4, enable_fp_fusion=False
    )
    return out
