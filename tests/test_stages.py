import itertools
import math
from collections import Counter
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import nsm
from law import check_rate
from nsm import functional, philox
from nsm.chain import chain
from nsm.estimators import StraightThrough
from nsm.kernels import bits
from nsm.layers import NSMConv2d, NSMLinear, deterministic
from nsm.networks import bnsm, cifar_cnn, mnist_cnn, pi_mnist_mlp
from nsm.sampling import Confident, _split, predict
from nsm.stages import Crossed, Stage, fuse

LAW: Any = {"site": "synapse", "draw": "moments"}
NEURON: Any = {"site": "neuron", "draw": "auto"}
unit = partial(bnsm, **LAW)
needs_library = pytest.mark.skipif(bits.library() is None, reason="needs a C compiler and AVX-512")


def odd(**options: Any) -> nn.Sequential:
    """Odd sizes, a rest at the pool, every padding, a β for each position, a unit without weights."""
    torch.manual_seed(0)
    law: Any = {**LAW, **options}
    model = nn.Sequential(
        NSMConv2d(1, 5, 3, padding=1, **law),
        nn.MaxPool2d((2, 3)),
        NSMConv2d(5, 6, (3, 2), (1, 2), "valid", beta_shape=(3, 2), **law),
        NSMConv2d(6, 7, 3, padding=1, dilation=1, bias=False, **law),
        nn.MaxPool2d(2),
        nn.Flatten(),
        NSMLinear(7, 9, **law),
        NSMLinear(9, 11, bias=False, **law),
        nn.Linear(11, 4),
    )
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, NSMConv2d | NSMLinear):
                layer.beta.uniform_(0.3, 1.2)
                layer.weight[1] = 0
                if layer.bias is not None:
                    layer.bias.uniform_(-0.2, 0.2)
    return model


def images(n: int = 6) -> torch.Tensor:
    return torch.randn(n, 1, 10, 12, generator=torch.Generator().manual_seed(1)).sign()


@pytest.fixture
def no_library(monkeypatch):
    monkeypatch.setattr(bits, "library", lambda *constants: None)


def kinds(model: nn.Module) -> list[str]:
    before, rest = _split(model)
    return [type(step).__name__ for step in (*before, *rest)]


# ------------------------------------------------------------------------- which modules make a stage


def test_the_networks_of_the_paper():
    assert kinds(mnist_cnn(unit)) == ["Stage", "Stage", "Stage", "Linear"]
    assert kinds(pi_mnist_mlp(unit)) == ["Stage", "Stage", "Stage", "Linear"]
    steps = kinds(cifar_cnn(unit))
    assert steps[:3] == ["Conv2d", "BatchNorm2d", "Sign"]
    assert steps[3:12] == ["Stage"] * 9
    assert "Stage" not in kinds(mnist_cnn())  # noise that units share
    assert "Stage" not in kinds(mnist_cnn(partial(bnsm, site="synapse", draw="exact")))
    assert "Stage" in kinds(mnist_cnn(partial(unit, estimator=StraightThrough())))


def test_what_is_watched_or_of_another_kind_stays_as_it_is():
    model: Any = mnist_cnn(unit)
    model.pool1.register_forward_hook(lambda *_: None)
    model.fc1.register_forward_pre_hook(lambda *_: None)
    assert kinds(model) == ["Stage", "MaxPool2d", "Stage", "Flatten", "NSMLinear", "Linear"]
    for pool in (
        nn.MaxPool2d(3, 2),
        nn.MaxPool2d(2, padding=1),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d(2, dilation=2),
        nn.AvgPool2d(2),
    ):
        assert kinds(nn.Sequential(NSMConv2d(1, 2, 3, **LAW), pool)) == ["Stage", type(pool).__name__]
    with deterministic(model):
        assert "Stage" not in kinds(model)

    class Own(NSMLinear):
        def forward(self, z, **options):
            return -super().forward(z, **options)

    assert kinds(nn.Sequential(Own(70, 3, **LAW))) == ["Own"]


# ------------------------------------------------------------------------- the law


