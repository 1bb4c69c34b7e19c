"""Random numbers that are a function of what they are for: (seed, draw, sample, input, element).

`Philox`-4x32-10 (Salmon et al., 2011) turns a counter of four 32-bit words and a key of two into four random words.
With the element, the input, the sample and the number of the draw as counter, the noise of one input in one sample is
the same whatever else is in the batch, and however samples are cut into passes.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF
_PIECE = 250_000  # counters at a time on the CPU: intermediate results stay in the cache

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """Four words of 32 random bits, as int64, for each counter (int64 tensors with values below 2³²).

    >>> zero = torch.zeros(1, dtype=torch.int64)
    >>> [hex(int(word)) for word in philox((zero, zero, zero, zero), (0, 0))]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    c0, c1, c2, c3 = torch.broadcast_tensors(*counter)
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]  # the 64 bits, with the highest as a sign
        c0 = (p1 >> 32).bitwise_and_(_MASK).bitwise_xor_(c1).bitwise_xor_(k0)
        c2 = (p0 >> 32).bitwise_and_(_MASK).bitwise_xor_(c3).bitwise_xor_(k1)
        c1, c3 = p1.bitwise_and_(_MASK), p0.bitwise_and_(_MASK)
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def cut(words: Sequence[Tensor], kind: torch.dtype) -> tuple[Tensor, ...]:
    """Integers of a kind from words, the lowest bits first; the highest bit of each is its sign."""
    bits = 8 * kind.itemsize
    half = 1 << (bits - 1)
    parts = (word >> shift & (2 * half - 1) for word in words for shift in range(0, 32, bits))
    return tuple(((part ^ half) - half).to(kind) for part in parts)


def normals(first: Tensor, second: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Two numbers from two words, N(0, 1) by Box and Muller."""
    radius = torch.sqrt(-2 * torch.log((first.to(dtype) + 0.5) * 2.0**-32))
    angle = second.to(dtype) * (2 * math.pi * 2.0**-32)
    return radius * torch.cos(angle), radius * torch.sin(angle)


class Keyed:
    """A source of noise for one pass over rows of (sample, input); draws are numbered as they come."""

    def __init__(self, seed: int, samples: Tensor, inputs: Tensor) -> None:
        self.key = seed & _MASK, seed >> 32 & _MASK
        self.samples, self.inputs = samples, inputs  # (rows,) int64 each
        self.draws = 0

    def next(self) -> int:
        """The number of one more draw."""
        self.draws += 1
        return self.draws - 1

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether a draw of this shape has one part for each row, on one leading axis or on two."""
        rows = len(self.inputs)
        return rows > 0 and rows in (math.prod(shape[:1]), math.prod(shape[:2])) and len(shape) > 0

    def integers(self, shape: Sequence[int], kind: torch.dtype) -> Tensor:
        """Uniform over all values of int8, int16 or int32: each word cut in parts, the lowest bits first."""
        if self.kernel:
            n = math.prod(shape) // len(self.inputs)
            return self.kernel.integers(*self.counters, self.next(), n, kind).reshape(shape)
        return self._draw(shape, lambda *words: cut(words, kind))

    def uniform(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """U[0, 1) with 24 bits, or 53 in float64."""
        if dtype == torch.float64:
            return self._draw(shape, lambda a, b, c, d: (_fraction_53(a, b), _fraction_53(c, d)))
        return self._draw(shape, lambda *words: tuple((word >> 8).to(dtype).mul_(2.0**-24) for word in words))

    def standard_normal(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """N(0, 1)."""
        return self._draw(shape, lambda a, b, c, d: (*normals(a, b, dtype), *normals(c, d, dtype)))

    def _draw(self, shape: Sequence[int], numbers: Callable[..., tuple[Tensor, ...]]) -> Tensor:
        """A tensor of ``shape`` from ``numbers`` of every four words, and a new number for the next draw.

        The first numbers of all blocks come first, then the second ones: what a vector unit computes it stores at once.
        """
        n = math.prod(shape) // len(self.inputs)
        blocks = -(-n // len(numbers(*torch.zeros(4, 1, dtype=torch.int64))))
        element = torch.arange(blocks, device=self.inputs.device)
        draw = self.next()
        if self.kernel:
            words = self.kernel.words(*self.counters, draw, blocks)
            return torch.stack(numbers(*words), 1).flatten(1)[:, :n].reshape(shape)
        rows = len(self.inputs) if self.inputs.is_cuda else max(1, _PIECE // max(1, blocks))
        pieces = []
        for start in range(0, len(self.inputs), rows):
            inputs, samples = self.inputs[start : start + rows, None], self.samples[start : start + rows, None]
            counter = element, inputs, samples, torch.full_like(inputs, draw)
            pieces.append(torch.stack(numbers(*philox(counter, self.key)), 1).flatten(1)[:, :n])
        return torch.cat(pieces).reshape(shape)

    @cached_property
    def kernel(self) -> Any:
        """`nsm.kernels.counters`, which gives the same numbers, on a device that has Triton; else None."""
        if not self.inputs.is_cuda or find_spec("triton") is None:
            return None
        from nsm.kernels import counters

        return counters

    @cached_property
    def counters(self) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, samples and key, as kernels take them."""
        return self.inputs.to(torch.int32), self.samples.to(torch.int32), _on_device(self.key, self.inputs.device)


@lru_cache(4)
def _on_device(key: tuple[int, int], device: torch.device) -> Tensor:
    return torch.tensor(key).to(torch.int32).view(torch.int64).to(device)


def _fraction_53(high: Tensor, low: Tensor) -> Tensor:
    return (((high >> 5) << 26) + (low >> 6)).to(torch.float64).mul_(2.0**-53)


#: The source of all noise that is drawn without a generator; None for torch's own.
source: Keyed | None = None


@contextmanager
def keyed(new: Keyed) -> Iterator[Keyed]:
    """Within this context noise comes from ``new``."""
    global source
    before, source = source, new
    try:
        yield new
    finally:
        source = before
