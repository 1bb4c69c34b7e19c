import copy
import math
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partialmethod
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import law
from law import SITES, check_rate
from nsm import philox
from nsm.data import load
from nsm.estimators import Concrete, Probability
from nsm.functional import Draw, Site
from nsm.layers import NSMConv2d, NSMLinear, Stochastic, deterministic
from nsm.networks import UNITS, mnist_cnn, relu
from nsm.noise import Bernoulli, Gaussian, LogNormal
from nsm.sampling import Confident, Prediction, predict
from nsm.signs import Binarize
from nsm.wiring import Convolution


def small(site: Site = "neuron", draw: Draw = "auto", **options) -> nn.Sequential:
    torch.manual_seed(0)
    law_of = {"site": site, "draw": draw, **options}
    return nn.Sequential(
        Binarize(),
        nn.Sequential(NSMConv2d(1, 4, 3, padding=1, **law_of), nn.MaxPool2d(2)),
        nn.Flatten(),
        NSMLinear(4 * 3 * 3, 8, **law_of),
        nn.Linear(8, 3),
    )


def images(n: int = 5) -> torch.Tensor:
    return torch.rand(n, 1, 6, 6, generator=torch.Generator().manual_seed(1))


def close(one: Prediction, other: Prediction) -> None:
    """Equal answers, but for the rounding of sums."""
    assert torch.equal(one.votes, other.votes)
    assert torch.equal(one.num_samples, other.num_samples)
    torch.testing.assert_close(one.probabilities, other.probabilities, atol=1e-6, rtol=0)
    torch.testing.assert_close(one.sample_entropy, other.sample_entropy, atol=1e-5, rtol=0)


# ------------------------------------------------------------------------- what comes out


def test_a_prediction_is_made_of_its_samples():
    found = predict(small(), images(), 30, seed=0, keep_samples=True)
    assert found.samples is not None
    assert found.samples.shape == (30, 5, 3)
    torch.testing.assert_close(found.probabilities, found.samples.mean(0))
    torch.testing.assert_close(found.probabilities.sum(1), torch.ones(5))
    votes = [Counter(found.samples[:, i].argmax(-1).tolist()) for i in range(5)]
    assert found.votes.tolist() == [[count[c] for c in range(3)] for count in votes]
    assert found.num_samples.tolist() == [30] * 5
    assert torch.equal(found.label, found.probabilities.argmax(1))
    assert torch.equal(found.confidence, found.probabilities.amax(1))
    entropy = -(found.probabilities * found.probabilities.log()).sum(1)
    torch.testing.assert_close(found.entropy, entropy)
    single = -(found.samples * found.samples.log()).sum(2).mean(0)
    torch.testing.assert_close(found.mutual_information, (entropy - single).clamp(min=0), atol=1e-5, rtol=0)
    assert len(found) == 5
    assert predict(small(), images(), 3).samples is None


@pytest.mark.parametrize("noise", [Bernoulli(0.3), Gaussian(0.5), LogNormal(0.5)], ids=repr)
@pytest.mark.parametrize(("site", "draw"), SITES)
def test_sampled_states_follow_the_law(noise, site, draw):
    """A network that shows the state of one unit of the second layer, against a plain loop of the same network."""
    torch.manual_seed(2)
    model = nn.Sequential(
        NSMLinear(5, 6, noise=noise, site=site, draw=draw), NSMLinear(6, 1, noise=noise, site=site, draw=draw), Show()
    )
    z = torch.tensor([[1.0, -1.0, 1.0, 1.0, -1.0]])
    fired = int(predict(model, z, 100_000, seed=3, chunk_size=2000).votes[0, 1])
    with torch.no_grad():
        loop = int((model(z.expand(1_000_000, 5)).argmax(-1) == 1).sum())
    check_rate(fired, 100_000, loop / 1_000_000, tolerance=5 * 0.5 / math.sqrt(1_000_000))


class Show(nn.Module):
    """Logits whose argmax is the state of the only unit."""

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return torch.cat([-10 * z, 10 * z], -1)


# ------------------------------------------------------------------------- the same noise, however it is cut