@pytest.mark.parametrize("kernel", [True, pytest.param(False, id="torch")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_largest_of_a_window_follows_the_law(kernel, dtype, request):
    """Two layers, the second with a pool: its pooled rates given states that are certain."""
    if not kernel:
        request.getfixturevalue("no_library")
    torch.manual_seed(3)
    first = NSMConv2d(1, 3, 1, **LAW)  # every unit copies its pixel or turns it: t = ±40
    with torch.no_grad():
        first.weight.copy_(torch.tensor([1.0, -1.0, 1.0]).view(3, 1, 1, 1))
        first.beta.fill_(40.0)
    second: Any = NSMConv2d(3, 4, 3, padding=1, **LAW)
    with torch.no_grad():
        second.beta.fill_(0.4)
        second.bias.uniform_(-0.3, 0.3)
    model = nn.Sequential(first, second, nn.MaxPool2d(2), nn.Flatten())
    x = torch.randn(1, 1, 4, 4).sign()
    with torch.no_grad():
        states = torch.cat([x, -x, x], 1)
        off = 1 - second.firing_probability(states)[0].double()  # (4, 4, 4)
    p = 1 - off.unfold(1, 2, 2).unfold(2, 2, 2).prod(-1).prod(-1).flatten()  # (16,)
    n = 40_000
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        found = predict(nn.Sequential(*model, Above()), x, n, seed=1, chunk_size=2000, keep_samples=True)
    assert found.samples is not None
    fired = (found.samples[:, 0].log().diff(dim=-1)[:, ::2] > 0).sum(0)  # (16,)
    tolerance = 1e-5 if dtype == torch.float32 else 4e-3
    turned = torch.where(p >= 0.5, fired, n - fired)
    check_rate(int(turned.sum()), 16 * n, float(torch.maximum(p, 1 - p).mean()), tolerance=tolerance)
    check_rate(int(fired.sum()), 16 * n, float(p.mean()), tolerance=tolerance)


@pytest.mark.parametrize("kernel", [True, pytest.param(False, id="torch")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sums_that_cancel_are_not_broken(kernel, dtype, request):
    """Blanked-out weights of few bits often add up to 0, whose sign is +1: against the enumeration of all masks."""
    if not kernel:
        request.getfixturevalue("no_library")
    weight = torch.tensor([[3, -1, -2, 2, -2], [-2, 2, -2, -1, 3], [-3, 1, 2, -2, 2]]) / 8
    layer: Any = NSMLinear(5, 3, bias=False)
    with torch.no_grad():
        layer.weight.copy_(weight)
    masks = torch.tensor(list(itertools.product((0, 1), repeat=5)), dtype=torch.float64)
    p = (masks @ weight.double().T >= 0).double().mean(0)  # 19 of 32, though w·z = 0
    n = 40_000
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        found = predict(nn.Sequential(layer, Above()), torch.ones(1, 5), n, seed=2, chunk_size=4000, keep_samples=True)
    assert found.samples is not None
    fired = (found.samples[:, 0].log().diff(dim=-1)[:, ::2] > 0).sum(0)
    for count, chance in zip(fired.tolist(), p.tolist(), strict=True):
        check_rate(count, n, chance)


@pytest.mark.parametrize("size", [1e15, 1e38])
@pytest.mark.parametrize("law", [{}, NEURON], ids=["moments", "neuron"])
def test_products_that_are_not_finite_are_not_hidden(law, size, request):
    """Bits are not there for weights whose products float32 may not hold; what torch makes of them stands."""
    model: Any = odd(**law)
    with torch.no_grad():
        model[6].weight.fill_(size)
    found = predict(model, images(), 3, seed=0).probabilities
    request.getfixturevalue("no_library")
    assert torch.equal(found, predict(model, images(), 3, seed=0).probabilities) or found.isnan().all()


@pytest.mark.parametrize("law", [{}, NEURON], ids=["moments", "neuron"])
def test_a_pool_that_is_larger_than_its_picture_is_refused(law):
    first = nn.Sequential(NSMConv2d(1, 3, 3, **{**LAW, **law}), nn.MaxPool2d(2))
    above = nn.Sequential(NSMConv2d(3, 4, 1, padding=1, **{**LAW, **law}), nn.Flatten(), nn.Linear(36, 2))
    for broken in (nn.Sequential(*first, *above), first):
        with pytest.raises(ValueError, match=r"Expected pictures of at least \(2, 2\) for their pool, but got"):
            predict(broken, torch.ones(2, 1, 3, 3), 2, seed=0)


@needs_library
@pytest.mark.parametrize("law", [{}, NEURON], ids=["moments", "neuron"])
def test_a_wide_last_picture_is_drawn_in_passes_that_fit(law):
    """States come out as numbers; so many at a time that they take 64 MiB."""
    model = nn.Sequential(NSMConv2d(1, 16, 3, padding=1, **{**LAW, **law}), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    before, rest = _split(model)
    assert not before
    made, _ = chain(rest, torch.ones(4, 1, 64, 64)) or pytest.fail("Expected states as bits, but got none")
    assert made.rows(made.share(torch.ones(4, 1, 64, 64))) == 2**24 // (16 * 64 * 64)


class Above(nn.Module):
    """Two logits for each state, of which the second is larger where it is +1."""

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return torch.stack([-z, z], -1).flatten(1)


def test_pooled():
    e = torch.tensor([[[0.2, -0.4, 0.9], [0.0, 1.0, 0.9], [0.3, 0.3, 0.3]]])
    p = (1 + e.double()) / 2
    expected = 2 * (1 - (1 - p[:, :2, :2]).prod(-1).prod(-1)) - 1
    torch.testing.assert_close(functional.pooled(e, (2, 2))[:, 0, 0].double(), expected)
    assert functional.pooled(e, (2, 2)).shape == (1, 1, 1)
    assert functional.pooled(e, (1, 3)).shape == (1, 3, 1)
    torch.testing.assert_close(functional.pooled(e, (1, 1)), e)


# ------------------------------------------------------------------------- bits and numbers are one stream


@needs_library
@pytest.mark.parametrize("n", [1, 6, 33])
@pytest.mark.parametrize("law", [{}, NEURON, NEURON | {"noise": nsm.Bernoulli(0.3)}], ids=["moments", "½", "0.3"])
def test_the_chain_draws_what_its_stages_draw(n, law, monkeypatch):
    """In float32 products differ by 1e-6, so that a state in a million may differ; here none does."""
    model, x = odd(**law), images(n)
    before, rest = _split(model)
    found = chain(rest, x)
    assert not before
    assert found is not None
    assert found[1] == 5
    chained = predict(model, x, 20, seed=4, chunk_size=7, keep_samples=True)
    monkeypatch.setattr(bits, "library", lambda *constants: None)
    plain = predict(model, x, 20, seed=4, keep_samples=True)
    assert chained.samples is not None
    torch.testing.assert_close(chained.samples, plain.samples)


@needs_library
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_chain_ends_where_the_kernel_does(dtype):
    def length(*steps: nn.Module) -> int:
        model = nn.Sequential(*steps).to(dtype)
        found = chain(list(fuse(model)), images().to(dtype))
        return found[1] if found else 0

    conv = partial(NSMConv2d, **LAW)
    assert length(conv(1, 4, 3), conv(4, 4, 3), conv(4, 4, 3, groups=2)) == 2
    assert length(conv(1, 4, 3, groups=1, inputs="real"), conv(4, 4, 3), conv(4, 4, 3, inputs="real")) == 2
    assert length(conv(1, 4, 3), nn.Tanh(), conv(4, 4, 3)) == 1
    assert length(NSMLinear(12, 3, **LAW)) == 0  # a row of units for each row of pixels
    assert length(nn.Flatten(), NSMLinear(120, 3, **LAW), NSMLinear(3, 3, **LAW)) == 2
    assert length(nn.Tanh(), conv(1, 4, 3)) == 0
    shared = partial(NSMConv2d, **NEURON)
    assert length(shared(1, 4, 3), conv(4, 4, 3), shared(4, 4, 3), shared(4, 4, 3, noise=nsm.Gaussian())) == 3
    assert length(conv(1, 4, 3), shared(4, 4, 3), conv(4, 4, 3)) == 3
    assert length(shared(1, 4, 3, noise=nsm.Gaussian())) == 0
    assert length(shared(1, 4, 3, inputs="real")) == 0
    assert length(NSMLinear(12, 3)) == 0
    assert length(nn.Flatten(), NSMLinear(120, 3), NSMLinear(3, 3)) == 2
    assert chain(list(fuse(odd().double())), images().double()) is None


@needs_library
def test_only_states_become_bits():
    """What is not −1 or +1 before the first noise at neurons is multiplied, as a layer does it."""
    (stage,) = fuse([NSMLinear(12, 3)])
    z = torch.randn(5, 12).sign()
    assert chain([stage], z) is not None
    z[2, 3] = 0
    assert chain([stage], z) is None


@pytest.mark.parametrize("kernel", [True, pytest.param(False, id="torch")])
@pytest.mark.parametrize("law", [{}, NEURON], ids=["moments", "neuron"])
def test_the_seed_alone_decides(kernel, law, request):
    if not kernel:
        request.getfixturevalue("no_library")
    model, x = odd(**law), images(37)
    for bf16 in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            whole = predict(model, x, 23, seed=5, keep_samples=True)
            assert whole.samples is not None
            ways: list[dict[str, Any]] = [{"chunk_size": 1}, {"chunk_size": 100}, {"stop": Confident(1e-9)}]
            for options in ways:
                assert torch.equal(predict(model, x, 23, seed=5, **options).votes, whole.votes)
            few = predict(model, x[:3], 23, seed=5, keep_samples=True)
            assert few.samples is not None
            torch.testing.assert_close(few.samples, whole.samples[:, :3])
            stopped = predict(model, x, 23, seed=5, stop=Confident(0.5), chunk_size=4)
            assert len(stopped.num_samples.unique()) > 1
            for i, n in enumerate(stopped.num_samples.tolist()):
                expected = whole.samples[:n, i].mean(0)
                torch.testing.assert_close(stopped.probabilities[i], expected, atol=1e-6, rtol=0)


def test_half_precision_models_and_autocast():
    x = images()
    for model, inputs in ((odd(), x), (odd().bfloat16(), x.bfloat16()), (odd().double(), x.double())):
        found = predict(model, inputs, 50, seed=0)
        assert found.probabilities.isfinite().all()
    with torch.autocast("cpu", torch.bfloat16):
        found = predict(odd(), x, 2000, seed=0, chunk_size=100)
    wide = predict(odd(), x, 2000, seed=0, chunk_size=100)
    torch.testing.assert_close(found.probabilities, wide.probabilities, atol=0.02, rtol=0)


@pytest.mark.parametrize("law", [{}, NEURON], ids=["moments", "neuron"])
def test_no_counter_is_used_twice(monkeypatch, no_library, law):
    """(block, input, sample, draw) over blocks of inputs, chunks and stages."""
    used: Counter[tuple[int, ...]] = Counter()
    plain = philox.philox

    def watched(counter, key):
        words = torch.stack(torch.broadcast_tensors(*counter), -1).flatten(0, -2)
        used.update(map(tuple, words.tolist()))
        return plain(counter, key)

    monkeypatch.setattr(philox, "philox", watched)
    monkeypatch.setattr("nsm.sampling._BLOCK", {"cpu": 2, "cuda": 2})
    predict(odd(**law), images(3), 5, seed=0, chunk_size=2)
    assert max(used.values()) == 1
    if law:  # a byte for each state that is read
        blocks = [math.ceil(n / 16) for n in (10 * 12, 5 * 5 * 4, 6 * 3 * 2, 7 * 1 * 1, 9)]
    else:  # two bytes for each state that a stage draws
        blocks = [math.ceil(n / 8) for n in (5 * 5 * 4, 6 * 3 * 2, 7 * 1 * 1, 9, 11)]
    assert len(used) == 3 * 5 * sum(blocks)


@pytest.mark.parametrize("law", [{}, NEURON], ids=["moments", "neuron"])
def test_a_parameter_that_is_not_a_number_is_not_hidden(law):
    model: Any = odd(**law)
    with torch.no_grad():
        model[2].weight[0, 0, 0, 0] = math.nan
    assert predict(model, images(), 3, seed=0).probabilities.isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("mean", "slope"), [(math.nan, 1.0), (math.inf, 0.0)], ids=["NaN", "inf · 0"])
@pytest.mark.parametrize("law", [{}, NEURON], ids=["moments", "neuron"])
def test_a_number_that_is_none_before_the_first_draw_is_not_hidden(mean, slope, dtype, law):
    """Made by a batch norm, on the way to units whose bits cannot be NaN."""
    norm: Any = nn.BatchNorm2d(1)
    nn.init.constant_(norm.running_mean, mean)
    nn.init.constant_(norm.weight, slope)
    found = predict(nn.Sequential(norm, *odd(**law)).to(dtype), images().to(dtype), 3, seed=0)
    assert found.probabilities.isnan().all()


@pytest.mark.parametrize("law", [{}, NEURON], ids=["moments", "neuron"])
def test_wrong_shapes_have_the_layers_message(law):
    with pytest.raises(ValueError, match=r"Expected input `z` to have shape \(..., 1, height, width\)"):
        predict(odd(**law), torch.ones(2, 3, 10, 12), 2)
    with pytest.raises(ValueError, match=r"Expected input `z` to give an output of beta_shape=\(3, 2\)"):
        predict(odd(**law), torch.ones(2, 1, 20, 12), 2)
    with pytest.raises(ValueError, match=r"Expected input `z` to have shape \(\.\.\., 70\)"):
        predict(nn.Sequential(nn.Flatten(), NSMLinear(70, 3, **law), nn.Linear(3, 2)), images(), 2)


def test_a_weight_that_is_made_of_others_is_a_weight():
    """A parametrisation makes a subclass of a layer, whose forward is ours; a row without length has no direction."""
    plain: Any = odd()
    made: Any = odd()
    for layer in (made[3], made[6]):
        nn.init.normal_(layer.weight)
        weight_norm(layer)
    plain[3].weight, plain[6].weight = (nn.Parameter(made[k].weight.detach()) for k in (3, 6))
    assert kinds(made) == kinds(plain)
    found, expected = (predict(model, images(), 20, seed=3).probabilities for model in (made, plain))
    assert torch.equal(found, expected)
    with torch.no_grad():
        made[6].parametrizations.weight.original1[2] = 0
    assert predict(made, images(), 3, seed=0).probabilities.isnan().all()


# ------------------------------------------------------------------------- noise at neurons


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("noise", [nsm.Bernoulli(0.5), nsm.Bernoulli(0.3), nsm.Gaussian(0.5)], ids=str)
@pytest.mark.parametrize(
    ("layer", "pool", "shape"),
    [
        (partial(nsm.NSMConv2d, 2, 5, 3, padding=1), (2, 2), (2, 8, 6)),
        (partial(nsm.NSMConv2d, 1, 4, 5, bias=False), (2, 2), (1, 9, 9)),
        (partial(nsm.NSMConv2d, 2, 3, 3, beta_shape=(6, 4)), (3, 2), (2, 8, 6)),
        (partial(nsm.NSMConv2d, 2, 3, 3), (1, 1), (2, 8, 6)),
        (partial(nsm.NSMConv2d, 2, 3, 3), (1, 1), (2, 2, 5, 4)),
        (partial(nsm.NSMLinear, 7, 5), (1, 1), (7,)),
        (partial(nsm.NSMLinear, 7, 5), (1, 1), (3, 7)),
    ],
    ids=["pool", "left over", "places", "none", "several pictures", "dense", "several rows"],
)
@pytest.mark.parametrize("kernel", [False, True])
def test_a_crossed_stage_is_its_modules(layer, pool, shape, noise, dtype, kernel, monkeypatch):
    """State for state, with the noise of the same inputs and samples; by a kernel in Triton's interpreter too."""
    if kernel:
        toss = pytest.importorskip("nsm.kernels.toss")
        monkeypatch.setattr(Crossed, "_kernel", lambda self, y: toss if dtype == torch.float32 else None)
    torch.manual_seed(0)
    unit = layer(noise=noise, dtype=dtype)
    nn.init.normal_(unit.beta)
    if unit.bias is not None:
        nn.init.normal_(unit.bias)
    z = torch.randn(4, *shape, dtype=dtype).sign()
    modules = nn.Sequential(unit, nn.MaxPool2d(pool)) if pool != (1, 1) else unit
    (stage,) = fuse(modules if isinstance(modules, nn.Sequential) else [modules])
    assert type(stage) is Crossed
    rows = torch.arange(3).repeat_interleave(4), torch.arange(4).repeat(3)
    pictures = len(shape) == 3  # whose noise is numbered with the channels last
    places = z.movedim(1, -1).shape[1:] if pictures else z.shape[1:]
    with torch.no_grad():
        with philox.keyed(philox.Keyed(5, *rows)):
            found = stage.draw(stage.share(z), 3)
        with philox.keyed(philox.Keyed(5, *rows)):
            xi = noise.sample((12, *places), dtype=dtype)
            xi = xi.movedim(-1, 1) if pictures else xi
        expected = unit(z.repeat(3, *[1] * len(shape)), xi=xi)
        expected = expected if pool == (1, 1) else nn.functional.max_pool2d(expected, pool)
    assert found.dtype == dtype
    assert torch.equal(found, expected)


@pytest.mark.parametrize("noise", [nsm.Bernoulli(0.5), nsm.Bernoulli(0.3), nsm.Gaussian(0.5)], ids=str)
def test_noise_at_neurons_by_a_kernel(noise, monkeypatch):
    """In Triton's interpreter, on the states of a layer and, flattened, on those of the next."""
    counters, toss = pytest.importorskip("nsm.kernels.counters"), pytest.importorskip("nsm.kernels.toss")
    torch.manual_seed(0)
    network = nn.Sequential(
        nsm.NSMConv2d(2, 5, 3, noise=noise), nn.MaxPool2d(2), nn.Flatten(), nsm.NSMLinear(30, 4, noise=noise)
    )
    z, rows = torch.randn(4, 2, 8, 6).sign(), (torch.arange(3).repeat_interleave(4), torch.arange(4).repeat(3))
    first, second = fuse(network)
    assert isinstance(first, Crossed)
    assert isinstance(second, Crossed)
    found = []
    for kernel, cross in ((None, None), (counters, None), (counters, toss)):
        source = philox.Keyed(5, *rows)
        source.__dict__["kernel"] = kernel
        monkeypatch.setattr(Crossed, "_kernel", lambda self, y, cross=cross: cross)
        with torch.no_grad(), philox.keyed(source):
            found.append(second(first.draw(first.share(z), 3)))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("law", [{}, LAW], ids=["neuron", "moments"])
def test_other_rows_than_noise_is_numbered_for_are_no_kernels(law, monkeypatch):
    """A kernel would read numbers beyond the last; torch draws for a batch that a module has cut anew."""
    kernel: Any = mock.Mock(**{f"{name}.side_effect": AssertionError for name in ("fire", "blank", "integers")})
    monkeypatch.setattr(Stage, "_kernel", lambda self, z: kernel)
    (stage,) = fuse([nsm.NSMLinear(70, 5, **law)])
    source = philox.Keyed(5, torch.arange(3), torch.zeros(3, dtype=torch.int64))
    source.__dict__["kernel"] = kernel
    with torch.no_grad(), philox.keyed(source):
        assert stage(torch.ones(6, 70)).abs().unique().tolist() == [1]
        with pytest.raises(AssertionError):
            stage(torch.ones(3, 70))


def test_several_pictures_of_one_input():
    """A convolution takes any number of axes before the channels."""
    torch.manual_seed(0)
    layer = nsm.NSMConv2d(2, 3, 3, site="synapse", draw="moments")
    nn.init.normal_(layer.beta)
    (stage,) = fuse([layer])
    assert isinstance(stage, Stage)
    z = torch.randn(4, 5, 2, 6, 7).sign()
    with torch.no_grad():
        chance = 2 * layer.firing_probability(z) - 1
        torch.testing.assert_close(stage.chance(z).movedim(-1, -3), chance, rtol=0, atol=1e-5)
        assert stage(z).shape == layer(z).shape
