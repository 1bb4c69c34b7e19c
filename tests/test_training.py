"""fit: learns, is repeatable, and loses nothing wherever it is cut."""

import copy
import json
import math
import os
import random
import signal
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset as TorchDataset

import nsm
from nsm import checkpoint
from nsm.batches import Batches
from nsm.data.dataset import Dataset
from nsm.networks import UNITS, pi_mnist_mlp
from nsm.processes import Diverged, Interrupted
from nsm.recipes import Recipe
from nsm.sampling import predict
from nsm.steps import Step
from nsm.training import fit, schedule

TINY = Recipe(epochs=3, batch_size=10, lr=1e-2, schedule="constant", num_samples=3, accelerator="cpu")


def tiny(n=37, seed=0):
    """Digits of two classes, 4×8 bits, packed: more bits on the left or on the right."""
    generator = torch.Generator().manual_seed(seed)
    stored = torch.randint(256, (n, 1, 4, 1), generator=generator, dtype=torch.uint8)
    bits = stored.flatten(1)[:, :, None].bitwise_right_shift(torch.arange(8)) & 1
    return Dataset("tiny train", stored, (bits[..., 4:].sum((1, 2)) > bits[..., :4].sum((1, 2))).long(), ("r", "l"), 8)


class Foreign(TorchDataset):
    """Someone else's data set, with random transforms from torch, Python and numpy."""

    def __init__(self, n=23):
        self.data = tiny(n)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        x, y = self.data[index]
        shift = int(torch.randint(2, ())) + random.randrange(2) + int(np.random.randint(2))  # noqa: NPY002
        return x.roll(shift, -1), int(y)


def net(seed=0, unit: Any = nsm.NSMLinear) -> Any:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), unit(32, 16), unit(16, 8), nn.Linear(8, 2))


def smooth(seed=0) -> Any:
    """A network that draws nothing, so that it can be compared."""
    return net(seed, unit=lambda i, o: nn.Sequential(nn.Linear(i, o), nn.Tanh()))


def outcome(folder):
    """All that a run left, but for the time it took."""
    state = checkpoint.read(folder)
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in state.progress["history"]]
    return state.tensors, {**state.progress, "history": rows}


def assert_equal_runs(one, other):
    (tensors, progress), (tensors2, progress2) = outcome(one), outcome(other)
    assert progress == progress2
    assert tensors.keys() == tensors2.keys()
    for name, value in tensors.items():
        assert torch.equal(value, tensors2[name]), name


def interrupt_after(monkeypatch, count, number=signal.SIGTERM):
    """Send this process a signal in the middle of step ``count`` of the runs that follow."""
    steps = iter(range(1, 10**6))

    class Cut(Step):
        def __call__(self, *arguments):
            if next(steps) == count:
                os.kill(os.getpid(), number)
            return super().__call__(*arguments)

    monkeypatch.setattr("nsm.state.Step", Cut)


# ------------------------------------------------------------------------- learning


def test_it_learns_and_says_what_it_saw(tmp_path):
    data = tiny(400)
    model = net()
    recipe = replace(TINY, epochs=12, batch_size=20)
    history = fit(model, data, recipe, validation=tiny(100, seed=1), run_dir=tmp_path / "run")
    assert [row["epoch"] for row in history.rows] == list(range(1, 13))
    assert history.rows[-1]["step"] == 12 * 20
    assert history.loss[-1] < 0.5 * history.loss[0]
    assert history.rows[-1]["validation_error"] == history.validation_error[-1]
    assert history.rows[-1]["validation_error"] < 0.2
    inputs, labels = tiny(100, seed=1).batch(slice(None))
    loaded = net(seed=5)
    nsm.load(tmp_path / "run", model=loaded)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))
    wrong = (nsm.predict(loaded, inputs, 50, seed=0).label != labels).float().mean()
    assert wrong < 0.2
    files = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert [name for name in files if not name.startswith("state-")] == [
        "checkpoint.json", "learning-curve.png", "learning-curve.svg", "lock", "metrics.jsonl", "run.json",
    ]  # fmt: skip
    assert len(files) == 7
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows == list(history.rows)
    assert (tmp_path / "run" / "learning-curve.png").read_bytes().startswith(b"\x89PNG")
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["recipe"] == recipe.to_dict()
    assert {"hardware", "versions", "commit", "python"} <= set(about)


