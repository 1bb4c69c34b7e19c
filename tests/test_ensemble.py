"""Several networks as one module: each computes, draws and learns as it would alone."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import nsm
from law import check_independent, check_rate
from nsm.ensemble import Ensemble
from nsm.networks import UNITS, mnist_cnn
from nsm.sequential import Sequential


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize(
    ("unit", "inputs"), [("bNSM", 4), ("dCNN", 4), ("wBD", 4), ("BN", 4), ("batch norm", 4), ("batch norm", 1)]
)
def test_outputs_and_gradients_are_those_of_the_members(unit, inputs, apart, monkeypatch):
    """With the noise off: a unit of each kind, convolutions and buffers included, one by one and by vmap."""
    monkeypatch.setattr(Ensemble, "apart", apart)
    torch.manual_seed(0)
    members = [mnist_cnn(UNITS[unit], classes=3).double() for _ in range(2)]
    both = Ensemble(members)
    x = torch.randn(2, inputs, 1, 28, 28).double().sign()
    labels = torch.tensor([[0, 1, 2, 0], [1, 1, 2, 0]])[:, :inputs]
    with nsm.deterministic(both._template[0]):
        logits = both(x)
        cross_entropy(logits.flatten(0, 1), labels.flatten()).mul(2).backward()
    for k, member in enumerate(members):
        with nsm.deterministic(member):
            alone = member(x[k])
            cross_entropy(alone, labels[k]).backward()
        assert torch.allclose(logits[k], alone, atol=1e-9)
        for name, parameter in member.named_parameters():
            stacked = both.get_parameter(name.replace(".", "/"))
            assert parameter.grad is not None
            assert stacked.grad is not None
            assert torch.allclose(stacked.grad[k], parameter.grad, atol=1e-9), name
        for name, buffer in member.named_buffers():  # the running statistics of batch norms move too
            assert torch.allclose(both.get_buffer(name.replace(".", "/"))[k].double(), buffer.double(), atol=1e-9), name


def test_members_draw_their_own_noise_in_the_law_of_the_layer():
    torch.manual_seed(0)
    layer = nsm.NSMLinear(100, 4, noise=nsm.Gaussian())
    both = Ensemble([layer, layer])
    z = torch.randn(100).sign()
    states = both(z.expand(2, 20_000, 100))
    assert not torch.equal(states[0], states[1])
    for unit, p in enumerate(layer.firing_probability(z).tolist()):
        for member in states:
            check_rate(int((member[:, unit] == 1).sum()), 20_000, p)
        check_independent(states[0, :, unit], states[1, :, unit], p)


def test_a_member_is_a_copy():
    torch.manual_seed(0)
    members: list[nn.Module] = [nn.Linear(3, 2), nn.Linear(3, 2)]
    both = Ensemble(members)
    one = both.member(1)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), members[1].parameters(), strict=True))
    with torch.no_grad():
        one.get_parameter("weight").zero_()
    assert not torch.equal(both.get_parameter("weight")[1], one.get_parameter("weight"))
    assert list(both.state_dict()) == ["weight", "bias"]


def test_members_by_vmap_compile_into_one_graph(monkeypatch):
    """As on CUDA, where a graph that breaks within vmap would leave every operation to itself."""
    monkeypatch.setattr(Ensemble, "apart", False)
    torch.manual_seed(0)
    members = [Sequential(nsm.NSMLinear(8, 20), nsm.NSMLinear(20, 4)) for _ in range(2)]
    both = Ensemble(members)
    states = torch.compile(both, fullgraph=True)(torch.randn(2, 1000, 8).sign())
    states.sum().backward()
    assert states.unique().tolist() == [-1, 1]
    assert all(value.grad is not None and value.grad.abs().sum() > 0 for value in both.parameters())
    alone = both.member(1).modules()  # which may be transformed as one likes
    assert not any(getattr(layer, "vmapped", False) for layer in alone)
