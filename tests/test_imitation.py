"""Layers that are fitted to those of a trained network."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from nsm import NSMConv2d, NSMLinear, data, imitation
from nsm.imitation import RAREST, SPREAD, imitate
from nsm.initialization import pre_activations, start_from
from nsm.networks import build, mnist_cnn, relu
from nsm.recipes import PI_MNIST
from nsm.training import fit, train

LAYERS = {
    "dense": (lambda: NSMLinear(9, 4), (400, 9)),
    "convolution": (lambda: NSMConv2d(3, 4, 3, padding=1), (40, 3, 6, 5)),
    "groups": (lambda: NSMConv2d(4, 6, (3, 2), stride=(2, 1), dilation=(1, 2), groups=2), (60, 4, 9, 8)),
}


@pytest.fixture(params=LAYERS)
def problem(request):
    """A layer, its inputs, weights that are wanted, and what these give beside a constant."""
    torch.manual_seed(0)
    make, shape = LAYERS[request.param]
    layer, z = make(), torch.randn(shape).sign()
    wanted = torch.randn_like(layer.weight)
    constant = layer.wiring.per_unit(torch.randn(len(wanted)))
    return layer, z, wanted, layer.wiring.product(z, wanted) + constant


@torch.no_grad()
def test_what_states_say_exactly_is_found(problem, monkeypatch):
    layer, z, wanted, h = problem
    monkeypatch.setattr(imitation, "RIDGE", 0.0)
    whole = imitation._least_squares(layer, z, h)
    torch.testing.assert_close(whole, wanted.double(), rtol=1e-3, atol=1e-4)
    monkeypatch.setattr(imitation, "CHUNK", 1)
    torch.testing.assert_close(imitation._least_squares(layer, z, h), whole, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("problem", ["dense"], indirect=True)
def test_least_squares_are_those_of_a_library(problem):
    """With noise and a ridge: n · ridge squares of weights beside the squares of errors, but not of the constant's."""
    layer, z, _, h = problem
    h = h + torch.randn_like(h)
    inputs = torch.cat([torch.cat([z, torch.ones(len(z), 1)], 1), (len(z) * imitation.RIDGE) ** 0.5 * torch.eye(9, 10)])
    expected = torch.linalg.lstsq(inputs.double(), torch.cat([h, torch.zeros(9, 4)]).double()).solution[:-1].T
    torch.testing.assert_close(imitation._least_squares(layer, z, h), expected, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_a_unit_fires_as_often_as_the_trained_one(problem):
    layer, z, _, h = problem
    h = h + layer.wiring.per_unit(torch.tensor([9.0, -9.0, 0.5, 0.0, 1.0, 0.0][: len(layer.weight)]))  # always, never
    imitation._fit(layer, z, h)
    t = layer.wiring.units_last(layer.erf_argument(z)).flatten(0, -2)
    torch.testing.assert_close(t.std(0, correction=0), torch.full_like(t[0], SPREAD), rtol=0.05, atol=0)
    wanted = (layer.wiring.units_last(h) > 0).float().flatten(0, -2).mean(0).clamp(RAREST, 1 - RAREST)
    fires = (0.5 * (1 + torch.erf(t))).mean(0)
    assert float((fires - wanted).abs().max()) < 0.05  # t is not quite normal


@torch.no_grad()
def test_a_unit_that_states_say_nothing_of_keeps_its_weights(problem):
    layer, z, *_, h = problem
    before = layer.weight.detach().clone()
    imitation._fit(layer, z, torch.zeros_like(h))
    assert torch.equal(layer.weight, before)
    assert all(parameter.isfinite().all() for parameter in layer.parameters())


@pytest.mark.parametrize("inplace", [False, True])
@torch.no_grad()
def test_pre_activations_are_what_activations_get(inplace):
    torch.manual_seed(0)
    seen, pooled, dense = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)), nn.MaxPool2d(2), nn.Linear(36, 5)
    trained = nn.Sequential(
        seen, nn.Sequential(pooled, nn.ReLU()), nn.Flatten(), nn.Dropout(), dense, nn.ReLU(inplace), nn.Linear(5, 2)
    )
    x = torch.randn(10, 1, 8, 8)
    trained(x)  # so that the norm knows something
    found = pre_activations(trained, x)
    assert trained.training  # as it was
    trained.eval()
    torch.testing.assert_close(found[0], seen(x))
    torch.testing.assert_close(found[1], dense(pooled(seen(x)).relu().flatten(1)))
    assert len(found) == 2
    assert not any(module._forward_hooks for module in trained.modules())


@torch.no_grad()
def test_more_of_a_trained_network_is_left_than_of_its_weights():
    """Of the last hidden layer's pre-activations, seen through two layers of noise."""
    torch.manual_seed(0)
    trained, digits = mnist_cnn(relu), data.load("mnist", "test").inputs[:300]
    begun = start_from(mnist_cnn(), trained), imitate(mnist_cnn(), trained, digits[:200])
    wanted = pre_activations(trained, digits[200:])[-1]

    def likeness(model: nn.Module) -> float:
        seen: list[torch.Tensor] = []
        last = [module for module in model.modules() if isinstance(module, NSMLinear)][-1]
        hook = last.register_forward_pre_hook(lambda _, z: seen.append(last.erf_argument(z[0])))
        model(digits[200:])
        hook.remove()
        both = [(v - v.mean(0)).flatten() for v in (seen[0].detach(), wanted)]
        return float(torch.corrcoef(torch.stack(both))[0, 1])

    weights_alone, fitted = map(likeness, begun)
    assert fitted > weights_alone + 0.1, (weights_alone, fitted)


def test_a_batch_must_be_numbers():
    trained = nn.Sequential(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), nn.Linear(3, 2))
    with pytest.raises(TypeError, match=r"`batch` to be a floating-point tensor, but got torch.int64"):
        imitate(nn.Sequential(NSMLinear(4, 3), nn.Linear(3, 2)), trained, torch.ones(5, 4, dtype=torch.int64))


def test_a_run_begins_by_imitating(tmp_path):
    small, digits = replace(PI_MNIST, epochs=1, validation_split=None), data.load("mnist")
    few = replace(digits, stored=digits.stored[:400], labels=digits.labels[:400])
    deterministic = replace(small, unit="dCNN")
    fit(build(deterministic), few, deterministic, run_dir=tmp_path / "trained")
    losses = [
        fit(build(recipe), few, recipe).rows[0]["loss"]
        for recipe in (replace(small, init_from=str(tmp_path / "trained"), imitate=n) for n in (0, 200))
    ]
    assert losses[0] != losses[1]
    with pytest.raises(ValueError, match="Expected argument `init_from` with imitate=200, but got None"):
        train(replace(small, imitate=200))
