import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from nsm.functional import Draw, Site
from nsm.initialization import convert, initialize, start_from
from nsm.layers import NSMConv2d, NSMLayer, NSMLinear
from nsm.networks import bnsm, cifar_cnn, gnsm, mnist_cnn, pi_mnist_mlp, relu
from nsm.noise import Bernoulli, Gaussian
from nsm.signs import Binarize


@contextmanager
def arguments_of(model: nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Collects t of every NSM layer during forward passes."""
    seen: dict[str, torch.Tensor] = {}
    names = {layer: name for name, layer in model.named_modules() if isinstance(layer, NSMLayer)}

    def note(layer: Any, inputs: tuple[torch.Tensor]) -> None:
        seen.setdefault(names[layer], layer.erf_argument(inputs[0]))

    hooks = [layer.register_forward_pre_hook(note) for layer in names]
    yield seen
    for hook in hooks:
        hook.remove()


def replayed_arguments(model: nn.Module, batch: torch.Tensor, seed: int = 5) -> dict[str, torch.Tensor]:
    """Initialize, then run the same batch with the same noise, and return each layer's t, features first."""
    torch.manual_seed(seed)
    assert initialize(model, batch) is model
    torch.manual_seed(seed)
    with arguments_of(model) as seen, torch.no_grad():
        model(batch)
    modules = dict(model.named_modules())
    return {
        name: t.double().movedim(-3 if isinstance(modules[name], NSMConv2d) else -1, 0).flatten(1)
        for name, t in seen.items()
    }


class Branches(nn.Module):
    """Layers in a list, in a branch, and one used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = nn.ModuleList([NSMLinear(20, 16), nn.Sequential(NSMLinear(16, 16, noise=Gaussian(2.0)))])
        self.again = NSMLinear(16, 16, site="synapse", draw="exact")
        self.out = nn.Linear(32, 3)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        for layer in self.stack:
            z = layer(z)
        once = self.again(z)
        return self.out(torch.cat([once, self.again(once)], -1))


def padded(site: Site = "neuron", draw: Draw = "auto", **options) -> nn.Module:
    law = {"site": site, "draw": draw, **options}
    return nn.Sequential(
        NSMConv2d(1, 8, 5, padding=2, **law),
        nn.MaxPool2d(2),
        NSMConv2d(8, 8, 3, padding=1, stride=2, beta_shape=(4, 4), **law),
        nn.Flatten(),
        NSMLinear(128, 10, **law),
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: pi_mnist_mlp(in_features=196),
        lambda: mnist_cnn(size=28),
        lambda: mnist_cnn(gnsm),
        padded,
        lambda: padded(site="synapse", draw="exact"),
        lambda: padded(site="synapse", draw="moments"),
        lambda: padded(noise=Gaussian(0.3), estimator="concrete"),
    ],
)
def test_every_feature_of_t_has_mean_zero_and_variance_one(make):
    torch.manual_seed(0)
    model = make()
    size = 28 if hasattr(model, "conv1") else 14
    arguments = replayed_arguments(model, torch.randn(100, 1, size, size).sign())
    assert len(arguments) >= 3
    for name, t in arguments.items():
        assert t.mean(1).abs().max() < 1e-4, name
        assert (t.var(1, correction=0) - 1).abs().max() < 1e-4, name


def test_any_nesting_and_a_layer_used_twice():
    torch.manual_seed(1)
    arguments = replayed_arguments(Branches(), torch.randn(100, 20).sign())
    assert set(arguments) == {"stack.0", "stack.1.0", "again"}
    for t in arguments.values():
        assert t.mean(1).abs().max() < 1e-4
        assert (t.var(1, correction=0) - 1).abs().max() < 1e-4


def test_real_inputs_and_batch_norms():
    torch.manual_seed(2)
    model = nn.Sequential(NSMLinear(20, 8, inputs="real"), NSMLinear(8, 4))
    for t in replayed_arguments(model, torch.randn(100, 20)).values():
        assert t.mean(1).abs().max() < 1e-4
        assert (t.var(1, correction=0) - 1).abs().max() < 1e-4
    assert len(replayed_arguments(cifar_cnn(), torch.rand(4, 3, 32, 32))) == 9


def test_without_a_bias_only_the_variance_is_set():
    torch.manual_seed(3)
    (t,) = replayed_arguments(nn.Sequential(NSMLinear(20, 8, bias=False)), torch.randn(100, 20).sign()).values()
    assert (t.var(1, correction=0) - 1).abs().max() < 1e-4
    assert t.mean(1).abs().max() > 1e-3


def test_without_padding_it_is_the_papers_formula():
    torch.manual_seed(4)
    layer, z = NSMLinear(30, 6, noise=Bernoulli(0.3)), torch.randn(100, 30).sign()
    norm = layer.weight.detach().norm(dim=1)
    x = z @ layer.weight.detach().T / norm
    mu, sigma = x.mean(0), x.std(0, correction=0)
    initialize(layer, z)
    torch.testing.assert_close(layer.beta.detach(), 1 / sigma)
    assert layer.bias is not None
    torch.testing.assert_close(layer.bias.detach(), -mu * norm * math.sqrt(2 * 0.21) / sigma, rtol=1e-5, atol=1e-6)


def test_dead_features_are_left_alone():
    torch.manual_seed(5)
    layer = NSMLinear(6, 3)
    layer.weight.data[0] = 0  # no variance at all
    layer.weight.data[1] = torch.tensor([1.0, 0, 0, 0, 0, 0])  # sees only an input that never changes
    z = torch.randn(50, 6).sign()
    z[:, 0] = 1
    initialize(layer, z)
    assert layer.bias is not None
    assert layer.beta[:2].tolist() == [1, 1]
    assert layer.bias[:2].tolist() == [0, 0]
    assert layer.beta[2] != 1


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        (torch.ones(0, 6), ValueError, r"`batch` to be finite and not empty, but got shape \(0, 6\)"),
        (torch.full((2, 6), math.nan), ValueError, "`batch` to be finite and not empty, but got 12 values"),
        (torch.ones(2, 6, dtype=torch.long), TypeError, "`batch` to be a floating-point tensor, but got torch.int64"),
        ([1.0], TypeError, "`batch` to be a floating-point tensor, but got list"),
    ],
)
def test_initialize_refuses(batch, error, message):
    layer = NSMLinear(6, 3)
    with pytest.raises(error, match=message):
        initialize(layer, batch)
    assert not layer._forward_pre_hooks
    with pytest.raises(ValueError, match="`model` to contain NSM layers, but got Linear without any"):
        initialize(nn.Linear(6, 3), torch.ones(2, 6))


def test_initialize_leaves_no_hook_behind_after_an_error():
    model: Any = nn.Sequential(NSMLinear(6, 3), nn.Linear(4, 2))
    with pytest.raises(RuntimeError):
        initialize(model, torch.ones(2, 6))
    assert not model[0]._forward_pre_hooks


# ------------------------------------------------------------------------- convert


def trained(*layers: nn.Module) -> Any:
    """A network whose norms have seen data."""
    torch.manual_seed(6)
    model = nn.Sequential(*layers)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            for parameter in module.parameters():
                nn.init.normal_(parameter)
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return model.eval()


@pytest.mark.parametrize(
    "hidden",
    [
        (nn.Linear(8, 5), nn.ReLU()),
        (nn.Linear(8, 5, bias=False), nn.Tanh()),
        (nn.Linear(8, 5), nn.BatchNorm1d(5), nn.ReLU()),
        (nn.Linear(8, 5, bias=False), nn.BatchNorm1d(5), nn.Dropout(0.3), nn.GELU()),
        (nn.Linear(8, 5), nn.BatchNorm1d(5, affine=False), nn.Sigmoid()),
        (nn.utils.parametrizations.weight_norm(nn.Linear(8, 5)), nn.ReLU()),
    ],
    ids=lambda layers: "-".join(type(layer).__name__ for layer in layers),
)
def test_t_is_the_trained_pre_activation(hidden):
    model = trained(*hidden, nn.Dropout(), nn.Linear(5, 3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    machine = convert(model, noise=Bernoulli(0.3), site="synapse")
    z = torch.randn(20, 8).sign()
    pre_activation = nn.Sequential(*[m for m in hidden if not isinstance(m, nn.Dropout)][:-1])
    layer = machine.get_submodule("0")
    assert isinstance(layer, NSMLinear)
    assert layer.noise == Bernoulli(0.3)
    assert layer.site == "synapse"
    torch.testing.assert_close(layer.erf_argument(z), pre_activation(z))
    assert not [m for m in machine.modules() if isinstance(m, nn.Dropout | nn.BatchNorm1d | nn.ReLU)]
    assert machine(z).shape == (20, 3)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())  # a copy


def test_convolutions_keep_the_direction_of_their_weights():
    model = trained(
        nn.Conv2d(1, 4, 5, bias=False), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(4, 6, 3, padding=1, groups=2), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(96, 10), nn.ReLU(), nn.Linear(10, 3), nn.LogSoftmax(-1),
    )  # fmt: skip
    machine = convert(model)
    first, second, third = (machine.get_submodule(name) for name in "048")
    assert isinstance(first, NSMConv2d)
    assert isinstance(second, NSMConv2d)
    assert isinstance(third, NSMLinear)
    sign = model[1].weight.sign()[:, None]  # a norm may turn a feature round
    old, new = model[0].weight.flatten(1), first.weight.flatten(1)
    torch.testing.assert_close(F.normalize(new), F.normalize(old) * sign)
    torch.testing.assert_close(F.normalize(second.weight.flatten(1)), F.normalize(model[4].weight.flatten(1)))
    assert (first.inputs, second.inputs, third.inputs) == ("binary", "binary", "real")  # average pooling is not ±1
    z = torch.randn(2, 1, 28, 28).sign()
    small = torch.randn(2, 1, 20, 20).sign()
    torch.testing.assert_close(first.erf_argument(z), model[1](model[0](z)), rtol=1e-4, atol=1e-5)
    assert machine(small).shape == (2, 3)
    assert isinstance(machine.get_submodule("11"), nn.LogSoftmax)
    assert convert(model, inputs="real").get_submodule("0").inputs == "real"


def test_our_own_deterministic_networks_convert():
    model = mnist_cnn(relu)
    machine = convert(model, noise=Bernoulli(0.25))
    z = torch.randn(2, 1, 28, 28).sign()
    layers = [m for m in machine.modules() if isinstance(m, NSMLayer)]
    assert [tuple(layer.weight.shape) for layer in layers] == [(32, 1, 5, 5), (64, 32, 5, 5), (512, 1024)]
    assert all(layer.inputs == "binary" for layer in layers)
    initialize(machine, z)
    assert machine(z).shape == (2, 10)
    layers = [m for m in convert(cifar_cnn(relu)).modules() if isinstance(m, NSMLayer)]
    assert [layer.inputs for layer in layers] == ["binary"] * 9


def test_a_module_with_its_own_forward():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.binarize, self.relu = Binarize(), nn.ReLU()
            self.body = nn.ModuleDict({"a": nn.Linear(8, 6), "b": nn.Linear(6, 4)})
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            x = self.relu(self.body["a"](self.binarize(x)))
            x = self.relu(self.body["b"](x.view(-1, 6)))  # one activation, used twice
            return self.head(x)

    machine = convert(Net())
    assert type(machine).__name__ == "Net"
    assert [type(m).__name__ for m in machine.get_submodule("body").children()] == ["NSMLinear", "NSMLinear"]
    assert machine(torch.rand(3, 8)).shape == (3, 2)


def test_hook_based_weight_norm_is_resolved_from_its_parts():
    with pytest.warns(FutureWarning):
        layer: Any = nn.utils.weight_norm(nn.Linear(4, 3))
    layer.weight_g.data.mul_(2)  # layer.weight is stale until the next forward pass
    model = nn.Sequential(layer, nn.ReLU(), nn.Linear(3, 2))
    found = convert(model).get_submodule("0")
    assert isinstance(found, NSMLinear)
    expected = layer.weight_v * (layer.weight_g / layer.weight_v.norm(dim=1, keepdim=True))
    torch.testing.assert_close(found.beta[:, None] * F.normalize(found.weight), expected)


class Functional(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.a, self.b, self.function = nn.Linear(4, 4), nn.Linear(4, 2), function

    def forward(self, x):
        return self.b(self.function(self.a(x)))


class Branching(Functional):
    def forward(self, x):
        return self.a(x) if x.sum() > 0 else self.b(x)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.relu = nn.Linear(4, 4), nn.Linear(4, 2), nn.ReLU()

    def forward(self, x):
        return self.b(self.relu(x + self.a(x)))


class Twice(Residual):
    def forward(self, x):
        return self.b(self.a(self.relu(self.a(x))))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Functional(F.relu), "as modules, but got the function `relu`: it cannot be replaced"),
        (Functional(torch.sigmoid), "as modules, but got the function `sigmoid`"),
        (Functional(lambda x: x.relu()), "as modules, but got the function `relu`"),
        (Functional(lambda x: F.dropout(x, 0.5)), "as modules, but got the function `dropout`"),
        (Branching(F.relu), "`model` to be traceable by torch.fx, but got"),
        (Residual(), "directly after one Linear or Conv2d .* but got `relu` elsewhere"),
        (Twice(), "directly after one Linear or Conv2d .* but got `a` elsewhere"),
        (nn.Sequential(nn.Linear(4, 3)), "followed by an activation module, but got Sequential without any"),
        (
            nn.Sequential(nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect"), nn.ReLU()),
            r"`padding_mode` to be one of \['zeros'\], but got 'reflect'",
        ),
        (
            nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False), nn.ReLU()),
            "every BatchNorm to track running statistics",
        ),
    ],
)
def test_convert_refuses_what_it_cannot_see(model, message):
    with pytest.raises(ValueError, match=message):
        convert(model)


def test_a_converted_network_can_be_trained_on():
    torch.manual_seed(7)
    centres = torch.randn(3, 32).sign()
    labels = torch.randint(3, (600,))
    z = centres[labels] * torch.where(torch.rand(600, 32) < 0.25, -1.0, 1.0)
    model = nn.Sequential(nn.Linear(32, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 3))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(z), labels).backward()
        optimizer.step()
    machine = initialize(convert(model.eval(), noise=Bernoulli(0.5)), z[:100])
    optimizer = torch.optim.Adam(machine.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(machine(z), labels).backward()
        optimizer.step()
    accuracy = (torch.stack([machine(z).softmax(1) for _ in range(20)]).mean(0).argmax(1) == labels).float().mean()
    assert accuracy > 0.95


@pytest.mark.parametrize("unit", [bnsm, gnsm])
@pytest.mark.parametrize("network", [mnist_cnn, cifar_cnn, pi_mnist_mlp])
def test_start_from_a_trained_network_has_its_pre_activations(network, unit):
    """t of the first NSM layer on ±1 states is what the trained layer computes, whatever the noise."""
    torch.manual_seed(0)
    trained, model = network(relu), network(unit)
    fresh = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for w in trained.parameters():
            w *= 3  # as they grow while they are learned
    assert start_from(model, trained) is model
    for module in model.modules():
        if isinstance(module, NSMLayer):
            assert torch.allclose(module.weight.flatten(1).norm(dim=1), torch.tensor(3.0).rsqrt())
    layer = next(module for module in model.modules() if isinstance(module, NSMLayer))
    name = next(name for name, module in model.named_modules() if module is layer)
    shape = (4, layer.weight.shape[1], 9, 9) if layer.weight.dim() == 4 else (4, layer.weight.shape[1])
    z = torch.randn(shape).sign()
    inside = (..., slice(1, -1), slice(1, -1)) if layer.weight.dim() == 4 else (...,)  # borders have another variance
    expected = trained.get_submodule(f"{name}.0")(z)
    assert torch.allclose(layer.erf_argument(z)[inside], expected[inside], atol=1e-4)
    for name, value in model.named_parameters():
        if not isinstance(model.get_submodule(name.rpartition(".")[0]), NSMLayer):
            reads = name.startswith(("out.", "norm."))  # the states: it knows nothing of them yet
            assert torch.equal(value, (fresh if reads else trained.state_dict())[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_a_unit_without_weights(dtype):
    """It fires or not as its bias has it, whatever the states."""
    trained = nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 2)).to(dtype)
    with torch.no_grad():
        trained.get_parameter("0.weight").zero_()
        trained.get_parameter("0.bias").copy_(torch.tensor([-1.0, 1.0]))
    states = convert(trained).get_submodule("0")(torch.ones(7, 4, dtype=dtype))
    assert torch.equal(states, torch.tensor([[-1, 1]], dtype=dtype).expand(7, 2))


def test_start_from_another_architecture():
    with pytest.raises(ValueError, match=r"`trained` to have hidden layers .*300, 784.*, but got .*32, 1"):
        start_from(pi_mnist_mlp(), mnist_cnn(relu))
    with pytest.raises(ValueError, match=r"to have norm0.weight \(96,\), but got nothing"):
        start_from(cifar_cnn(), cifar_cnn(relu, batch_norm=False))
    unbiased = pi_mnist_mlp(bias=False)
    before = copy.deepcopy(unbiased.state_dict())
    with pytest.raises(ValueError, match=r"Expected argument `model` to have biases as `trained` has, but got a layer"):
        start_from(unbiased, pi_mnist_mlp(relu))
    assert all(torch.equal(value, before[name]) for name, value in unbiased.state_dict().items())
    first = NSMLinear(4, 3)  # behind a plain layer, whose bias is not to be lost either
    model = nn.Sequential(nn.Linear(4, 4, bias=False), Binarize(0.0), first, nn.Linear(3, 2))
    trained = nn.Sequential(nn.Linear(4, 4), Binarize(0.0), nn.Sequential(nn.Linear(4, 3), nn.ReLU()), nn.Linear(3, 2))
    with pytest.raises(ValueError, match=r"Expected argument `model` to have 0.bias as `trained` has, but got nothing"):
        start_from(model, trained)
    start_from(pi_mnist_mlp(), pi_mnist_mlp(relu, bias=False))
    start_from(pi_mnist_mlp(), pi_mnist_mlp(relu, classes=7))  # what reads the states may be another one


def test_what_stands_beside_or_behind_the_states_need_not_be_there():
    """A classifier with computed weights, and a head that nothing calls."""
    trained = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), weight_norm(nn.Linear(3, 2)))
    trained[0].register_module("aux", nn.Linear(3, 5))
    model = start_from(nn.Sequential(NSMLinear(4, 3), nn.Linear(3, 2)), trained)
    z = torch.tensor([1.0, -1.0, -1.0, 1.0])
    assert torch.allclose(cast(NSMLinear, model.get_submodule("0")).erf_argument(z), trained[0](z))
