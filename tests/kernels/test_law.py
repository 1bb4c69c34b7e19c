"""The law of what kernels draw: 10⁸ draws of each on CUDA, which see a shift of 6e-4, and fewer by the same test here.

A rate is that of many units at once, twice: as they are (which an error of location shifts) and turned so that each is
mostly on (which an error of scale shifts). And neighbours agree as often as strangers do.
"""

# pyright: reportCallIssue=false, reportArgumentType=false

import math

import pytest
import scipy.stats
import torch

import law
from law import Case, check_rate
from nsm import Bernoulli, Gaussian, philox
from nsm.firing import REACH
from nsm.kernels import operations

GPU = pytest.mark.gpu
WAYS = [  # kernels, type, and how many draws
    ("C", torch.float32, 1_000_000),
    ("interpreter", torch.float32, 4_000),
    pytest.param(("CUDA", torch.float32, 100_000_000), marks=GPU),
    pytest.param(("CUDA", torch.bfloat16, 100_000_000), marks=GPU),
]
DEVICES = [("cpu", 4_000), pytest.param(("cuda", 100_000_000), marks=GPU)]
UNITS = 1000


@pytest.fixture(params=WAYS, ids=str)
def way(request, use):
    """Device, type and number of draws, of the kernels of a training step."""
    kernels, dtype, n = request.param
    return use(kernels), dtype, n


@pytest.fixture(params=DEVICES, ids=str)
def device(request):
    """Device and number of draws, of the kernels that predict."""
    pytest.importorskip("triton")
    return request.param


