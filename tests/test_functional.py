"""The law: sampled rates against the truth, and the deterministic properties that need no statistics."""

import itertools
import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
import torch.nn.functional as F

import law
from law import SITES, Case, LawBroken, check_law, check_rate
from nsm import functional
from nsm.functional import Draw, Site
from nsm.noise import Bernoulli, Gaussian
from nsm.wiring import Convolution, Dense

CASES = [
    Case(noise, site, draw, geometry, bias, dtype)
    for noise in law.NOISES
    for site, draw in SITES
    for geometry in ("linear", "conv")
    for bias in (True, False)
    for dtype in (torch.float32, torch.float64, torch.bfloat16)
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_sampled_rates_obey_the_law(case):
    check_law(case)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("site", ["neuron", "synapse"])
def test_blank_out_equals_the_enumeration_of_all_masks_at_fan_in_12(p, site):
    torch.manual_seed(1)
    z, weight = torch.randn(12).sign(), torch.randn(1, 12)
    terms, mean = (weight[0] * z).double().numpy(), 0.4
    beta = torch.tensor([(mean / (math.sqrt(2 * p * (1 - p)) * terms.sum()))], dtype=torch.float32)
    masks = np.array(np.meshgrid(*[[0, 1]] * 12)).reshape(12, -1).T
    chance = p ** masks.sum(1) * (1 - p) ** (12 - masks.sum(1))
    a = math.sqrt(2 * p * (1 - p)) * float(beta) - p
    truth = chance[(masks + a) @ terms >= 0].sum()
    states = functional.sample(z.expand(law.DRAWS, 12), weight, None, beta, noise=Bernoulli(p), site=site, draw="exact")
    check_rate(int((states == 1).sum()), law.DRAWS, truth)


def test_real_inputs_have_the_variance_of_their_squares():
    torch.manual_seed(2)
    z, weight, beta, bias = torch.randn(7), torch.randn(1, 7), torch.tensor([0.7]), torch.tensor([0.3])
    noise = Gaussian(0.8)
    terms = (weight[0] * z).double()
    t = (math.sqrt(2) * 0.8 * 0.7 * terms.sum() + 0.3) / math.sqrt(2 * 0.64 * terms.square().sum())
    truth = float(scipy.special.ndtr(math.sqrt(2) * float(t)))
    for site, draw in SITES:
        states = functional.sample(
            z.expand(law.DRAWS, 7), weight, bias, beta, noise=noise, site=site, draw=draw, inputs="real"
        )
        check_rate(int((states == 1).sum()), law.DRAWS, truth)


# ------------------------------------------------------------------------- with the noise passed in


def paper_pre_activation(z, weight, bias, a, xi):
    """u_i = Σ_j (ξ_ij + a_i) w_ij z_j + b_i, as written."""
    return ((xi + a[:, None]) * weight * z[..., None, :]).sum(-1) + bias


@pytest.mark.parametrize("site", ["neuron", "synapse"])
def test_replayed_noise_gives_the_papers_pre_activation(site):
    torch.manual_seed(3)
    noise = Bernoulli(0.3)
    z, weight, bias, beta = torch.randn(50, 7).sign(), torch.randn(5, 7), torch.randn(5), torch.rand(5)
    z, weight, bias, beta = (v.double() for v in (z, weight, bias, beta))
    xi = noise.sample((50, 7) if site == "neuron" else (50, 5, 7), dtype=torch.float64)
    a = functional.a_from_beta(beta, noise)
    u = paper_pre_activation(z, weight, bias, a, xi.unsqueeze(-2) if site == "neuron" else xi)
    states = functional.sample(z, weight, bias, beta, noise=noise, site=site, draw="exact", xi=xi)
    assert torch.equal(states, torch.where(u >= 0, 1.0, -1.0).double())
    mean, variance = functional.moments(z, weight, bias, beta, noise=noise)
    delta = functional.fluctuation(
        z, weight, variance, mean.shape, noise=noise, site=site, draw="exact", wiring=Dense(), xi=xi
    )
    torch.testing.assert_close(mean + delta, u)


@pytest.mark.parametrize(
    "wiring",
    [
        Convolution(),
        Convolution(stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
        Convolution(padding=(2, 0), groups=3),
        Convolution(padding="same", dilation=(2, 1)),
        Convolution(padding="valid", stride=(1, 3)),
    ],
    ids=str,
)
def test_convolutions_with_replayed_noise_agree_with_each_other(wiring):
    """One ξ per input, spread over every read of it, is the same as that ξ at each synapse."""
    torch.manual_seed(4)
    noise = Gaussian(0.5)
    z = torch.randn(2, 3, 6, 7, 8, dtype=torch.float64).sign()  # two batch axes
    z = z[:, :, :6]
    weight = torch.randn(6, 6 // wiring.groups, 3, 3, dtype=torch.float64)
    bias, beta = torch.randn(6, dtype=torch.float64), torch.rand(6, dtype=torch.float64)
    xi = noise.sample(z.shape, dtype=torch.float64)
    law_of = {"noise": noise, "wiring": wiring}
    mean, variance = functional.moments(z, weight, bias, beta, **law_of)
    spread = wiring.terms(xi, torch.ones_like(weight))  # ξ_j at every synapse that reads input j
    shared = functional.fluctuation(z, weight, variance, mean.shape, site="neuron", draw="exact", xi=xi, **law_of)
    single = functional.fluctuation(z, weight, variance, mean.shape, site="synapse", draw="exact", xi=spread, **law_of)
    inside = wiring.terms(torch.ones_like(z), torch.ones_like(weight))
    torch.testing.assert_close(shared, single)
    # the true variance, borders included: s² times the sum of squared weights that meet a real input
    terms = wiring.terms(z, weight)
    expected = (noise.variance * terms.square() * inside).sum(-3)
    torch.testing.assert_close(variance.expand(mean.shape), expected)
    torch.testing.assert_close(mean, math.sqrt(2) * 0.5 * beta[:, None, None] * terms.sum(-3) + bias[:, None, None])


def test_the_moments_draw_is_mean_and_standard_deviation_times_the_given_normal():
    torch.manual_seed(5)
    z, weight, bias = torch.randn(20, 70).sign(), torch.randn(5, 70), torch.randn(5)
    beta, normal = torch.rand(5), torch.randn(20, 5)
    mean, variance = functional.moments(z, weight, bias, beta, noise=Bernoulli(0.5))
    states = functional.sample(z, weight, bias, beta, noise=Bernoulli(0.5), site="synapse", draw="auto", xi=normal)
    assert torch.equal(states, torch.where(mean + variance.sqrt() * normal >= 0, 1.0, -1.0))


def test_auto_is_exact_below_and_moments_from_a_fan_in_of_64():
    assert functional.resolve_draw("synapse", "auto", 63) == "exact"
    assert functional.resolve_draw("synapse", "auto", 64) == "moments"
    assert functional.resolve_draw("neuron", "auto", 1000) == "exact"
    with pytest.raises(ValueError, match=r"Expected argument `draw` to be 'auto' or 'exact' with site='neuron'"):
        functional.resolve_draw("neuron", "moments", 64)


# ------------------------------------------------------------------------- what follows from the law


@pytest.mark.parametrize("scale", [2.0**-9, 0.1, 3.0, 2.0**12])
def test_scaling_the_row_of_w_and_b_together_changes_nothing(scale):
    torch.manual_seed(6)
    noise, rows = Bernoulli(0.3), torch.tensor([1.0, scale, 1.0, scale, scale], dtype=torch.float64)
    z, weight = torch.randn(1000, 9, dtype=torch.float64).sign(), torch.randn(5, 9, dtype=torch.float64)
    bias, beta = torch.randn(5, dtype=torch.float64), torch.rand(5, dtype=torch.float64)
    xi = noise.sample(z.shape, dtype=torch.float64)

    def t_and_states(weight, bias):
        t = functional.erf_argument(*functional.moments(z, weight, bias, beta, noise=noise))
        return t, functional.sample(z, weight, bias, beta, noise=noise, xi=xi)

    t, states = t_and_states(weight, bias)
    t_scaled, states_scaled = t_and_states(weight * rows[:, None], bias * rows)
    assert torch.equal(states, states_scaled)
    torch.testing.assert_close(t_scaled, t, rtol=1e-12, atol=1e-12)
    if math.log2(scale).is_integer():
        assert torch.equal(t, t_scaled)
    t_bias_left, _ = t_and_states(weight * rows[:, None], bias)  # the bias term is not invariant alone
    assert not torch.allclose(t_bias_left[:, 1], t[:, 1], rtol=1e-3)


def test_additive_noise_does_not_normalise():
    torch.manual_seed(7)
    z, weight, bias = torch.randn(9).sign(), torch.randn(1, 9), torch.randn(1)
    rates = []
    for scale in (1.0, 0.1):
        w, b = scale * weight, scale * bias
        t = functional.additive_erf_argument(z, w, b, mean=0.2, std=1.5)
        truth = float(scipy.special.ndtr(float(w.double() @ z.double() + b.double() + 0.2) / 1.5))
        assert functional.firing_probability(t).item() == pytest.approx(truth, abs=1e-6)
        states = functional.additive_sample(z.expand(law.DRAWS, 9), w, b, mean=0.2, std=1.5)
        check_rate(int((states == 1).sum()), law.DRAWS, truth)
        rates.append(truth)
    assert abs(rates[0] - rates[1]) > 0.05
    with pytest.raises(ValueError, match="Expected argument `std` to be positive and finite, but got 0"):
        functional.additive_sample(z, weight, bias, std=0)


def joint_rate(site: Site, draw: Draw, noise, seed: int, n: int = law.DRAWS):
    torch.manual_seed(seed)
    z, weight, beta = torch.randn(8).sign(), torch.randn(2, 8), torch.tensor([0.5, -0.8])
    weight[1] += 1.5 * weight[0]
    states = functional.sample(z.expand(n, 8), weight, None, beta, noise=noise, site=site, draw=draw)
    t = functional.erf_argument(*functional.moments(z, weight, None, beta, noise=noise)).double().numpy()
    rho = float(F.cosine_similarity(weight[0].double(), weight[1].double(), dim=0))
    return int((states == 1).all(1).sum()), n, math.sqrt(2) * t, rho


def test_neuron_noise_correlates_outputs_as_predicted():
    hits, n, x, rho = joint_rate("neuron", "exact", Gaussian(0.7), seed=8)
    truth = scipy.stats.multivariate_normal.cdf(x, np.zeros(2), [[1, rho], [rho, 1]])  # type: ignore[arg-type]
    assert abs(rho) > 0.3
    check_rate(hits, n, float(truth), tolerance=1e-5)  # of the numerical bivariate normal
    with pytest.raises(LawBroken):
        check_rate(hits, n, float(np.prod(scipy.special.ndtr(x))))


@pytest.mark.parametrize("draw", ["exact", "moments"])
def test_synapse_noise_leaves_outputs_independent(draw):
    hits, n, x, _ = joint_rate("synapse", draw, Gaussian(0.7), seed=8)
    check_rate(hits, n, float(np.prod(scipy.special.ndtr(x))))


# ------------------------------------------------------------------------- edges


@pytest.mark.parametrize(("site", "draw"), SITES)
@pytest.mark.parametrize("estimator", ["probability", "straight_through", "concrete"])
def test_a_unit_without_variance_is_certain_and_has_no_gradient(site, draw, estimator):
    weight = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, -2.0]], requires_grad=True)
    bias = torch.tensor([0.0, -0.5, 0.3])
    beta = torch.ones(3, requires_grad=True)
    t = functional.erf_argument(*functional.moments(torch.ones(4, 2), weight, bias, beta, noise=Bernoulli(0.5)))
    assert functional.firing_probability(t)[:, :2].tolist() == [[1.0, 0.0]] * 4
    z = torch.ones(4, 2, requires_grad=True)
    states = functional.sample(z, weight, bias, beta, noise=Bernoulli(0.5), site=site, draw=draw, estimator=estimator)
    assert states[:, :2].tolist() == [[1.0, -1.0]] * 4
    states.sum().backward()
    for leaf in (weight, beta, z):
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()
    if estimator != "straight_through":  # which passes the sign as if it were not there
        assert weight.grad is not None
        assert not weight.grad[:2].any()


