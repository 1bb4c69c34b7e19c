"""Steps: what a step computes is the same however it is run. Most of it is in test_training; here is CUDA."""

import signal
from dataclasses import replace
from unittest import mock

import pytest
import torch
from lightning_fabric import Fabric
from torch import nn
from torch._inductor.utils import fresh_cache

from nsm.processes import Diverged, Interrupted
from nsm.steps import GraphedStep, Step
from nsm.training import fit
from test_training import TINY, assert_equal_runs, net, outcome, tiny

CUDA = replace(TINY, accelerator="cuda", epochs=4, schedule="linear", schedule_epochs=2, augmentation="shift")
FLIP = {"input_flip": 0.3, "compile": True, "cuda_graph": True}
MUON = {"muon_lr": 1e-3, "compile": True, "cuda_graph": True}


def cut_after(patch, count):
    """A signal in the middle of step ``count``, whichever way steps are run."""
    for name, kind in (("Step", Step), ("GraphedStep", GraphedStep)):

        class Cut(kind):  # type: ignore[misc, valid-type]
            calls = 0

            def __call__(self, *arguments):
                type(self).calls += 1
                if type(self).calls == count:
                    signal.raise_signal(signal.SIGINT)
                return super().__call__(*arguments)

        patch.setattr(f"nsm.state.{name}", Cut)


def test_one_step():
    """The loss of a batch is the mean over its inputs, for each seed, and gradients are its gradients."""
    torch.manual_seed(0)
    network = nn.Linear(4, 3)
    x, y = torch.randn(2, 5, 4), torch.randint(3, (2, 5))
    expected = torch.stack([nn.functional.cross_entropy(network(x[k]), y[k]) for k in range(2)])
    gradient = torch.autograd.grad(expected.sum(), network.weight)[0]
    fabric = Fabric(accelerator="cpu", devices=1)
    step = Step(TINY, network, torch.optim.SGD(network.parameters(), lr=1.0), fabric, lambda *what: what)
    before = network.weight.detach().clone()
    losses = step((x, y), 5)
    assert torch.allclose(losses, expected.double(), atol=1e-6)
    assert torch.allclose(before - network.weight, gradient, atol=1e-6)
    step.check(1, losses, None)
    weights = network.weight.detach().clone()
    step((x * float("inf"), y), 5)
    assert torch.equal(network.weight, weights)  # nothing was learned from it
    with pytest.raises(Diverged, match=r"at step 2$"):
        step.check(2, losses, None)


def test_steps_taken_together_are_those_taken_one_by_one(tmp_path, monkeypatch):
    """Six batches an epoch, a save after every five steps: groups of four, one and two."""
    recipe, groups = replace(TINY, batch_size=6, save_every=5), []
    several = Step.several
    monkeypatch.setattr(Step, "several", lambda self, some: groups.append(len(some)) or several(self, some))
    for together in (4, 1):
        monkeypatch.setattr(Step, "together", together)
        fit(net(), tiny(36), recipe, run_dir=tmp_path / str(together))
    assert groups[:5] == [4, 1, 1, 4, 2]
    one, four = outcome(tmp_path / "1")[0], outcome(tmp_path / "4")[0]
    for name, value in one.items():
        if name != "losses":  # the same sum in another order
            assert torch.equal(value, four[name]), name


def test_a_run_that_goes_on_with_a_small_batch_captures_the_large_ones(monkeypatch):
    """Nothing is captured here: the graphs of replays are counted by the sizes of their batches."""
    network, fabric, sizes = nn.Linear(3, 2), Fabric(accelerator="cpu", devices=1), []
    for name in ("Stream", "current_stream", "stream"):
        monkeypatch.setattr(torch.cuda, name, mock.MagicMock())

    def replay(self, batches, size):
        sizes.append([len(batch[0]) for batch in batches])
        return torch.zeros(1)

    monkeypatch.setattr(GraphedStep, "_replay", replay)
    optimizer = torch.optim.Adam(network.parameters())
    step = GraphedStep(TINY, network, optimizer, fabric, lambda *what: what)
    small, large = (((torch.randn(n, 3), torch.randint(2, (n,))), n) for n in (4, 10))
    for one in (small, *[large] * 5, small):
        step(*one)
    step.several([large] * step.together)
    assert sizes == [[10], [10], [10] * step.together]


