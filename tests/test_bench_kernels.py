"""Every kernel of a race is checked before it is timed: what is wrong is found out."""

import pytest
import torch

import nsm
from nsm.bench import inference, kernels
from nsm.bench.timing import Wrong
from nsm.kernels import bits, fire_cpu
from nsm.layers import NSMLayer


@pytest.mark.skipif(not fire_cpu.ready(), reason="C cannot be compiled here")
def test_a_kernel_raced(monkeypatch):
    monkeypatch.setattr(kernels, "LAYERS", ((16, 4, True), (64, 4, False)))
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)  # which takes its time
    found = kernels.kernel_race("cpu", "fire", rounds=1)
    assert set(found.best) == {"kernel", "compiled"}
    for wrong in (
        lambda x, k, c: kernels.fired(x, k, c - 0.3),
        lambda x, k, c: kernels.fired(x, 0 * k, 0 * c),  # fair coins
        lambda x, k, c: kernels.fired(-x, k, -c),
        lambda x, k, c: torch.ones_like(x) + 0 * kernels.fired(x, k, c),
    ):
        monkeypatch.setattr(kernels, "_fire", wrong)
        with pytest.raises(Wrong, match="mean state within"):
            kernels.kernel_race("cpu", "fire", rounds=1)


@pytest.mark.skipif(not fire_cpu.ready(), reason="C cannot be compiled here")
@pytest.mark.parametrize("site", ["synapse", "neuron"])
def test_a_kernel_from_pictures_raced(monkeypatch, site):
    """States that lean less or more than they should are found out, and so is a gradient that is lost or too long."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    assert set(kernels.kernel_race("cpu", site, rounds=1).best) == {"kernel", "compiled"}
    fire = NSMLayer.fire
    for wrong, message in (
        (lambda z: torch.where(torch.rand_like(z) < 0.1, -z, z), "mean state within"),
        (lambda z: z - z.detach() + 1, "mean state within"),
        (lambda z: z.detach() + 1.3 * (z - z.detach()), "gradient"),
        (lambda z: z.detach() + 0 * z, "gradient"),
    ):
        monkeypatch.setattr(NSMLayer, "fire", lambda *given, wrong=wrong: wrong(fire(*given)))
        with pytest.raises(Wrong, match=message):
            kernels.kernel_race("cpu", site, rounds=1)


def test_the_numbers_of_the_reference_are_the_definition():
    source = kernels._source(20, "cpu")
    found = kernels.counted(kernels._blocks(source, 42), source.inputs, source.samples, 21)
    assert torch.equal(found, source.integers((20, 21), torch.int16))


@pytest.mark.parametrize("noise", [nsm.Bernoulli(0.5), nsm.Gaussian()], ids=str)
def test_the_noise_of_the_reference_is_that_of_the_kernel(noise, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(kernels, "STATES", (20, 333))
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    kernel, reference, check = kernels._noisy("cpu", noise)
    check(kernel(), reference())
    assert abs(float(kernel().float().std()) - noise.variance**0.5) < 0.05


@pytest.mark.skipif(bits.library() is None, reason="needs a C compiler and AVX-512")
@pytest.mark.parametrize("site", ["synapse", "neuron"])
def test_predictions_with_states_as_bits_raced(monkeypatch, site):
    """A standard deviation of the noise that is off by a tenth is found out, and so is no noise."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    kernel, reference, check = kernels._predict(site)
    right, expected = kernel(), reference()
    check(right, expected)
    net = inference.network(site, "cpu", 3000)
    learned = [parameter for name, parameter in net.named_parameters() if name.endswith((".beta", ".bias"))]
    before = [parameter.detach().clone() for parameter in learned]
    for parameter in learned[:-1]:  # but the last layer's, which has no noise
        parameter.data.div_(0.9)
    found = kernel()
    for parameter, value in zip(learned, before, strict=True):
        parameter.data.copy_(value)  # the network is that of other tests too
    with pytest.raises(Wrong, match="probabilities from the same noise"):
        check(found, expected)
    with nsm.deterministic(net):
        found = kernel()
    with pytest.raises(Wrong, match="probabilities from the same noise"):
        check(found, expected)
