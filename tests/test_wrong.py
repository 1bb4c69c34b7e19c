"""Every check of the suite fails on the mistake it guards against; the honest version passes all of them."""

import math
from typing import Any

import pytest
import scipy.special
import scipy.stats
import torch

import law
import wrong
from law import Case, LawBroken, check_independent, check_law, check_layer, check_rate, layer_of
from nsm import functional
from nsm.estimators import Concrete, sgn
from nsm.layers import NSMLinear
from nsm.noise import Bernoulli, Gaussian
from nsm.wiring import Dense

NEURON = Case(Bernoulli(0.3))
SYNAPSE = Case(Bernoulli(0.3), "synapse", "exact")
MOMENTS = Case(Bernoulli(0.3), "synapse", "moments")
BORDER = Case(Bernoulli(0.3), "synapse", "moments", "conv", bias=False)
GAUSSIAN = Case(Gaussian(0.7))


@pytest.mark.parametrize("case", [NEURON, SYNAPSE, MOMENTS, BORDER, GAUSSIAN], ids=str)
def test_the_honest_version_passes(case):
    check_law(case, wrong.honest)


@pytest.mark.parametrize(
    ("mistake", "case"),
    [
        (wrong.bias_without_the_norm, NEURON),
        (wrong.bias_without_the_norm, MOMENTS),
        (wrong.variance_off_by_ten_percent, NEURON),
        (wrong.variance_off_by_ten_percent, SYNAPSE),
        (wrong.variance_off_by_ten_percent, MOMENTS),
        (wrong.variance_off_by_ten_percent, BORDER),
        (wrong.p_for_one_minus_p, NEURON),
        (wrong.p_for_one_minus_p, SYNAPSE),
        (wrong.noise_shared_across_the_batch, NEURON),
        (wrong.noise_shared_across_the_batch, SYNAPSE),
        (wrong.noise_shared_across_the_batch, MOMENTS),
        (wrong.a_left_out, NEURON),
        (wrong.sigma_for_its_square, GAUSSIAN),
        (wrong.border_with_the_full_norm, BORDER),
        (wrong.central_limit_sold_as_exact, SYNAPSE),
        (wrong.noise_left_out, NEURON),
        (wrong.states_rounded_through_the_gradient, MOMENTS),
    ],
    ids=lambda x: x.__name__ if callable(x) else str(x),
)
def test_the_law_sees(mistake, case):
    with pytest.raises(LawBroken):
        check_law(case, mistake)


def test_the_law_sees_noise_that_is_off_in_eval():
    layer: Any = layer_of(NEURON)
    layer.__class__ = wrong.OffInEval
    check_layer(NEURON, layer.train())
    with pytest.raises(LawBroken):
        check_layer(NEURON, layer.eval())


def test_real_inputs_are_seen():
    torch.manual_seed(0)
    z, weight, beta = torch.full((7,), 1.3), torch.randn(1, 7).abs(), torch.tensor([0.3])
    truth = float(scipy.special.ndtr(math.sqrt(2) * float(0.3 * weight.sum() / weight.norm())))

    def hits(sample) -> int:
        options = {"noise": Gaussian(1.0), "site": "synapse", "draw": "moments", "inputs": "real"}
        return int((sample(z.expand(law.DRAWS, 7), weight, None, beta, **options) == 1).sum())

    check_rate(hits(functional.sample), law.DRAWS, truth)
    with pytest.raises(LawBroken):
        check_rate(hits(wrong.real_inputs_with_the_norm), law.DRAWS, truth)


