"""Units by themselves: the same bits as their twins in torch, the same gradients, every element written.

In C on the CPU, in Triton on CUDA and, without a GPU, in Triton's interpreter, where every row takes a while.
"""

# pyright: reportCallIssue=false, reportOptionalMemberAccess=false

import pytest
import torch
from torch.func import vmap

from nsm.estimators import sgn
from nsm.kernels import operations
from twins import equal, erf, fma, pieces, problem

SHAPES = [(1, 1), (3, 5), (9, 64), (7, 130), (2, 520)]


def twin_fire(x, k, c, key):
    r = pieces(key, *x.shape, 16)
    return sgn(fma(erf(fma(x.float(), k, c)), torch.tensor(32768.0), -(r + 0.5))).to(x.dtype)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("poisoned")
def test_fire_is_its_twin_bit_for_bit(shape, way):
    x, k, c, key = problem(*shape, *reversed(way))
    states = operations.fire(x, k, c, key)
    assert states.dtype == x.dtype
    assert equal(states, twin_fire(x, k, c, key))


def test_a_slope_or_an_offset_that_is_not_a_number_is_not_hidden(way):
    x, k, c, key = problem(9, 64, *reversed(way))
    k[5] = c[6] = torch.nan
    states = operations.fire(x, k, c, key)
    assert states[:, 5:7].isnan().all()
    assert equal(states, twin_fire(x, k, c, key))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("poisoned")
def test_threshold_is_its_twin_bit_for_bit(shape, use):
    """Which only C has."""
    x, k, c, _ = problem(*shape, torch.float32, use("C"))
    y, alpha, b, _ = problem(*shape, torch.float32, "cpu", seed=1)
    b = b.nan_to_num(posinf=1, neginf=-1)
    assert equal(operations.threshold(x, y, alpha, b, k, c), sgn(x * alpha + b + y))


@pytest.mark.parametrize("p", [0.25, 0.5, 3 / 256])
@pytest.mark.parametrize("shape", [(1,), (7, 5), (3, 4, 5, 6), (1000,)])
@pytest.mark.usefixtures("poisoned")
def test_blank_is_its_twin_bit_for_bit(shape, p, way):
    device, dtype = way
    key, one = torch.tensor([-12345678901234567], device=device), torch.ones(1, device=device, dtype=dtype)
    for z in (one.repeat(shape), one.expand(shape)):
        kept = pieces(key, 1, z.numel(), 8).view(shape) < round(256 * p) - 128
        assert equal(operations.blank(z, p, key), (kept.float() - p))
    if len(shape) == 4:  # in the order of memory
        z = one.repeat(shape).to(memory_format=torch.channels_last)
        kept = (pieces(key, 1, z.numel(), 8) < round(256 * p) - 128).view(3, 5, 6, 4).movedim(-1, 1)
        assert equal(operations.blank(z, p, key), kept.float() - p)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (7, 130), (100, 64), (65, 300)])
@pytest.mark.usefixtures("poisoned")
def test_gradients_are_those_of_erf(shape, way):
    """Half precision is that of the tensors alone, and not of the sums."""
    device, dtype = way
    x, k, c, key = problem(*shape, dtype, device)
    x, g = x.nan_to_num(1.0), torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(device, dtype)
    wide = [v.double().requires_grad_() for v in (x, k, c)]
    (torch.erf(wide[0] * wide[1] + wide[2]) * g).sum().backward()
    leaves = [v.clone().requires_grad_() for v in (x, k, c)]
    (operations.fire(*leaves, key) * g).sum().backward()
    for leaf, truth in zip(leaves, wide, strict=True):
        assert leaf.grad is not None
        assert truth.grad is not None
        rtol = 8e-3 if leaf.dtype == torch.bfloat16 else 1e-5  # the interpreter rounds towards 0
        torch.testing.assert_close(leaf.grad.double(), truth.grad.nan_to_num(0), rtol=rtol, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1), (9, 40)])
@pytest.mark.usefixtures("poisoned")
def test_members_side_by_side_are_those_one_by_one(shape, way):
    """Each with its own key, a row of a larger draw."""
    device, dtype = way
    problems = [problem(*shape, dtype, device, seed) for seed in range(3)]
    x, k, c, _ = (torch.stack(parts) for parts in zip(*problems, strict=True))
    x, keys = x.nan_to_num(1.0), operations.new_keys(6, torch.device(device)).view(3, 2, 2)[:, 1]
    together = (
        vmap(operations.fire)(x, k, c, keys),
        vmap(operations.blank, (0, None, 0))(x, 0.25, keys),
        *vmap(operations.fire_back)(x, x, k, c),
    )
    alone = [
        (
            operations.fire(x[m], k[m], c[m], keys[m]),
            operations.blank(x[m], 0.25, keys[m]),
            *operations.fire_back(x[m], x[m], k[m], c[m]),
        )
        for m in range(3)
    ]
    for found, parts in zip(together, zip(*alone, strict=True), strict=True):
        assert equal(found, torch.stack(parts))


def test_thresholds_side_by_side_are_those_one_by_one(use):
    """What all members share, y and b, is given once."""
    problems = [problem(9, 40, torch.float32, use("C"), seed) for seed in range(3)]
    x, k, c, _ = (torch.stack(parts) for parts in zip(*problems, strict=True))
    y, b = x[0].clone(), k[0].clone()
    together = vmap(operations.threshold, (0, None, 0, None, 0, 0))(x, y, k, b, k, c)
    assert equal(together, torch.stack([operations.threshold(x[m], y, k[m], b, k[m], c[m]) for m in range(3)]))


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
