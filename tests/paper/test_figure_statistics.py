"""Three networks from one start on the same mini-batches, on very few of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from nsm import data
from nsm.networks import build
from nsm.paper import figure_statistics as statistics
from nsm.paper.learning import differentiate, layers, minibatches
from nsm.recipes import MNIST_CNN


@pytest.fixture(scope="module")
def digits():
    whole = data.load("mnist", "test")
    return replace(whole, stored=whole.stored[:30], labels=whole.labels[:30])


@pytest.fixture(scope="module")
def networks(digits):
    return statistics._starts(digits, seed=0)


def test_the_start_is_the_same(networks):
    first, *others = (layers(network) for network in networks.values())
    assert list(first) == list(statistics.LAYERS)
    for other in others:
        for name in statistics.LAYERS:
            assert torch.equal(first[name].weight, other[name].weight)


def test_gradients_at_the_same_weights_leave_the_networks_as_they_were(networks, digits):
    nsm, sigmoid = networks["NSM"], networks["sigmoid"]
    x, y = next(minibatches(digits, replace(MNIST_CNN, batch_size=20), 1))
    differentiate(nsm, x, y)
    gradient = statistics._gradients(nsm)
    before = [p.detach().clone() for n in (nsm, sigmoid) for p in n.parameters()]
    torch.manual_seed(1)  # not the seed of the first draw: another one is to be compared with it
    found = statistics._at_the_same_weights(nsm, sigmoid, gradient, x, y)
    assert all(
        torch.equal(a, b) for a, b in zip(before, (p for n in (nsm, sigmoid) for p in n.parameters()), strict=True)
    )
    assert all(torch.equal(a, b) for a, b in zip(gradient, statistics._gradients(nsm), strict=True))
    assert set(found) == {"same/NSM", "same/BinConcrete", "same/sigmoid"}
    assert all(value.shape == (4,) and (value.abs() <= 1 + 1e-6).all() for value in found.values())
    twin = build(replace(MNIST_CNN, unit="sigmoid"))  # no noise, so its angle can be had again
    for own, other in zip(layers(twin).values(), layers(nsm).values(), strict=True):
        own.load_state_dict({"weight": other.weight, "bias": other.bias})
    differentiate(twin, x, y)
    assert torch.equal(found["same/sigmoid"], statistics.cosines(gradient, statistics._gradients(twin)))


def test_cosines_of_known_gradients():
    one, other = [torch.tensor([3.0, 4.0]), torch.ones(2)], [torch.tensor([-3.0, -4.0]), torch.tensor([1.0, -1.0])]
    assert statistics.cosines(one, other).tolist() == pytest.approx([-1, 0], abs=1e-6)
    assert statistics.cosines(one, one).tolist() == pytest.approx([1, 1])


def test_a_run_of_a_few_steps_can_be_drawn(digits):
    with torch.random.fork_rng():
        found = statistics._compare(digits, 0, steps=6)
    assert found["step"] == [0, 5]
    assert {len(curve) for curves in found["cosines"].values() for curve in curves.values()} == {2}
    density = found["histograms"]["NSM"]["fc1"]
    width = (density["edges"][1] - density["edges"][0]) / len(density["density"])
    assert sum(density["density"]) * width == pytest.approx(1, abs=1e-3)
    result = {"quick": True, "seeds": 1, "steps": 6, "recipes": {"NSM": MNIST_CNN.to_dict()}, **found}
    figure = statistics.draw(result)
    assert len(figure.axes) == 20
    assert figure.get_suptitle() == "quick version: MNIST CNN, n = 1"
    gradients = figure.axes[8]  # the first of the third row, with the gradients' signs
    assert gradients.get_ylabel() == "mean gradient"
    assert np.asarray(gradients.lines[0].get_ydata()).tolist() == found["curves"]["mean gradient/NSM"]["conv1"]
    assert gradients.get_yscale() == "linear"
    cosine = statistics.mean_cosine(result, "same/NSM")
    assert cosine == pytest.approx(sum(curve[1] for curve in found["cosines"]["same/NSM"].values()) / 4)
    said = statistics.caption(result)
    assert "the weights after 6 mini-batches (0.01 epochs of the recipe's 200)" in said
    assert f"another draw of the NSM {cosine:.2f}" in said
    farthest = max(abs(g) for curve in found["curves"]["mean gradient/sigmoid"].values() for g in curve)
    assert f"sigmoid {farthest:.1g} from 0" in said


def test_mean_gradients_of_the_last_layer_are_rounding(networks, digits):
    """As the caption says: the gradients of a softmax's inputs sum to 0 over the classes."""
    x, y = next(minibatches(digits, replace(MNIST_CNN, batch_size=20), 1))
    differentiate(networks["sigmoid"], x, y)
    last = statistics._gradients(networks["sigmoid"])[-1]
    assert last.mean().abs() < 1e-5 * last.abs().mean()


def test_the_mean_of_records():
    assert statistics._mean([{"a": [1, 2]}, {"a": [3, 6]}]) == {"a": [2, 4]}
