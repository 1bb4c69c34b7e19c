"""Keyed noise by a kernel: the numbers of Philox in torch, bit for bit."""

from typing import Any

import pytest
import torch

from nsm import Bernoulli, Gaussian
from nsm.philox import Keyed, keyed

pytest.importorskip("triton")
from nsm.kernels import counters

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture
def sources(monkeypatch):
    """A source that uses the kernel wherever that can run, and one of the same noise that never does."""

    def make(device, seed=2**40 + 12345):
        samples, inputs = torch.tensor([0, 0, 7, 2**31 + 5]), torch.tensor([3, 4, 3, 2**32 - 1])
        with_kernel = Keyed(seed, samples.to(device), inputs.to(device))
        with_kernel.__dict__["kernel"] = counters
        return with_kernel, Keyed(seed, samples, inputs)

    return make


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [torch.int8, torch.int16, torch.int32])
@pytest.mark.parametrize("shape", [(4, 1), (4, 7, 3), (2, 2, 300), (4, 1025)])
def test_integers(sources, shape, kind, device):
    one, other = sources(device)
    for _ in range(2):  # each draw has a number of its own
        found = one.integers(shape, kind)
        assert found.dtype == kind
        assert torch.equal(found.cpu(), other.integers(shape, kind))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(4, 1), (2, 2, 300)])
def test_uniform_and_normal_numbers(sources, shape, dtype, device):
    one, other = sources(device)
    assert torch.equal(one.uniform(shape, dtype).cpu(), other.uniform(shape, dtype))
    torch.testing.assert_close(one.standard_normal(shape, dtype).cpu(), other.standard_normal(shape, dtype))


NOISES = [Bernoulli(0.5), Bernoulli(0.25), Bernoulli(0.1), Bernoulli(1e-4), Gaussian(0.7)]


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("noise", NOISES, ids=str)
@pytest.mark.parametrize("n", [1, 21, 1025])
def test_noise_on_states(sources, noise: Bernoulli | Gaussian, n, dtype, device):
    """Two states, each in two of the four rows; in a type for the result that may be another one than theirs."""
    one, other = sources(device)
    z = (2 * torch.randint(2, (2, n), generator=torch.Generator().manual_seed(n)) - 1).float()
    for _ in range(2):
        given: Any = (*one.counters, one.next(), z.to(device))
        if isinstance(noise, Bernoulli):
            found = counters.blank(*given, noise.p, noise.bound, dtype)
        else:
            found = counters.jitter(*given, noise.sigma, dtype)
        with keyed(other):
            xi = noise.sample((4, n), dtype=torch.float32)
        expected = ((xi - noise.mean) * z.repeat(2, 1)).to(dtype)
        if isinstance(noise, Bernoulli) and (device == "cuda" or dtype == torch.float32):
            assert torch.equal(found.cpu(), expected)
        else:  # logarithms and cosines are rounded in their own way, and the interpreter cuts bfloat16 off
            torch.testing.assert_close(found.cpu(), expected)
