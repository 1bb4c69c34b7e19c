"""Options of learning beyond the paper's recipe: each does what it says, together with several seeds and resuming."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from lightning_fabric import Fabric
from torch import Generator, nn
from torch.utils.data import TensorDataset

import nsm
from nsm import checkpoint
from nsm.batches import Batches
from nsm.data import Dataset, random_cutout
from nsm.processes import Interrupted
from nsm.signs import Binarize, binarize
from nsm.steps import Step
from nsm.training import fit, schedule
from test_steps import cut_after
from test_training import TINY, assert_equal_runs, net, smooth, tiny

CPU = torch.device("cpu")
CERTAIN = 1 - 1e-9  # which float32 rounds to 1
ALL = replace(
    TINY,
    muon_lr=1e-3,
    weight_decay=0.1,
    beta_decay=0.3,
    label_smoothing=0.1,
    loss_samples=2,
    average_epochs=2,
    input_dropout=0.2,
    input_cutout=2,
    input_swap=0.1,
    input_flip=0.1,
    schedule="cosine",
    schedule_epochs=1,
)


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_cut_run_with_every_option_ends_like_one_that_was_not(tmp_path, monkeypatch, seeds):
    recipe = replace(ALL, seeds=seeds)
    fit(net(), tiny(), recipe, validation=tiny(20, 1), run_dir=tmp_path / "whole")
    with monkeypatch.context() as patch:
        cut_after(patch, 6)  # in the second of three epochs of four steps
        with pytest.raises(Interrupted):
            fit(net(), tiny(), recipe, validation=tiny(20, 1), run_dir=tmp_path / "cut")
    fit(net(), tiny(), recipe, validation=tiny(20, 1), run_dir=tmp_path / "cut", resume=True)
    assert_equal_runs(tmp_path / "whole", tmp_path / "cut")


def grey(n=37, seed=0):
    """The digits of `tiny` as grey values, some of them close to ½."""
    digits = tiny(n, seed)
    near = torch.randint(256, digits.inputs.shape, generator=torch.Generator().manual_seed(seed))
    return replace(digits, stored=(digits.inputs * 64 + near / 4 + 96).clamp(0, 255).to(torch.uint8), width=None)


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_cut_run_on_grey_inputs_ends_like_one_that_was_not(tmp_path, monkeypatch, seeds):
    recipe = replace(TINY, seeds=seeds, input_level=0.3, input_flip=0.1, input_dropout=0.1)
    fit(grey_net(), grey(), recipe, run_dir=tmp_path / "whole")
    with monkeypatch.context() as patch:
        cut_after(patch, 6)
        with pytest.raises(Interrupted):
            fit(grey_net(), grey(), recipe, run_dir=tmp_path / "cut")
    fit(grey_net(), grey(), recipe, run_dir=tmp_path / "cut", resume=True)
    assert_equal_runs(tmp_path / "whole", tmp_path / "cut")


def grey_net():
    return nn.Sequential(Binarize(), *net())


def test_levels_of_grey_inputs():
    """A pixel is +1 if its value is not below a level that all pixels of its input share."""
    values = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).repeat(4000, 1, 1, 1)
    data = Dataset("grey", values, torch.zeros(4000, dtype=torch.int64), ("one", "two"))
    batches = Batches(data, replace(TINY, input_level=0.3), CPU)
    x, _ = batches.read(torch.arange(4000), generator=torch.Generator().manual_seed(0))
    x = x.flatten(1)
    assert set(x.unique().tolist()) == {-1.0, 1.0}
    assert bool((x.diff(dim=1) >= 0).all())  # in the order of grey values there is one step
    expected = ((torch.arange(256) / 255 - 0.2) / 0.6).clamp(0, 1)
    assert float(((x > 0).float().mean(0) - expected).abs().max()) < 0.05  # of 4,000: beyond 6 standard deviations
    again, _ = batches.read(torch.arange(4000), generator=torch.Generator().manual_seed(1))
    assert not torch.equal(again.flatten(1), x)


def test_flips_pass_the_threshold_of_grey_inputs():
    """A network that cuts its inputs itself has the same harder copies as one that reads states."""
    losses = []
    for network, data in ((smooth(), tiny()), (nn.Sequential(Binarize(), *smooth()), grey())):
        recipe = replace(TINY, input_flip=CERTAIN, input_level=0.0 if data.width else 1e-9)
        losses.append(fit(network, data, recipe).loss)
    assert torch.equal(binarize(grey().inputs), tiny().inputs)
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def rows():
    """A data set of someone else's, without pictures."""
    return TensorDataset(tiny().inputs.flatten(1), tiny().labels)


