"""The figures' own loop does what `nsm.fit` does."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import nsm
from nsm.batches import derive
from nsm.ensemble import Ensemble
from nsm.networks import build
from nsm.paper.learning import differentiate, layers, learn, minibatches, start
from nsm.recipes import PI_MNIST, Recipe


@pytest.fixture(scope="module")
def digits():
    whole = nsm.data.load("mnist", "test")
    return replace(whole, stored=whole.stored[:300], labels=whole.labels[:300])


def test_mini_batches_go_round_and_are_those_of_fit(digits):
    recipe = replace(PI_MNIST, seed=3)
    seen = list(minibatches(digits, recipe, 5))
    assert [len(y) for _, y in seen] == [100] * 5
    order = torch.randperm(300, generator=torch.Generator().manual_seed(derive(3, "order")))
    assert torch.equal(torch.cat([y for _, y in seen[:3]]), digits.labels[order])
    assert not torch.equal(seen[0][1], seen[3][1])


def test_a_start_takes_the_weights_it_is_given_and_normalises_its_units(digits):
    given = build(replace(PI_MNIST, unit="dCNN"))
    network = start(PI_MNIST, digits, weights=given)
    assert list(layers(network)) == ["fc1", "fc2", "fc3", "out"]
    for own, other in zip(layers(network).values(), layers(given).values(), strict=True):
        assert torch.equal(own.weight, other.weight)
    t = layers(network)["fc1"].erf_argument(digits.inputs.flatten(1))  # type: ignore[operator]
    assert t.mean().item() == pytest.approx(0, abs=0.1)
    assert t.var(0).mean().item() == pytest.approx(1, abs=0.2)


def test_networks_learn_alone_and_beside_others(digits):
    recipe = Recipe(network="pi-mnist-mlp", unit="dCNN", epochs=20, lr=1e-3, accelerator="cpu")
    for size in (1, 2):
        ensemble = Ensemble([start(replace(recipe, seed=k), digits) for k in range(size)])
        seen = list(learn(ensemble, digits, recipe))
        assert seen == [(step // 3, step) for step in range(60)] + [(20, 60)]
        for k in range(size):
            network: nn.Module = ensemble.member(k)
            error = (network(digits.inputs).argmax(1) != digits.labels).float().mean().item()
            assert error < 0.05


def test_the_gradient_is_that_of_the_mean_loss(digits):
    network = start(replace(PI_MNIST, unit="dCNN"), digits)
    x, y = digits.inputs[:10], digits.labels[:10]
    loss = differentiate(network, x, y)
    found = layers(network)["out"].weight.grad.clone()  # type: ignore[union-attr]
    assert torch.equal(loss, differentiate(network, x, y))  # nothing is added up
    hidden = network[:-1](x)  # type: ignore[index]
    p = network(x).softmax(1).detach()
    p[torch.arange(10), y] -= 1
    assert torch.allclose(found, p.T @ hidden / 10, atol=1e-6)