def test_the_first_step_is_adam_on_the_mean_loss():
    """Against a step written out, with units that do not draw."""
    data = tiny(10)
    model, by_hand = smooth(), smooth()
    fit(model, data, replace(TINY, epochs=1))
    inputs, labels = data.batch(slice(None))
    nn.functional.cross_entropy(by_hand(inputs), labels).backward()
    for trained, start in zip(model.parameters(), by_hand.parameters(), strict=True):
        gradient = start.grad
        expected = start.detach() - 1e-2 * gradient / (gradient.abs() + 1e-8)
        assert torch.allclose(trained, expected, atol=1e-5)


def test_the_start_is_data_dependent():
    model = net()
    fit(model, tiny(100), replace(TINY, epochs=1, batch_size=100, lr=1e-12))
    t = model[1].erf_argument(tiny(100).inputs.flatten(1))
    assert torch.allclose(t.mean(0), torch.zeros(16), atol=1e-4)
    assert torch.allclose(t.var(0, correction=0), torch.ones(16), atol=1e-3)
    plain = net()
    fit(plain, tiny(100), replace(TINY, epochs=1, batch_size=100, lr=1e-12, initialize=False))
    assert torch.allclose(plain[1].beta, torch.ones(16))


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.manual_seed(len(name))  # what the caller draws plays no part
        fit(net(), tiny(), replace(TINY, seed=seed, augmentation="shift"), run_dir=tmp_path / name, validation=tiny(9))
        torch.rand(3)
    assert_equal_runs(tmp_path / "a", tmp_path / "b")
    a, c = (outcome(tmp_path / name)[0] for name in "ac")
    assert not torch.equal(a["model/1.weight"], c["model/1.weight"])


def test_the_generators_of_the_caller_are_left_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    fit(net_without_seeding(), tiny(), replace(TINY, epochs=1))
    assert torch.equal(torch.rand(2), expected)


def net_without_seeding():
    state = torch.get_rng_state()
    model = net()
    torch.set_rng_state(state)
    return model


def test_schedules():
    halving = Recipe(lr=1.0, schedule="halving", schedule_epochs=2, epochs=6)
    assert [schedule(halving, epoch) for epoch in range(6)] == [(x, 0.9) for x in (1, 1, 0.5, 0.5, 0.25, 0.25)]
    linear = Recipe(lr=1.0, schedule="linear", schedule_epochs=2, epochs=6)
    assert [schedule(linear, epoch) for epoch in range(6)] == [
        (1, 0.9), (1, 0.9), (1, 0.5), (0.75, 0.5), (0.5, 0.5), (0.25, 0.5),
    ]  # fmt: skip
    assert {schedule(Recipe(lr=1.0, schedule="constant"), epoch) for epoch in (0, 199)} == {(1.0, 0.9)}


def test_the_schedule_reaches_the_optimiser(monkeypatch):
    seen = []

    class Watched(Step):
        def __call__(self, *arguments):
            seen.extend((group["lr"], group["betas"]) for group in self.optimizer.param_groups)
            return super().__call__(*arguments)

    monkeypatch.setattr("nsm.state.Step", Watched)
    history = fit(net(), tiny(), replace(TINY, schedule="linear", schedule_epochs=1, batch_size=37))
    assert seen == [(1e-2, (0.9, 0.999)), (1e-2, (0.5, 0.999)), (5e-3, (0.5, 0.999))]
    assert [row["lr"] for row in history.rows] == [1e-2, 1e-2, 5e-3]


