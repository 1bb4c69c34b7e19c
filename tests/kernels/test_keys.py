"""No Philox (key, counter) is used twice: every launch, of all calls, layers, networks and replays, has its own key.

Within a launch all counters differ: the twins of the kernels count them.
"""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from nsm import Bernoulli, NSMConv2d, NSMLinear, firing
from nsm.ensemble import Ensemble
from nsm.kernels import fire_cpu
from nsm.sequential import Sequential
from nsm.steps import GraphedStep
from nsm.training import fit
from test_training import TINY, tiny

pytest.importorskip("triton")
from nsm.kernels import blankout, fire, pool

MOMENTS: Any = {"site": "synapse", "draw": "moments"}


@pytest.fixture
def launched(monkeypatch):
    """The keys of all launches from here on, one for each network; of those in a graph, the keys of its last replay."""
    keys = []

    def noted(launch):
        def run(*arguments, **options):
            key = next(one for one in arguments if isinstance(one, torch.Tensor) and one.dtype == torch.int64)
            keys.append((key[:, 0] if key.dim() == 2 else key[:1]).clone())  # which a graph does again
            return launch(*arguments, **options)

        return run

    class Noted:
        kernel: Any = blankout._blankout

        def __getitem__(self, grid):
            return noted(self.kernel[grid])

    monkeypatch.setattr(blankout, "_blankout", Noted())
    for module, name in itertools.product((fire_cpu, fire, pool), ("fire", "blank", "fire_pool", "fire_patches")):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, noted(getattr(module, name)))
    return keys


def all_differ(keys: list[int], count: int) -> bool:
    """Whether these are so many keys, no two of them alike."""
    return len(keys) == count == len(set(keys))


@pytest.mark.parametrize("compiled", [False, True])
def test_calls_and_layers(compiled, fast, launched):
    torch.manual_seed(0)
    conv, dense = NSMConv2d(1, 16, 3), NSMLinear(64, 5, **MOMENTS)
    network = Sequential(conv, nn.MaxPool2d(2), nn.Flatten(), dense).to(fast)
    run = torch.compile(network) if compiled else network
    x = torch.ones(3, 1, 6, 6, device=fast)
    with torch.no_grad():
        for _ in range(25):
            run(x)
            conv(x)
    assert all_differ(torch.cat(launched).tolist(), 75)


@pytest.mark.parametrize("law", [{}, MOMENTS], ids=["neuron", "moments"])
def test_members_side_by_side(law, device, launched, monkeypatch):
    """On CUDA and in the interpreter one launch has the keys of both."""
    monkeypatch.setattr(Ensemble, "apart", False)
    torch.manual_seed(0)
    both = Ensemble([Sequential(NSMLinear(8, 4, **law), NSMLinear(4, 3, **law)) for _ in range(2)]).to(device)
    for _ in range(2):
        both(torch.ones(2, 3, 8, device=device))
    assert all_differ(torch.cat(launched).tolist(), 8)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_members_with_exact_draws(device, launched, monkeypatch):
    """They take their turn."""
    monkeypatch.setattr(Ensemble, "apart", False)
    monkeypatch.setattr(firing, "_triton_takes", lambda z: True)
    torch.manual_seed(0)
    law: Any = {"noise": Bernoulli(0.5), "site": "synapse", "draw": "exact"}
    both = Ensemble([Sequential(NSMLinear(8, 4, **law)) for _ in range(2)]).to(device)
    for _ in range(2):
        both(torch.ones(2, 3, 8, device=device))
    assert all_differ(torch.cat(launched).tolist(), 4)


@pytest.mark.gpu
@pytest.mark.parametrize("changes", [{}, {"compile": True}, {"seeds": 2}, {"seeds": 2, "compile": True}])
def test_replays_of_captured_steps(changes, launched, monkeypatch):
    """34 steps an epoch: some as they are, some captured one by one, some twenty-five at a time."""
    begin, replay, in_graphs, replayed = GraphedStep.__init__, GraphedStep._replay, {}, []

    def begun(self, *arguments, **options):
        launched.clear()  # what looked at the data and at where to start
        begin(self, *arguments, **options)

    def noted(self, batches, size):
        before = len(launched)
        losses = replay(self, batches, size)
        if len(launched) > before:  # it was captured just now
            in_graphs[len(batches)] = launched[before:]
            del launched[before:]
        replayed.extend(torch.cat(in_graphs[len(batches)]).tolist())
        return losses

    monkeypatch.setattr(GraphedStep, "__init__", begun)
    monkeypatch.setattr(GraphedStep, "_replay", noted)
    torch.manual_seed(0)
    network = Sequential(nn.Flatten(), NSMLinear(32, 16), NSMLinear(16, 8, **MOMENTS), nn.Linear(8, 2))
    fit(network, tiny(34), replace(TINY, accelerator="cuda", cuda_graph=True, batch_size=1, **changes))
    assert len(in_graphs) == 2
    assert len(replayed) > len(launched)
    assert all_differ(torch.cat(launched).tolist() + replayed, TINY.epochs * 34 * 2 * changes.get("seeds", 1))