@pytest.mark.parametrize(("site", "draw"), SITES)
def test_the_seed_alone_decides(site, draw, monkeypatch):
    model, x = small(site, draw), images(7)
    whole = predict(model, x, 23, seed=5)
    for chunk_size in (1, 4, 23, 100):
        close(predict(model, x, 23, seed=5, chunk_size=chunk_size), whole)
    monkeypatch.setattr("nsm.stages._ROWS", {"cpu": 20, "cuda": 20})  # two images in a pass
    close(predict(model, x, 23, seed=5), whole)
    monkeypatch.setattr("nsm.sampling._BLOCK", {"cpu": 3, "cuda": 3})
    close(predict(model, x, 23, seed=5), whole)
    close(predict(model, DataLoader(TensorDataset(x, torch.arange(7)), batch_size=2), 23, seed=5), whole)
    torch.manual_seed(99)
    close(predict(model, x, 23, seed=5), whole)
    first = predict(model, x[:3], 23, seed=5)
    assert torch.equal(first.votes, whole.votes[:3])
    assert not torch.equal(predict(model, x, 23, seed=6).probabilities, whole.probabilities)


def test_without_a_seed_torchs_generator_decides():
    model, x = small(), images()
    torch.manual_seed(1)
    one, two = predict(model, x, 10), predict(model, x, 10)
    assert not torch.equal(one.probabilities, two.probabilities)
    torch.manual_seed(1)
    assert torch.equal(predict(model, x, 10).probabilities, one.probabilities)
    state = torch.get_rng_state()
    predict(model, x, 10, seed=0)
    assert torch.equal(state, torch.get_rng_state())  # a seeded prediction leaves no trace


def test_samples_and_inputs_are_independent():
    torch.manual_seed(0)
    layer = NSMLinear(5, 1, noise=Gaussian(0.5))
    model = nn.Sequential(layer, Show())
    z = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0]).expand(700, 5)
    found = predict(model, z, 500, seed=1, chunk_size=50, keep_samples=True)
    assert found.samples is not None
    fired = found.samples.argmax(-1).flatten()  # (500 · 700,)
    p = layer.firing_probability(z[0]).item()
    check_rate(int(fired.sum()), fired.numel(), p)
    for distance in (1, 700, 350):
        law.check_independent(fired, fired.roll(distance), p)


# ------------------------------------------------------------------------- any module, any input