# ------------------------------------------------------------------------- cut and resumed


@pytest.mark.parametrize("kind", ["augmented", "foreign", "workers", "seeds"])
def test_a_run_cut_after_any_step_ends_with_the_same_bits(tmp_path, monkeypatch, kind):
    data = tiny() if kind in ("augmented", "seeds") else Foreign()
    changes = {
        "augmented": {"augmentation": "crop-flip"},
        "foreign": {},
        "workers": {"num_workers": 2, "epochs": 2},
        "seeds": {"seeds": 2, "epochs": 2},
    }[kind]
    recipe = replace(TINY, **changes)
    whole = tmp_path / "whole"
    fit(net(), data, recipe, validation=tiny(9), run_dir=whole)
    steps = checkpoint.read(whole).progress["step"]
    assert steps == recipe.epochs * math.ceil(len(data) / 10)
    for count in range(1, steps + 1):
        run = tmp_path / str(count)
        with monkeypatch.context() as patch:
            interrupt_after(patch, count)
            with pytest.raises(Interrupted) as cut:
                fit(net(), data, recipe, validation=tiny(9), run_dir=run)
        assert cut.value.signal == signal.SIGTERM
        assert checkpoint.read(run).progress["step"] == count
        fit(net(seed=count), data, recipe, validation=tiny(9), run_dir=run, resume=True)
        assert_equal_runs(whole, run)


