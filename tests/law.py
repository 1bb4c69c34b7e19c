"""The yardstick of the suite: the true firing probabilities, found without the library, and exact tests of a rate.

False alarms: every comparison rejects with probability at most 1e-9 if the law holds, and `conftest.py` allows
1,000 of them, so a sound library fails the whole suite with probability under 1e-6. Power: with n ≥ 35/δ² draws a
rate that is off by δ is missed with probability under 1e-6.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.special
import scipy.stats
import torch

from nsm import functional
from nsm.layers import NSMConv2d, NSMLinear
from nsm.noise import Bernoulli, Empirical, Gaussian, LogNormal, Noise, Uniform
from nsm.wiring import Convolution, Dense

FALSE_ALARM = 1e-9
SHIFT = 0.01  # the smallest error of a probability that every test must see
DRAWS = math.ceil(35 / SHIFT**2)
BF16_TOLERANCE = 4e-3
comparisons = 0  # made so far; conftest.py checks the sum


class LawBroken(AssertionError):
    """A sampled rate is not the stated one."""


def check_rate(hits: int, n: int, p: float, *, tolerance: float = 0.0) -> None:
    """Exact two-sided binomial test of ``hits`` in ``n`` against a probability in p ± tolerance."""
    check_rate_between(hits, n, p - tolerance, p + tolerance)


def check_rate_between(hits: int, n: int, low: float, high: float) -> None:
    """Exact two-sided binomial test of ``hits`` in ``n`` against the nearest probability in [low, high].

    A sum of independent hits with unequal probabilities of mean p is less spread than the binomial (Hoeffding,
    1956), so the test holds for pooled units as well.
    """
    global comparisons
    comparisons += 1
    nearest = min(max(hits / n, low, 0.0), high, 1.0)
    tail = min(scipy.stats.binom.cdf(hits, n, nearest), scipy.stats.binom.sf(hits - 1, n, nearest))
    if 2 * tail < FALSE_ALARM:
        raise LawBroken(f"{hits} of {n} draws = {hits / n:.5f}, expected {low:.5f} to {high:.5f}")


# ------------------------------------------------------------------------- the truth, in float64


def discrete_atoms(noise: Noise) -> list[tuple[float, float]] | None:
    """(value, probability) of a discrete noise; None for a continuous one."""
    if isinstance(noise, Bernoulli):
        return [(0.0, 1 - noise.p), (1.0, noise.p)]
    if isinstance(noise, Empirical):
        return EMPIRICAL_ATOMS
    return None


EMPIRICAL_ATOMS = [(0.2, 0.3), (0.9, 0.5), (1.6, 0.2)]
NOISES: list[Noise] = [
    Bernoulli(0.3),
    Gaussian(0.7),
    Uniform(0.0, 2.0),
    LogNormal(0.5),
    Empirical([v for v, _ in EMPIRICAL_ATOMS], counts=[p for _, p in EMPIRICAL_ATOMS]),
]


SITES: list[tuple[functional.Site, functional.Draw]] = [
    ("neuron", "exact"),
    ("synapse", "exact"),
    ("synapse", "moments"),
]


def moments_of(noise: Noise) -> tuple[float, float]:
    """(m, s) of a noise from textbook distributions, not from the class under test."""
    if (atoms := discrete_atoms(noise)) is not None:
        m = sum(p * v for v, p in atoms)
        return m, math.sqrt(sum(p * (v - m) ** 2 for v, p in atoms))
    return tuple(map(float, (continuous(noise).mean(), continuous(noise).std())))  # type: ignore[return-value]


def continuous(noise: Noise):
    match noise:
        case Gaussian(sigma):
            return scipy.stats.norm(1, sigma)
        case Uniform(low, high):
            return scipy.stats.uniform(low, high - low)
        case LogNormal(sigma):
            return scipy.stats.lognorm(sigma, scale=math.exp(-(sigma**2) / 2))
    raise NotImplementedError(noise)


def probability_of_sum(noise: Noise, terms: np.ndarray, mean: float, *, moments: bool) -> float:
    """P(mean + Σ_j (ξ_j − m) terms_j ≥ 0): enumeration, a fine lattice, or the normal law."""
    terms = terms[terms != 0]
    m, s = moments_of(noise)
    if len(terms) == 0:
        return float(mean >= 0)
    if moments or isinstance(noise, Gaussian):
        return float(scipy.special.ndtr(mean / (s * np.linalg.norm(terms))))
    if (atoms := discrete_atoms(noise)) is not None:
        sums, chance = np.zeros(1), np.ones(1)
        for c in terms:
            sums = np.concatenate([sums + (v - m) * c for v, _ in atoms])
            chance = np.concatenate([chance * p for _, p in atoms])
        return float(chance[mean + sums >= 0].sum())
    return _on_lattice(continuous(noise), m, terms, -mean)


def _on_lattice(distribution, m: float, terms: np.ndarray, threshold: float, points: int = 2**16) -> float:
    """P(Σ (ξ_j − m) terms_j ≥ threshold) by convolution on a lattice that is fine against the density."""
    reach = 8 * np.abs(terms).sum() + abs(threshold)
    step = 2 * reach / points
    edges = (np.arange(points + 1) - points / 2 - 0.5) * step
    spectrum = np.ones(points // 2 + 1, complex)
    for c in terms:
        below = distribution.cdf(edges / c + m)
        mass = np.diff(below if c > 0 else 1 - below)
        spectrum *= np.fft.rfft(np.fft.ifftshift(mass))
    mass = np.fft.fftshift(np.fft.irfft(spectrum, points))
    share = np.clip((edges[1:] - threshold) / step, 0, 1)  # of each cell, the part at or above the threshold
    return float(mass @ share)


# ------------------------------------------------------------------------- a layer to be tested


@dataclass(frozen=True)
class Case:
    """One combination of noise, site, draw, geometry, bias and type; its parameters are made from a fixed seed."""

    noise: Noise
    site: functional.Site = "neuron"
    draw: functional.Draw = "exact"
    geometry: str = "linear"
    bias: bool = True
    dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        bias = "bias" if self.bias else "none"
        return f"{type(self.noise).__name__}-{self.site}-{self.draw}-{self.geometry}-{bias}-{str(self.dtype)[6:]}"

    @property
    def wiring(self) -> Dense | Convolution:
        if self.geometry == "linear":
            return Dense()
        return Convolution(stride=(2, 1), padding=(1, 1), dilation=(1, 2), groups=2)

    @cached_property
    def parameters(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """z, weight, bias and β, without a batch axis; |t| is about 0.7, where a probability moves most."""
        generator = np.random.default_rng(7)
        _, s = moments_of(self.noise)
        if self.geometry == "linear":  # fan-in 9, four units
            z = generator.choice([-1.0, 1.0], 9)
            weight = generator.normal(size=(4, 9))
            x = weight @ z / np.linalg.norm(weight, axis=1)
            target = np.array([0.7, -0.7, 0.6, -0.8])
            beta = np.full(4, 0.5) if self.bias else target / x
            bias = (target - beta * x) * math.sqrt(2) * s * np.linalg.norm(weight, axis=1)
        else:  # fan-in 6, two groups of channels, every padded border, 4 × 2 × 5 units
            z = generator.choice([-1.0, 1.0], (2, 4, 5))
            weight = generator.normal(size=(4, 1, 3, 2))
            beta = generator.uniform(0.5, 1.0, (4, 2, 5) if self.bias else 4)
            bias = np.array([0.9, -0.9, 0.7, -0.7]) * s * np.linalg.norm(weight.reshape(4, -1), axis=1)
        tensors = [torch.tensor(v, dtype=self.dtype) for v in (z, weight, bias, beta)]
        return tensors[0], tensors[1], tensors[2] if self.bias else None, tensors[3]

    @cached_property
    def truth(self) -> np.ndarray:
        """P(+1) of every unit, from the parameters as rounded to the type, in plain loops."""
        return self._probabilities(slack=0.0)

    @cached_property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Between which probabilities each unit must fire.

        The truth itself but for bfloat16, which gets its tolerance; where the noise is discrete, a single sum of
        weights may also lie within rounding of the threshold, and count on either side.
        """
        if self.dtype != torch.bfloat16:
            return self.truth, self.truth
        discrete = self.draw == "exact" and discrete_atoms(self.noise) is not None
        slack = 2.0**-8 if discrete else 0.0
        return self._probabilities(-slack) - BF16_TOLERANCE, self._probabilities(slack) + BF16_TOLERANCE

    def _probabilities(self, slack: float) -> np.ndarray:
        """P(u + slack × (the sum of all sizes in u) ≥ 0) of every unit."""
        z, weight, bias, beta = (None if v is None else v.double().numpy() for v in self.parameters)
        assert z is not None
        assert weight is not None
        assert beta is not None
        _, s = moments_of(self.noise)
        shape = (4,) if self.geometry == "linear" else (4, 2, 5)
        result = np.empty(shape)
        for unit in itertools.product(*map(range, shape)):
            terms = weight[unit[0]] * z if self.geometry == "linear" else _convolution_terms(weight, z, unit)
            slope = beta[unit] if beta.ndim == len(shape) else beta[unit[0]]
            mean = math.sqrt(2) * s * slope * terms.sum() + (0.0 if bias is None else bias[unit[0]])
            mean += slack * (abs(mean) + np.abs(terms).sum())
            result[unit] = probability_of_sum(self.noise, terms.ravel(), mean, moments=self.draw == "moments")
        return result