def check_states(states: torch.Tensor, p: torch.Tensor) -> None:
    """Test independent states (rows, units) against the probabilities of the units, an even number."""
    p, on = p.double().cpu(), (p >= 0.5).to(states.device)
    assert bool((states.abs() == 1).all())
    hits = states == 1
    check_rate(int(hits.sum()), hits.numel(), float(p.mean()))
    check_rate(int((hits == on).sum()), hits.numel(), float(torch.maximum(p, 1 - p).mean()))
    agree = p[::2] * p[1::2] + (1 - p[::2]) * (1 - p[1::2])
    check_rate(int((hits[:, ::2] == hits[:, 1::2]).sum()), hits.numel() // 2, float(agree.mean()))


def chances(device: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """t of some units, as rounded to the type, and their P in float64."""
    t = torch.linspace(-2, 2, UNITS).to(dtype)
    return t.to(device), torch.special.erfc(-t.double()) / 2


def ones(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The line t = x."""
    return torch.ones(UNITS, device=device), torch.zeros(UNITS, device=device)


@pytest.mark.parametrize("mistake", ["location", "scale", "shared"])
def test_the_yardstick_sees(mistake):
    generator = torch.Generator().manual_seed(0)
    t, p = chances("cpu", torch.float32)
    u = torch.rand(1000, UNITS, generator=generator, dtype=torch.float64)
    check_states((u < p) * 2.0 - 1, p)
    if mistake == "shared":
        u = u[:, ::2].repeat_interleave(2, 1)
    wrong = {"location": t + 0.02, "scale": t * 1.05, "shared": t}[mistake]
    with pytest.raises(law.LawBroken):
        check_states((u < torch.special.erfc(-wrong.double()) / 2) * 2.0 - 1, p)


def test_fire(way):
    device, dtype, n = way
    t, p = chances(device, dtype)
    states = operations.fire(t.repeat(n // UNITS, 1), *ones(device), torch.tensor([2**40 + 3], device=device))
    check_states(states, p)


def test_the_first_of_a_window_to_fire(way):
    """One number for four units: each is the first to fire as often as if it had a number of its own."""
    (device, dtype, n), channels = way, 32
    chance = torch.tensor([0.1, 0.3, 0.2, 0.6], dtype=torch.float64)
    t = torch.from_numpy(scipy.stats.norm.ppf(chance.numpy()) / math.sqrt(2)).to(dtype)
    chance = torch.special.erfc(-t.double()) / 2
    x = t.view(4, 1).expand(4, channels).repeat(n // channels, 1).to(device)
    one, zero = torch.ones(channels, device=device), torch.zeros(channels, device=device)
    states, won = operations.fire_pool(x, one, zero, torch.tensor([2**40 + 17], device=device), 2, 2)
    for j in range(4):
        truth = float(chance[j] * (1 - chance[:j]).prod())
        check_rate(int(((won == j) & (states == 1)).sum()), states.numel(), truth)
    check_rate(int((states == 1).sum()), states.numel(), float(1 - (1 - chance).prod()))


def test_blank(way):
    device, dtype, n = way
    key = torch.tensor([2**41 + 5], device=device)
    kept = operations.blank(torch.ones(n, device=device, dtype=dtype), 77 / 256, key).view(-1, 2) > 0
    check_rate(int(kept.sum()), n, 77 / 256)
    check_rate(int(kept.all(1).sum()), n // 2, (77 / 256) ** 2)


@pytest.mark.parametrize("noise", [Bernoulli(0.25), Gaussian(0.7)], ids=str)
def test_threshold_of_a_layer_with_noise_at_neurons(noise, way):
    """Against the enumeration of all masks, or the normal law; n draws of three units, which share their noise."""
    device, dtype, n = way
    case = Case(noise, dtype=dtype)
    layer, z = law.layer_of(case).to(device), case.parameters[0].to(device)
    torch.manual_seed(0)
    with torch.no_grad():
        hits = law.count_firing(case, lambda batch: layer(z.expand(batch.shape)).cpu(), n, chunk=10_000_000)
    law.check_counts(hits, n, case)


@pytest.mark.parametrize(("kernels", "n"), [("interpreter", 4_000), pytest.param("CUDA", REACH, marks=GPU)])
@pytest.mark.usefixtures("poisoned")
def test_as_far_as_indices_reach(kernels, n, use):
    """Every state is drawn, and every gradient written: its last row is like the first."""
    device = use(kernels)
    t, p = chances(device, torch.bfloat16)
    x, line, key = t.repeat(n // UNITS // 4 * 4, 1), ones(device), torch.tensor([2**40 + 4], device=device)
    check_states(operations.fire(x, *line, key), p)
    dx, _ = operations.fire_back(x, x, *line)
    assert torch.equal(dx, dx[:1].expand_as(dx))
    del dx
    states, won = operations.fire_pool(x, *line, key, 2, 2)
    check_states(states, 1 - (1 - p) ** 4)
    dx, _ = operations.pool_back(states, won, x, *line, 2, 2)
    assert bool(dx.isfinite().all())


# ------------------------------------------------------------------------- predicting


def keyed(rows: int, device: str) -> philox.Keyed:
    """A source that uses the kernel."""
    from nsm.kernels import counters

    row = torch.arange(rows, device=device)
    source = philox.Keyed(2**40 + 99, row % 7, row // 7)
    source.__dict__["kernel"] = counters
    return source


def rows_of(source: philox.Keyed, number: int):
    from nsm.kernels import toss

    inputs, samples, key = source.counters
    return toss.Rows(inputs, samples, key, number)


@pytest.mark.parametrize("pool", [(1, 1), (2, 2)], ids=str)
def test_fire_from_keyed_noise(pool, device):
    from nsm.kernels import toss

    (name, n), (down, right) = device, pool
    t, p = chances(name, torch.float32)
    rows = n // UNITS
    x = (t - (0 if pool == (1, 1) else 0.6)).expand(rows, down, right, UNITS).contiguous()
    if pool != (1, 1):
        p = 1 - (1 - torch.special.erfc(0.6 - t.double().cpu()) / 2) ** 4
    states = toss.fire(x, *ones(name), pool, rows_of(keyed(rows, name), 3), torch.bfloat16)
    check_states(states.view(rows, UNITS), p)


def test_draws_from_shared_chances(device):
    from nsm.kernels import toss

    name, n = device
    t, p = chances(name, torch.float32)
    samples = 4
    inputs = n // UNITS // samples
    e = toss.chances(t.expand(inputs, 1, 1, UNITS).contiguous(), *ones(name), (1, 1))
    states = toss.draw(e, samples, rows_of(keyed(samples * inputs, name), 0), torch.bfloat16)
    check_states(states.view(-1, UNITS), p)


def test_numbers_of_keyed_noise(device):
    """Which of them are below a bound, as the states of units with that probability."""
    name, n = device
    shape, source = (n // UNITS, UNITS), keyed(n // UNITS, name)
    p = torch.linspace(0.1, 0.9, UNITS, dtype=torch.float64)
    bound = p.to(name)
    for bits, kind in ((8, torch.int8), (16, torch.int16)):
        most = (bound * 2**bits).round()
        states = torch.where(source.integers(shape, kind) < most - 2 ** (bits - 1), 1.0, -1.0)
        check_states(states, most.cpu() / 2**bits)
    check_states(torch.where(source.uniform(shape, torch.float32) < bound, 1.0, -1.0), p)
    normal = source.standard_normal(shape, torch.float32)
    check_states(torch.where(normal < torch.special.ndtri(bound), 1.0, -1.0), p)


def test_keyed_noise_on_states(device):
    """(ξ − m) z of states +1: which ξ are 1, and which lie below a bound."""
    from nsm.kernels import counters

    name, n = device
    source, z = keyed(n // UNITS, name), torch.ones(7, UNITS, device=name)
    for p in (0.25, 0.1):
        blanked = counters.blank(*source.counters, source.next(), z, p, Bernoulli(p).bound, torch.float32)
        check_states(torch.where(blanked > 0, 1.0, -1.0), torch.full((UNITS,), p, dtype=torch.float64))
        torch.testing.assert_close(blanked.unique().cpu(), torch.tensor([-p, 1 - p]))
    p = torch.linspace(0.1, 0.9, UNITS, dtype=torch.float64)
    bound = 0.7 * torch.special.ndtri(p.to(name))
    jittered = counters.jitter(*source.counters, source.next(), z, 0.7, torch.float32)
    check_states(torch.where(jittered < bound, 1.0, -1.0), p)
