"""Exact synaptic blank-out: the kernel's ξ are those of its twin, bit for bit, and obey the law."""

# pyright: reportCallIssue=false, reportOptionalMemberAccess=false

import pytest
import torch

import nsm
from law import check_rate
from nsm import firing, philox

pytest.importorskip("triton")
from nsm.kernels import blankout

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(autouse=True)
def _large_tiles(monkeypatch):
    """In the interpreter, where a program takes as long whatever its size."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(blankout, "FOURS", 32)


def xi(key, rows, units, inputs, p):
    """Every ξ of one call, (rows, units, inputs): Philox in torch, digit by digit."""
    value, count = blankout.digits(p)
    blocks, fours = -(-inputs // 32), -(-rows // 4)
    block, unit, four = torch.arange(blocks)[:, None, None], torch.arange(units)[:, None], torch.arange(fours)
    lanes = [torch.zeros(blocks, units, fours, dtype=torch.int64) for _ in range(4)]
    for digit in range(count):
        counter = block * count + digit, unit, four, torch.zeros_like(four)
        words = philox.philox(counter, (int(key) & 0xFFFFFFFF, int(key) >> 32 & 0xFFFFFFFF))
        lanes = [word | lane if value >> digit & 1 else word & lane for word, lane in zip(words, lanes, strict=True)]
    bits = torch.stack(lanes, -1)[..., None] >> torch.arange(32) & 1  # (blocks, units, fours, 4, 32)
    return bits.permute(2, 3, 1, 0, 4).flatten(3).flatten(0, 1)[:rows, :, :inputs].float()


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("shape", "p"),
    [
        ((1, 1, 1), 0.5),
        ((33, 65, 129), 0.5),
        ((33, 65, 129), 0.3125),
        ((2, 3, 300), 0.75),
        ((5, 130, 40), 0.1),
        ((9, 3, 70), 0.999),
    ],
)
def test_the_sum_is_its_twin_bit_for_bit(shape, p, device):
    """With whole numbers as weights, whose sums no order can change."""
    rows, units, inputs = shape
    generator = torch.Generator().manual_seed(0)
    z = torch.randint(0, 2, (rows, inputs), generator=generator) * 2.0 - 1
    weight = torch.randint(-50, 51, (units, inputs), generator=generator).float()
    key = torch.randint(-(2**63), 2**63 - 1, (1,), generator=generator)
    twin = (xi(key, *shape, p) * weight * z[:, None]).sum(-1)
    found = blankout.blankout_linear(z.to(device), weight.to(device), p, key.to(device))
    assert torch.equal(found.cpu(), twin)


@pytest.mark.parametrize("p", [0.5, 0.1, 0.999, 0.3, 1e-6, 1 - 1e-6, 1e-12])
def test_digits(p):
    value, count = blankout.digits(p)
    assert value % 2 == 1
    assert 0 < value < 2**31  # which a kernel knows as an integer
    assert abs(value / 2**count - p) <= max(2.0**-16 * min(p, 1 - p), 2.0**-31)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("p", [0.5, 0.3125, 0.1])
def test_every_connection_is_kept_with_probability_p(p, device):
    """Each of the sums counts ξ; so do those of halves, which share none."""
    rows, inputs = (80, 128) if device == "cpu" else (1000, 100_000)
    key = torch.tensor([5], device=device)
    z, weight = torch.ones(rows, inputs, device=device), torch.ones(1, inputs, device=device)
    half = weight.clone()
    half[:, ::2] = 0
    for w in (weight, half, weight - half):
        kept = blankout.blankout_linear(z, w, p, key)
        check_rate(int(kept.double().sum()), rows * int(w.sum()), p)


def test_no_counter_is_used_twice(monkeypatch):
    """The twin's counters, which are the kernel's: over digits, connections, units and inputs all differ."""
    seen, real = [], philox.philox

    def noted(counter, key):
        seen.append(torch.stack(torch.broadcast_tensors(*counter)).flatten(1))
        return real(counter, key)

    monkeypatch.setattr(philox, "philox", noted)
    xi(torch.tensor([1]), 3, 4, 300, 0.375)
    counters = torch.cat(seen, 1)
    assert counters.shape == (4, 3 * 10 * 4 * 1)
    assert counters.unique(dim=1).shape == counters.shape


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_of_few_inputs_obeys_the_enumeration(monkeypatch, bias, device):
    """Exact draws at fan-in 6: the true rate is a sum over all 64 masks."""
    monkeypatch.setattr(firing, "_triton_takes", lambda z: True)
    torch.manual_seed(3)
    layer = nsm.NSMLinear(6, 2, bias, noise=nsm.Bernoulli(0.25), site="synapse", draw="exact").to(device)
    with torch.no_grad():
        layer.beta.copy_(torch.tensor([0.4, 0.8]))
        if bias:
            layer.bias.copy_(torch.tensor([0.05, -0.1]))
    z, n = torch.randn(6).sign().to(device), 500 if device == "cpu" else 1_000_000
    states = layer(z.expand(n, 6))
    masks = torch.tensor([[m >> j & 1 for j in range(6)] for m in range(64)], dtype=torch.float64)
    chance = (0.25 ** masks.sum(1)) * 0.75 ** (6 - masks.sum(1))
    w, b = layer.weight.detach().double().cpu(), layer.bias.detach().double().cpu() if bias else torch.zeros(2)
    for unit in range(2):
        u = ((masks + layer.a[unit].item()) * w[unit] * z.double().cpu()).sum(1) + b[unit]
        check_rate(int((states[:, unit] == 1).sum()), n, float(chance[u >= 0].sum()))
    leaf = torch.randn(5, 6).sign().to(device).requires_grad_()
    found = torch.autograd.grad(layer(leaf).sum(), [leaf, *layer.parameters()])
    truth = torch.autograd.grad(torch.erf(layer.erf_argument(leaf)).sum(), [leaf, *layer.parameters()])
    for one, other in zip(found, truth, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