def test_everything_before_the_first_draw_runs_once():
    calls: Counter[str] = Counter()

    class Counted(nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def forward(self, z: torch.Tensor) -> torch.Tensor:
            calls[self.name] += len(z)
            return z

    body: Any = small()
    model = nn.Sequential(nn.Sequential(Counted("before"), body[0]), *body[1:], Counted("after"))
    predict(model, images(4), 20, chunk_size=5)
    assert calls == {"before": 4, "after": 80}


def test_a_module_that_stands_twice_runs_twice():
    torch.manual_seed(0)
    layer, pool, last = NSMLinear(20, 20), nn.MaxPool2d(2), nn.Linear(20, 3)
    z = torch.randn(4, 20).sign()
    twice = predict(nn.Sequential(layer, nn.Sequential(layer, last)), z, 20, seed=0)
    close(predict(nn.Sequential(layer, layer, last), z, 20, seed=0), twice)
    close(predict(nn.Sequential(layer, copy.deepcopy(layer), last), z, 20, seed=0), twice)
    shared = nn.Sequential(pool, NSMConv2d(1, 5, 3, padding=1), pool, nn.Flatten(), NSMLinear(20, 20), last)
    assert len(predict(shared, torch.randn(2, 1, 8, 8).sign(), 3)) == 2


@pytest.mark.parametrize("name", UNITS)
def test_every_network_of_the_paper(name):
    torch.manual_seed(0)
    model, x = mnist_cnn(UNITS[name]), torch.randn(2, 1, 28, 28).sign()
    found = predict(model, x, 6, seed=0, chunk_size=4)
    close(predict(model, x, 6, seed=0, chunk_size=1), found)
    drawn = name not in {"dCNN", "sigmoid", "BD", "wBD", "BN", "batch norm"}
    assert found.num_samples.tolist() == ([6, 6] if drawn else [1, 1])  # without noise one pass says all
    if not drawn:
        torch.testing.assert_close(found.probabilities, model.eval()(x).softmax(-1).detach())
        assert torch.allclose(found.mutual_information, torch.zeros(2), atol=1e-6)


class Branch(nn.Module):
    """A module with its own forward and a way around the noise."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = NSMLinear(6, 6), nn.Linear(12, 3)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.b(torch.cat([self.a(z), z], -1))


def test_modules_with_a_forward_of_their_own():
    torch.manual_seed(0)
    model, z = Branch(), torch.randn(4, 6).sign()
    found = predict(model, z, 20, seed=1)
    close(predict(model, z, 20, seed=1, chunk_size=3), found)
    assert found.mutual_information.max() > 0
    inside = nn.Sequential(nn.Linear(6, 6), Branch())
    close(predict(inside, z, 20, seed=1, chunk_size=3), predict(inside, z, 20, seed=1, chunk_size=7))


class Negated(NSMLinear):
    """A layer with a forward of its own."""

    def forward(self, z: torch.Tensor, **options: Any) -> torch.Tensor:
        return -super().forward(z, **options)


@pytest.mark.parametrize(("site", "draw"), SITES)
def test_a_layer_with_a_forward_of_its_own_is_called(site, draw):
    """As the first that draws too: with the noise of the plain layer, and its states turned."""
    torch.manual_seed(0)
    plain = NSMLinear(6, 1, site=site, draw=draw, inputs="real")
    turned = Negated(6, 1, site=site, draw=draw, inputs="real")
    turned.load_state_dict(plain.state_dict())
    assigned: Any = copy.deepcopy(plain)
    forward = assigned.forward
    assigned.forward = lambda z: -forward(z)
    z = torch.randn(5, 6)
    votes = [predict(nn.Sequential(m, Show()), z, 40, seed=2).votes for m in (plain, turned, assigned)]
    assert torch.equal(votes[1], votes[2])
    assert torch.equal(votes[0].flip(-1), votes[1])


@pytest.mark.parametrize("pre", [False, True])
def test_every_hook_is_called(pre):
    """Of the model, of a container, of the first layer that draws, of a pool and of a later layer."""
    model: Any = small()
    for module in (model, model[1], model[1][0], model[1][1], model[3]):
        seen: list[nn.Module] = []

        def hook(module: nn.Module, *_: Any, seen: list[nn.Module] = seen) -> None:
            seen.append(module)

        handle = module.register_forward_pre_hook(hook) if pre else module.register_forward_hook(hook)
        predict(model, images(), 20, seed=1)
        handle.remove()
        assert set(seen) == {module}


def test_noise_of_torchs_own_is_seeded_too():
    model = nn.Sequential(NSMLinear(6, 6), Always(), nn.Linear(6, 3))
    z = torch.ones(4, 6)
    assert torch.equal(predict(model, z, 10, seed=1).probabilities, predict(model, z, 10, seed=1).probabilities)


def test_predictions_of_two_threads_take_turns():
    """Each would else change the source of the other's noise in the middle, for good."""
    torch.manual_seed(0)
    both, sources = threading.Barrier(2), []

    class Meet(nn.Module):
        def forward(self, z: torch.Tensor) -> torch.Tensor:
            with suppress(threading.BrokenBarrierError):  # nobody comes
                both.wait(0.5)
            sources.append(philox.source)
            return z

    layer, last, z = NSMLinear(20, 20), nn.Linear(20, 3), torch.randn(4, 20).sign()
    alone = [predict(nn.Sequential(layer, layer, last), z, 10, seed=seed) for seed in (1, 2)]
    model, before = nn.Sequential(layer, Meet(), layer, last), torch.get_rng_state()
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda seed: predict(model, z, 10, seed=seed), (1, 2)))
    for one, other in zip(found, alone, strict=True):
        close(one, other)
    assert sorted(source.key[0] for source in sources) == [1, 2]
    assert philox.source is None
    assert torch.equal(torch.get_rng_state(), before)


def test_only_the_generator_of_the_models_device_is_seeded(monkeypatch):
    """`torch.manual_seed` would seed those of all devices, which nobody puts back."""
    model, seeded = small(), mock.Mock()
    for name in ("manual_seed", "manual_seed_all"):
        monkeypatch.setattr(torch.cuda, name, seeded)
    predict(model, images(), 3, seed=0)
    assert not seeded.called


