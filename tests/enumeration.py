"""Exact sums over all states or all masks: oracles for gradients and for the distance of erf from the exact law."""

import itertools
import math

import numpy as np
import scipy.special
import torch

from nsm import functional
from nsm.estimators import Estimator
from nsm.noise import Gaussian


def tiny_network(parameters, z, estimator):
    """3 inputs, 3 hidden units, 2 hidden units, and a smooth loss of the last states: z is (n, 3)."""
    w1, beta1, w2, beta2, readout = parameters
    law_of = {"noise": Gaussian(1.0), "site": "synapse", "draw": "moments", "estimator": estimator}
    hidden = functional.sample(z, w1, None, beta1, **law_of)
    hidden = functional.sample(hidden, w2, None, beta2, **law_of)
    return (hidden @ readout - 0.3).square()


def exact_loss(parameters, z):
    """E[loss] as a sum over the states of both layers, differentiable in the parameters. z is (3,)."""
    w1, beta1, w2, beta2, readout = parameters

    def chance(states, z, w, beta):
        t = functional.erf_argument(*functional.moments(z, w, None, beta, noise=Gaussian(1.0)))
        p = functional.firing_probability(t)
        return torch.where(states > 0, p, 1 - p).prod(-1)

    total = torch.zeros((), dtype=torch.float64)
    for first in itertools.product([-1.0, 1.0], repeat=3):
        h1 = torch.tensor(first, dtype=torch.float64)
        for second in itertools.product([-1.0, 1.0], repeat=2):
            h2 = torch.tensor(second, dtype=torch.float64)
            loss = (h2 @ readout - 0.3).square()
            total = total + chance(h1, z, w1, beta1) * chance(h2, h1, w2, beta2) * loss
    return total


def estimator_bias(estimator: Estimator, n: int = 400_000, batches: int = 20) -> dict[str, float]:
    """How far the mean estimated gradient of w1, β1, w2 and β2 lies from the exact one, over its length."""
    torch.manual_seed(4)
    parameters = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((3, 3), (3,), (2, 3), (2,))]
    readout = torch.tensor([0.8, -0.5], dtype=torch.float64)
    z = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)
    exact = _flat(torch.autograd.grad(exact_loss([*parameters, readout], z), parameters))
    estimates = []
    for _ in range(batches):
        loss = tiny_network([*parameters, readout], z.expand(n // batches, 3), estimator).mean()
        estimates.append(_flat(torch.autograd.grad(loss, parameters)))
    mean, error = torch.stack(estimates).mean(0), torch.stack(estimates).std(0) / math.sqrt(batches)
    return {
        "relative_bias": float((mean - exact).norm() / exact.norm()),
        "standard_error": float(error.norm() / exact.norm()),
        "cosine": float(torch.nn.functional.cosine_similarity(mean, exact, dim=0)),
    }


def _flat(gradients) -> torch.Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients])


def distance_of_atoms(sums: np.ndarray, chance: np.ndarray) -> float:
    """The largest difference between the distribution of these atoms and the normal one of its moments."""
    mean = chance @ sums
    std = math.sqrt(chance @ (sums - mean) ** 2)
    order = np.argsort(sums, kind="stable")
    sums, chance = sums[order], chance[order]
    last = np.append(np.abs(np.diff(sums)) > 1e-9 * std, True)  # equal sums are one atom
    above = np.cumsum(chance)[last]
    below = np.concatenate([[0.0], above[:-1]])
    normal = scipy.special.ndtr((sums[last] - mean) / std)
    return float(max(np.abs(above - normal).max(), np.abs(below - normal).max()))


def kolmogorov_distance(weights: np.ndarray, p: float) -> float:
    """The largest difference between the exact distribution of Σ ξ_j w_j, ξ ~ Bernoulli(p), and the normal one.

    All masks up to a fan-in of 12; above, a lattice, on which each atom is shared by its two neighbours: for weights
    that are all different, whose masks then fill the line.
    """
    if len(weights) <= 12:
        sums, chance = np.zeros(1), np.ones(1)
        for w in weights:
            sums = np.concatenate([sums, sums + w])
            chance = np.concatenate([chance * (1 - p), chance * p])
        return distance_of_atoms(sums, chance)
    std = math.sqrt(p * (1 - p)) * np.linalg.norm(weights)
    points = 2**16
    step = 24 * std / points  # twelve standard deviations to each side; what wraps around is nothing
    frequency = np.arange(points // 2 + 1) / points

    def at(place: float) -> np.ndarray:
        """The spectrum of an atom at ``place``, shared by the two cells around it."""
        cell, share = divmod(place / step, 1)
        shift = np.exp(-2j * np.pi * frequency * cell)
        return shift * (1 - share + share * np.exp(-2j * np.pi * frequency))

    spectrum = np.ones(points // 2 + 1, complex)
    for w in weights:
        spectrum *= (1 - p) * at(-p * w) + p * at((1 - p) * w)
    mass = np.fft.fftshift(np.fft.irfft(spectrum, points))
    above = np.cumsum(mass)
    normal = scipy.special.ndtr((np.arange(points) - points // 2) * step / std)
    return float(max(np.abs(above - normal).max(), np.abs(above - mass - normal).max()))
