r"""The idea: threshold units whose noise multiplies, and the law that follows.

A unit i sees states z_j through weights w_ij and a noise ξ that is always on:

    u_i = Σ_j (ξ_ij + a_i) w_ij z_j + b_i              ξ iid with mean m and variance s²
    z_i = sgn(u_i)                                     sgn(0) = +1

Its pre-activation has the moments

    E[u_i]   = (m + a_i) w_i·z + b_i  =  √2 s β_i w_i·z + b_i
    Var[u_i] = s² Σ_j w_ij² z_j²                       = s² ‖w_i‖² for ±1 states
    β_i      = (m + a_i) / (√2 s)                      β is what is learned; a = √2 s β − m is derived

and, as a sum of many terms, is close to normal, so that

    t_i          = E[u_i] / √(2 Var[u_i])  =  β_i (w_i·z)/‖w_i‖ + b_i/(√2 s ‖w_i‖)
    P(z_i = +1)  = ½ (1 + erf t_i)

The norm of the weights divides out: the noise normalises the network. A draw of u is its mean and a fluctuation,

    u_i = E[u_i] + δ_i,      δ_i = Σ_j (ξ_ij − m) w_ij z_j,

and there are three ways to draw δ:

    site="neuron"                    ξ_j, one for each input, shared by all the units it feeds
    site="synapse", draw="exact"     ξ_ij, one for every connection (and every position of a convolution)
    site="synapse", draw="moments"   δ_i ~ N(0, Var[u_i]) at once: exact for Gaussian ξ, else the central limit

``draw="auto"`` is `moments` from a fan-in of 64 upwards and `exact` below. With `moments`, where the sign of u is all
that is wanted, it is drawn from P at once (`toss`). Half-precision types are used for
the products alone; moments, t and the comparison are computed in at least 32 bits.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from nsm.estimators import Estimator, Probability, StraightThrough, get_estimator, sgn
from nsm.noise import Noise, integers, standard_normal
from nsm.wiring import Dense, Wiring, wide

Site = Literal["neuron", "synapse"]
Draw = Literal["auto", "exact", "moments"]
Inputs = Literal["binary", "real"]

#: From this fan-in upwards ``draw="auto"`` trusts the central limit.
CENTRAL_LIMIT_FAN_IN = 64


# ------------------------------------------------------------------------- the law


def erf_argument(mean: Tensor, variance: Tensor) -> Tensor:
    """t = E[u]/√(2 Var[u]).

    Where the variance is zero (a row of zeros, an empty receptive field) the unit is certain: t is +∞ if
    E[u] ≥ 0 and −∞ else, with zero gradient.
    """
    certain = variance == 0
    scale = torch.where(certain, 0.0, torch.rsqrt(2 * torch.where(certain, 1.0, variance)))
    limit = torch.where(certain, math.inf, 0.0).to(mean.dtype)
    return mean * scale + torch.copysign(limit, mean.detach() + 0.0)  # the sum turns −0 into +0


def firing_probability(t: Tensor) -> Tensor:
    """P(z = +1) = ½(1 + erf t), written as ½ erfc(−t) so that small probabilities keep their digits.

    >>> firing_probability(torch.tensor([0.0, 0.5, -5.0]))
    tensor([5.0000e-01, 7.6025e-01, 7.6873e-13])
    """
    return torch.special.erfc(-t) / 2


#: erf(t)/t as a polynomial in s = 2(t/τ)² − 1 for |t| ≤ τ = 3.25, beyond which erf is 1 to 4.3e-6.
ERF_REACH = 3.25
ERF = (
    0.4346407949924469, -0.2144598662853241, 0.15324345231056213, -0.11417563259601593, 0.08258988708257675,
    -0.056849829852581024, 0.0344330333173275, -0.0168057419359684, 0.010104565881192684, -0.008045508526265621,
    0.0030164355412125587,
)  # fmt: skip


def erf(t: Tensor) -> Tensor:
    """erf(t) to 3e-6 for `toss`, in float32: products and sums alone, which every device rounds alike.

    >>> erf(torch.tensor([0.0, 0.5, -9.0]))
    tensor([ 0.0000,  0.5205, -1.0000])
    """
    t = t.to(torch.float32).clamp(-ERF_REACH, ERF_REACH)
    s = t * t * (2 / ERF_REACH**2) - 1
    p = torch.full_like(s, ERF[-1])
    for coefficient in reversed(ERF[:-1]):
        p = p * s + coefficient
    return t * p


def pooled(e: Tensor, window: tuple[int, int]) -> Tensor:
    """2P − 1 of the largest state in each window of (..., H, W) independent units with 2P − 1 = e.

    All must be off for the largest to be off: 1 − P(max) = Π(1 − P_k). Windows do not overlap; a rest is left out.

    >>> pooled(torch.tensor([[0.0, 0.0], [0.0, 0.0]]), (2, 2))
    tensor([[0.8750]])
    """
    (height, width), (down, right) = e.shape[-2:], window
    parts = [
        0.5 - 0.5 * e[..., i : height // down * down : down, j : width // right * right : right]
        for i in range(down)
        for j in range(right)
    ]
    return 1 - 2 * math.prod(parts[1:], start=parts[0])


def beta_from_a(a: float | Tensor, noise: Noise) -> float | Tensor:
    """β = (m + a)/(√2 s)."""
    return (noise.mean + a) / math.sqrt(2 * noise.variance)


def a_from_beta(beta: Tensor, noise: Noise) -> Tensor:
    """a = √2 s β − m, the deterministic part of every synapse."""
    return math.sqrt(2 * noise.variance) * beta - noise.mean


# ------------------------------------------------------------------------- one layer of units


def moments(
    z: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    beta: Tensor,
    *,
    noise: Noise,
    inputs: Inputs = "binary",
    wiring: Wiring = Dense(),
) -> tuple[Tensor, Tensor]:
    """E[u] and Var[u] given the states z.

    The variance comes in the shape it has: without a batch axis for ``inputs="binary"``. For real inputs it
    depends on z², which counts as a constant in the gradient (it is one for ±1 states), so that dt/dz = v.
    """
    s2 = noise.variance
    mean = math.sqrt(2 * s2) * wiring.per_unit(beta) * wide(wiring.product(z, weight))
    if bias is not None:
        mean = mean + wiring.per_unit(bias)
    if inputs == "binary":
        return mean, s2 * wiring.squared_norm(z, weight)
    with torch.autocast(z.device.type, enabled=False):  # squares would leave the range of half precision
        return mean, s2 * wiring.product(wide(z.detach()).square(), wide(weight).square())


def line(
    z: Tensor, weight: Tensor, bias: Tensor | None, beta: Tensor, *, noise: Noise, wiring: Wiring = Dense()
) -> tuple[Tensor, Tensor]:
    """Slope k and offset c of t = k (w·z) + c for ±1 states: k = β/‖w‖, c = b/(√2 s ‖w‖), both with units last.

    A unit without variance has k = 0 and c = ±∞ with the sign of b, as in `erf_argument`.

    >>> from nsm.noise import Bernoulli
    >>> z, weight, bias, beta = torch.ones(3), torch.tensor([[3.0, 0.0, 4.0]]), torch.tensor([1.0]), torch.ones(1)
    >>> k, c = line(z, weight, bias, beta, noise=Bernoulli(0.5))
    >>> torch.allclose(k * 7 + c, erf_argument(*moments(z, weight, bias, beta, noise=Bernoulli(0.5))))
    True
    """

    def per_unit(v: Tensor) -> Tensor:
        return wiring.units_last(wiring.per_unit(v))

    squared_norm = wiring.units_last(wiring.squared_norm(z, weight)).contiguous()
    certain = squared_norm == 0
    scale = torch.where(certain, 0.0, torch.rsqrt(torch.where(certain, 1.0, squared_norm)))
    limit = torch.where(certain, math.inf, 0.0).to(scale.dtype)
    k = per_unit(beta) * scale
    if bias is not None:
        b = per_unit(bias)
        limit = b * scale / math.sqrt(2 * noise.variance) + limit.copysign(b.detach() + 0.0)
    return k, limit.expand_as(k)


def fluctuation(
    z: Tensor,
    weight: Tensor,
    variance: Tensor,
    shape: torch.Size,
    *,
    noise: Noise,
    site: Site,
    draw: Draw,
    wiring: Wiring = Dense(),
    xi: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """δ = u − E[u], of the given shape, drawn at ``site`` in the way of ``draw`` (already resolved, not "auto").

    Args:
        z: the states.
        weight: the weights.
        variance: Var[u].
        shape: the shape of u.
        noise: the distribution of ξ.
        site: "neuron" or "synapse".
        draw: "exact" or "moments".
        wiring: how inputs reach units.
        xi: the noise itself, to replay it: ξ in the shape of z (neuron), in that of ``wiring.terms`` (exact), or
            the standard normal that stands for all ξ of a unit, in the shape of u (moments). Drawn if None.
        generator: where the draws come from.
    """
    dtype = torch.promote_types(z.dtype, torch.float32)
    if draw == "moments":
        normal = standard_normal(shape, generator, z.device, dtype) if xi is None else xi
        # The gradient of √Var is infinite at 0, where the fluctuation is 0 whatever the weights do next.
        certain = variance == 0
        return torch.where(certain, 0.0, torch.sqrt(torch.where(certain, 1.0, variance))) * normal
    if site == "neuron":
        xi = noise.sample(z.shape, generator=generator, device=z.device, dtype=dtype) if xi is None else xi
        return wide(wiring.product(((xi - noise.mean) * z).to(z.dtype), weight))
    terms = wide(wiring.terms(z, weight))
    xi = noise.sample(terms.shape, generator=generator, device=z.device, dtype=dtype) if xi is None else xi
    return wiring.gather((xi - noise.mean) * terms)


def sample(
    z: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    beta: Tensor,
    *,
    noise: Noise,
    site: Site = "neuron",
    draw: Draw = "auto",
    inputs: Inputs = "binary",
    estimator: str | Estimator = "probability",
    wiring: Wiring = Dense(),
    xi: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The states of one layer of units: −1 or +1, one draw for every element of the batch.

    Args:
        z: the states below; (..., in) for dense wiring, (..., C, H, W) for a convolution.
        weight: the weights; (out, in), or (out, C/groups, kh, kw).
        bias: (out,) or None.
        beta: (out,); for a convolution also (out, H', W').
        noise: the distribution of ξ.
        site: where the noise sits, "neuron" or "synapse".
        draw: how synaptic noise is drawn, "auto", "exact" or "moments".
        inputs: "binary" (z = ±1, not checked) or "real".
        estimator: how a gradient passes the sign.
        wiring: how inputs reach units.
        xi: the noise to use instead of a draw, as `fluctuation` describes it; `Concrete` draws no ξ.
        generator: where the draws come from; torch's default generator if None.
    """
    draw = resolve_draw(site, draw, fan_in=math.prod(weight.shape[1:]))
    mean, variance = moments(z, weight, bias, beta, noise=noise, inputs=inputs, wiring=wiring)

    def u() -> Tensor:
        return mean + fluctuation(
            z,
            weight,
            variance,
            mean.shape,
            noise=noise,
            site=site,
            draw=draw,
            wiring=wiring,
            xi=xi,
            generator=generator,
        )

    rule = get_estimator(estimator)
    if draw != "moments" and not torch.is_grad_enabled() and type(rule) in (Probability, StraightThrough):
        return sgn(u()).to(product_dtype(z))  # which is all that these rules do if no gradient is to pass
    t = erf_argument(mean, variance)
    if draw == "moments" and xi is None and type(rule) is Probability:  # of u, this rule wants the sign alone
        return rule(t, lambda: toss(erf(t.detach()), generator), generator=generator).to(product_dtype(z))
    return rule(t, u, generator=generator).to(product_dtype(z))