@pytest.mark.parametrize(
    ("mistake", "site"),
    [(wrong.synapses_that_share_their_noise, "synapse"), (wrong.neurons_that_do_not_share_their_noise, "neuron")],
    ids=["synapse", "neuron"],
)
def test_the_joint_law_of_two_units_sees(mistake, site):
    """Two units with the same weights: one state under neuron noise, strangers under synaptic noise."""
    torch.manual_seed(1)
    weight, beta = torch.randn(1, 6).expand(2, 6), torch.tensor([0.3, 0.3])
    z, noise = torch.ones(6), Gaussian(1.0)
    p = float(
        functional.firing_probability(functional.erf_argument(*functional.moments(z, weight, None, beta, noise=noise)))[
            0
        ]
    )
    agree = 1.0 if site == "neuron" else p**2 + (1 - p) ** 2

    def hits(sample) -> int:
        options = {"noise": noise, "site": site, "draw": "exact", "wiring": Dense()}
        states = sample(z.expand(law.DRAWS, 6), weight, None, beta, **options)
        return int((states[:, 0] == states[:, 1]).sum())

    check_rate(hits(functional.sample), law.DRAWS, agree)
    with pytest.raises(LawBroken):
        check_rate(hits(mistake), law.DRAWS, agree)


@pytest.mark.parametrize("mistake", [wrong.SeededInForward, wrong.RepeatsAcrossRows])
@torch.no_grad()
def test_independence_sees(mistake):
    torch.manual_seed(2)
    layer, z = NSMLinear(5, 1, noise=Gaussian(0.5)), torch.ones(law.DRAWS, 5)
    layer.beta.data.fill_(0.3)
    p = float(layer.firing_probability(z[0]))
    half = law.DRAWS // 2

    def check() -> None:
        first, second = layer(z), layer(z)
        check_independent(first, second, p)
        check_independent(first[:half], first[half:], p)

    check()
    layer.__class__ = mistake
    with pytest.raises(LawBroken):
        check()


def test_the_rate_of_relaxed_units_sees_log_for_logit():
    torch.manual_seed(3)
    t = torch.full((law.DRAWS,), 0.7)
    truth = float(scipy.special.ndtr(math.sqrt(2) * 0.7))
    check_rate(int((Concrete()(t, lambda: t) > 0).sum()), law.DRAWS, truth)
    hits = int((wrong.LogForLogit()(t, lambda: t) > 0).sum())
    with pytest.raises(LawBroken):
        check_rate(hits, law.DRAWS, truth)
    check_rate(hits, law.DRAWS, truth / (1 + truth))  # what the slip computes: never above one half


@pytest.mark.parametrize("mistake", [wrong.norm_held_constant, wrong.slope_of_the_probability])
def test_the_gradient_test_sees(mistake):
    generator = torch.Generator().manual_seed(4)
    shapes = ((6, 5), (4, 5), (4,), (4,))
    leaves = [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]
    t = functional.erf_argument(*functional.moments(*leaves, noise=Bernoulli(0.3)))
    expected = torch.autograd.grad(torch.erf(t).sum(), leaves)

    def check(sample) -> None:
        found = torch.autograd.grad(sample(*leaves, noise=Bernoulli(0.3)).sum(), leaves)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)

    check(functional.sample)
    with pytest.raises(AssertionError):
        check(mistake)


@pytest.mark.parametrize("mistake", [wrong.sgn_that_hides_nan, wrong.sgn_with_a_third_state])
def test_the_sign_test_sees(mistake):
    def check(function) -> None:
        states = function(torch.tensor([0.0, math.nan]))
        assert states[0] == 1
        assert states[1].isnan()

    check(sgn)
    with pytest.raises(AssertionError):
        check(mistake)


def test_the_moments_test_sees_a_misstated_variance():
    m, s = law.moments_of(Gaussian(0.7))
    assert Gaussian(0.7).variance == pytest.approx(s**2)
    assert wrong.UniformVariance(0.7).variance != pytest.approx(s**2)
    assert m == 1


def test_power_and_false_alarms_are_as_stated():
    """At n = 35/δ² a shift of δ is missed less than once in a million, whatever the rate."""
    for p in (0.02, 0.3, 0.5, 0.76, 0.98):
        low = scipy.stats.binom.ppf(law.FALSE_ALARM / 2, law.DRAWS, p)
        high = scipy.stats.binom.isf(law.FALSE_ALARM / 2, law.DRAWS, p)
        for shifted in (p - law.SHIFT, p + law.SHIFT):
            missed = scipy.stats.binom.cdf(high, law.DRAWS, shifted) - scipy.stats.binom.cdf(
                low - 1, law.DRAWS, shifted
            )
            assert missed < 1e-6
