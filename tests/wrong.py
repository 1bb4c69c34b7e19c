"""Deliberately wrong implementations, each a mistake somebody makes; test_wrong.py shows that the suite sees them.

Functions stand in for `functional.sample`; classes for the part of the library they are named after.
"""

import math

import torch

from nsm import functional
from nsm.estimators import Concrete, sgn
from nsm.layers import NSMLinear
from nsm.noise import Bernoulli, Gaussian


def parts(z, weight, bias, beta, *, noise, site, draw, wiring, **_):
    """E[u] without the bias, the bias as it broadcasts, Var[u], and an honest fluctuation."""
    mean, variance = functional.moments(z, weight, None, beta, noise=noise, wiring=wiring)
    delta = functional.fluctuation(z, weight, variance, mean.shape, noise=noise, site=site, draw=draw, wiring=wiring)
    return mean, 0.0 if bias is None else wiring.per_unit(bias), variance, delta


def honest(z, weight, bias, beta, **law):
    mean, b, _, delta = parts(z, weight, bias, beta, **law)
    return sgn(mean + b + delta).to(z.dtype)


# ------------------------------------------------------------------------- the forward law


def bias_without_the_norm(z, weight, bias, beta, **law):
    """t = β w·z/‖w‖ + b: the bias is not divided by √2 s ‖w‖."""
    mean, b, variance, delta = parts(z, weight, bias, beta, **law)
    return sgn((mean + delta) / torch.sqrt(2 * variance) + b).to(z.dtype)


def variance_off_by_ten_percent(z, weight, bias, beta, **law):
    mean, b, _, delta = parts(z, weight, bias, beta, **law)
    return sgn(mean + b + math.sqrt(1.1) * delta).to(z.dtype)


def p_for_one_minus_p(z, weight, bias, beta, *, noise, **law):
    """Drops with probability p where it should keep with probability p."""
    flipped = Bernoulli(1 - noise.p)
    mean, b, _, delta = parts(z, weight, bias, beta, noise=flipped, **law)
    shift = (flipped.mean - noise.mean) * law["wiring"].product(z, weight)
    return sgn(mean + shift + b + delta).to(z.dtype)


def noise_shared_across_the_batch(z, weight, bias, beta, **law):
    one = honest(z[:1], weight, bias, beta, **law)
    return one.expand(len(z), *one.shape[1:])


def a_left_out(z, weight, bias, beta, *, noise, wiring, **law):
    """u = Σ ξ w z + b."""
    natural = torch.full_like(beta, float(functional.beta_from_a(0.0, noise)))
    return honest(z, weight, bias, natural, noise=noise, wiring=wiring, **law)


def sigma_for_its_square(z, weight, bias, beta, *, noise, **law):
    """N(1, σ) for N(1, σ²): the mean keeps its slope, the spread does not."""
    mean, b, _, delta = parts(z, weight, bias, beta, noise=noise, **law)
    return sgn(mean + b + delta / math.sqrt(noise.sigma)).to(z.dtype)


def border_with_the_full_norm(z, weight, bias, beta, **law):
    """s²‖w‖² everywhere, also where padding cuts the sum short."""
    mean, b, variance, _ = parts(z, weight, bias, beta, **law)
    full = variance.amax((-2, -1), keepdim=True)
    return sgn(mean + b + torch.sqrt(full) * torch.randn(mean.shape, dtype=mean.dtype)).to(z.dtype)


def central_limit_sold_as_exact(z, weight, bias, beta, *, draw, **law):
    return honest(z, weight, bias, beta, draw="moments", **law)


def real_inputs_with_the_norm(z, weight, bias, beta, *, inputs, **law):
    """Var = s²‖w‖² although z is not ±1."""
    return functional.sample(z, weight, bias, beta, inputs="binary", **law)


def states_rounded_through_the_gradient(z, weight, bias, beta, **law):
    """e + (z − e).detach() is 0.99999994 for some e."""
    mean, b, variance, delta = parts(z, weight, bias, beta, **law)
    e = torch.erf(functional.erf_argument(mean + b, variance))
    return (e + (sgn(mean + b + delta) - e).detach()).to(z.dtype)


def noise_left_out(z, weight, bias, beta, **law):
    mean, b, _, _ = parts(z, weight, bias, beta, **law)
    return sgn(mean + b).to(z.dtype)


class OffInEval(NSMLinear):
    """Dropout's habit."""

    def forward(self, z, **options):
        self.deterministic = not self.training
        return super().forward(z, **options)


# ------------------------------------------------------------------------- independence


def synapses_that_share_their_noise(z, weight, bias, beta, *, site, draw, **law):
    """One ξ per input although each connection should draw its own."""
    return honest(z, weight, bias, beta, site="neuron", draw="exact", **law)


def neurons_that_do_not_share_their_noise(z, weight, bias, beta, *, site, draw, **law):
    return honest(z, weight, bias, beta, site="synapse", draw="exact", **law)


class SeededInForward(NSMLinear):
    """The same noise in every call."""

    def forward(self, z, **_):
        return super().forward(z, generator=torch.Generator().manual_seed(0))


class RepeatsAcrossRows(NSMLinear):
    """Half a batch of noise, used twice."""

    def forward(self, z, **_):
        half = torch.randn(len(z) // 2, z.shape[-1]) * math.sqrt(self.noise.variance) + self.noise.mean
        return super().forward(z, xi=torch.cat([half, half]))


# ------------------------------------------------------------------------- estimators and gradients


class LogForLogit(Concrete):
    """The paper's slip: α is the odds, not the probability. Such a unit is never mostly on."""

    def relax(self, t, logistic):
        return torch.tanh((torch.log(functional.firing_probability(t)) + logistic) / (2 * self.temperature))


def norm_held_constant(z, weight, bias, beta, *, noise, **law):
    """The bias term b/(√2 s ‖w‖) depends on w as well; here its gradient is forgotten."""
    mean, variance = functional.moments(z, weight, bias, beta, noise=noise)
    e = torch.erf(functional.erf_argument(mean, variance.detach()))
    return sgn(mean.detach() + torch.randn_like(mean)) + (e - e.detach())


def slope_of_the_probability(z, weight, bias, beta, *, noise, **law):
    """The gradient of P for that of 2P − 1: half of it."""
    e = functional.firing_probability(functional.erf_argument(*functional.moments(z, weight, bias, beta, noise=noise)))
    return sgn(e.detach() - torch.rand_like(e)) + (e - e.detach())


def sgn_that_hides_nan(u):
    return torch.where(u >= 0, 1.0, -1.0)


def sgn_with_a_third_state(u):
    return torch.sign(u)


class UniformVariance(Gaussian):
    """(high − low)²/12 forgotten: a noise that misstates its variance."""

    @property
    def variance(self) -> float:
        return self.sigma
