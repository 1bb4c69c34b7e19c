"""Predicting kernels against their twins in torch: in Triton's interpreter, or compiled if there is CUDA."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from nsm import functional, philox
from nsm.estimators import sgn
from twins import erf, fma

toss: Any = pytest.importorskip("nsm.kernels.toss")

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
if torch.cuda.is_available():
    DEVICES = DEVICES[1:]
KEY = 0x8BADF00D_12345678
SHAPES = [  # (height, width, units), pool, local
    ((1, 1, 1), (1, 1), False),
    ((1, 1, 300), (1, 1), False),
    ((4, 6, 5), (2, 2), False),
    ((5, 7, 3), (2, 3), True),
    ((3, 3, 33), (1, 1), True),
]
EXACT: Any = {"rtol": 0, "atol": 0}
CLOSE: Any = {"rtol": 1e-6, "atol": 1e-6}  # the interpreter's fma rounds twice


def case(shape: tuple[int, ...], local: bool, rows: int, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    """A product, slopes and offsets; the first unit is certain, the last one never on."""
    generator = torch.Generator().manual_seed(sum(shape))
    x = (2 * torch.randn(rows, *shape, generator=generator)).to(dtype)
    k, c = torch.randn(2, *(shape if local else shape[-1:]), generator=generator)
    k[..., 0], c[..., 0] = 0.0, float("inf")
    k[..., -1], c[..., -1] = 0.0, -float("inf")
    return x.to(device), k.to(device), c.to(device)


def reference(x: Tensor, k: Tensor, c: Tensor, pool: tuple[int, int]) -> Tensor:
    e = erf(fma(x.float(), k, c))
    if pool == (1, 1):
        return e.to(x.device)
    (n, _, _, units), (down, right) = x.shape, pool
    height, width = x.shape[1] // down, x.shape[2] // right
    miss = fma(e, torch.tensor(-0.5), torch.tensor(0.5))[:, : height * down, : width * right]
    windows = miss.reshape(n, height, down, width, right, units).permute(0, 1, 3, 5, 2, 4).flatten(-2)
    off = math.prod(windows.unbind(-1))  # one after the other, each rounded; cumprod rounds the last alone
    return fma(off, torch.tensor(-2.0), torch.tensor(1.0)).to(x.device)


def test_the_reference_is_the_law():
    x, k, c = case((4, 6, 5), False, 3, torch.float32, "cpu")
    e = functional.pooled(functional.erf(x * k + c).movedim(-1, 1), (2, 2)).movedim(1, -1)
    torch.testing.assert_close(reference(x, k, c, (2, 2)), e, rtol=1e-6, atol=1e-6)


def source_of(rows: int, device: str) -> philox.Keyed:
    words = torch.randint(2**32, (2, rows), generator=torch.Generator().manual_seed(rows)).to(device)
    return philox.Keyed(KEY, words[0], words[1])


def counters(source: philox.Keyed, number: int) -> Any:
    key = torch.tensor([KEY - 2**64 if KEY >= 2**63 else KEY], device=source.inputs.device)
    return toss.Rows(source.inputs.to(torch.int32), source.samples.to(torch.int32), key, number)


def tossed(e: Tensor, source: philox.Keyed, number: int) -> Tensor:
    source.draws = number
    with philox.keyed(source):
        return sgn(functional.toss(e))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("shape", "pool", "local"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_chances_and_states_of_a_product(shape, pool, local, dtype, device):
    x, k, c = case(shape, local, 3, dtype, device)
    e = reference(x, k, c, pool)
    torch.testing.assert_close(toss.chances(x, k, c, pool), e, **EXACT if device == "cuda" else CLOSE)
    source = source_of(3, device)
    found = toss.fire(x, k, c, pool, counters(source, 2), dtype)
    assert found.dtype == dtype
    assert torch.equal(found.float(), tossed(e, source, 2))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("device", DEVICES)
def test_nan_stays_nan(device):
    x, k, c = case((2, 2, 9), False, 2, torch.float32, device)
    y = x.clone()
    x[1, 0, 1, 4] = float("nan")
    states = toss.fire(x, k, c, (2, 2), counters(source_of(2, device), 0), torch.bfloat16)
    assert states.isnan().nonzero().tolist() == [[1, 0, 0, 4]]
    for one, other in ((x, y), (y, x)):
        assert toss.cross(one, other, k, k, (2, 2)).isnan().nonzero().tolist() == [[1, 0, 0, 4]]


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("shape", "pool", "local"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_states_from_a_fluctuation(shape, pool, local, dtype, device):
    """Three samples of two inputs, and a sum that is 0 to the bit."""
    x, alpha, _ = case(shape, local, 2, dtype, device)
    y = torch.randn(6, *shape, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    x[0, 0, 0, 0], y[0, 0, 0, 0] = 0, 0
    b = alpha.roll(1, -1) * (torch.arange(shape[-1], device=device) > 0)
    u = x.float().repeat(3, 1, 1, 1) * alpha + b + y.float()
    expected = sgn(torch.nn.functional.max_pool2d(u.movedim(-1, 1), pool).movedim(1, -1))
    found = toss.cross(x, y, alpha, b, pool)
    assert found.dtype == dtype
    assert torch.equal(found.float(), expected)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 2, 11), (600,)], ids=str)
@pytest.mark.parametrize("samples", [1, 3])
def test_states_from_shared_chances(shape, samples, device):
    e = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0)).to(device) * 2 - 1
    e.view(-1)[0], e.view(-1)[-1] = 1.0, -1.0
    source = source_of(2 * samples, device)
    found = toss.draw(e, samples, counters(source, 1), torch.bfloat16)
    expected = tossed(e.expand(samples, *e.shape), source, 1)
    assert torch.equal(found.float(), expected)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("device", DEVICES)
def test_a_threshold_is_where_the_comparison_is(device):
    """2P − 1 next to values that decide: r + ½ of numbers that are really drawn, and their neighbors."""
    source = source_of(3, device)
    with philox.keyed(source):
        r = source.integers((3, 80), torch.int16)
    edge = (r.float() + 0.5) / 2**15
    up, down = edge.nextafter(torch.full_like(edge, 2)), edge.nextafter(torch.full_like(edge, -2))
    for e, expected in ((edge, 1), (up, 1), (down, -1)):
        states = toss.draw(e, 1, counters(source, 0), torch.float32)[0]
        assert (states == expected).all()
        assert torch.equal(states, tossed(e, source, 0))
