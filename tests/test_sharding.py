"""Weights in shares: cut, followed by moments, and put together. Two processes train so in test_processes."""

import copy
from typing import Any, cast, get_args

import pytest
import torch
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

import nsm
from nsm.networks import build
from nsm.recipes import Recipe, Unit
from nsm.sharding import collect, follow, shard, whole


@pytest.fixture
def mesh():
    """A group of this process alone, as the fabric makes it."""
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1, 1), mesh_dim_names=("data_parallel", "tensor_parallel"))
    torch.distributed.destroy_process_group()


def net():
    torch.manual_seed(0)
    return nn.Sequential(nsm.NSMLinear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3, bias=False))


def learn(network, optimizer, steps):
    torch.manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        network(torch.randn(4, 6).sign()).square().sum().backward()
        optimizer.step()


def test_a_network_in_shares_learns_as_the_whole_one(mesh):
    """The moments go on where they were, and so do the weights and buffers, to the bit."""
    one, other = net(), net()
    optimizers = [torch.optim.Adam(network.parameters(), lr=1e-2, betas=(0.5, 0.99)) for network in (one, other)]
    for network, optimizer in zip((one, other), optimizers, strict=True):
        learn(network, optimizer, 3)
    learn(one, optimizers[0], 2)

    shares = shard(copy.deepcopy(other), mesh)
    assert all(isinstance(weight, DTensor) for weight in shares.parameters())
    assert isinstance(shares.get_submodule("0"), nsm.NSMLinear)
    follow(optimizers[1], other, shares)
    learn(shares, optimizers[1], 2)
    collect(shares, other)
    for (name, value), (_, expected) in zip(other.state_dict().items(), one.state_dict().items(), strict=True):
        assert type(value) is torch.Tensor
        assert torch.equal(value, expected), name
    for index, moments in optimizers[0].state_dict()["state"].items():
        for name, value in optimizers[1].state_dict()["state"][index].items():
            assert torch.equal(whole(value), moments[name])


@pytest.mark.parametrize("unit", get_args(Unit))
def test_every_unit_of_the_paper_can_be_cut(mesh, unit, monkeypatch):
    """Weight normalisation, which computes its weights in a module of its own, is one of them.

    Without the kernels, whose noise is another in a layer that is hooked and so does not pool.
    """
    monkeypatch.setattr("nsm.firing.kernels_take", lambda *_: False)
    network = build(Recipe(network="mnist-cnn", unit=unit))
    expected = copy.deepcopy(network).state_dict()
    inputs, labels = torch.randn(3, 1, 28, 28).sign(), torch.arange(3)
    gradients = []
    reference = copy.deepcopy(network)
    cast(Any, network).to(memory_format=torch.channels_last)  # as in training
    for each in (reference, shard(network, mesh)):
        torch.manual_seed(2)
        nn.functional.cross_entropy(each(inputs), labels).backward()
        gradients.append(
            {name: whole(weight.grad) for name, weight in each.named_parameters() if weight.grad is not None}
        )
    assert gradients[0].keys() == gradients[1].keys()
    assert all(torch.equal(value, gradients[1][name]) for name, value in gradients[0].items())
    assert network.state_dict().keys() == expected.keys()


def test_an_optimizer_that_has_not_begun_is_followed_too(mesh):
    model = net()
    model[2].weight.requires_grad_(False)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
    shares = shard(copy.deepcopy(model), mesh)
    follow(optimizer, model, shares)
    learn(shares, optimizer, 1)
    assert len(optimizer.state) == len(list(shares.parameters())) - 1


def test_what_is_whole_stays():
    value = torch.ones(3)
    assert whole(value) is value