def layer_of(case: Case, **options) -> NSMLinear | NSMConv2d:
    """The layer with the parameters of a case."""
    _, weight, bias, beta = case.parameters
    law = {"noise": case.noise, "site": case.site, "draw": case.draw, "dtype": case.dtype, **options}
    if case.draw == "exact" and case.site == "neuron":
        law["draw"] = "auto"
    if isinstance(case.wiring, Dense):
        layer = NSMLinear(9, 4, case.bias, **law)
    else:
        wiring = case.wiring
        layer = NSMConv2d(
            2, 4, (3, 2), wiring.stride, wiring.padding, wiring.dilation, wiring.groups, case.bias,
            beta_shape=(2, 5) if case.bias else None, **law,
        )  # fmt: skip
    state = {"weight": weight, "beta": beta} | ({} if bias is None else {"bias": bias})
    layer.load_state_dict(state)
    return layer


def _convolution_terms(weight: np.ndarray, z: np.ndarray, unit: tuple[int, ...]) -> np.ndarray:
    """w z over the taps of one unit: stride (2, 1), padding (1, 1), dilation (1, 2), two groups of one channel."""
    out, row, column = unit
    channel = out // 2
    terms = np.zeros((3, 2))
    for i in range(3):
        for j in range(2):
            y, x = 2 * row - 1 + i, column - 1 + 2 * j
            if 0 <= y < z.shape[1] and 0 <= x < z.shape[2]:
                terms[i, j] = weight[out, 0, i, j] * z[channel, y, x]
    return terms