def test_noise_of_ones_own_is_drawn_once_before_the_first_layer_and_anew_if_it_says_so():
    class Blurred(Stochastic):
        def forward(self, z: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(z, 0.5, training=True)

    z = torch.ones(4, 6)
    torch.manual_seed(0)
    assert predict(nn.Sequential(Always(), nn.Linear(6, 3)), z, 10, seed=1).num_samples.tolist() == [1] * 4
    found = predict(nn.Sequential(Blurred(), nn.Linear(6, 3)), z, 10, seed=1)
    assert found.num_samples.tolist() == [10] * 4
    assert found.mutual_information.min() > 0


def test_a_model_that_cuts_the_batch_anew_is_one_step():
    """Three frames of each input, each a row of its own; the units are certain."""
    torch.manual_seed(0)
    frames = nn.Flatten(0, 1), NSMConv2d(1, 2, 3), nn.Unflatten(0, (-1, 3)), nn.Flatten()
    model, x = nn.Sequential(*frames, nn.Linear(96, 4)), torch.randn(5, 3, 1, 6, 6).sign()
    nn.init.constant_(frames[1].beta, 1e3)
    with torch.no_grad():
        expected = model(x).softmax(-1)
    for chunk_size in (None, 3):
        found = predict(model, x, 20, seed=0, chunk_size=chunk_size)
        torch.testing.assert_close(found.probabilities, expected)
        assert found.num_samples.tolist() == [20] * 5


class Always(nn.Module):
    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(z, 0.5, training=True)


def test_the_model_is_left_as_it_was():
    torch.manual_seed(0)
    model: Any = nn.Sequential(NSMLinear(6, 6, estimator="concrete"), nn.BatchNorm1d(6), nn.Dropout(), nn.Linear(6, 3))
    model[3].eval()
    before = copy.deepcopy(model.state_dict())
    found = predict(model, torch.ones(4, 6), 10, seed=0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [m.training for m in model] == [True, True, True, False]
    assert model[0].estimator == Concrete()
    hard = copy.deepcopy(model)
    hard[0].estimator = Probability()
    close(predict(hard, torch.ones(4, 6), 10, seed=0), found)  # relaxed in training, sampled here
    with pytest.raises(ValueError, match="Expected input `z`"):
        predict(model, torch.ones(4, 7), 10)
    assert model[1].training
    assert model[0].estimator == Concrete()


def test_deterministic_networks_take_one_pass():
    model = small()
    with deterministic(model):
        found = predict(model, images(), 50)
        torch.testing.assert_close(found.probabilities, model(images()).softmax(-1).detach())
    assert found.num_samples.tolist() == [1] * 5
    assert predict(mnist_cnn(relu), torch.ones(1, 1, 28, 28)).num_samples.tolist() == [1]


def test_arrays_types_and_real_inputs():
    model, x = small(), images()
    tensor = predict(model, x, 10, seed=0)
    close(predict(model, x.numpy(), 10, seed=0), tensor)
    close(predict(model, x.numpy().astype(np.float64), 10, seed=0), tensor)
    double = predict(small().double(), x.double(), 10, seed=0)
    assert double.probabilities.dtype == torch.float64
    assert predict(small().bfloat16(), x.bfloat16(), 10, seed=0).probabilities.dtype == torch.float32
    real = nn.Sequential(NSMLinear(6, 5, inputs="real", site="synapse", draw="moments"), nn.Linear(5, 3))
    z = torch.randn(7, 6)
    close(predict(real, z, 20, seed=0, chunk_size=3), predict(real, z, 20, seed=0, stop=Confident(1e-9)))


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((torch.zeros(0, 1, 6, 6),), {}, ValueError, r"`x` to be a batch of inputs, not empty, but got \(0, 1, 6, 6\)"),
        ((torch.full((1, 1, 6, 6), math.nan),), {}, ValueError, "`x` to be finite, but got 36 values"),
        ((torch.zeros(1, 1, 6, 6, dtype=torch.uint8),), {}, TypeError, "`x` to be floating-point .* torch.uint8"),
        (("images",), {}, TypeError, "`x` to be a tensor, an array or batches of them, but got str"),
        ((load("mnist", "test"),), {}, TypeError, "but got Dataset, whose inputs are Dataset.inputs"),
        (([],), {}, ValueError, "`x` to hold at least one input, but got none"),
        ((images(), 0), {}, ValueError, "`num_samples` to be a positive int, but got 0"),
        ((images(), 2.5), {}, ValueError, "`num_samples` to be a positive int, but got 2.5"),
        ((images(),), {"chunk_size": 0}, ValueError, "`chunk_size` to be a positive int, but got 0"),
        ((images(),), {"seed": 1.5}, ValueError, "`seed` to be an int of at least 0 and below .*, but got 1.5"),
        ((images(),), {"seed": True}, ValueError, "`seed` to be an int of at least 0 and below .*, but got True"),
        ((images(),), {"seed": 2**63}, ValueError, "`seed` to be an int of at least 0 and below .*, but got 9223"),
        ((images(),), {"stop": 0.01}, TypeError, "`stop` to say when to stop, like .*, but got 0.01"),
        ((images(),), {"keep_samples": True, "stop": Confident()}, ValueError, "`keep_samples` to be False beside"),
    ],
)
def test_bad_input(arguments, options, error, message):
    with pytest.raises(error, match=message):
        predict(small(), *arguments, **options)