@pytest.mark.parametrize(
    ("changes", "data", "message"),
    [
        ({"input_level": 0.3}, tiny, "`input_level` to be 0 for inputs that are ±1, not grey, but got 0.3"),
        ({"input_flip": 0.1}, grey, "`input_flip` to be 0 for inputs that are not ±1, but got 0.1"),
        ({"input_cutout": 4}, tiny, r"`input_cutout` to be 0, or below .*, but got 4 for inputs of shape \(1, 4, 8\)"),
        ({"input_cutout": 1}, rows, r"`input_cutout` to be 0, or below .*, but got 1 for inputs of shape \(32,\)"),
        ({"augmentation": "shift"}, rows, r"`augmentation` to be 'none' for inputs of shape \(32,\), but got 'shift'"),
    ],
)
def test_inputs_of_the_wrong_kind(changes, data, message):
    with pytest.raises(ValueError, match=message):
        fit(grey_net(), data(), replace(TINY, **changes))


@pytest.mark.parametrize("seeds", [1, 2])
def test_the_network_kept_is_a_running_average(tmp_path, seeds):
    """Weights do not depend on the averaging, so runs of 1, 2 and 3 epochs show what is averaged."""
    weights = []
    for epochs in (1, 2, 3):
        recipe = replace(TINY, epochs=epochs, seeds=seeds)
        fit(smooth(), tiny(), recipe, run_dir=tmp_path / str(epochs))
        weights.append(checkpoint.read(tmp_path / str(epochs)).weights)
    model = smooth()
    fit(model, tiny(), replace(TINY, average_epochs=2, seeds=seeds), run_dir=tmp_path / "mean")
    found = checkpoint.read(tmp_path / "mean").weights
    for name, value in found.items():
        first, second, third = (each[name] for each in weights)
        torch.testing.assert_close(value, ((first + second) / 2 + third) / 2)
        torch.testing.assert_close(model.state_dict()[name], value[0] if seeds > 1 else value)
    kept = checkpoint.load(tmp_path / "mean", member=seeds - 1, model=smooth(1))
    assert torch.equal(kept.state_dict()["3.weight"], found["3.weight"][-1] if seeds > 1 else found["3.weight"])


def test_the_mean_is_what_is_measured(monkeypatch):
    seen = []

    def error(network, *_):
        seen.append(network[3].weight.detach().clone())
        return 0.0

    monkeypatch.setattr("nsm.state._error", error)
    model = smooth()
    fit(model, tiny(), replace(TINY, average_epochs=2), validation=tiny())
    assert torch.equal(seen[-1], model[3].weight)