def count_firing(
    case: Case, draw: Callable[[torch.Tensor], torch.Tensor], rows: int, chunk: int = 50_000
) -> np.ndarray:
    """How many of ``rows`` independent draws of the layer are +1, unit by unit; any other state is an error."""
    hits = 0
    for start in range(0, rows, chunk):
        states = draw(case.parameters[0].expand(min(chunk, rows - start), *case.parameters[0].shape))
        if states.dtype != case.dtype or not bool((states.abs() == 1).all()):
            raise LawBroken(f"states are not ±1 in {case.dtype}")
        hits = hits + (states == 1).sum(0)
    return torch.as_tensor(hits).numpy()


def check_counts(hits: np.ndarray, rows: int, case: Case) -> None:
    """Test counts of all units against the truth.

    Units that share noise (site "neuron") are dependent, so three of them are tested one by one: those with the
    most central probabilities, one for each part of the layer. Independent ones are pooled, twice: turned so that
    each is mostly on (which an error of scale shifts) and as they are (which an error of location shifts).
    """
    low, high = case.bounds
    if case.site == "neuron":
        central = np.abs(np.abs(case.truth - 0.5) - 0.34)  # |t| near 0.7
        for part in np.array_split(np.arange(case.truth.size), 3):
            unit = np.unravel_index(part[np.argmin(central.ravel()[part])], case.truth.shape)
            check_rate_between(int(hits[unit]), rows, float(low[unit]), float(high[unit]))
        return
    n = rows * case.truth.size
    on = case.truth >= 0.5
    check_rate_between(
        int(np.where(on, hits, rows - hits).sum()),
        n,
        np.where(on, low, 1 - high).mean(),
        np.where(on, high, 1 - low).mean(),
    )
    check_rate_between(int(hits.sum()), n, low.mean(), high.mean())


def check_law(case: Case, sample: Callable[..., torch.Tensor] = functional.sample, seed: int = 0) -> None:
    """Draw from ``sample``, a function like `functional.sample`, and test the rates of its units."""
    _, weight, bias, beta = case.parameters
    law = {"noise": case.noise, "site": case.site, "draw": case.draw, "wiring": case.wiring}
    check_layer(case, lambda batch: sample(batch, weight, bias, beta, **law), seed)


@torch.no_grad()
def check_layer(case: Case, layer: Callable[[torch.Tensor], torch.Tensor], seed: int = 0) -> None:
    """Draw from ``layer``, a module or a function of the states, and test the rates of its units."""
    torch.manual_seed(seed)
    rows = DRAWS if case.site == "neuron" else math.ceil(4 * DRAWS / case.truth.size)
    check_counts(count_firing(case, layer, rows), rows, case)


def check_independent(first: torch.Tensor, second: torch.Tensor, p: float) -> None:
    """Test that two sets of draws of one unit, each +1 with probability p, agree as often as strangers do."""
    agree = p**2 + (1 - p) ** 2
    check_rate(int((first == second).sum()), first.numel(), agree)
