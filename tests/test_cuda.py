"""The law on a CUDA device, eager and compiled; run with `make test-gpu`."""

from functools import partial

import pytest
import torch

import law
from law import SITES, Case, check_layer, layer_of
from noise_repeats import SHAPES, check_no_repeats
from nsm.networks import bnsm, cifar_cnn, mnist_cnn
from nsm.noise import Bernoulli, Gaussian
from nsm.sampling import predict

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CASES = [
    Case(noise, site, draw, geometry, bias, dtype)
    for noise in law.NOISES
    for site, draw in SITES
    for geometry in ("linear", "conv")
    for bias, dtype in ((True, torch.float32), (False, torch.bfloat16))
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_sampled_rates_obey_the_law(case):
    layer = layer_of(case).cuda()
    check_layer(case, lambda z: layer(z.cuda()).cpu())


@pytest.mark.parametrize("case", [c for c in CASES if isinstance(c.noise, Bernoulli | Gaussian)], ids=str)
def test_compiled_rates_obey_the_law(case):
    torch._dynamo.reset()
    layer = torch.compile(layer_of(case).cuda(), fullgraph=True)
    check_layer(case, lambda z: layer(z.cuda()).cpu())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_noise_never_repeats(shape, compiled):
    check_no_repeats(shape, "cuda", compiled=compiled)


def test_a_network_trains_in_a_compiled_step():
    torch.manual_seed(0)
    model = mnist_cnn().cuda()
    step = torch.compile(model)
    coarse = torch.randn(10, 1, 7, 7, device="cuda")
    prototypes = torch.nn.functional.interpolate(coarse, (28, 28)).sign()  # shapes a convolution can see
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    losses = []
    for _ in range(100):
        labels = torch.randint(10, (100,), device="cuda")
        flips = torch.where(torch.rand(100, 1, 28, 28, device="cuda") < 0.2, -1.0, 1.0)
        loss = torch.nn.functional.cross_entropy(step(prototypes[labels] * flips), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-10:]) / 10 < 0.1


@pytest.mark.parametrize("bf16", [False, True])
def test_predictions_are_the_same_with_kernels_and_without(bf16, monkeypatch):
    torch.manual_seed(0)
    model = mnist_cnn(partial(bnsm, site="synapse", draw="moments")).cuda()
    x = torch.randn(50, 1, 28, 28).sign()
    with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
        found = predict(model, x, 20, seed=0, keep_samples=True)
        monkeypatch.setattr("nsm.stages._toss_kernels", lambda: None)
        assert torch.equal(found.votes, predict(model, x, 20, seed=0).votes)
        assert found.samples is not None
        torch.testing.assert_close(found.samples, predict(model, x, 20, seed=0, keep_samples=True).samples)


def test_a_wide_network_is_predicted_in_two_gigabytes_a_picture():
    """The CIFAR network at neuron noise, whose pictures have 98,304 numbers."""
    torch.manual_seed(0)
    model = cifar_cnn(bnsm).cuda()
    x = torch.randn(10_000, 3, 32, 32, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    with torch.autocast("cuda", torch.bfloat16):
        predict(model, x, 10, seed=0)
    assert torch.cuda.max_memory_allocated() < 16 * 2**30
