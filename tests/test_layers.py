import copy
import math
import pickle
from typing import Any

import pytest
import scipy.special
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

import law
from law import SITES, Case, check_independent, check_layer, layer_of
from nsm.estimators import Concrete
from nsm.functional import Site, a_from_beta
from nsm.layers import NSMConv2d, NSMLayer, NSMLinear, counterpart, deterministic
from nsm.noise import Bernoulli, Gaussian, LogNormal
from nsm.sequential import Sequential
from nsm.signs import Binarize, binarize

CASES = [
    Case(noise, site, draw, geometry)
    for noise in law.NOISES[:1]
    for site, draw in SITES
    for geometry in ("linear", "conv")
]
ESTIMATORS = ["probability", "straight_through", "concrete"]
FIRST = [ESTIMATORS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in ESTIMATORS[1:])]  # where it takes long


def every_layer(**options) -> list[tuple[NSMLayer, torch.Tensor]]:
    """A dense and a convolutional layer for every site and draw, with an input."""
    dtype = options.get("dtype", torch.float32)
    layers = []
    for site, draw in SITES:
        law_of = {"site": site, "draw": draw, **options}
        layers.append((NSMLinear(6, 4, **law_of), torch.randn(3, 6).sign().to(dtype)))
        layers.append((NSMConv2d(2, 4, 3, padding=1, groups=2, **law_of), torch.randn(3, 2, 5, 5).sign().to(dtype)))
    return layers


