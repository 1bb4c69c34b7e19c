"""Muon against a decomposition in float64, Adam beside it against torch's own, and both inside a run."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from nsm.optimizers import MOMENTUM, Muon, orthogonalized
from nsm.recipes import Recipe
from nsm.state import State
from nsm.training import fit, set_rates
from test_training import TINY, smooth, tiny

MATRICES = [(6, 40), (40, 6), (20, 20), (3, 5, 30), (2, 3, 30, 5)]
NEAR = (0.65, 1.3)  # what five turns leave of singular values that were not small


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("shape", MATRICES, ids=str)
def test_orthogonalized_has_the_directions_of_a_matrix_and_one_strength(shape, device):
    """In the basis of the singular vectors it is diagonal, with numbers near 1."""
    m = torch.randn(shape, device=device)
    u, s, vt = torch.linalg.svd(m.double(), full_matrices=False)
    inner = u.mT @ orthogonalized(m).double() @ vt.mT
    diagonal = inner.diagonal(dim1=-2, dim2=-1)
    strong = s > 0.05 * s.amax(-1, keepdim=True)
    assert NEAR[0] < float(diagonal[strong].min())
    assert float(diagonal.max()) < NEAR[1]
    assert float((inner - torch.diag_embed(diagonal)).abs().max()) < (0.1 if device == "cuda" else 1e-4)  # bfloat16
    assert s.std() > 0.1  # or this would show nothing


def test_orthogonalized_nothing_is_nothing():
    assert torch.equal(orthogonalized(torch.zeros(3, 5)), torch.zeros(3, 5))


def schulz(m):
    """What Newton and Schulz make of the singular values, by a decomposition."""
    u, s, vt = torch.linalg.svd(m, full_matrices=False)
    s = s / s.norm()
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u @ torch.diag(s) @ vt


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_steps_are_those_of_the_equation(layout):
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(4, 3, 2, 2).double().to(memory_format=layout))
    expected, mean = weight.detach().flatten(1).clone(), torch.zeros(4, 12).double()
    optimizer = Muon([{"params": [weight], "muon": 0.5, "weight_decay": 0.3}], lr=0.1)
    for _ in range(3):
        weight.grad = torch.randn(4, 3, 2, 2).double().to(memory_format=layout)
        g = weight.grad.flatten(1)
        mean = MOMENTUM * mean + (1 - MOMENTUM) * g
        turn = schulz(MOMENTUM * mean + (1 - MOMENTUM) * g)
        expected = expected * (1 - 0.1 * 0.3) - 0.1 * 0.5 * 12**0.5 * turn
        optimizer.step()
        torch.testing.assert_close(weight.detach().flatten(1), expected)


def test_networks_side_by_side_are_turned_each_by_itself():
    torch.manual_seed(0)
    alone = [nn.Parameter(torch.randn(4, 6)) for _ in range(3)]
    stacked = nn.Parameter(torch.stack([weight.detach() for weight in alone]))
    optimizers = [Muon([{"params": [weight], "muon": 1.0}], lr=0.1) for weight in alone]
    optimizers.append(Muon([{"params": [stacked], "muon": 1.0}], lr=0.1, stacked=1))
    for _ in range(2):
        stacked.grad = torch.randn(3, 4, 6)
        for k, weight in enumerate(alone):
            weight.grad = stacked.grad[k].clone()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(stacked.detach(), torch.stack([weight.detach() for weight in alone]))


@pytest.mark.parametrize("fused", [False, True])
def test_what_is_no_matrix_is_left_to_adam(fused):
    torch.manual_seed(0)
    mine, its = (nn.Parameter(torch.ones(5)) for _ in range(2))
    ours = Muon([{"params": [mine], "weight_decay": 0.1}], lr=0.01, fused=fused)
    theirs = torch.optim.AdamW([{"params": [its], "weight_decay": 0.1}], lr=0.01, fused=fused)
    for _ in range(4):
        mine.grad, its.grad = (torch.arange(5.0).sin() * mine.detach() for _ in range(2))
        ours.step()
        theirs.step()
        assert torch.equal(mine, its)
    assert not torch.equal(mine, torch.ones(5))


def test_a_weight_without_a_gradient_stays():
    weights = [nn.Parameter(torch.ones(2, 3)) for _ in range(3)]
    optimizer = Muon([{"params": weights[:2], "muon": 1.0}, {"params": weights[2:]}], lr=0.1)
    weights[0].grad = torch.ones(2, 3)
    optimizer.step()
    assert not torch.equal(weights[0], weights[1])
    assert all(torch.equal(weight, torch.ones(2, 3)) for weight in weights[1:])


def hidden(state: State) -> list[int]:
    """Of the parameters of a network those that Muon changes."""
    places = {id(weight): k for k, weight in enumerate(state.network.parameters())}
    turned = [weight for group in state.optimizer.param_groups if group.get("muon") for weight in group["params"]]
    return sorted(places[id(weight)] for weight in turned)


@pytest.mark.parametrize("seeds", [1, 2])
def test_the_weights_of_all_layers_but_the_last_are_turned(monkeypatch, seeds):
    """Neither the classifier nor what is no matrix; by as much, in the root mean square, as the recipe says."""
    states, begin = [], State.begin

    def watched(self, folder):
        begin(self, folder)
        states.append((self, [weight.detach().clone() for weight in self.network.parameters()]))

    monkeypatch.setattr(State, "begin", watched)
    recipe = replace(TINY, seeds=seeds, epochs=1, batch_size=37, muon_lr=0.003, schedule="constant")
    model = smooth()
    fit(model, tiny(), recipe)
    state, before = states[0]
    names = [name.replace("/", ".") for name, _ in state.network.named_parameters()]
    matrices = [k for k, name in enumerate(names) if name.endswith("weight")]
    assert hidden(state) == matrices[:-1]
    assert len(matrices) > 1
    for k, weight in enumerate(state.network.parameters()):
        size = float((weight.detach() - before[k]).square().mean().sqrt())
        if k in hidden(state):
            assert 0.65 * 0.003 < size < 1.3 * 0.003
        else:
            assert 0 < size <= recipe.lr * 1.001  # the first step of Adam


def test_adam_alone_has_no_muon():
    plain, turned = (fit(smooth(), tiny(), replace(TINY, muon_lr=rate)).loss for rate in (0.0, 1e-3))
    assert plain != turned


def test_the_rate_falls_with_adams():
    recipe = replace(TINY, schedule="halving", schedule_epochs=1)
    changes = []
    for epoch in (0, 1):
        weight = nn.Parameter(torch.zeros(3, 4))
        optimizer = Muon([{"params": [weight], "muon": 1.0}], lr=recipe.lr)
        set_rates(optimizer, recipe, epoch)
        weight.grad = torch.arange(12.0).sin().view(3, 4)
        optimizer.step()
        changes.append(weight.detach())
    torch.testing.assert_close(changes[1], changes[0] / 2)
    assert changes[0].abs().min() > 0


def test_weights_in_shares_are_refused():
    with pytest.raises(ValueError, match=r"`muon_lr` to be 0 with strategy='fsdp', but got 0\.001"):
        Recipe(muon_lr=1e-3, strategy="fsdp")


@pytest.mark.gpu
@pytest.mark.parametrize("seeds", [1, 2])
def test_steps_in_a_graph_are_those_of_torch(seeds):
    """Of a network without noise, compiled and captured."""
    recipe = replace(TINY, accelerator="cuda", epochs=20, muon_lr=1e-3, weight_decay=0.1, seeds=seeds)
    plain, graphed = (
        fit(smooth(), tiny(40), replace(recipe, compile=fast, cuda_graph=fast)).loss for fast in (False, True)
    )
    assert graphed == pytest.approx(plain, abs=2e-2)
    assert plain[-1] < 0.8 * plain[0]


def test_a_network_without_hidden_layers_is_refused():
    with pytest.raises(ValueError, match=r"`muon_lr` to be 0 for a network without hidden layers, but got 0\.001"):
        fit(nn.Sequential(nn.Flatten(), nn.Linear(32, 2)), tiny(), replace(TINY, muon_lr=1e-3))
