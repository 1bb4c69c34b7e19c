"""Several networks as one module: each computes, draws and learns as it would alone."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import nsm
from law import check_independent, check_rate
from nsm.ensemble import Ensemble
from nsm.networks import UNITS, mnist_cnn


@pytest.mark.parametrize("unit", ["bNSM", "dCNN", "wBD", "BN", "batch norm"])
def test_outputs_and_gradients_are_those_of_the_members(unit):
    """With the noise off: a unit of each kind, convolutions and buffers included."""
    torch.manual_seed(0)
    members = [mnist_cnn(UNITS[unit], classes=3).double() for _ in range(2)]
    both = Ensemble(members)
    x, labels = torch.randn(2, 4, 1, 28, 28).double().sign(), torch.tensor([[0, 1, 2, 0], [1, 1, 2, 0]])
    with nsm.deterministic(both):
        logits = both(x)
        cross_entropy(logits.flatten(0, 1), labels.flatten()).mul(2).backward()
    for k, member in enumerate(members):
        with nsm.deterministic(member):
            alone = member(x[k])
            cross_entropy(alone, labels[k]).backward()
        assert torch.allclose(logits[k], alone, atol=1e-9)
        for name, parameter in member.named_parameters():
            learned = both.members[k].get_parameter(name)
            assert parameter.grad is not None
            assert learned.grad is not None
            assert torch.allclose(learned.grad, parameter.grad, atol=1e-9), name
        for name, buffer in member.named_buffers():  # the running statistics of batch norms move too
            assert torch.allclose(both.state_dict()[name.replace(".", "/")][k].double(), buffer.double(), atol=1e-9), (
                name
            )


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


def test_the_state_is_stacked_and_the_members_are_copies():
    torch.manual_seed(0)
    members = [nn.Sequential(nn.Linear(3, 2)), nn.Sequential(nn.Linear(3, 2))]
    both = Ensemble(members)
    state = both.state_dict()
    assert list(state) == ["0/weight", "0/bias"]
    assert torch.equal(state["0/weight"], torch.stack([member[0].weight for member in members]))
    both.load_state_dict({name: value + 1 for name, value in state.items()})
    assert torch.equal(both.state_dict()["0/bias"], state["0/bias"] + 1)
    assert torch.equal(state["0/weight"][1], members[1][0].weight)  # the caller's networks did not move
