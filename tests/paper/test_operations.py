"""Counts against counts by hand, on networks small enough to count and on the paper's."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from nsm import Bernoulli, Gaussian, NSMConv2d, NSMLinear
from nsm.networks import build, pi_mnist_mlp, stnn
from nsm.paper.operations import Operations, count
from nsm.paper.showing import _rounded
from nsm.recipes import Recipe

ROOT = Path(__file__).resolve().parents[2]
ONES = torch.ones(1, 4)


def test_a_dense_layer_of_noisy_units():
    """Three units of four inputs: each sums 4 + 4 terms and b, multiplies by a, and compares; arg max 2."""
    layer = NSMLinear(4, 3, noise=Bernoulli(0.5))
    assert count(layer, ONES) == Operations(additions=3 * 8, comparisons=3 + 2, multiplications=3, random_bits=4)
    quarter = NSMLinear(4, 3, noise=Bernoulli(0.25), site="synapse")
    assert count(quarter, ONES) == Operations(additions=24, comparisons=5, multiplications=3, random_bits=2 * 12)
    gaussian = NSMLinear(4, 3, noise=Gaussian(1.0))
    assert count(gaussian, ONES) == Operations(additions=24, comparisons=5, multiplications=15, random_bits=32 * 4)


def test_a_padded_convolution_has_no_inputs_outside():
    """3×3 on a 3×3 image with padding 1: 4 corners see 4, 4 edges 6, the centre 9 inputs: 49."""
    layer = nn.Sequential(NSMConv2d(1, 2, 3, padding=1), nn.Flatten())
    found = count(layer, torch.ones(1, 1, 3, 3))
    assert found == Operations(additions=2 * 2 * 49, comparisons=18 + 17, multiplications=18, random_bits=9)
    plain = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten())
    assert count(plain, torch.full((1, 1, 3, 3), 0.5)) == Operations(98, 18 + 17, 98)


def test_the_first_layer_is_shared_by_samples():
    """Of 784-300-300-300-10 with 100 samples only Wz of the first layer, its a and its b are computed once."""
    network, x = pi_mnist_mlp(), torch.ones(1, 784)
    first, later, last = 300 * 784, 2 * 300 * 300, 10 * 300
    softmax = 10 + 9
    assert count(network, x) == Operations(2 * (first + later) + last, 900 + 9, 900, 0, 784 + 300 + 300)
    assert count(network, x, 100) == Operations(
        additions=first + 100 * (first + 2 * later + last + softmax),
        comparisons=100 * 900 + 9,
        multiplications=300 + 100 * (600 + 10),
        exponentials=100 * 10,
        random_bits=100 * (784 + 300 + 300),
    )


def test_the_sigmoid_network_draws_real_numbers():
    network = pi_mnist_mlp(stnn, bias=False)
    first, later, last = 300 * 783, 2 * 300 * 299, 10 * 299
    assert count(network, torch.ones(1, 784)) == Operations(first + later + last, 909, 0, 900, 32 * 900)
    assert count(network, torch.ones(1, 784), 10).exponentials == 300 + 10 * (600 + 10)


def test_the_convolutional_network_and_its_twin():
    """Connections by hand: 18,432 × 25, 4,096 × 800, 512 × 1,024 and 10 × 512; pools of four."""
    connections = [32 * 24 * 24 * 25, 64 * 8 * 8 * 800, 512 * 1024, 10 * 512]
    units, pools = 32 * 24 * 24 + 64 * 8 * 8 + 512, 3 * (32 * 12 * 12 + 64 * 4 * 4)
    x = torch.ones(1, 1, 28, 28)
    nsm = count(build(Recipe(network="mnist-cnn")), x)
    bits = 2 * 784 + 2 * 32 * 12 * 12 + 1024
    assert nsm == Operations(2 * sum(connections[:3]) + connections[3], units + pools + 9, units, 0, bits)
    twin = count(build(Recipe(network="mnist-cnn", unit="dCNN")), x)
    assert twin == Operations(sum(connections), units + pools + 9, sum(connections[1:]))
    for unit in ("BD", "wBD"):
        assert count(build(Recipe(network="mnist-cnn", unit=unit)), x) == Operations(sum(connections), twin.comparisons)


def test_samples_of_a_deterministic_network_cost_nothing():
    network = nn.Sequential(nn.Linear(4, 3), nn.Sigmoid())
    assert count(network, ONES, 100) == count(network, ONES)


def test_an_unknown_module_is_refused():
    with pytest.raises(TypeError, match="known modules, but got Tanh"):
        count(nn.Sequential(nn.Linear(4, 3), nn.Tanh()), ONES)


def test_the_record_can_be_made_again():
    """The rows of the smaller networks, counted anew."""
    from nsm.paper.operations import _row

    rows = json.loads((ROOT / "results" / "operations.json").read_text())["rows"]
    for row in rows:
        if row["data"] in ("mnist", "nmnist"):
            made = _row(row["data"], row["network"], row["unit"], row["site"] or "neuron", 100)
            assert _rounded(made) == row