def toss(e: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """A number that is positive with probability ½(1 + e), at the price of 16 random bits.

    It is 2¹⁵ e − c with c uniform on the midpoints of 2¹⁶ steps, so the probability is met to 2⁻¹⁷, and |e| = 1 is
    certain.

    >>> e = torch.tensor([-1.0, 1.0]).expand(1000, 2)
    >>> (toss(e) > 0).sum(0)
    tensor([   0, 1000])
    """
    return 2**15 * e - (integers(e.shape, torch.int16, generator, e.device) + 0.5)


def product_dtype(z: Tensor) -> torch.dtype:
    """The type of a product with z: that of autocast where it is on, else z's own. States are exact in any."""
    if z.dtype != torch.float64 and torch.is_autocast_enabled(z.device.type):
        return torch.get_autocast_dtype(z.device.type)
    return z.dtype


def resolve_draw(site: Site, draw: Draw, fan_in: int) -> Draw:
    """What ``draw="auto"`` means at this fan-in; an error for a draw that the site does not know."""
    if site == "neuron":
        if draw == "moments":
            raise ValueError(
                "Expected argument `draw` to be 'auto' or 'exact' with site='neuron' (noise shared by units is not "
                f"described by their moments), but got {draw!r}"
            )
        return "exact"
    if draw == "auto":
        return "moments" if fan_in >= CENTRAL_LIMIT_FAN_IN else "exact"
    return draw


# ------------------------------------------------------------------------- the other kind of noise


def additive_erf_argument(z: Tensor, weight: Tensor, bias: Tensor | None, *, mean: float, std: float) -> Tensor:
    """t of a unit with additive noise, u = w·z + b + η: a slope that is constant, whatever the weights.

    Nothing divides the weights out, so such a unit does not normalise: scale w and b, and P changes.
    """
    return (F.linear(z, weight, bias) + mean) / (math.sqrt(2) * std)


def additive_sample(
    z: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    mean: float = 0.0,
    std: float = 1.0,
    estimator: str | Estimator = "probability",
    generator: torch.Generator | None = None,
) -> Tensor:
    """States of threshold units with additive normal noise η ~ N(mean, std²): the paper's counter-example."""
    if not (math.isfinite(std) and std > 0):
        raise ValueError(f"Expected argument `std` to be positive and finite, but got {std}")

    def u() -> Tensor:
        expected = F.linear(z, weight, bias)
        return expected + mean + std * standard_normal(expected.shape, generator, z.device, z.dtype)

    t = additive_erf_argument(z, weight, bias, mean=mean, std=std)
    return get_estimator(estimator)(t, u, generator=generator)