def test_a_padded_corner_that_sees_no_input_is_certain():
    z, weight = torch.ones(1, 1, 2, 2), torch.tensor([0.8, -0.7, 0.9]).reshape(3, 1, 1, 1)
    wiring = Convolution(padding=(1, 1))
    bias = torch.tensor([0.0, -1.0, 1.0])
    mean, variance = functional.moments(z, weight, bias, torch.ones(3), noise=Bernoulli(0.5), wiring=wiring)
    p = functional.firing_probability(functional.erf_argument(mean, variance))
    assert p[0, :, 0, 0].tolist() == [1.0, 0.0, 1.0]
    assert ((p[0, :, 1, 1] > 0) & (p[0, :, 1, 1] < 1)).all()


@pytest.mark.parametrize(("site", "draw"), SITES)
def test_nan_is_not_hidden(site, draw):
    z = torch.tensor([[1.0, math.nan, 1.0], [1.0, 1.0, 1.0]])
    states = functional.sample(z, torch.randn(2, 3), None, torch.ones(2), noise=Bernoulli(0.5), site=site, draw=draw)
    assert states[0].isnan().all()
    assert not states[1].isnan().any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-3, 1.0, 100.0])
def test_moments_keep_their_digits_in_every_type(dtype, size):
    """w² leaves the range of float16 at both ends; the moments do not."""
    torch.manual_seed(9)
    z, weight = torch.randn(3, 800).sign(), (size * torch.randn(4, 800))
    weight = weight.to(dtype)
    for inputs in ("binary", "real"):
        _, variance = functional.moments(
            z.to(dtype), weight, None, torch.ones(4, dtype=dtype), noise=Bernoulli(0.5), inputs=inputs
        )
        expected = 0.25 * weight.double().square().sum(1).expand(variance.shape)
        torch.testing.assert_close(variance.double(), expected, rtol=1e-5, atol=0)