@pytest.mark.gpu
@pytest.mark.parametrize("changes", [{}, {"seeds": 3}, {"precision": "bf16-mixed"}, {"compile": True}, FLIP])
def test_a_captured_step_is_the_step(tmp_path, changes):
    """The same draws, and weights equal but for rounding: a graph needs Adam's form with its counter on the device."""
    recipe = replace(CUDA, **changes)
    for name, captured in (("plain", False), ("captured", True)):
        fit(net(), tiny(), replace(recipe, cuda_graph=captured), validation=tiny(9), run_dir=tmp_path / name)
    (plain, seen), (captured, seen2) = outcome(tmp_path / "plain"), outcome(tmp_path / "captured")
    worst = {
        name: float((value.double() - captured[name].double()).abs().max())
        for name, value in plain.items()
        if value.numel() and not name.endswith("/step")
    }
    assert torch.equal(plain["random/cuda"], captured["random/cuda"])
    assert max(size for name, size in worst.items() if name.startswith("model/")) < 1e-3
    assert [row["loss"] for row in seen["history"]] == pytest.approx(
        [row["loss"] for row in seen2["history"]], abs=1e-3
    )


@pytest.mark.gpu
@pytest.mark.parametrize("changes", [{}, {"cuda_graph": True}, {"cuda_graph": True, "seeds": 2}, FLIP, MUON])
def test_a_run_cut_on_cuda_ends_with_the_same_bits(tmp_path, monkeypatch, changes):
    recipe = replace(CUDA, **changes)
    fit(net(), tiny(), recipe, validation=tiny(9), run_dir=tmp_path / "whole")
    for count in range(1, 17):
        with monkeypatch.context() as patch:
            cut_after(patch, count)
            with pytest.raises(Interrupted):
                fit(net(), tiny(), recipe, validation=tiny(9), run_dir=tmp_path / str(count))
        fit(net(), tiny(), recipe, validation=tiny(9), run_dir=tmp_path / str(count), resume=True)
        assert_equal_runs(tmp_path / "whole", tmp_path / str(count))


@pytest.mark.gpu
@pytest.mark.parametrize("changes", [{"compile": True}, FLIP, MUON])
def test_no_sum_is_in_an_order_that_was_chosen_by_timing(monkeypatch, changes):
    """Kernels that add nothing up may be: their bits are the same whichever way is the fastest."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    timed, timing = [], CachingAutotuner.benchmark_all_configs

    def benchmark_all_configs(self, *arguments, **options):
        timed.append(self.heuristic_type.name)
        return timing(self, *arguments, **options)

    monkeypatch.setattr(CachingAutotuner, "benchmark_all_configs", benchmark_all_configs)
    torch.compiler.reset()
    with fresh_cache():
        fit(net(), tiny(300), replace(CUDA, batch_size=100, **changes))
    assert not [kind for kind in timed if "REDUCTION" in kind]


@pytest.mark.gpu
@pytest.mark.parametrize("changes", [{}, {"seeds": 2}])
def test_steps_captured_together_are_those_captured_one_by_one(tmp_path, monkeypatch, changes):
    """34 batches an epoch and a save after every 17: four groups of ten, and some that are left over."""
    recipe = replace(CUDA, cuda_graph=True, batch_size=1, save_every=17, **changes)
    for together in (10, 1):
        monkeypatch.setattr(GraphedStep, "together", together)
        fit(net(), tiny(34), recipe, run_dir=tmp_path / str(together))
    one, ten = outcome(tmp_path / "1")[0], outcome(tmp_path / "10")[0]
    for name, value in one.items():
        if name != "losses":  # the same sum in another order
            assert torch.equal(value, ten[name]), name


@pytest.mark.gpu
def test_a_loss_that_is_not_finite_on_cuda(tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 2))
    with pytest.raises(Diverged):
        fit(model, tiny(), replace(CUDA, lr=1e30, cuda_graph=True), run_dir=tmp_path)
    tensors, progress = outcome(tmp_path)
    assert progress["step"] == 0
    assert all(value.isfinite().all() for value in tensors.values())


@pytest.mark.gpu
def test_speed_of_the_ways(capsys):
    """Prints microseconds a step of the MNIST network; asserts only that a graph is no slower than without."""
    import nsm
    from nsm.recipes import MNIST_CNN

    digits = nsm.data.load("mnist", "validation")
    times = {}
    for name, changes in {
        "plain": {},
        "graph": {"cuda_graph": True},
        "graph, compiled, bf16": {"cuda_graph": True, "compile": True, "precision": "bf16-mixed"},
        "five seeds, graph": {"cuda_graph": True, "seeds": 5},
    }.items():
        recipe = replace(MNIST_CNN, epochs=6, accelerator="cuda", **changes)
        rows = fit(nsm.networks.mnist_cnn(), digits, recipe).rows
        times[name] = 1e6 * min(row["seconds"] for row in rows) / 50
    with capsys.disabled():
        print({name: f"{value:.0f} µs" for name, value in times.items()})
    assert times["graph"] < 1.1 * times["plain"]
