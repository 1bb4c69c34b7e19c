"""The multiplicative noise ξ: independent, identically distributed, with known mean m and variance s².

| class             | ξ                                  | m               | s²                    |
|-------------------|------------------------------------|-----------------|-----------------------|
| `Bernoulli(p)`    | 1 with probability p, else 0       | p               | p(1 − p)              |
| `Gaussian(σ)`     | N(1, σ²)                           | 1               | σ²                    |
| `Uniform(l, h)`   | uniform on [l, h)                  | (l + h)/2       | (h − l)²/12           |
| `LogNormal(σ)`    | exp(σ g − σ²/2), g ~ N(0, 1)       | 1               | exp(σ²) − 1           |
| `Empirical(v)`    | drawn from measured values         | Σ_k f_k v_k     | Σ_k f_k (v_k − m)²    |

Any other noise is a subclass of `Noise` that says its mean, its variance and how to draw it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from nsm import philox


class Noise(ABC):
    """An iid random factor with finite mean and positive, finite variance.

    Subclasses are immutable, compare by value, and draw new tensors only (in-place draws fail under vmap).
    """

    @property
    @abstractmethod
    def mean(self) -> float:
        """E[ξ], exactly."""

    @property
    @abstractmethod
    def variance(self) -> float:
        """Var[ξ], exactly."""

    @abstractmethod
    def sample(
        self,
        shape: Sequence[int],
        *,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Independent draws of ξ, as a tensor of ``shape``.

        Args:
            shape: the shape of the result.
            generator: where the randomness comes from; torch's default generator if None.
            device: where the result lives.
            dtype: a floating-point type; torch's default if None.

        Where the draws are made of `uniform`, `standard_normal` or `integers`, which find the noise that belongs to an
        input and a sample, `nsm.predict` gives the same answers in whatever passes it works.
        """

    def __repr__(self) -> str:
        """What a run's folder compares: noise of the same moments counts as the same, unless a subclass says more."""
        return f"{type(self).__name__}(mean={self.mean:.6g}, variance={self.variance:.6g})"


@dataclass(frozen=True)
class Bernoulli(Noise):
    """Blank-out noise: a connection is kept with probability ``p``.

    ``p`` is the paper's **keep** probability; ``nn.Dropout``'s p is the probability to drop.

    >>> Bernoulli(0.25).variance
    0.1875
    """

    p: float

    def __post_init__(self) -> None:
        if not 0 < self.p < 1:
            raise ValueError(f"Expected argument `p` to be in (0, 1), but got {self.p}")

    @property
    def mean(self) -> float:
        """The keep probability."""
        return self.p

    @property
    def variance(self) -> float:
        """p(1 − p)."""
        return self.p * (1 - self.p)

    def sample(self, shape, *, generator=None, device=None, dtype=None) -> Tensor:
        """1 with probability p, else 0."""
        kind, bound = self.bound
        return (integers(shape, kind, generator, device) < bound).to(dtype or torch.get_default_dtype())

    @property
    def bound(self) -> tuple[torch.dtype, int]:
        """Random integers of a kind, with no more bits than p needs, and the bound that a share p of them is below."""
        kind = torch.int8 if (256 * self.p).is_integer() else torch.int32
        levels = 256**kind.itemsize
        return kind, min(max(round(self.p * levels), 1), levels - 1) - levels // 2


@dataclass(frozen=True)
class Gaussian(Noise):
    """Gaussian noise N(1, σ²); ``sigma`` is the standard deviation.

    >>> Gaussian(0.5).mean, Gaussian(0.5).variance
    (1.0, 0.25)
    """

    sigma: float = 1.0

    def __post_init__(self) -> None:
        _check_positive("sigma", self.sigma)

    @property
    def mean(self) -> float:
        """One."""
        return 1.0

    @property
    def variance(self) -> float:
        """σ²."""
        return self.sigma**2

    def sample(self, shape, *, generator=None, device=None, dtype=None) -> Tensor:
        """1 + σ g with g ~ N(0, 1)."""
        dtype = dtype or torch.get_default_dtype()
        normal = standard_normal(shape, generator, device, _wide(dtype))
        return (1 + self.sigma * normal).to(dtype)


