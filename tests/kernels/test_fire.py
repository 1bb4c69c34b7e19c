"""The operations of a training step: the same bits as their twins in torch, the same gradients, every element written.

In C on the CPU, in Triton on CUDA and, without a GPU, in Triton's interpreter.
"""

# pyright: reportCallIssue=false, reportOptionalMemberAccess=false

import itertools
import math
from functools import partial
from unittest import mock

import pytest
import scipy.stats
import torch
from torch import nn
from torch.func import grad, vmap
from torch.nn import functional as F

import nsm
from law import check_rate
from nsm import philox
from nsm.estimators import sgn
from nsm.kernels import fire_cpu, operations
from nsm.networks import UNITS, mnist_cnn
from nsm.sequential import Sequential
from twins import erf, fma

SHAPES = [(1, 1), (3, 5), (33, 130), (100, 64), (65, 300)]
GPU = pytest.mark.gpu
WAYS = [  # the kernels, and the type of what they read and write
    ("C", torch.float32),
    ("interpreter", torch.float32),
    ("interpreter", torch.bfloat16),
    pytest.param(("CUDA", torch.float32), marks=GPU),
    pytest.param(("CUDA", torch.bfloat16), marks=GPU),
]


def use(kernels, monkeypatch):
    """Have the operations done by these kernels; returns the device."""
    if kernels == "C" and not fire_cpu.ready():
        pytest.skip("needs a C compiler, AVX2 and FMA")
    if kernels == "interpreter":
        pytest.importorskip("triton")
        from nsm.kernels import fire, pool

        monkeypatch.setattr(operations, "_kernels", lambda x: (fire, pool))
    return "cuda" if kernels == "CUDA" else "cpu"


@pytest.fixture(params=WAYS, ids=str)
def way(request, monkeypatch):
    """Device and type, of all kernels that there are."""
    kernels, dtype = request.param
    return use(kernels, monkeypatch), dtype


@pytest.fixture(params=["C", "interpreter", pytest.param("CUDA", marks=GPU)])
def device(request, monkeypatch):
    """The device of all kernels that there are, in float32."""
    return use(request.param, monkeypatch)


@pytest.fixture(params=["C", pytest.param("CUDA", marks=GPU)])
def fast(request, monkeypatch):
    """The device of the kernels that are no interpreter's."""
    return use(request.param, monkeypatch)


@pytest.fixture
def poisoned(monkeypatch):
    """Fill new memory with NaN, or with sevens where there is none."""

    def poison(new):
        return lambda *size, **options: (t := new(*size, **options)).fill_(math.nan if t.is_floating_point() else 7)

    monkeypatch.setattr(torch, "empty_like", poison(torch.empty_like))
    monkeypatch.setattr(torch.Tensor, "new_empty", poison(torch.Tensor.new_empty))


def words(key, shape):
    """Philox of the counters 0, 1, … in the given shape, four words each."""
    counter, zero = torch.arange(math.prod(shape)).view(shape), torch.zeros(shape, dtype=torch.int64)
    return philox.philox((counter, zero, zero, zero), (int(key) & 0xFFFFFFFF, int(key) >> 32 & 0xFFFFFFFF))