def test_explicit_generators_replay_and_leave_the_default_alone():
    z, weight, beta = torch.ones(100, 6), torch.randn(3, 6), torch.ones(3)
    before = torch.get_rng_state()
    for (site, draw), estimator in itertools.product(SITES, ("probability", "straight_through", "concrete")):
        first, again, other = (
            functional.sample(
                z, weight, None, beta, noise=Bernoulli(0.5), site=site, draw=draw, estimator=estimator,
                generator=torch.Generator().manual_seed(seed),
            )
            for seed in (1, 1, 2)
        )  # fmt: skip
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())


# ------------------------------------------------------------------------- gradients


def leaves(seed: int, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


WIRINGS = {
    "linear": (Dense(), (3, 5), (4, 5), (4,)),
    "conv": (Convolution(stride=(2, 1), padding=(1, 1), groups=2), (2, 4, 5, 4), (4, 2, 3, 2), (4, 3, 5)),
}


@pytest.mark.parametrize("kind", WIRINGS)
def test_erf_argument_has_the_gradient_of_its_formula(kind):
    wiring, z_shape, w_shape, beta_shape = WIRINGS[kind]
    z, weight, bias, beta = leaves(10, z_shape, w_shape, (4,), beta_shape)

    def t(z, weight, bias, beta):
        return functional.erf_argument(*functional.moments(z, weight, bias, beta, noise=Bernoulli(0.3), wiring=wiring))

    assert torch.autograd.gradcheck(t, (z, weight, bias, beta))

    def t_real(weight, bias, beta):
        law_of = {"noise": Bernoulli(0.3), "inputs": "real", "wiring": wiring}
        return functional.erf_argument(*functional.moments(z.detach(), weight, bias, beta, **law_of))

    assert torch.autograd.gradcheck(t_real, (weight, bias, beta))


@pytest.mark.parametrize("kind", WIRINGS)
@pytest.mark.parametrize(("site", "draw"), SITES)
def test_sampled_states_pass_the_gradient_of_erf(kind, site, draw):
    """`probability`: dz/dθ = (2/√π) exp(−t²) dt/dθ for w, β, b and z, whatever was drawn."""
    wiring, z_shape, w_shape, beta_shape = WIRINGS[kind]
    parameters = leaves(11, z_shape, w_shape, (4,), beta_shape)
    states = functional.sample(*parameters, noise=Bernoulli(0.3), site=site, draw=draw, wiring=wiring)
    assert (states.abs() == 1).all()
    upstream = torch.randn_like(states)
    found = torch.autograd.grad(states, parameters, upstream)
    t = functional.erf_argument(*functional.moments(*parameters, noise=Bernoulli(0.3), wiring=wiring))
    slope = 2 / math.sqrt(math.pi) * torch.exp(-t.detach().square())
    expected = torch.autograd.grad(t, parameters, upstream * slope)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("site", ["neuron", "synapse"])
def test_straight_through_differentiates_the_noisy_pre_activation(site):
    z, weight, bias, beta = leaves(12, (6, 5), (4, 5), (4,), (4,))
    noise = Bernoulli(0.3)
    xi = noise.sample((6, 5) if site == "neuron" else (6, 4, 5), dtype=torch.float64)
    states = functional.sample(
        z, weight, bias, beta, noise=noise, site=site, draw="exact", xi=xi, estimator="straight_through"
    )
    upstream = torch.randn_like(states)
    found = torch.autograd.grad(states, (z, weight, bias, beta), upstream)
    a = functional.a_from_beta(beta, noise)
    u = paper_pre_activation(z, weight, bias, a, xi.unsqueeze(-2) if site == "neuron" else xi)
    for one, other in zip(found, torch.autograd.grad(u, (z, weight, bias, beta), upstream), strict=True):
        torch.testing.assert_close(one, other)


def test_the_papers_two_gradient_equations_as_written():
    z, weight, beta = leaves(13, (6, 5), (4, 5), (4,))
    z = z.detach().sign()
    loss = torch.erf(functional.erf_argument(*functional.moments(z, weight, None, beta, noise=Gaussian(2.0)))).pow(2)
    d_w, d_beta = torch.autograd.grad(loss.sum(), (weight, beta))
    norm = weight.detach().norm(dim=1, keepdim=True)
    v = (beta.detach()[:, None] * weight.detach() / norm).requires_grad_()
    (d_v,) = torch.autograd.grad(torch.erf(z @ v.T).pow(2).sum(), v)
    w, b = weight.detach(), beta.detach()[:, None]
    torch.testing.assert_close(d_beta, (w * d_v).sum(1) / norm[:, 0])
    torch.testing.assert_close(d_w, b / norm * d_v - w * b / norm**2 * d_beta[:, None])


def test_with_real_inputs_dt_dz_is_the_normalised_weight():
    z, weight, beta = leaves(14, (5,), (1, 5), (1,))
    noise = Gaussian(1.0)
    t = functional.erf_argument(*functional.moments(z, weight, None, beta, noise=noise, inputs="real"))
    (found,) = torch.autograd.grad(t.sum(), z)
    norm = (weight * z).detach().norm()
    torch.testing.assert_close(found, beta.detach() * weight.detach()[0] / norm)
