"""The numbers of `nsm.philox.Keyed` on CUDA, without the many passes over memory that Philox in torch takes: Triton.

Row r, of (sample, input), has the counters (block, input, sample, draw) for its blocks 0, 1, …
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
def _store_lanes(OUT, word, first: tl.constexpr, j, blocks, n, BITS: tl.constexpr):
    for lane in tl.static_range(32 // BITS):  # the lowest bits first; shifted to the top and back for their sign
        number = (word << (32 - BITS - BITS * lane)).to(tl.int32, bitcast=True) >> (32 - BITS)
        at = (first + lane) * blocks + j
        to = OUT + tl.program_id(0).to(tl.int64) * n + at
        tl.store(to, number.to(OUT.dtype.element_ty), (j < blocks) & (at < n))


@triton.jit(do_not_specialize=["number"])
def _integers(OUT, INPUTS, SAMPLES, KEY, number, blocks, n, BITS: tl.constexpr, BLOCK: tl.constexpr):
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    a, b, c, d = _philox(INPUTS, SAMPLES, KEY, number, j)
    _store_lanes(OUT, a, 0, j, blocks, n, BITS)
    _store_lanes(OUT, b, 32 // BITS, j, blocks, n, BITS)
    _store_lanes(OUT, c, 2 * (32 // BITS), j, blocks, n, BITS)
    _store_lanes(OUT, d, 3 * (32 // BITS), j, blocks, n, BITS)


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