def pieces(key, rows, units, bits):
    """The random integers of one call, with their sign: (rows, units). 128 bits of a row share a counter."""
    half = 1 << (bits - 1)
    blocks = torch.stack(words(key, (rows, -(-units * bits // 128))), -1)  # (rows, blocks, four words)
    cut = blocks[..., None] >> torch.arange(0, 32, bits) & (2 * half - 1)
    return ((cut ^ half) - half).flatten(1)[:, :units]


def problem(rows, units, dtype, device, seed=0):
    """x, k, c and a key, with units that are certain and one that does not exist."""
    generator = torch.Generator().manual_seed(seed)
    x = (2 * torch.randn(rows, units, generator=generator)).to(dtype)
    k, c = torch.randn(units, generator=generator), torch.randn(units, generator=generator)
    if units > 3:
        k[1], c[1], k[2], c[2] = 0, math.inf, 0, -math.inf
        x[0, 3] = math.nan
    key = torch.randint(-(2**63), 2**63 - 1, (1,), generator=generator)
    return x.to(device), k.to(device), c.to(device), key.to(device)


def twin_fire(x, k, c, key):
    wide = x.float().cpu()
    r = pieces(key, *x.shape, 16)
    states = sgn(fma(erf(fma(wide, k, c)), torch.tensor(32768.0), -(r + 0.5)))
    return torch.where(wide.isnan(), wide, states).to(x.dtype)


def equal(one, other):
    return torch.equal(one.cpu().float().nan_to_num(7), other.cpu().float().nan_to_num(7))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("poisoned")
def test_fire_is_its_twin_bit_for_bit(shape, way):
    x, k, c, key = problem(*shape, *reversed(way))
    states = operations.fire(x, k, c, key)
    assert states.dtype == x.dtype
    assert equal(states, twin_fire(x, k, c, key))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("poisoned")
def test_threshold_is_its_twin_bit_for_bit(shape, way):
    device, dtype = way
    x, k, c, _ = problem(*shape, dtype, device)
    y, alpha, b, _ = problem(*shape, dtype, device, seed=1)
    b = b.nan_to_num(posinf=1, neginf=-1)
    twin = sgn(x.float() * alpha + b + y.float()).to(dtype)
    assert equal(operations.threshold(x, y, alpha, b, k, c), twin)


@pytest.mark.parametrize("p", [0.25, 0.5, 3 / 256])
@pytest.mark.parametrize("shape", [(1,), (7, 5), (3, 4, 5, 6), (1000,)])
@pytest.mark.usefixtures("poisoned")
def test_blank_is_its_twin_bit_for_bit(shape, p, device):
    key = torch.tensor([-12345678901234567], device=device)
    for z in (torch.ones(shape, device=device), torch.ones(1, device=device).expand(shape)):
        kept = pieces(key, 1, z.numel(), 8).view(shape) < round(256 * p) - 128
        assert equal(operations.blank(z, p, key), (kept.float() - p))
    if len(shape) == 4:  # in the order of memory
        z = torch.ones(shape, device=device).to(memory_format=torch.channels_last)
        kept = (pieces(key, 1, z.numel(), 8) < round(256 * p) - 128).view(3, 5, 6, 4).movedim(-1, 1)
        assert equal(operations.blank(z, p, key), kept.float() - p)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.usefixtures("poisoned")
def test_gradients_are_those_of_erf(shape, drawn, device):
    x, k, c, key = problem(*shape, torch.float32, device)
    x = x.nan_to_num(1.0)
    g = torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(device)
    wide = [v.double().requires_grad_() for v in (x, k, c)]
    (torch.erf(wide[0] * wide[1] + wide[2]) * g).sum().backward()
    leaves = [v.clone().requires_grad_() for v in (x, k, c)]
    states = operations.threshold(leaves[0], x, k, k, *leaves[1:]) if drawn else operations.fire(*leaves, key)
    (states * g).sum().backward()
    for leaf, truth in zip(leaves, wide, strict=True):
        assert leaf.grad is not None
        assert truth.grad is not None
        torch.testing.assert_close(leaf.grad.double(), truth.grad.nan_to_num(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernels", ["interpreter", pytest.param("CUDA", marks=GPU)])
def test_half_precision_is_that_of_the_tensors_alone(kernels, monkeypatch):
    device = use(kernels, monkeypatch)
    x, k, c, _ = problem(64, 40, torch.bfloat16, device)
    x, g = x.nan_to_num(1.0), torch.randn(64, 40, generator=torch.Generator().manual_seed(2)).bfloat16().to(device)
    dx, parts = operations.fire_back(g, x, k, c)
    d = g.double() * (2 / math.sqrt(math.pi)) * torch.exp(-((x.double() * k + c) ** 2))
    torch.testing.assert_close(dx.double(), d * k, rtol=8e-3, atol=1e-6)  # the interpreter rounds towards 0
    torch.testing.assert_close(parts.sum(1).double(), torch.stack([(d * x).sum(0), d.sum(0)]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1), (9, 40)])
@pytest.mark.usefixtures("poisoned")
def test_members_side_by_side_are_those_one_by_one(shape, way):
    """Each with its own key; keys are rows of a larger draw, and y and b are shared."""
    device, dtype = way
    problems = [problem(*shape, dtype, device, seed) for seed in range(3)]
    x, k, c, _ = (torch.stack(parts) for parts in zip(*problems, strict=True))
    x, keys = x.nan_to_num(1.0), operations.new_keys(6, torch.device(device)).view(3, 2, 2)[:, 1]
    y, b = x[0].clone(), k[0].clone()
    together = (
        vmap(operations.fire)(x, k, c, keys),
        vmap(operations.threshold, (0, None, 0, None, 0, 0))(x, y, k, b, k, c),
        vmap(operations.blank, (0, None, 0))(x, 0.25, keys),
        *vmap(operations.fire_back)(x, x, k, c),
    )
    alone = [
        (
            operations.fire(x[m], k[m], c[m], keys[m]),
            operations.threshold(x[m], y, k[m], b, k[m], c[m]),
            operations.blank(x[m], 0.25, keys[m]),
            *operations.fire_back(x[m], x[m], k[m], c[m]),
        )
        for m in range(3)
    ]
    for found, parts in zip(together, zip(*alone, strict=True), strict=True):
        assert equal(found, torch.stack(parts))


def test_gradients_of_members_side_by_side(device):
    x, k, c, _ = (torch.stack([v, v + 1]) for v in problem(5, 3, torch.float32, device))
    keys = operations.new_keys(2, torch.device(device))
    leaves = [v.clone().requires_grad_() for v in (x, k, c)]
    vmap(operations.fire)(*leaves, keys).square().sum().backward()  # twice the states
    alone = [v.clone().requires_grad_() for v in (x, k, c)]
    for m in range(2):
        operations.fire(*(leaf[m] for leaf in alone), keys[m]).square().sum().backward()
    for one, other in zip(leaves, alone, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)


# ------------------------------------------------------------------------- with the pool


WINDOWS = [(1, 2, 2, 1), (2, 4, 6, 5), (3, 8, 4, 33)]


def window_problem(shape, places, dtype, device):
    x, k, c, key = problem(shape[0], math.prod(shape[1:]), dtype, device)
    units = math.prod(shape[1:]) if places else shape[3]
    return x.nan_to_num(1.0).view(shape), k[:units].clone(), c[:units].clone(), key


def four(x):
    """(rows, H, W, C) → (rows, H/2, W/2, C, 4): the units of every window."""
    n, h, w, ch = x.shape
    return x.view(n, h // 2, 2, w // 2, 2, ch).permute(0, 1, 3, 5, 2, 4).flatten(-2)


def rows(x):
    """As the kernels take it: an axis for all but the channels, and the size of an image."""
    return x.reshape(-1, x.shape[3])


def windows(x, shape):
    """What they return, (rows, H/2, W/2, C) again."""
    return x.view(shape[0], shape[1] // 2, shape[2] // 2, shape[3])


def line_of(x, v):
    return v.view(x.shape[1:]) if v.numel() > x.shape[3] else v.expand(x.shape[1:])


def first(fires):
    """The first unit of each window that fires, or the first of all."""
    return torch.where(fires.any(-1), fires.int().argmax(-1), 0)


@pytest.mark.parametrize("places", [False, True])
@pytest.mark.parametrize("shape", WINDOWS)
@pytest.mark.usefixtures("poisoned")
def test_fire_pool_is_its_twin_bit_for_bit(shape, places, way):
    x, k, c, key = window_problem(shape, places, *reversed(way))
    states, won = (windows(found, shape) for found in operations.fire_pool(rows(x), k, c, key, *shape[1:3]))
    t = fma(x.float(), line_of(x, k), line_of(x, c))
    miss = four(fma(erf(t), torch.tensor(-0.5), torch.tensor(0.5)))
    v = (pieces(key, states[..., 0].numel(), shape[3], 16).view(states.shape) + 32768.5) / 65536
    none = torch.stack([miss[..., : j + 1].cumprod(-1)[..., -1] for j in range(4)], -1)
    fires = none < v[..., None]
    assert equal(states, fires[..., 3].float() * 2 - 1)
    assert equal(won, first(fires))


@pytest.mark.parametrize("places", [False, True])
@pytest.mark.parametrize("shape", WINDOWS)
@pytest.mark.usefixtures("poisoned")
def test_threshold_pool_is_the_max_pool_of_the_threshold(shape, places, device):
    x, k, c, _ = window_problem(shape, places, torch.float32, device)
    y = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(device)
    b = c.nan_to_num(posinf=1, neginf=-1)
    found = operations.threshold_pool(rows(x), rows(y), k, b, k, c, *shape[1:3])
    states, won = (windows(one, shape) for one in found)
    u = four(x * line_of(x, k) + line_of(x, b) + y)
    assert equal(states, sgn(u).amax(-1))
    assert equal(won, first(u >= 0))


@pytest.mark.parametrize("places", [False, True])
@pytest.mark.parametrize("shape", WINDOWS)
@pytest.mark.usefixtures("poisoned")
def test_gradients_go_to_the_unit_that_won(shape, places, device):
    x, k, c, key = window_problem(shape, places, torch.float32, device)
    leaves = [v.clone().requires_grad_() for v in (x, k, c)]
    found = operations.fire_pool(rows(leaves[0]), *leaves[1:], key, *shape[1:3])
    states, won = (windows(one, shape) for one in found)
    g = torch.randn(states.shape, generator=torch.Generator().manual_seed(2)).to(device)
    (states * g).sum().backward()
    wide = [v.double().requires_grad_() for v in (x, k, c)]
    e = torch.erf(wide[0] * line_of(x, wide[1]) + line_of(x, wide[2]))
    (four(e).gather(-1, won.long()[..., None])[..., 0] * g).sum().backward()
    for leaf, truth in zip(leaves, wide, strict=True):
        assert leaf.grad is not None
        assert truth.grad is not None
        torch.testing.assert_close(leaf.grad.double(), truth.grad.nan_to_num(0), rtol=1e-5, atol=1e-5)


def test_the_first_to_fire_has_its_probability(fast):
    """One number for four units: each is the first to fire as often as if it had a number of its own."""
    n, channels, device = 960_000 if fast == "cpu" else 100_000_000, 32, fast
    chance = torch.tensor([0.1, 0.3, 0.2, 0.6], dtype=torch.float64)
    t = torch.from_numpy(scipy.stats.norm.ppf(chance.numpy()) / math.sqrt(2)).float()
    x = t.view(1, 2, 2, 1).expand(n // channels, 2, 2, channels).contiguous().to(device)
    one, zero = torch.ones(channels, device=device), torch.zeros(channels, device=device)
    states, won = operations.fire_pool(rows(x), one, zero, torch.tensor([2**40 + 17], device=device), 2, 2)
    for j in range(4):
        truth = float(chance[j] * (1 - chance[:j]).prod())
        check_rate(int(((won == j) & (states == 1)).sum()), n, truth)
    check_rate(int((states == 1).sum()), n, float(1 - (1 - chance).prod()))


def test_not_a_number_stays(device):
    x, k, c, key = window_problem((2, 4, 6, 5), False, torch.float32, device)
    x[0, 1, 2, 3] = math.nan  # in the window at (0, 1)
    fired, _ = operations.fire_pool(rows(x), k, c, key, 4, 6)
    drawn, _ = operations.threshold_pool(rows(x), rows(x), k, k, k, c, 4, 6)
    for states in (fired, drawn):
        assert states.isnan().nonzero().tolist() == [[1, 3]]


def test_threads_change_no_bit(monkeypatch):
    use("C", monkeypatch)
    x, k, c, key = problem(300, 37, torch.float32, "cpu")
    picture, *lines, _ = window_problem((20, 8, 6, 37), True, torch.float32, "cpu")
    picture, alpha = rows(picture), lines[0]
    pictures = [picture_problem(*PICTURES[at]) for at in (1, 5)]
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            states, won = operations.fire_pool(picture, *lines, key, 8, 6)
            parts = [
                *(operations.fire(x, k, c, key), *operations.fire_back(x, x, k, c), operations.blank(x, 0.25, key)),
                *(operations.threshold(x, x, k, k, k, c), states, won),
                *operations.threshold_pool(picture, picture, alpha, alpha, alpha, alpha, 8, 6),
                *operations.pool_back(states, won, picture, *lines, 8, 6),
                *(part for z, *rest in pictures for part in operations.fire_pictures(z, *rest)),
                *(
                    part
                    for z, *rest in pictures
                    for part in operations.pictures_back(
                        *operations.fire_pictures(z, *rest), z, *rest[:3], z.shape[1] == 32
                    )
                ),
            ]
            found.append([part.nan_to_num(7) for part in parts])
    finally:
        torch.set_num_threads(threads)
    for one, two, three in zip(*found, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


# ------------------------------------------------------------------------- with the product too


PICTURES = [  # of z and of the weights: units that fill vectors, then what they see of a row
    ((1, 1, 6, 6), (16, 1, 5, 5)),
    ((5, 2, 7, 11), (48, 2, 4, 4)),
    ((3, 1, 28, 28), (32, 1, 5, 5)),
    ((1, 16, 2, 2), (3, 16, 1, 1)),
    ((3, 8, 6, 9), (5, 8, 3, 2)),
    ((2, 32, 12, 12), (9, 32, 5, 5)),
]


def picture_problem(shape, weights):
    generator = torch.Generator().manual_seed(3)
    z, weight = torch.randn(shape, generator=generator).sign(), torch.randn(weights, generator=generator)
    _, k, c, key = problem(1, len(weight), torch.float32, "cpu")
    fan_in = math.prod(weights[1:])
    z, weight = (v.contiguous(memory_format=torch.channels_last) for v in (z, weight / math.sqrt(fan_in)))
    return z, weight, k, c, key


def product(z, weight):
    """(images, H', W', units): tap after tap, rounded after every product and every sum; or torch's, for long runs."""
    units, depth, high, wide = weight.shape
    if depth * wide % 16 == 0:
        return F.conv2d(z, weight).movedim(1, -1)
    height, width = z.shape[2] - high + 1, z.shape[3] - wide + 1
    total = torch.zeros(len(z), height, width, units)
    for d, i, j in itertools.product(range(depth), range(high), range(wide)):
        total = total + z[:, d, i : i + height, j : j + width, None] * weight[:, d, i, j]
    return total


@pytest.mark.parametrize(("shape", "weights"), PICTURES, ids=str)
@pytest.mark.usefixtures("poisoned")
def test_states_of_pictures_are_the_pool_of_their_product_bit_for_bit(shape, weights, monkeypatch):
    use("C", monkeypatch)
    z, weight, k, c, key = picture_problem(shape, weights)
    noisy = operations.blank(z, 0.25, key)
    x, y = product(z, weight), product(noisy, weight)
    b = c.nan_to_num(posinf=1, neginf=-1)
    fired = operations.fire_pictures(z, weight, k, c, key)
    drawn = operations.threshold_pictures(z, noisy, weight, k, b, k, c)
    for found, (states, won) in (
        (fired, operations.fire_pool(rows(x), k, c, key, *x.shape[1:3])),
        (drawn, operations.threshold_pool(rows(x), rows(y), k, b, k, c, *x.shape[1:3])),
    ):
        assert equal(found[0], states)
        assert equal(found[1], won)


@pytest.mark.parametrize(("shape", "weights"), PICTURES, ids=str)
@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.usefixtures("poisoned")
def test_gradients_of_pictures_are_those_of_the_units_that_won(shape, weights, drawn, monkeypatch):
    use("C", monkeypatch)
    z, weight, k, c, key = picture_problem(shape, weights)
    leaves = [v.clone().requires_grad_() for v in (z, weight, k, c)]
    leaves[0].requires_grad_(weights[1] * weights[3] % 16 == 0)
    if drawn:
        states, won, _ = operations.threshold_pictures(leaves[0], z, leaves[1], k, k, *leaves[2:])
    else:
        states, won, _ = operations.fire_pictures(*leaves, key)
    g = torch.randn(states.shape, generator=torch.Generator().manual_seed(2))
    (states * g).sum().backward()
    wide = [v.double().requires_grad_() for v in (z, weight, k, c)]
    e = torch.erf(four(F.conv2d(wide[0], wide[1]).movedim(1, -1) * wide[2] + wide[3])).flatten(0, 2)
    (e.gather(-1, won.long()[..., None])[..., 0] * g).sum().backward()
    for leaf, truth in zip(leaves, wide, strict=True):
        assert truth.grad is not None
        assert (leaf.grad is None) == (not leaf.requires_grad)
        if leaf.grad is not None:
            torch.testing.assert_close(leaf.grad.double(), truth.grad.nan_to_num(0), rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------------- in layers


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
def test_traced_layers_have_the_same_states_and_gradients(law, monkeypatch):
    """What compiled code is told of the operations, their shapes and their gradients, is what they do."""
    use("C", monkeypatch)
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


@pytest.fixture
def no_kernels(monkeypatch):
    """Fail where a layer calls an operation."""
    for name in ("fire", "threshold", "fire_pool", "threshold_pool", "fire_pictures", "threshold_pictures"):
        monkeypatch.setattr(operations, name, mock.Mock(side_effect=AssertionError))


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("law", [{"site": "synapse", "draw": "moments"}, {}])
def test_layers_do_without_kernels_where_there_are_none(law, monkeypatch):
    layer, z = nsm.NSMLinear(70, 9, **law), torch.ones(4, 3, 70)
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


def test_keys_are_drawn_for_every_call_and_layer(monkeypatch):
    use("C", monkeypatch)
    torch.manual_seed(0)
    network = mnist_cnn(UNITS["bNSM"])
    keys, new_keys = [], operations.new_keys

    def noted(count, device, generator=None):
        drawn = new_keys(count, device, generator)
        keys.extend(drawn[:, 0].tolist())
        return drawn

    x = torch.ones(2, 1, 28, 28)
    with mock.patch.object(operations, "new_keys", noted), torch.no_grad():
        for _ in range(25):
            network(x)
            for layer, z in (
                (network[0], x),
                (network[2], torch.ones(2, 32, 12, 12)),
                (network[5], torch.ones(2, 1024)),
            ):
                layer(z)
    assert len(set(keys)) == len(keys) == 150


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_no_key_is_used_twice_in_calls_layers_and_replays(compiled):
    """Keys are 64 bits from torch's generator: those of all layers, in every call and replay, differ."""
    torch.manual_seed(0)
    network = mnist_cnn(UNITS["bNSM"]).cuda()
    keys, new_keys = [], operations.new_keys

    def noted(count, device, generator=None):
        drawn = new_keys(count, device, generator)
        keys.extend(drawn[:, 0])
        return drawn

    x = torch.randn(10, 1, 28, 28, device="cuda").sign()
    with mock.patch.object(operations, "new_keys", noted), torch.no_grad():
        network(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            network(x)
        captured = keys[3:]
        seen = [int(key) for key in keys[:3]]
        for _ in range(50):
            graph.replay()
            seen += [int(key) for key in captured]
    assert len(seen) == 153
    assert len(set(seen)) == len(seen)


@pytest.mark.gpu
def test_the_law_at_a_hundred_million_draws():
    x = torch.linspace(-2, 2, 10, device="cuda").expand(10_000_000, 10).contiguous()
    one, zero = torch.ones(10, device="cuda"), torch.zeros(10, device="cuda")
    states = operations.fire(x, one, zero, operations.new_key(x.device))
    for unit, t in enumerate(x[0].double().tolist()):
        check_rate(
            int((states[:, unit] == 1).sum()),
            len(x),
            0.5 * math.erfc(-t),
        )
    kept = operations.blank(torch.ones(100_000_000, device="cuda"), 0.25, operations.new_key(x.device)) > 0
    check_rate(int(kept.sum()), kept.numel(), 0.25)