def test_a_model_that_gives_no_logits_is_refused():
    model = nn.Sequential(NSMConv2d(1, 2, 3))
    with pytest.raises(ValueError, match=r"`model` to give logits \(batch, classes\), but got \(200, 2, 4, 4\)"):
        predict(model, images())


# ------------------------------------------------------------------------- early stopping


def test_memory_is_set_by_the_chunk_and_not_by_the_number_of_samples():
    """The largest output of any module, that of the convolution, is the same for ten samples and for a thousand."""

    def largest(num_samples: int) -> int:
        model, sizes = small(), []
        for module in model.modules():
            module.register_forward_hook(lambda module, inputs, output: sizes.append(output.numel()))  # type: ignore
        predict(model, images(), num_samples, seed=0, chunk_size=10)
        return max(sizes)

    assert largest(10) == largest(1000) == 10 * 5 * 4 * 6 * 6


class Foreign(nn.Module):
    """A network of another shape than nn.Sequential."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize(("site", "draw"), SITES)
def test_wide_pictures_go_in_smaller_passes(site, draw, foreign, monkeypatch):
    """Of 36 and more numbers a row, 32 times as many in a module that is not ours, a pass holds so many as fit."""
    model, x, rows = small(site, draw), images(7), []
    model[-1].register_forward_hook(lambda module, inputs, output: rows.append(len(output)))
    network = Foreign(model) if foreign else model
    monkeypatch.setattr("nsm.sampling.chain", lambda steps, z: None)  # whose pictures are bits
    whole = predict(network, x, 20, seed=2)
    assert max(rows) == 7 * 20
    rows.clear()
    monkeypatch.setattr("nsm.stages._NUMBERS", 36 * 50 * (32 if foreign else 1))
    close(predict(network, x, 20, seed=2), whole)
    assert 10 <= max(rows) <= 50


@pytest.mark.parametrize("first", [{"draw": "exact"}, {"draw": "moments"}], ids=str)
def test_a_layer_that_draws_for_every_connection_goes_in_smaller_passes(first, monkeypatch):
    """Its noise is as many times wider than its output as it has inputs, wherever in the network it is."""
    torch.manual_seed(0)
    exact: Any = {"site": "synapse", "draw": "exact"}
    model = nn.Sequential(
        NSMConv2d(1, 4, 3, padding=1, **exact | first),
        NSMConv2d(4, 8, 3, padding=1, **exact),
        nn.Flatten(),
        nn.Linear(8 * 6 * 6, 3),
    )
    x, widest = images(7), [0]
    whole = predict(model, x, 20, seed=2)
    monkeypatch.setattr(Convolution, "gather", partialmethod(_noted, widest))
    monkeypatch.setattr("nsm.stages._NUMBERS", 30 * 8 * 4 * 9 * 6 * 6)
    close(predict(model, x, 20, seed=2), whole)
    assert 10 * 8 * 4 * 9 * 6 * 6 <= max(widest) <= 30 * 8 * 4 * 9 * 6 * 6


def _noted(self: Convolution, sizes: list[int], terms: torch.Tensor) -> torch.Tensor:
    sizes.append(terms.numel())
    return terms.sum(-3)
