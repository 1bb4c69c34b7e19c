import copy
import math
import pickle

import numpy as np
import pytest
import scipy.special
import torch

import law
from enumeration import estimator_bias
from law import check_rate
from nsm import functional
from nsm.estimators import (
    Concrete,
    Deterministic,
    Estimator,
    Probability,
    StraightThrough,
    get_estimator,
    logit_firing_probability,
    sgn,
)
from nsm.noise import Gaussian

ALL = [Probability(), StraightThrough(), Concrete(), Concrete(0.3), Deterministic()]
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_sgn(dtype):
    u = torch.tensor([-math.inf, -3.0, -0.0, 0.0, 2.0, math.inf, math.nan], dtype=dtype)
    assert sgn(u).dtype == dtype
    assert sgn(u)[:-1].tolist() == [-1, -1, 1, 1, 1, 1]
    assert sgn(u)[-1].isnan()


def test_names_and_objects():
    assert get_estimator("probability") == Probability()
    assert get_estimator("straight_through") == StraightThrough()
    assert get_estimator("concrete") == Concrete(1.0)
    assert get_estimator(Concrete(0.5)) == Concrete(0.5)
    assert repr(Concrete(0.5)) == "Concrete(temperature=0.5)"
    with pytest.raises(ValueError, match=r"Expected argument `estimator` to be one of \['concrete', 'probability'"):
        get_estimator("reinforce")
    with pytest.raises(ValueError, match="Expected argument `temperature` to be positive and finite, but got 0"):
        Concrete(0)


@pytest.mark.parametrize("estimator", ALL, ids=repr)
def test_copies_compare_equal(estimator):
    assert copy.deepcopy(estimator) == estimator == pickle.loads(pickle.dumps(estimator))


@pytest.mark.parametrize("estimator", ALL, ids=repr)
@pytest.mark.parametrize("dtype", DTYPES)
def test_far_tails_are_finite_forward_and_backward(estimator, dtype):
    """|t| up to 30, through a whole layer: β carries t there."""
    target = torch.linspace(-30, 30, 121)
    weight = torch.ones(121, 4, dtype=dtype, requires_grad=True)
    beta = (target / 2).to(dtype).requires_grad_()  # w·z/‖w‖ = 2
    z = torch.ones(5, 4, dtype=dtype, requires_grad=True)
    states = functional.sample(z, weight, None, beta, noise=Gaussian(1.0), estimator=estimator)
    assert states.dtype == dtype
    assert states.isfinite().all()
    assert (states.abs() <= 1).all()
    states.float().square().sum().add(states.float().sum()).backward()
    for leaf in (weight, beta, z):
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("estimator", [Probability(), StraightThrough(), Deterministic()], ids=repr)
@pytest.mark.parametrize("dtype", DTYPES)
def test_states_are_exactly_plus_or_minus_one(estimator, dtype):
    torch.manual_seed(0)
    t = torch.randn(10_000, dtype=dtype, requires_grad=True)
    states = estimator(t, lambda: t + torch.randn_like(t))
    assert set(states.tolist()) == {-1.0, 1.0}


def test_backward_of_each():
    t = torch.linspace(-2, 2, 9, dtype=torch.float64, requires_grad=True)
    noisy = torch.randn(9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    slope = 2 / math.sqrt(math.pi) * torch.exp(-t.detach().square())
    for estimator, expected in ((Probability(), slope), (Deterministic(), slope)):
        (found,) = torch.autograd.grad(estimator(t, lambda: t.detach() + noisy).sum(), t)
        torch.testing.assert_close(found, expected)
    (found,) = torch.autograd.grad(StraightThrough()(t, lambda: 3 * t + noisy).sum(), t)
    torch.testing.assert_close(found, torch.full_like(t, 3.0))
    logistic = torch.randn(9, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda t: Concrete(0.7).relax(t, logistic), (t,))


def test_logit_against_scipy():
    t = np.linspace(-30, 30, 601)
    x = math.sqrt(2) * t
    truth = scipy.special.log_ndtr(x) - scipy.special.log_ndtr(-x)
    found = logit_firing_probability(torch.from_numpy(t))
    np.testing.assert_allclose(found.numpy(), truth, rtol=1e-12, atol=1e-12)
    single = logit_firing_probability(torch.from_numpy(t).float()).numpy()
    np.testing.assert_allclose(single, truth, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_concrete_is_on_as_often_as_the_unit_fires(temperature):
    """P(X > ½) = P whatever the temperature: the location is the log-odds. With log P it would be P/(1 + P)."""
    torch.manual_seed(2)
    t = torch.tensor(0.7)
    states = Concrete(temperature)(t.expand(law.DRAWS), lambda: t)
    check_rate(int((states > 0).sum()), law.DRAWS, float(scipy.special.ndtr(math.sqrt(2) * 0.7)))


def test_concrete_draws_no_u():
    def never() -> torch.Tensor:
        raise RuntimeError("u was drawn")

    assert Concrete()(torch.zeros(3), never).shape == (3,)
    assert Deterministic()(torch.zeros(3), never).tolist() == [1, 1, 1]


def test_an_estimator_of_ones_own():
    class Hinge(Estimator):
        def __call__(self, t, u, *, generator=None):
            return sgn(u().detach()) + (t.clamp(-1, 1) - t.clamp(-1, 1).detach())

    weight = torch.randn(2, 3, requires_grad=True)
    functional.sample(
        torch.ones(4, 3), weight, None, torch.ones(2), noise=Gaussian(), estimator=Hinge()
    ).sum().backward()
    assert weight.grad is not None


# ------------------------------------------------------------------------- bias against the exact gradient


@pytest.mark.parametrize(("name", "least_cosine"), [("probability", 0.8), ("straight_through", 0.3), ("concrete", 0.8)])
def test_estimated_gradients_point_along_the_exact_one(name, least_cosine, capsys):
    found = estimator_bias(get_estimator(name))
    with capsys.disabled():
        print(
            "\n{}: relative bias {relative_bias:.3f} ± {standard_error:.3f}, cosine {cosine:.3f}".format(name, **found)
        )
    assert found["cosine"] > least_cosine
    assert found["standard_error"] < 0.05  # the bias is measured, not noise


def test_the_papers_estimator_is_unbiased_where_the_loss_is_linear_in_the_last_states():
    """E[z] = erf(t) for the last layer, so with a linear loss its own gradient has no bias at all."""
    torch.manual_seed(5)
    w, beta = torch.randn(4, 5, dtype=torch.float64), torch.rand(4, dtype=torch.float64, requires_grad=True)
    z, readout = torch.randn(5, dtype=torch.float64).sign(), torch.randn(4, dtype=torch.float64)
    t = functional.erf_argument(*functional.moments(z, w, None, beta, noise=Gaussian(1.0)))
    (exact,) = torch.autograd.grad(torch.erf(t) @ readout, beta)
    states = functional.sample(z.expand(10, 5), w, None, beta, noise=Gaussian(1.0))
    (found,) = torch.autograd.grad((states @ readout).mean(), beta)
    torch.testing.assert_close(found, exact)