def test_decay_takes_weights_and_beta_away():
    """Without gradients (a loss that does not depend on them) decay alone acts: (1 − lr decay) each step."""

    class Blind(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.shift = nsm.NSMLinear(32, 4), nn.Parameter(torch.zeros(2))

        def forward(self, x):
            return self.layer(x.flatten(1)).sum(-1, keepdim=True) * 0 + self.shift

    model = Blind()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    steps = TINY.epochs * math.ceil(37 / 10)
    fit(model, tiny(), replace(TINY, weight_decay=0.5, beta_decay=2.0, initialize=False))
    for name, decay in (("layer.weight", 0.5), ("layer.beta", 2.0), ("layer.bias", 0.0)):
        torch.testing.assert_close(model.state_dict()[name], before[name] * (1 - TINY.lr * decay) ** steps)


def test_beta_that_is_not_trained_stays():
    for trained in (True, False):
        model = net()
        fit(model, tiny(), replace(TINY, train_beta=trained, initialize=False))
        assert bool((model[1].beta == 1).all()) != trained
        assert not torch.equal(model[1].weight, net()[1].weight)


def test_a_beta_that_its_owner_froze_stays_frozen():
    """And one that a recipe froze may learn again afterwards."""
    network = net()
    network[1].beta.requires_grad_(False)
    before = [layer.beta.detach().clone() for layer in (network[1], network[2])]
    fit(network, tiny(), replace(TINY, initialize=False))
    assert torch.equal(network[1].beta, before[0])
    assert not torch.equal(network[2].beta, before[1])
    fit(network, tiny(), replace(TINY, train_beta=False))
    assert [network[k].beta.requires_grad for k in (1, 2)] == [False, True]


def test_the_loss_on_the_mean_of_samples_and_smooth_labels():
    """With several seeds; a network whose noise is its own record, so that the mean can be taken by hand."""

    class Noisy(nn.Module):
        def forward(self, x):
            self.logits = x * (1 + torch.rand(x.shape))
            return self.logits + 0 * weight

    weight = nn.Parameter(torch.zeros(()))
    network, fabric = Noisy(), Fabric(accelerator="cpu", devices=1)
    torch.manual_seed(0)
    x, y = torch.randn(2, 5, 3), torch.randint(3, (2, 5))
    recipe = replace(TINY, loss_samples=4, label_smoothing=0.3)
    step = Step(recipe, network, torch.optim.SGD([weight], lr=1.0), fabric, lambda *what: what)
    losses = step((x, y), 5)
    p = network.logits.softmax(-1).view(2, 5, 4, 3).mean(2)
    target = nn.functional.one_hot(y, 3) * 0.7 + 0.1
    torch.testing.assert_close(losses, -(target * p.log()).sum(-1).mean(-1).double(), rtol=1e-5, atol=1e-6)


def test_pixels_are_wiped_out_and_swapped_in_training_alone():
    n = 2000
    recipe = replace(TINY, input_dropout=0.3, input_swap=0.1, batch_size=n)
    batches = Batches(tiny(n), recipe, CPU)
    order = torch.arange(n)[None]
    ((what, _),) = batches.epoch(0, order, 0)
    x, _ = batches.read(*what, generator=Generator().manual_seed(0))
    clean = torch.cat([inputs for inputs, _ in batches.all()])
    assert torch.equal(clean, tiny(n).inputs)
    other, ink = clean.roll(1, 0), clean == 1  # what a swapped pixel shows
    assert set(x.unique().tolist()) == {-1.0, 1.0}
    for mine, its, rate in ((ink, other == -1, 0.4), (ink, other == 1, 0.3), (~ink, other == -1, 1.0)):
        assert abs(float((x[mine & its] == -1).float().mean()) - rate) < 0.025  # beyond 6 standard deviations
    assert abs(float((x[~ink & (other == 1)] == 1).float().mean()) - 0.1) < 0.02


def test_a_square_is_wiped_out_in_training_alone():
    batches = Batches(tiny(50), replace(TINY, input_cutout=3, batch_size=50), CPU)
    ((what, _),) = batches.epoch(0, torch.arange(50)[None], 0)
    x, _ = batches.read(*what, generator=Generator().manual_seed(0))
    assert torch.equal(x, random_cutout(tiny(50).inputs, 3, fill=-1, generator=Generator().manual_seed(0)))
    assert not torch.equal(x, tiny(50).inputs)
    assert torch.equal(torch.cat([inputs for inputs, _ in batches.all()]), tiny(50).inputs)


@pytest.mark.parametrize("chance", [CERTAIN, 0.3])
def test_pixels_are_flipped_where_that_raises_the_loss(chance):
    """With two seeds, of networks whose gradient is known: of logits (w·x, 0), w (σ(w·x) − 1) for the first class."""

    class Line(nn.Module):
        def forward(self, x):
            self.seen = x
            return torch.stack([(x * weight).sum(-1), torch.zeros(x.shape[:-1])], -1)

    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(2, 1, 50))
    network, fabric = Line(), Fabric(accelerator="cpu", devices=1)
    x, y = torch.randn(2, 400, 50).sign(), torch.randint(2, (2, 400))
    step = Step(
        replace(TINY, input_flip=chance), network, torch.optim.SGD([weight], lr=1.0), fabric, lambda *what: what
    )
    before = weight.detach().clone()
    losses = step((x, y), 400)
    as_it_is, copy = network.seen.chunk(2, 1)
    assert torch.equal(as_it_is, x)
    raises = (x * before > 0) == (y == 0).unsqueeze(-1)  # the first class is less likely without what speaks for it
    assert torch.equal(copy[~raises], x[~raises])
    flipped = copy[raises] != x[raises]
    assert set(copy.unique().tolist()) == {-1.0, 1.0}
    assert abs(float(flipped.float().mean()) - chance) < 0.03  # of 20,000: beyond 9 standard deviations
    u, away = (network.seen * before).sum(-1), torch.cat([y, y], 1) == 1
    expected = nn.functional.softplus(torch.where(away, u, -u))
    torch.testing.assert_close(losses, expected.mean(-1).double(), rtol=1e-5, atol=1e-6)


