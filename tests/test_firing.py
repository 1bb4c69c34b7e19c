"""Layers by kernels: which layers they take, and that the law and the gradients are those of the reference."""

# pyright: reportCallIssue=false, reportOptionalMemberAccess=false

from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.func import grad, vmap
from torch.nn import functional as F

import nsm
from law import check_rate
from nsm import firing
from nsm.kernels import fire_cpu, operations
from nsm.networks import UNITS, mnist_cnn
from nsm.sequential import Sequential
from nsm.wiring import Dense

LAYERS = [
    lambda **law: nsm.NSMLinear(70, 9, **law),
    lambda **law: nsm.NSMConv2d(1, 6, 5, **law),
    lambda **law: nsm.NSMConv2d(3, 6, 3, padding=1, bias=False, **law),
    lambda **law: nsm.NSMConv2d(3, 6, 3, beta_shape=(6, 6), **law),
]


@pytest.mark.parametrize("law", [{"site": "synapse", "draw": "moments"}, {}, {"noise": nsm.Gaussian()}])
@pytest.mark.parametrize("make", LAYERS)
def test_a_layer_fires_with_its_probability_and_its_gradient(make, law, fast):
    torch.manual_seed(0)
    layer, device = make(**law).to(fast), fast
    n = 20_000 if device == "cpu" else 100_000
    shape = (70,) if isinstance(layer, nsm.NSMLinear) else (layer.in_channels, 8, 8)
    z = torch.randn(shape).sign().to(device)
    states = layer(z.expand(n, *shape))
    p = layer.firing_probability(z).detach()
    exact = isinstance(layer.noise, nsm.Gaussian) or layer.site == "synapse"
    if exact:
        units = torch.randperm(p.numel(), generator=torch.Generator().manual_seed(0))[:3]
        for unit in units.tolist():
            check_rate(int((states.flatten(1)[:, unit] == 1).sum()), n, p.flatten()[unit].item())
    z = torch.randn(5, *shape).sign().to(device).requires_grad_()
    g = torch.randn(layer(z).shape, generator=torch.Generator().manual_seed(1)).to(device)
    found = torch.autograd.grad((layer(z) * g).sum(), [z, *layer.parameters()])
    truth = torch.autograd.grad((torch.erf(layer.erf_argument(z)) * g).sum(), [z, *layer.parameters()])
    for one, other in zip(found, truth, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
def test_all_ways_to_a_threshold_are_one(compiled, way):
    """Of which the kernel of `operations.threshold` is C alone."""
    device, dtype = way
    torch.manual_seed(0)
    x, y = torch.randn(2, 50, 7, device=device).to(dtype)
    alpha, bias, k, c = torch.randn(4, 7, device=device)
    leaves, g = [v.requires_grad_() for v in (x, k, c)], torch.randn_like(x)
    found, kernel = [], operations._kernels(x)[0] is fire_cpu
    for fire in (firing.thresholded, firing._Threshold.apply, *((operations.threshold,) if kernel else ())):
        run = torch.compile(lambda *parts, fire=fire: fire(*parts), backend="aot_eager", fullgraph=True)
        states = (run if compiled else fire)(x, y, alpha, bias, k, c)
        found.append((states, *torch.autograd.grad(states, leaves, g)))
    for plain, half, *whole in zip(*found, strict=True):
        torch.testing.assert_close(half, plain, rtol=1e-4 if dtype == torch.float32 else 1e-2, atol=1e-5)
        assert all(torch.equal(half, each) for each in whole)


@pytest.mark.gpu
@pytest.mark.parametrize("few", [0, 2**20])
def test_small_and_large_layers_on_cuda_fire_and_learn_alike(few, monkeypatch):
    """A layer takes the way of its size, and its states and gradients do not depend on it."""
    monkeypatch.setitem(firing._FEW, "cuda", few)
    torch.manual_seed(0)
    layer, z = nsm.NSMLinear(64, 32).cuda(), torch.randn(200, 64, device="cuda").sign().requires_grad_()
    g = torch.randn(200, 32, device="cuda")
    with mock.patch.object(firing, "thresholded", wraps=firing.thresholded) as plain:
        states = layer(z)
    assert plain.called == (few > 0)
    assert states.abs().unique().tolist() == [1]
    found = torch.autograd.grad((states * g).sum(), [z, *layer.parameters()])
    truth = torch.autograd.grad((torch.erf(layer.erf_argument(z)) * g).sum(), [z, *layer.parameters()])
    for one, other in zip(found, truth, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("unit", ["bNSM", "gNSM"])
def test_a_network_pools_in_the_kernel_and_learns(unit, fast):
    torch.manual_seed(0)
    network = mnist_cnn(UNITS[unit], classes=3).to(fast)
    x, y = torch.randn(6, 1, 28, 28).sign().to(fast), torch.tensor([0, 1, 2, 0, 1, 2], device=fast)
    with mock.patch.object(nn.MaxPool2d, "forward", side_effect=AssertionError):
        F.cross_entropy(network(x), y).backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in network.parameters())


@pytest.mark.parametrize(("units", "depth"), [(16, 1), (12, 1), (12, 16)])
def test_a_pooled_state_is_on_as_often_as_any_of_its_four_units(units, depth, fast):
    torch.manual_seed(0)
    network = Sequential(nsm.NSMConv2d(depth, units, 5, site="synapse", draw="moments"), nn.MaxPool2d(2)).to(fast)
    z, n = torch.randn(depth, 6, 6).sign().to(fast), 20_000
    chance = 1 - (1 - network[0].firing_probability(z).detach()).flatten(1).prod(1)
    with mock.patch.object(operations, "fire_pictures", wraps=operations.fire_pictures) as pictures:
        states = network(z.expand(n, depth, 6, 6)).flatten(1)
    assert pictures.called == (fast == "cpu" and 16 in (units, depth))
    for unit in range(2):
        check_rate(int((states[:, unit] == 1).sum()), n, chance[unit].item())


@pytest.mark.parametrize("law", [{"site": "synapse", "draw": "moments"}, {}])
def test_traced_layers_have_the_same_states_and_gradients(law, use):
    """What compiled code is told of the operations, their shapes and their gradients, is what they do."""
    use("C")
    torch.manual_seed(0)
    network = mnist_cnn(partial(UNITS["bNSM"], **law), classes=3)
    x, y = torch.randn(4, 1, 28, 28).sign(), torch.tensor([0, 1, 2, 0])
    found = []
    for run in (network, torch.compile(network, backend="aot_eager")):
        network.zero_grad()
        torch.manual_seed(1)
        F.cross_entropy(run(x), y).backward()
        found.append([value.grad for value in network.parameters()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def negated(layer):
    forward = layer.forward
    layer.forward = lambda z: -forward(z)


@pytest.mark.parametrize(
    "change",
    [
        negated,
        lambda layer: layer.register_forward_hook(lambda module, given, states: -states),
        lambda layer: layer.register_forward_pre_hook(lambda module, given: (-given[0],)),
        lambda layer: layer.register_full_backward_hook(lambda module, to, of: (-to[0],)),
    ],
    ids=["forward", "hook", "hook before", "hook on the way back"],
)
def test_what_users_put_around_a_layer_has_its_way(change):
    """Where kernels would take the layer; it is just certain of its states, t = ±3.5."""
    plain, x = nsm.NSMLinear(70, 9, site="synapse", draw="moments"), torch.ones(2, 70)
    x[1] = -1
    nn.init.ones_(plain.weight)
    nn.init.constant_(plain.beta, 3.5 / 70**0.5)
    found = []
    for network in (Sequential(plain), nn.Sequential(plain)):
        found.append([])
        for changed in (False, True):
            z = x.clone().requires_grad_()
            if changed and len(found) == 1:
                change(plain)
            states = network(z)
            found[-1] += [states.detach(), *torch.autograd.grad(states.sum(), [z])]
    assert not all(torch.equal(one, other) for one, other in zip(found[0][:2], found[0][2:], strict=True))
    assert all(torch.equal(one, other) for one, other in zip(found[0][2:], found[1][2:], strict=True))


@pytest.fixture
def no_kernels(monkeypatch):
    """Fail where a layer calls an operation."""
    for name in ("fire", "threshold", "fire_pool", "threshold_pool", "fire_pictures", "threshold_pictures"):
        monkeypatch.setattr(operations, name, mock.Mock(side_effect=AssertionError))


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("law", [{"site": "synapse", "draw": "moments"}, {}])
def test_layers_do_without_kernels_where_there_are_none(law, monkeypatch):
    layer, z = nsm.NSMLinear(70, 9, **law), torch.ones(4, 3, 70)
    monkeypatch.setitem(firing._FEW, "cpu", 0)
    if fire_cpu.ready():
        with pytest.raises(AssertionError):
            layer(z)
    vmap(layer, randomness="different")(z)
    grad(lambda z: layer(z).sum())(z)
    with torch.autocast("cpu", torch.bfloat16):
        layer(z)
    torch.export.export(layer, (z,))
    layer(z[:0])
    layer.double()(z.double())
    monkeypatch.setattr(fire_cpu, "ready", lambda: False)
    layer.float()(z).sum().backward()


# ------------------------------------------------------------------------- which layers


def of_shape(*shape):
    """A tensor that takes no memory."""
    return torch.ones(()).expand(shape)


@pytest.mark.parametrize(
    ("layer", "shape", "fits"),
    [  # 2³¹ is 2,147,483,648
        (nsm.NSMConv2d(1, 32, 5), (110_000, 1, 28, 28), True),
        (nsm.NSMConv2d(1, 32, 5), (120_000, 1, 28, 28), False),
        (nsm.NSMConv2d(1, 32, 5), (2, 60_000, 1, 28, 28), False),
        (nsm.NSMConv2d(1, 32, 5, padding=2), (110_000, 1, 28, 28), False),
        (nsm.NSMConv2d(1, 32, 5, stride=2), (120_000, 1, 28, 28), True),
        (nsm.NSMConv2d(3, 2, 3), (300_000, 3, 64, 64), False),  # the input alone
        (nsm.NSMLinear(10, 2000), (1_000_000, 10), True),
        (nsm.NSMLinear(10, 2000), (1000, 1100, 10), False),
        (nsm.NSMLinear(10, 1), (0, 10), False),
    ],
)
def test_kernels_take_what_their_indices_reach(layer, shape, fits, use):
    """Neither the input nor the product, which is never made, may have more numbers than 32 bits can count."""
    use("C")
    assert layer.fires(of_shape(*shape)) == fits
    product = layer.wiring.product(of_shape(*shape).to("meta"), layer.weight.to("meta"))
    assert firing._outputs(of_shape(*shape), layer.weight, layer.wiring) == product.numel()


@pytest.mark.parametrize(
    ("rows", "inputs", "units", "fits"),
    [
        (1_000_000, 10, 10, True),
        (1_000_000, 1024, 512, True),
        (1_000_000, 2000, 10, False),
        (10, 100_000, 20_000, True),
        (10, 100_000, 22_000, False),
        (8_000_000, 1, 1, True),
        (70_000_000, 1, 1, False),  # of which 32 are read for every row
        (1, 1, 9_000_000, False),  # by 65,535 programs of 128 each, at most
    ],
)
def test_blank_out_of_synapses_takes_what_its_indices_reach(rows, inputs, units, fits, monkeypatch):
    monkeypatch.setattr(firing, "_triton_takes", lambda z: True)
    law = {"noise": nsm.Bernoulli(0.5), "site": "synapse", "draw": "exact", "inputs": "binary"}
    estimator = nsm.NSMLinear(1, 1).estimator
    of = of_shape(rows, inputs), of_shape(units, inputs)
    assert firing.can(*of, **law, wiring=Dense(), estimator=estimator) == fits


@pytest.mark.parametrize("vmapped", [False, True])
def test_beyond_their_reach_layers_and_pools_are_the_reference(vmapped, use, no_kernels, monkeypatch):
    """Of networks side by side each by itself is meant."""
    use("C")
    network = Sequential(nsm.NSMConv2d(1, 4, 3), nn.MaxPool2d(2))
    network[0].vmapped = vmapped
    z, run = torch.ones(5, 1, 6, 6), network
    if vmapped:
        z, run = z.expand(2, *z.shape), vmap(network, randomness="different")
    monkeypatch.setattr(firing, "REACH", 5 * 4 * 4 * 4)
    with pytest.raises(AssertionError):
        run(z)
    monkeypatch.setattr(firing, "REACH", 5 * 4 * 4 * 4 - 1)
    assert run(z).abs().unique().tolist() == [1]


@pytest.mark.parametrize("site", ["neuron", "synapse"])
def test_a_noise_of_ones_own_is_drawn_by_its_own_rule(site, fast):
    """Also one that is a Bernoulli by birth; in a layer and in predictions."""

    class Kept(nsm.Bernoulli):
        def sample(self, shape, **how):
            return torch.full(shape, 1.0, device=how["device"], dtype=how.get("dtype"))

    torch.manual_seed(0)
    law: Any = {"site": site, "draw": "exact" if site == "synapse" else "auto"}
    layer = nsm.NSMLinear(70, 9, noise=Kept(0.5), **law).to(fast)
    z = torch.randn(50, 70).sign().to(fast)
    certain = torch.sign(layer.moments(z)[0] + layer.wiring.product(z, layer.weight) * (1 - layer.noise.mean))
    assert torch.equal(layer(z), certain)
    with torch.no_grad():
        assert torch.equal(layer(z), certain)
    network = nn.Sequential(layer, nn.Linear(9, 3).to(fast))
    expected = network[1](certain).softmax(-1)
    torch.testing.assert_close(
        nsm.predict(network, z, 4, seed=0).probabilities, expected.detach(), rtol=1e-4, atol=1e-5
    )


def test_an_estimator_of_ones_own_is_asked_with_and_without_gradients():
    class Always(nsm.Probability):
        def __call__(self, t, u, *, generator=None):
            return torch.ones_like(t) + 0 * t

    laws: tuple[Any, ...] = {"site": "synapse", "draw": "moments"}, {}
    for law in laws:
        layer, z = nsm.NSMLinear(70, 9, estimator=Always(), **law), torch.randn(50, 70).sign()
        assert layer(z).unique().tolist() == [1]
        with torch.no_grad():
            assert layer(z).unique().tolist() == [1]
        network = nn.Sequential(layer, nn.Linear(9, 3))
        expected = network[1](torch.ones(50, 9)).softmax(-1)
        torch.testing.assert_close(nsm.predict(network, z, 4, seed=0).probabilities, expected.detach())