# ------------------------------------------------------------------------- the law, through the module


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_layers_obey_the_law_in_train_and_eval_alike(case, mode):
    layer = layer_of(case).train(mode == "train")
    check_layer(case, layer)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_compiled_layers_obey_the_law(case):
    torch._dynamo.reset()
    check_layer(case, torch.compile(layer_of(case), fullgraph=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_layers_under_autocast_obey_the_law(case):
    def draw(batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return layer_of(case)(batch)

    rounded = Case(case.noise, case.site, case.draw, case.geometry, dtype=torch.bfloat16)
    check_layer(rounded, lambda batch: draw(batch.float()))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_firing_probability_is_the_normal_law(case):
    layer, limit = layer_of(case), Case(case.noise, case.site, "moments", case.geometry)
    found = layer.firing_probability(case.parameters[0])
    torch.testing.assert_close(found.double(), torch.from_numpy(limit.truth), rtol=0, atol=1e-6)


# ------------------------------------------------------------------------- no two draws alike


def single_unit(site: Site = "neuron") -> tuple[NSMLinear, torch.Tensor, float]:
    """One unit with Gaussian noise, many equal rows, and the probability that it fires."""
    torch.manual_seed(3)
    layer = NSMLinear(5, 1, noise=Gaussian(0.5), site=site)
    z = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0])
    layer.beta.data.fill_(0.3)
    return layer, z.expand(law.DRAWS, 5), float(layer.firing_probability(z))


@pytest.mark.parametrize("site", ["neuron", "synapse"])
@torch.no_grad()
def test_noise_never_repeats(site):
    layer, z, p = single_unit(site)
    one, two = layer(z), layer(z)
    twin, stranger = copy.deepcopy(layer), NSMLinear(5, 1, noise=Gaussian(0.5), site=site)
    stranger.load_state_dict(layer.state_dict())
    check_independent(one, two, p)  # calls
    check_independent(one[: len(one) // 2], one[len(one) // 2 :], p)  # rows far apart
    check_independent(one[::2], one[1::2], p)  # neighbouring rows
    check_independent(one, twin(z), p)  # a copy
    check_independent(one, stranger(z), p)  # another layer with the same weights


@torch.no_grad()
def test_compiled_noise_never_repeats():
    """Two layers in one graph and two calls of it; inductor has drawn the same mask twice for some shapes."""
    torch._dynamo.reset()
    layer, z, p = single_unit()
    twin = copy.deepcopy(layer)
    both = torch.compile(lambda z: (layer(z), twin(z)), fullgraph=True)
    (first, other), (second, _) = both(z), both(z)
    check_independent(first, other, p)
    check_independent(first, second, p)
    check_independent(first[: len(first) // 2], first[len(first) // 2 :], p)


@torch.no_grad()
def test_conv_positions_and_channels_draw_their_own_synaptic_noise():
    torch.manual_seed(4)
    layer = NSMConv2d(1, 2, 1, noise=Gaussian(0.5), site="synapse", draw="exact", bias=False)
    layer.weight.data[1] = layer.weight.data[0]
    layer.beta.data.fill_(0.3)
    z = torch.ones(law.DRAWS, 1, 1, 2)
    p = layer.firing_probability(z[:1])[0, 0, 0, 0].item()
    states = layer(z)
    check_independent(states[:, 0, 0, 0], states[:, 0, 0, 1], p)
    check_independent(states[:, 0, 0, 0], states[:, 1, 0, 0], p)


@torch.no_grad()
def test_stacked_models_draw_their_own_noise():
    layer, z, p = single_unit()
    parameters, buffers = stack_module_state([layer, copy.deepcopy(layer)])  # type: ignore[arg-type]
    run = vmap(lambda p, b, z: functional_call(layer, (p, b), (z,)), in_dims=(0, 0, None), randomness="different")
    states = run(parameters, buffers, z)
    check_independent(states[0], states[1], p)


# ------------------------------------------------------------------------- modules among modules


def test_parameters_and_derived_a():
    layer = NSMConv2d(4, 6, (3, 2), groups=2, beta_shape=(5, 7), noise=Bernoulli(0.25))
    assert {name: tuple(p.shape) for name, p in layer.named_parameters()} == {
        "weight": (6, 2, 3, 2),
        "bias": (6,),
        "beta": (6, 5, 7),
    }
    layer = NSMLinear(7, 3, bias=False, noise=Bernoulli(0.25))
    assert layer.bias is None
    assert set(dict(layer.named_parameters())) == {"weight", "beta"}
    assert torch.equal(layer.beta, torch.ones(3))
    torch.testing.assert_close(layer.a, torch.full((3,), math.sqrt(2 * 0.1875) - 0.25))
    torch.testing.assert_close((layer.noise.mean + layer.a) / math.sqrt(2 * layer.noise.variance), layer.beta)
    assert layer.weight.abs().max() <= 1 / math.sqrt(7)


def test_reprs_say_how_the_layer_was_made():
    assert repr(NSMLinear(784, 300)) == (
        "NSMLinear(784, 300, bias=True, noise=Bernoulli(p=0.5), site='neuron', estimator=Probability())"
    )
    layer = NSMConv2d(
        2, 4, 3, 2, 1, groups=2, bias=False, noise=Gaussian(0.5), site="synapse", draw="moments", inputs="real",
        estimator=Concrete(0.5), beta_shape=(3, 3),
    )  # fmt: skip
    assert repr(layer) == (
        "NSMConv2d(2, 4, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), groups=2, beta_shape=(3, 3), bias=False, "
        "noise=Gaussian(sigma=0.5), site='synapse', draw='moments', inputs='real', estimator=Concrete(temperature=0.5))"
    )


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_type_runs_forward_and_backward(estimator, dtype):
    for inputs in ("binary", "real"):
        for layer, z in every_layer(estimator=estimator, dtype=dtype, inputs=inputs):
            z.requires_grad_()
            states = layer(z)
            assert states.dtype == dtype
            states.sum().backward()
            for leaf in (*layer.parameters(), z):
                assert leaf.grad is not None
                assert leaf.grad.dtype == dtype
                assert leaf.grad.isfinite().all()


def test_moves_saves_copies_and_pickles():
    for layer, z in every_layer():
        layer.bias.data.normal_()  # type: ignore[union-attr]
        layer.beta.data.uniform_()
        fresh = copy.deepcopy(layer)
        fresh.reset_parameters()
        assert not torch.equal(fresh.weight, layer.weight)
        fresh.load_state_dict(layer.state_dict())
        for twin in (fresh, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert repr(twin) == repr(layer)
            torch.testing.assert_close(twin.firing_probability(z), layer.firing_probability(z), rtol=0, atol=0)
        double = layer.to(torch.float64)
        assert double(z.double()).dtype == torch.float64
        assert type(layer).__name__ in repr(layer.to("meta"))


def test_autocast_returns_the_low_type_and_trains():
    for estimator in ESTIMATORS:
        for layer, z in every_layer(estimator=estimator):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                states = layer(z)
            assert states.dtype == torch.bfloat16
            states.sum().backward()
            assert layer.weight.grad is not None
            assert layer.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_vmap_over_stacked_parameters_with_gradients(estimator):
    for layer, z in every_layer(estimator=estimator):
        models = [copy.deepcopy(layer) for _ in range(3)]
        for k, model in enumerate(models):
            model.beta.data.fill_(40.0 * (k + 1))  # all but certain, so that draws do not matter
        parameters, buffers = stack_module_state(models)  # type: ignore[arg-type]

        def loss(p, b, z, layer=layer):
            return functional_call(layer, (p, b), (z,)).sum()

        run = vmap(grad(loss), in_dims=(0, 0, None), randomness="different")
        gradients = run(parameters, buffers, z)
        assert {k: g.shape for k, g in gradients.items()} == {k: p.shape for k, p in parameters.items()}
        assert all(g.isfinite().all() for g in gradients.values())
        states = vmap(lambda p, b, layer=layer, z=z: functional_call(layer, (p, b), (z,)), randomness="different")(
            parameters, buffers
        )
        certain = layer.erf_argument(z).detach().abs() > 0.2
        torch.testing.assert_close(states[2][certain], models[2](z)[certain], atol=1e-3, rtol=0)


@pytest.mark.parametrize("estimator", FIRST)
def test_compiled_whole_with_gradients(estimator):
    """Gradients of the compiled layer equal eager ones: those of `probability` do not depend on the draw."""
    torch._dynamo.reset()
    for layer, z in every_layer(estimator=estimator)[-2:]:
        compiled = torch.compile(layer, fullgraph=True)
        compiled(z).sum().backward()
        found = [p.grad.clone() for p in layer.parameters() if p.grad is not None]
        assert len(found) == 3
        assert all(g.isfinite().all() for g in found)
        if estimator == "probability":
            layer.zero_grad()
            layer(z).sum().backward()
            for one, p in zip(found, layer.parameters(), strict=True):
                torch.testing.assert_close(one, p.grad, rtol=1e-4, atol=1e-5)


def test_batch_shapes():
    linear, conv = NSMLinear(6, 4), NSMConv2d(2, 4, 3)
    for batch in [(), (5,), (2, 3), (2, 3, 4), (0,), (2, 0)]:
        assert linear(torch.ones(*batch, 6)).shape == (*batch, 4)
        assert conv(torch.ones(*batch, 2, 7, 8)).shape == (*batch, 4, 5, 6)
    for estimator in ESTIMATORS:
        for layer, z in every_layer(estimator=estimator):
            empty = layer(z[:0])
            assert empty.shape[0] == 0
            empty.sum().backward()


@pytest.mark.parametrize("estimator", FIRST)
def test_one_graph_for_all_batch_sizes(estimator):
    for layer, z in every_layer(estimator=estimator):
        torch._dynamo.reset()
        compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
        for n in (2, 3, 5):
            assert compiled(z[:1].expand(n, *z.shape[1:])).shape[0] == n


def test_same_padding_keeps_the_size():
    layer = NSMConv2d(1, 2, (4, 3), padding="same", site="synapse", draw="exact")
    assert layer(torch.ones(1, 1, 6, 6)).shape == (1, 2, 6, 6)
    assert layer.firing_probability(torch.ones(1, 6, 6)).shape == (2, 6, 6)


def test_layers_put_where_a_layer_and_its_activation_stood_learn():
    """A parity problem that no linear model solves."""
    torch.manual_seed(0)
    x = torch.randn(2000, 2)
    labels = (x.prod(1) > 0).long()
    z = (
        torch.cat(
            [(x[:, :1] > c).float() for c in torch.linspace(-1, 1, 5)]
            + [(x[:, 1:] > c).float() for c in torch.linspace(-1, 1, 5)],
            1,
        )
        * 2
        - 1
    )
    model = nn.Sequential(NSMLinear(10, 64), NSMLinear(64, 64), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(z), labels).backward()
        optimizer.step()
    mean = torch.stack([model(z).softmax(1) for _ in range(20)]).mean(0)
    assert (mean.argmax(1) == labels).float().mean() > 0.9


# ------------------------------------------------------------------------- deterministic, binarize, counterpart


def test_deterministic_gives_the_sign_of_the_mean_and_restores():
    for layer, z in every_layer():
        model = nn.Sequential(nn.Sequential(layer))
        with deterministic(model) as same:
            assert same is model
            states = model(z)
            assert torch.equal(states, torch.where(layer.moments(z)[0] >= 0, 1.0, -1.0))
            assert torch.equal(states, model(z))
            states.sum().backward()  # the gradient of erf(t)
            assert layer.weight.grad is not None
        assert not layer.deterministic
        wide = z.expand(64, *z.shape)
        assert not torch.equal(layer(wide), layer(wide))


def test_deterministic_ends_with_an_error_too():
    layer = NSMLinear(3, 2)
    with pytest.raises(RuntimeError, match="within"), deterministic(layer):
        raise RuntimeError("within")
    assert not layer.deterministic


def test_nested_deterministic_contexts():
    layer = NSMLinear(3, 2)
    with deterministic(layer):
        with deterministic(layer):
            assert layer.deterministic
        assert layer.deterministic
    assert not layer.deterministic


def test_binarize():
    x = torch.tensor([0.0, 0.499, 0.5, 1.0, math.nan])
    for states in (binarize(x), Binarize()(x)):
        assert states[:4].tolist() == [-1, -1, 1, 1]
        assert states[4].isnan()
    assert binarize(torch.tensor([0.0, 1.0]), threshold=0.0).tolist() == [1, 1]
    assert repr(Binarize(0.25)) == "Binarize(threshold=0.25)"
    with pytest.raises(TypeError, match=r"Expected argument `x` to be a floating-point tensor, but got torch.uint8"):
        binarize(torch.zeros(3, dtype=torch.uint8))
    with pytest.raises(ValueError, match="Expected argument `threshold` to be finite, but got nan"):
        Binarize(math.nan)


def test_counterpart_keeps_shape_weights_type_and_mode():
    conv = nn.Conv2d(4, 6, (3, 2), stride=2, padding=(1, 0), dilation=(1, 2), groups=2, bias=False, dtype=torch.float64)
    layer = counterpart(conv.eval(), noise=LogNormal(0.5), site="synapse", draw="exact")
    assert torch.equal(layer.weight, conv.weight)
    assert layer.weight is not conv.weight
    assert layer.bias is None
    assert not layer.training
    z = torch.randn(2, 4, 7, 7, dtype=torch.float64).sign()
    assert layer(z).shape == conv(z).shape


# ------------------------------------------------------------------------- bad input

Linear: Any = NSMLinear  # so that wrong arguments pass the type checker
Conv2d: Any = NSMConv2d


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Linear(0, 3), ValueError, "Expected argument `in_features` to be a positive int, but got 0"),
        (lambda: Linear(3, -1), ValueError, "Expected argument `out_features` to be a positive int, but got -1"),
        (lambda: Linear(3, 1.5), ValueError, "Expected argument `out_features` to be a positive int, but got 1.5"),
        (lambda: Linear(3, 3, noise=0.5), TypeError, "Expected argument `noise` to be an nsm.Noise, but got 0.5"),
        (
            lambda: Linear(3, 3, site="axon"),
            ValueError,
            r"`site` to be one of \['neuron', 'synapse'\], but got 'axon'",
        ),
        (lambda: Linear(3, 3, draw="fast"), ValueError, r"`draw` to be one of \['auto', 'exact', 'moments'\]"),
        (lambda: Linear(3, 3, draw="moments"), ValueError, "`draw` to be 'auto' or 'exact' with site='neuron'"),
        (lambda: Linear(3, 3, inputs="ternary"), ValueError, r"`inputs` to be one of \['binary', 'real'\]"),
        (lambda: Linear(3, 3, estimator="x"), ValueError, "`estimator` to be one of"),
        (lambda: Conv2d(0, 3, 3), ValueError, "`in_channels` to be a positive int, but got 0"),
        (lambda: Conv2d(1, 3, 0), ValueError, "`kernel_size` to be one or two ints of at least 1, but got 0"),
        (lambda: Conv2d(1, 3, (1, 2, 3)), ValueError, "`kernel_size` to be one or two ints of at least 1"),
        (lambda: Conv2d(1, 3, 3, stride=0), ValueError, "`stride` to be one or two ints of at least 1, but got 0"),
        (
            lambda: Conv2d(1, 3, 3, padding=-1),
            ValueError,
            "`padding` to be one or two ints of at least 0, but got -1",
        ),
        (lambda: Conv2d(1, 3, 3, padding="full"), ValueError, r"`padding` to be one of \['same', 'valid'\]"),
        (lambda: Conv2d(1, 3, 3, 2, "same"), ValueError, "`stride` to be 1 with padding='same'"),
        (lambda: Conv2d(3, 4, 3, groups=2), ValueError, "`groups` to divide in_channels=3 and out_channels=4"),
        (lambda: Conv2d(1, 3, 3, padding_mode="reflect"), ValueError, r"`padding_mode` to be one of \['zeros'\]"),
        (lambda: Conv2d(1, 3, 3, beta_shape=(0, 2)), ValueError, "`beta_shape` to be one or two ints of at least 1"),
    ],
)
def test_bad_arguments_name_the_argument_the_expectation_and_the_value(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("layer", "z", "error", "message"),
    [
        (NSMLinear(3, 2), torch.ones(4, 5), ValueError, r"`z` to have shape \(..., 3\), but got \(4, 5\)"),
        (NSMLinear(3, 2), torch.tensor(1.0), ValueError, r"`z` to have shape \(..., 3\), but got \(\)"),
        (
            NSMLinear(3, 2),
            torch.ones(4, 3, dtype=torch.long),
            TypeError,
            "`z` to be floating-point states.*torch.int64",
        ),
        (NSMLinear(3, 2), torch.ones(4, 3).double(), TypeError, r"weights' dtype torch.float32, but got torch.float64"),
        (NSMLinear(3, 2), [1.0, 1.0, 1.0], TypeError, "`z` to be a tensor, but got list"),
        (NSMConv2d(2, 2, 3), torch.ones(1, 3, 5, 5), ValueError, r"\(..., 2, height, width\), but got \(1, 3, 5, 5\)"),
        (NSMConv2d(2, 2, 3), torch.ones(5, 5), ValueError, r"\(..., 2, height, width\), but got \(5, 5\)"),
        (NSMConv2d(1, 2, 3), torch.ones(784), ValueError, r"\(..., 1, height, width\), but got \(784,\)"),
        (NSMConv2d(2, 2, 3), torch.ones(1, 2, 2, 9), ValueError, r"at least as large as the kernel \(3, 3\)"),
        (
            NSMConv2d(2, 2, 3, beta_shape=(3, 3)),
            torch.ones(1, 2, 6, 5),
            ValueError,
            r"beta_shape=\(3, 3\), but got \(4, 3\)",
        ),
    ],
)
def test_bad_inputs_name_what_was_expected_and_what_came(layer, z, error, message):
    for call in (layer, layer.firing_probability, Sequential(layer)):
        with pytest.raises(error, match=message):
            call(z)


def test_weights_of_another_architecture_are_refused():
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        NSMLinear(3, 2).load_state_dict(NSMLinear(4, 2).state_dict())
    with pytest.raises(RuntimeError, match="beta"):
        NSMLinear(3, 2).load_state_dict(nn.Linear(3, 2).state_dict())


def test_a_from_beta_is_what_the_normal_law_needs():
    """P at a = 0 with Bernoulli(p): β = p/√(2p(1−p))."""
    p = 0.3
    layer = NSMLinear(50, 1, bias=False, noise=Bernoulli(p))
    layer.beta.data.fill_(p / math.sqrt(2 * p * (1 - p)))
    assert layer.a.abs().max() < 1e-6
    assert a_from_beta(layer.beta, layer.noise).abs().max() < 1e-6
    z = torch.ones(50)
    w = layer.weight[0].detach().double()
    truth = scipy.special.ndtr(float(p * w.sum() / (math.sqrt(p * (1 - p)) * w.norm())))
    assert layer.firing_probability(z).item() == pytest.approx(truth, abs=1e-6)
