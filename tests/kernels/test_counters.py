"""Keyed noise by a kernel: the numbers of Philox in torch, bit for bit."""

import pytest
import torch

from nsm.philox import Keyed

pytest.importorskip("triton")
from nsm.kernels import counters

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture
def sources(monkeypatch):
    """A source that uses the kernel wherever that can run, and one of the same noise that never does."""

    def make(device, seed=2**40 + 12345):
        samples, inputs = torch.tensor([0, 0, 7, 2**31 + 5]), torch.tensor([3, 4, 3, 2**32 - 1])
        with_kernel = Keyed(seed, samples.to(device), inputs.to(device))
        with_kernel.__dict__["_kernel"] = counters
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