def test_workers_load_what_one_process_loads(tmp_path):
    """Transforms depend on seed, epoch and input, not on who runs them; and they do differ between epochs."""
    for workers in (0, 2):
        fit(net(), Foreign(), replace(TINY, epochs=1, num_workers=workers), run_dir=tmp_path / str(workers))
    one, other = (outcome(tmp_path / str(workers))[0] for workers in (0, 2))
    assert all(torch.equal(one[name], other[name]) for name in one)
    batches = Batches(Foreign(), TINY, torch.device("cpu"))
    first, again, second = (next(batches.epoch(epoch, torch.arange(23)[None], 0))[0][0] for epoch in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_cut_many_times(tmp_path, monkeypatch):
    fit(net(), tiny(), TINY, run_dir=tmp_path / "whole")
    for count in range(13):
        with monkeypatch.context() as patch:
            interrupt_after(patch, 1, signal.SIGINT)
            if count < 12:
                with pytest.raises(Interrupted):
                    fit(net(), tiny(), TINY, run_dir=tmp_path / "cut", resume=count > 0)
            else:
                fit(net(), tiny(), TINY, run_dir=tmp_path / "cut", resume=True)
    assert_equal_runs(tmp_path / "whole", tmp_path / "cut")


def test_checkpoints_between_epochs(tmp_path, monkeypatch):
    """What was saved every 3 steps is where a run that died without a word goes on."""

    class Dies(Step):
        calls = 0

        def __call__(self, *arguments):
            Dies.calls += 1
            if Dies.calls == 6:
                raise MemoryError("out of memory")
            return super().__call__(*arguments)

    recipe = replace(TINY, save_every=3)
    fit(net(), tiny(), recipe, run_dir=tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr("nsm.state.Step", Dies)
        with pytest.raises(MemoryError):
            fit(net(), tiny(), recipe, run_dir=tmp_path / "dead")
    assert checkpoint.read(tmp_path / "dead").progress["step"] == 3
    fit(net(), tiny(), recipe, run_dir=tmp_path / "dead", resume=True)
    assert_equal_runs(tmp_path / "whole", tmp_path / "dead")


def test_handlers_of_the_caller_come_back(tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    fit(net(), tiny(), replace(TINY, epochs=1), run_dir=tmp_path)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_finished_run_has_nothing_to_resume(tmp_path):
    history = fit(net(), tiny(), TINY, run_dir=tmp_path)
    assert fit(net(), tiny(), TINY, run_dir=tmp_path, resume=True) == history


def test_a_run_cut_before_its_first_checkpoint_begins_again(tmp_path):
    fit(net(), tiny(), TINY, run_dir=tmp_path / "whole")
    (tmp_path / "cut").mkdir()
    checkpoint.begin(tmp_path / "cut", TINY, repr(net()))
    with pytest.raises(ValueError, match=r"with lr=0\.01, but got 0\.02"):
        fit(net(), tiny(), replace(TINY, lr=2e-2), run_dir=tmp_path / "cut", resume=True)
    fit(net(), tiny(), TINY, run_dir=tmp_path / "cut", resume=True)
    assert_equal_runs(tmp_path / "whole", tmp_path / "cut")


def test_what_resumes_must_be_what_began(tmp_path):
    fit(net(), tiny(), TINY, run_dir=tmp_path)
    with pytest.raises(ValueError, match=r"to be that of .* with lr=0.01, but got 0.02"):
        fit(net(), tiny(), replace(TINY, lr=2e-2), run_dir=tmp_path, resume=True)
    with pytest.raises(ValueError, match=r"Expected 37 inputs, with which .* began, but got 20"):
        fit(net(), tiny(20), TINY, run_dir=tmp_path, resume=True)
    other = nn.Sequential(nn.Flatten(), nsm.NSMLinear(32, 16, noise=nsm.Gaussian()), *net()[2:])
    with pytest.raises(ValueError, match=r"the one trained in .*Bernoulli.*, but got .*Gaussian"):
        fit(other, tiny(), TINY, run_dir=tmp_path, resume=True)
    with pytest.raises(FileExistsError, match="nsm resume"):
        fit(net(), tiny(), TINY, run_dir=tmp_path)


# ------------------------------------------------------------------------- several seeds


def test_networks_trained_together_learn_as_each_would_alone(tmp_path):
    """Without noise, to the bit but for rounding: the first of three sees what it would see alone."""
    alone, together = smooth(), smooth()
    one = fit(alone, tiny(), replace(TINY, epochs=1))
    three = fit(together, tiny(), replace(TINY, epochs=1, seeds=3), validation=tiny(9), run_dir=tmp_path)
    for a, b in zip(alone.parameters(), together.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    row = three.rows[0]
    assert row["losses"][0] == pytest.approx(one.loss[0], abs=1e-5)
    assert row["loss"] == pytest.approx(sum(row["losses"]) / 3)
    assert row["validation_error"] == pytest.approx(sum(row["validation_errors"]) / 3)
    weights = checkpoint.read(tmp_path).weights["3.weight"]
    assert weights.shape == (3, 2, 8)
    assert len(weights.unique(dim=0)) == 3


def test_networks_trained_together_are_equal_in_law_to_single_ones():
    """The final loss of 24 networks with noise, trained together and one by one."""
    recipe = replace(TINY, epochs=3)
    single = torch.tensor([fit(net(seed), tiny(60), replace(recipe, seed=seed)).loss[-1] for seed in range(24)])
    together = torch.tensor(fit(net(), tiny(60), replace(recipe, seeds=24)).rows[-1]["losses"])
    spread = (single.var() / 24 + together.var() / 24).sqrt()
    assert (single.mean() - together.mean()).abs() < 4 * spread
    assert 0.4 < single.std() / together.std() < 2.5
    assert len(together.unique()) == 24


def test_compiled(tmp_path):
    model, plain = smooth(), smooth()
    fit(model, tiny(20), replace(TINY, epochs=2, compile=True), run_dir=tmp_path)
    fit(plain, tiny(20), replace(TINY, epochs=2))
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-4)
    assert set(checkpoint.read(tmp_path).weights) == set(model.state_dict())
    noisy = net()
    assert fit(noisy, tiny(20), replace(TINY, epochs=10, compile=True)).loss[-1] < 0.6


# ------------------------------------------------------------------------- bad input


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_state(tmp_path, monkeypatch):
    class Poisoned(Step):
        calls = 0

        def __call__(self, what, size):
            Poisoned.calls += 1
            read, self.read = self.read, lambda *what: poison(*read(*what)) if Poisoned.calls == 7 else read(*what)
            try:
                return super().__call__(what, size)
            finally:
                self.read = read

    def poison(inputs, labels):
        return inputs * float("nan"), labels

    model = smooth()
    monkeypatch.setattr("nsm.state.Step", Poisoned)
    with pytest.raises(Diverged, match=r"finite, but got others at step 7; the last good state is in "):
        fit(model, tiny(), TINY, run_dir=tmp_path)
    state = checkpoint.read(tmp_path)
    assert state.progress["step"] == 4
    assert all(value.isfinite().all() for value in state.tensors.values())
    assert all(value.isfinite().all() for value in model.parameters())


def test_a_gradient_that_is_not_finite_counts_though_the_loss_is():
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):  # pyright: ignore[reportIncompatibleMethodOverride]
            return gradient * float("inf")

    class Layer(nn.Linear):
        def forward(self, input):
            return Bad.apply(super().forward(input))

    with pytest.raises(Diverged, match=r"at step 1$"):
        fit(nn.Sequential(nn.Flatten(), Layer(32, 2)), tiny(), TINY)


def test_networks_trained_together_are_measured_with_noise_of_their_own(monkeypatch):
    seeds: list[int] = []

    def watched(network, inputs, num_samples, *, seed):
        seeds.append(seed)
        return predict(network, inputs, num_samples, seed=seed)

    monkeypatch.setattr("nsm.state.predict", watched)
    fit(net(), tiny(), replace(TINY, seeds=3, epochs=2), validation=tiny(9))
    assert len(set(seeds)) == 6
    alone = len(seeds)
    fit(net(), tiny(), replace(TINY, epochs=2), validation=tiny(9))
    assert seeds[alone:] == [seeds[0], seeds[3]]


@pytest.mark.parametrize("unit", UNITS)
def test_networks_trained_together_start_with_weights_of_their_own(tmp_path, unit):
    """Those that are computed from others too."""
    model = pi_mnist_mlp(UNITS[unit], in_features=32, classes=2)
    fit(model, tiny(4), replace(TINY, epochs=1, seeds=3, lr=1e-9, initialize=False), run_dir=tmp_path)
    for name, value in checkpoint.read(tmp_path).weights.items():
        if value.dim() > 2 and value[0].numel() > 300:  # not the lengths of normalised weights, which are all alike
            assert not torch.allclose(value[0], value[1], atol=1e-3), name
            assert not torch.allclose(value[1], value[2], atol=1e-3), name


def test_a_layer_that_stands_twice_is_saved_and_restored(tmp_path):
    layer = nsm.NSMLinear(16, 16)

    def model():
        return nn.Sequential(nn.Flatten(), nsm.NSMLinear(32, 16), layer, layer, nn.Linear(16, 2))

    trained = model()
    fit(trained, tiny(), TINY, run_dir=tmp_path)
    loaded = nsm.load(tmp_path, model=copy.deepcopy(trained))
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in trained.state_dict().items())
    with pytest.raises(ValueError, match=r"`seeds` to be 1 for a network that has a layer twice, but got 3\.weight"):
        fit(model(), tiny(), replace(TINY, seeds=2))


def test_a_run_does_not_go_on_on_another_kind_of_device(tmp_path):
    fit(net(), tiny(), TINY, run_dir=tmp_path)
    tensors, progress = outcome(tmp_path)
    state = {name: value for name, value in tensors.items() if name != "random/cuda"}
    checkpoint.save(tmp_path, state | {"random/cuda": torch.zeros(1, 16, dtype=torch.uint8)}, progress)
    with pytest.raises(checkpoint.CheckpointError, match=r"Expected cuda, on which .* began, but got cpu"):
        fit(net(), tiny(), TINY, run_dir=tmp_path, resume=True)
