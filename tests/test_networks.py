import copy
import math
import re
from typing import Any

import pytest
import torch
from torch import nn

import law
from law import check_rate
from nsm import networks
from nsm.estimators import Deterministic, StraightThrough
from nsm.layers import NSMLayer, Stochastic, deterministic
from nsm.networks import (
    UNITS,
    AdditiveNoise,
    NoisyRectifier,
    StochasticSigmoid,
    bnsm,
    build,
    cifar_cnn,
    dvs_cnn,
    gnsm,
    mnist_cnn,
    pi_mnist_mlp,
    relu,
    stnn,
)
from nsm.noise import Bernoulli, Gaussian
from nsm.recipes import Recipe
from nsm.signs import Sign


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def conv(inside: int, out: int, k: int, extra: int = 2) -> int:
    """Weights, and per unit a bias and a β."""
    return inside * out * k * k + extra * out


def dense(inside: int, out: int, extra: int = 2) -> int:
    return inside * out + extra * out


EXPECTED = {
    "pi_mnist_mlp": dense(784, 300) + 2 * dense(300, 300) + dense(300, 10, 1),
    "mnist_cnn": conv(1, 32, 5) + conv(32, 64, 5) + dense(1024, 512) + dense(512, 10, 1),
    "cifar_cnn": conv(3, 96, 3, 1) + 2 * 96 + 3 * conv(96, 96, 3) + conv(96, 192, 3) + 3 * conv(192, 192, 3)
    + 2 * conv(192, 192, 1) + 2 * 192 + dense(192, 10, 1),
    "dvs_cnn": conv(6, 96, 3) + 2 * conv(96, 96, 3) + conv(96, 192, 3) + 2 * conv(192, 192, 3) + conv(192, 256, 3)
    + 3 * conv(256, 256, 3) + 2 * conv(256, 256, 1) + dense(256, 11, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_parameter_counts_are_those_of_the_table(name):
    build = getattr(networks, name)
    assert count(build()) == EXPECTED[name]
    stated = re.search(r"Parameters: ([\d,]+)", build.__doc__)
    assert stated
    assert int(stated[1].replace(",", "")) == EXPECTED[name]


def test_parameter_counts_of_the_variants():
    assert count(pi_mnist_mlp(stnn, bias=False)) == 784 * 300 + 2 * 300 * 300 + 3000
    assert count(mnist_cnn(in_channels=10, size=34)) == (
        conv(10, 32, 5) + conv(32, 64, 5) + dense(1600, 512) + dense(512, 10, 1)
    )
    assert count(mnist_cnn(classes=26)) == EXPECTED["mnist_cnn"] + 16 * 513
    assert count(mnist_cnn(relu)) == EXPECTED["mnist_cnn"] - 32 - 64 - 512  # no β
    assert count(cifar_cnn(batch_norm=False)) == EXPECTED["cifar_cnn"] - 2 * 96 - 2 * 192
    assert count(cifar_cnn(classes=100)) == EXPECTED["cifar_cnn"] + 90 * 193


@pytest.mark.parametrize("name", EXPECTED)
def test_without_biases_nothing_else_is_missing(name):
    build = getattr(networks, name)
    whole, bare = dict(build().named_parameters()), dict(build(bias=False).named_parameters())
    left_out = set(whole) - set(bare)
    assert left_out == {key for key in whole if key.endswith("bias") and not key.startswith("norm")}
    assert {key: whole[key].shape for key in bare} == {key: value.shape for key, value in bare.items()}


@pytest.mark.parametrize("name", ["mnist-cnn", "pi-mnist-mlp"])
def test_without_biases_the_law_does_not_change_with_the_scale_of_the_weights(name):
    """To the last bit, since a power of two scales every sum exactly; a bias that is not 0 has it change."""
    z = torch.randn(20, 1, 28, 28).sign()
    for bias in (False, True):
        model = build(Recipe(network=name, bias=bias))
        assert any("bias" in key for key, _ in model.named_parameters()) == bias
        layer: Any = next(m for m in model.modules() if isinstance(m, NSMLayer))
        read = z if name == "mnist-cnn" else z.flatten(1)
        if bias:
            nn.init.ones_(layer.bias)
        before = layer.firing_probability(read)
        with torch.no_grad():
            layer.weight.mul_(0.125)
        assert torch.equal(layer.firing_probability(read), before) == (not bias)


def test_an_stnn_has_no_biases_whatever_the_recipe_says():
    assert not [
        key for key, _ in build(Recipe(network="pi-mnist-mlp", unit="StNN")).named_parameters() if "bias" in key
    ]


@pytest.mark.parametrize(
    ("build", "shape", "classes"),
    [
        (pi_mnist_mlp, (1, 28, 28), 10),
        (mnist_cnn, (1, 28, 28), 10),
        (lambda unit: mnist_cnn(unit, in_channels=10, size=34), (10, 34, 34), 10),
        (cifar_cnn, (3, 32, 32), 10),
        (lambda unit: cifar_cnn(unit, batch_norm=False), (3, 32, 32), 10),
        (dvs_cnn, (6, 64, 64), 11),
        (lambda unit: mnist_cnn(unit, bias=False), (1, 28, 28), 10),
        (lambda unit: cifar_cnn(unit, bias=False), (3, 32, 32), 10),
    ],
    ids=["mlp", "mnist", "nmnist", "cifar", "cifar-no-norm", "dvs", "mnist-no-bias", "cifar-no-bias"],
)
@pytest.mark.parametrize("unit", [bnsm, relu], ids=["bNSM", "dCNN"])
def test_architectures_run_and_every_parameter_learns(build, shape, classes, unit):
    model = build(unit)
    logits = model(torch.randn(2, *shape).sign())
    assert logits.shape == (2, classes)
    nn.functional.cross_entropy(logits, torch.tensor([0, 1])).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", UNITS)
def test_every_unit_fills_the_cnn(name):
    torch.manual_seed(0)
    model: Any = mnist_cnn(UNITS[name])
    x = torch.randn(4, 1, 28, 28).sign()
    model(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert set(dict(model.named_children())) == {"conv1", "pool1", "conv2", "pool2", "flatten", "fc1", "out"}
    noisy = name in {"bNSM", "gNSM", "bNSM (STE)", "bNSM (BinConcrete)", "SN", "StNN", "additive"}
    assert torch.equal(model(x), model(x)) == (not noisy)
    with deterministic(model):
        assert torch.equal(model(x), model(x))
    states = model.conv1(x)
    if name not in {"dCNN", "sigmoid", "SN", "bNSM (BinConcrete)"}:
        assert set(states.unique().tolist()) == {-1.0, 1.0}
    copy.deepcopy(model)


def test_units_carry_the_noise_of_the_recipes():
    assert [layer.noise for layer in mnist_cnn().modules() if isinstance(layer, NSMLayer)] == [
        Bernoulli(0.25),
        Bernoulli(0.25),
        Bernoulli(0.5),
    ]
    assert all(layer.noise == Gaussian(1.0) for layer in mnist_cnn(gnsm).modules() if isinstance(layer, NSMLayer))
    assert bnsm(nn.Linear(2, 2), site="synapse", draw="moments").draw == "moments"


def test_stnn_fires_with_the_sigmoid_and_passes_its_gradient():
    torch.manual_seed(1)
    x = torch.tensor(0.8)
    unit = StochasticSigmoid()
    states = unit(x.expand(law.DRAWS))
    check_rate(int((states == 1).sum()), law.DRAWS, 1 / (1 + math.exp(-0.8)))
    x = torch.linspace(-3, 3, 7, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(unit(x).sum(), x)
    p = torch.sigmoid(x.detach())
    torch.testing.assert_close(found, 2 * p * (1 - p))
    with deterministic(unit):
        assert unit(x).tolist() == [-1, -1, -1, 1, 1, 1, 1]
    assert unit(torch.tensor([math.nan])).isnan().all()


def test_the_additive_unit_fires_with_erf_and_does_not_normalise():
    torch.manual_seed(3)
    unit = AdditiveNoise(std=0.5)
    for x in (0.3, 3.0):
        states = unit(torch.tensor(x).expand(law.DRAWS))
        check_rate(int((states == 1).sum()), law.DRAWS, 0.5 * math.erfc(-x / (math.sqrt(2) * 0.5)))
    x = torch.linspace(-1, 1, 5, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(unit(x).sum(), x)
    torch.testing.assert_close(found, 2 / (0.5 * math.sqrt(2 * math.pi)) * torch.exp(-x.detach().square() / 0.5))
    with deterministic(unit):
        assert unit(x).tolist() == [-1, -1, 1, 1, 1]
    with pytest.raises(ValueError, match="Expected argument `std` to be positive and finite, but got -1"):
        AdditiveNoise(-1)


def test_the_noisy_rectifier():
    torch.manual_seed(2)
    unit = NoisyRectifier()
    x = torch.full((law.DRAWS,), 0.05, requires_grad=True)
    y = unit(x)
    check_rate(int((y > 0).sum()), law.DRAWS, 0.5 * math.erfc(-0.5 / math.sqrt(2)))  # N(0.05, 0.1²) above 0
    assert (y >= 0).all()
    y.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))  # type: ignore[arg-type]
    assert isinstance(unit, Stochastic)
    with deterministic(unit):
        assert unit(torch.tensor([-1.0, 2.0])).tolist() == [0, 2]
    with pytest.raises(ValueError, match="Expected argument `std` to be positive and finite, but got 0"):
        NoisyRectifier(0)


def test_signs():
    x = torch.tensor([-2.0, 0.0, 0.5], requires_grad=True)
    for estimator, slope in (
        (StraightThrough(), torch.ones(3)),
        (Deterministic(), 2 / math.sqrt(math.pi) * torch.exp(-x.detach().square())),
    ):
        states = Sign(estimator)(x)
        assert states.tolist() == [-1, 1, 1]
        (found,) = torch.autograd.grad(states.sum(), x)
        torch.testing.assert_close(found, slope)
        assert repr(estimator) in repr(Sign(estimator))


def test_batch_norm_learns_from_one_input_at_a_time():
    """Fed one by one, the running statistics come to those of the data, and inputs leave normalised."""
    torch.manual_seed(0)
    norm = networks.OnlineBatchNorm1d(3, momentum=0.01)
    scale, shift = torch.tensor([1.0, 5.0, 0.2]), torch.tensor([0.0, 3.0, -1.0])
    out = torch.cat([norm(torch.randn(1, 3) * scale + shift) for _ in range(3000)])[500:]
    assert torch.allclose(norm.get_buffer("running_mean"), shift, atol=1.0)
    assert torch.allclose(out.mean(0), torch.zeros(3), atol=0.1)
    assert torch.allclose(out.std(0), torch.ones(3), atol=0.15)
    batch, plain = torch.randn(8, 3), nn.BatchNorm1d(3)
    assert torch.equal(networks.OnlineBatchNorm1d(3)(batch), plain(batch))
    assert not networks.batch_norm(nn.Linear(3, 2))(torch.randn(1, 3)).isnan().any()