def test_flips_in_compiled_steps():
    """Of a network without noise, with pixels that are certain to be flipped."""
    recipe = replace(TINY, input_flip=CERTAIN)
    plain, compiled = (fit(smooth(), tiny(), replace(recipe, compile=each)).loss for each in (False, True))
    assert compiled == pytest.approx(plain, abs=1e-5)
    assert plain != pytest.approx(fit(smooth(), tiny(), TINY).loss, abs=1e-2)


def test_errors_are_measured_in_the_last_epochs_alone(tmp_path):
    for seeds in (1, 2):
        recipe = replace(TINY, measure_last=2, seeds=seeds)
        history = fit(net(), tiny(), recipe, validation=tiny(20, 1), run_dir=tmp_path / str(seeds))
        assert [error is None for error in history.validation_error] == [True, False, False]
        assert (tmp_path / str(seeds) / "learning-curve.png").exists()


def test_the_cosine():
    recipe = replace(TINY, epochs=10, schedule="cosine", schedule_epochs=2, lr=1.0)
    rates = [schedule(recipe, epoch)[0] for epoch in range(10)]
    assert rates[:3] == [1.0, 1.0, 1.0]
    assert rates[6] == pytest.approx(0.5)
    assert all(a > b > 0 for a, b in itertools.pairwise(rates[2:]))


def test_swapped_pixels_come_from_the_batch_of_the_same_network():
    values = torch.arange(2)[:, None, None, None].expand(2, 1, 4, 8).mul(100).to(torch.uint8).contiguous()
    data = Dataset("two", values, torch.zeros(2, dtype=torch.int64), ("one", "two"))
    batches = Batches(data, replace(TINY, seeds=2, input_swap=CERTAIN), CPU)
    inputs, _ = batches.read(torch.tensor([[0, 0, 0], [1, 1, 1]]), generator=torch.Generator().manual_seed(0))
    assert inputs[0].unique().tolist() == [0]
    assert inputs[1].unique().tolist() == pytest.approx([100 / 255])
    inputs, _ = batches.read(torch.tensor([[0, 1, 0], [1, 1, 0]]), generator=torch.Generator().manual_seed(0))
    assert torch.equal(inputs[..., 0, 0, 0] > 0, torch.tensor([[False, False, True], [False, True, True]]))