@dataclass(frozen=True)
class Uniform(Noise):
    """Uniform noise on [low, high).

    >>> Uniform(0.0, 2.0).mean
    1.0
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(
                f"Expected arguments `low` and `high` to be finite with low < high, but got {self.low} and {self.high}"
            )

    @property
    def mean(self) -> float:
        """(low + high)/2."""
        return (self.low + self.high) / 2

    @property
    def variance(self) -> float:
        """(high − low)²/12."""
        return (self.high - self.low) ** 2 / 12

    def sample(self, shape, *, generator=None, device=None, dtype=None) -> Tensor:
        """Low + (high − low) U with U uniform on [0, 1)."""
        dtype = dtype or torch.get_default_dtype()
        chance = uniform(shape, generator, device, _wide(dtype))
        return (self.low + (self.high - self.low) * chance).to(dtype)


@dataclass(frozen=True)
class LogNormal(Noise):
    """Log-normal noise of mean 1; ``sigma`` is the standard deviation of log ξ.

    >>> LogNormal(0.5).mean, round(LogNormal(0.5).variance, 4)
    (1.0, 0.284)
    """

    sigma: float = 1.0

    def __post_init__(self) -> None:
        _check_positive("sigma", self.sigma)
        if self.sigma > 10:
            raise ValueError(
                f"Expected argument `sigma` to be at most 10 (the variance is exp(σ²) − 1), but got {self.sigma}"
            )

    @property
    def mean(self) -> float:
        """One."""
        return 1.0

    @property
    def variance(self) -> float:
        """exp(σ²) − 1."""
        return math.expm1(self.sigma**2)

    def sample(self, shape, *, generator=None, device=None, dtype=None) -> Tensor:
        """exp(σ g − σ²/2) with g ~ N(0, 1)."""
        dtype = dtype or torch.get_default_dtype()
        normal = standard_normal(shape, generator, device, _wide(dtype))
        return torch.exp(self.sigma * normal - self.sigma**2 / 2).to(dtype)


class Empirical(Noise):
    """The histogram of a measured device as noise: every draw is one of ``values``, as often as it was seen.

    Args:
        values: the measured factors, an array of any shape; or the path of a CSV file with one column
            (a value a line) or two (value, count), with or without a line of headings.
        counts: how often each value was seen, or its weight; once each if None.

    >>> noise = Empirical([0.9, 1.0, 1.1], counts=[1, 2, 1])
    >>> noise
    Empirical(3 values in [0.9, 1.1], mean=1, variance=0.005)
    >>> noise.sample((4,), generator=torch.Generator().manual_seed(0))
    tensor([1.1000, 1.0000, 1.0000, 1.1000])
    """

    def __init__(self, values: ArrayLike | str | PathLike[str], counts: ArrayLike | None = None) -> None:
        if isinstance(values, str | PathLike):
            if counts is not None:
                raise ValueError(f"Expected argument `counts` to be None beside a CSV file, but got {counts!r}")
            values, counts = _read_csv(values)
        seen = np.asarray(values, dtype=np.float64).ravel()
        weights = np.ones_like(seen) if counts is None else np.asarray(counts, dtype=np.float64).ravel()
        if seen.size == 0 or not np.isfinite(seen).all():
            raise ValueError(f"Expected argument `values` to be finite numbers, at least two, but got {values!r}")
        if weights.shape != seen.shape or not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
            raise ValueError(
                f"Expected argument `counts` to be {seen.size} non-negative numbers, not all 0, but got {counts!r}"
            )
        support, index = np.unique(seen, return_inverse=True)
        mass = np.bincount(index, weights)
        support, frequency = support[mass > 0], mass[mass > 0] / mass.sum()
        self._mean = float(frequency @ support)
        self._variance = float(frequency @ (support - self._mean) ** 2)
        if len(support) < 2:
            raise ValueError(f"Expected argument `values` to have a positive variance, but got {support[0]} alone")
        self._support = torch.from_numpy(support)
        self._cumulative = torch.from_numpy(np.cumsum(frequency)[:-1].copy())  # the last would be 1

    @property
    def mean(self) -> float:
        """The mean of the measured values."""
        return self._mean

    @property
    def variance(self) -> float:
        """The variance of the measured values (divided by n: they are the whole distribution)."""
        return self._variance

    def sample(self, shape, *, generator=None, device=None, dtype=None) -> Tensor:
        """Measured values, drawn with replacement: the inverse of their cumulative distribution."""
        dtype = dtype or torch.get_default_dtype()
        chance = uniform(shape, generator, device, torch.float64)
        index = torch.searchsorted(self._cumulative.to(chance.device), chance, right=True)
        return self._support.to(chance.device, dtype)[index]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Empirical)
            and torch.equal(self._support, other._support)
            and torch.equal(self._cumulative, other._cumulative)
        )

    def __hash__(self) -> int:
        return hash((len(self._support), self._mean, self._variance))

    def __repr__(self) -> str:
        low, high = self._support[0].item(), self._support[-1].item()
        return (
            f"Empirical({len(self._support)} values in [{low:.4g}, {high:.4g}], "
            f"mean={self.mean:.4g}, variance={self.variance:.4g})"
        )


def uniform(
    shape: Sequence[int], generator: torch.Generator | None, device: torch.device | str | None, dtype: torch.dtype
) -> Tensor:
    """U[0, 1). Without a generator torch must not be told of one: with it, shapes cannot be symbolic in a graph."""
    if generator is None:
        if philox.source is not None and philox.source.fits(shape):
            return philox.source.uniform(shape, dtype)
        return torch.rand(shape, device=device, dtype=dtype)
    return torch.rand(shape, generator=generator, device=device, dtype=dtype)


def integers(
    shape: Sequence[int], kind: torch.dtype, generator: torch.Generator | None, device: torch.device | str | None
) -> Tensor:
    """Uniform over all values of int8, int16 or int32, cut from 64-bit draws: unused bits cost as much as used ones."""
    if generator is None and philox.source is not None and philox.source.fits(shape):
        return philox.source.integers(shape, kind)
    n, among = math.prod(shape), 8 // kind.itemsize
    words = (-(-n // among),)
    if generator is None:
        drawn = torch.randint(-(2**63), 2**63 - 1, words, device=device)
    else:
        drawn = torch.randint(-(2**63), 2**63 - 1, words, generator=generator, device=device)
    if not (torch.compiler.is_compiling() or transformed()):  # vmap has no rule for this view
        return drawn.view(kind)[:n].view(shape)
    cut = drawn.unsqueeze(-1) >> torch.arange(0, 64, 8 * kind.itemsize, device=device)
    return cut.to(kind).flatten()[:n].view(shape)


def transformed() -> bool:
    """Whether a transform of ``torch.func``, as vmap, is at work; torch.compile cannot look past this question."""
    return torch._C._functorch.maybe_current_level() is not None  # type: ignore[attr-defined]


def standard_normal(
    shape: Sequence[int], generator: torch.Generator | None, device: torch.device | str | None, dtype: torch.dtype
) -> Tensor:
    """N(0, 1), as `uniform`."""
    if generator is None:
        if philox.source is not None and philox.source.fits(shape):
            return philox.source.standard_normal(shape, dtype)
        return torch.randn(shape, device=device, dtype=dtype)
    return torch.randn(shape, generator=generator, device=device, dtype=dtype)


def check_noise(noise: object) -> Noise:
    """Return ``noise`` if the law holds for it: a `Noise` with finite mean and positive, finite variance."""
    if not isinstance(noise, Noise):
        raise TypeError(f"Expected argument `noise` to be an nsm.Noise, but got {noise!r}")
    if not (math.isfinite(noise.mean) and math.isfinite(noise.variance) and noise.variance > 0):
        raise ValueError(
            f"Expected argument `noise` to have a finite mean and a positive, finite variance, but got {noise!r} "
            f"with mean {noise.mean} and variance {noise.variance}"
        )
    return noise


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Draw in at least 32 bits: bfloat16 has 8, too coarse for a probability."""
    return torch.promote_types(dtype, torch.float32)


def _check_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"Expected argument `{name}` to be positive and finite, but got {value}")


def _read_csv(path: str | PathLike[str]) -> tuple[np.ndarray, np.ndarray | None]:
    """The columns (values, counts or None) of a CSV file, whose first line may hold headings; # begins a comment."""
    wanted = f"Expected `{path}` to hold one or two columns of numbers, separated by a comma"
    try:
        with open(path, encoding="utf-8-sig") as file:
            lines = [(k, line.strip()) for k, line in enumerate(file, 1)]
    except UnicodeDecodeError:
        raise ValueError(f"{wanted}, but got no text") from None
    lines = [(k, line) for k, line in lines if line and not line.startswith("#")]
    if lines and not _is_number(lines[0][1].split(",")[0]):
        lines = lines[1:]
    rows: list[list[float]] = []
    for k, line in lines:
        cells = line.split(",")
        if len(cells) > 2 or not all(map(_is_number, cells)) or (rows and len(cells) != len(rows[0])):
            raise ValueError(f"{wanted}, but got {line!r} in line {k}")
        rows.append(list(map(float, cells)))
    if not rows:
        raise ValueError(f"{wanted}, but got none")
    table = np.array(rows)
    return table[:, 0], table[:, 1] if table.shape[1] == 2 else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
