"""Units with the pool after them: the same bits as their twins in torch, the same gradients, every element written.

By themselves, in C on the CPU, in Triton on CUDA and in Triton's interpreter; and with the product before them, in C.
"""

# pyright: reportCallIssue=false, reportOptionalMemberAccess=false

import itertools
import math

import pytest
import torch
from torch.nn import functional as F

from nsm.estimators import sgn
from nsm.kernels import operations
from twins import equal, erf, fma, pieces, problem

WINDOWS = [(1, 2, 2, 1), (2, 4, 6, 5), (3, 4, 2, 33)]


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
    none = torch.stack(list(itertools.accumulate(miss.unbind(-1), torch.mul)), -1)  # each product rounded
    fires = none < v[..., None]
    assert equal(states, fires[..., 3].float() * 2 - 1)
    assert equal(won, first(fires))


@pytest.mark.parametrize("places", [False, True])
@pytest.mark.parametrize("shape", WINDOWS)
@pytest.mark.usefixtures("poisoned")
def test_threshold_pool_is_the_max_pool_of_the_threshold(shape, places, way):
    x, k, c, _ = window_problem(shape, places, *reversed(way))
    y = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(x)
    b = c.nan_to_num(posinf=1, neginf=-1)
    found = operations.threshold_pool(rows(x), rows(y), k, b, k, c, *shape[1:3])
    states, won = (windows(one, shape) for one in found)
    u = four(x.float() * line_of(x, k) + line_of(x, b) + y.float())
    assert states.dtype == x.dtype
    assert equal(states, sgn(u).amax(-1))
    assert equal(won, first(u >= 0))


@pytest.mark.parametrize(("places", "drawn"), [(False, True), (False, False), (True, False)])
@pytest.mark.parametrize("shape", WINDOWS)
@pytest.mark.usefixtures("poisoned")
def test_gradients_go_to_the_unit_that_won(shape, places, drawn, way):
    """However the states were drawn; half precision is that of the tensors alone, and not of the sums."""
    x, k, c, key = window_problem(shape, places, *reversed(way))
    leaves = [v.clone().requires_grad_() for v in (x, k, c)]
    if drawn:
        found = operations.threshold_pool(rows(leaves[0]), rows(x), k, k, *leaves[1:], *shape[1:3])
    else:
        found = operations.fire_pool(rows(leaves[0]), *leaves[1:], key, *shape[1:3])
    states, won = (windows(one, shape) for one in found)
    g = torch.randn(states.shape, generator=torch.Generator().manual_seed(2)).to(x)
    (states * g).sum().backward()
    wide = [v.double().requires_grad_() for v in (x, k, c)]
    e = torch.erf(wide[0] * line_of(x, wide[1]) + line_of(x, wide[2]))
    (four(e).gather(-1, won.long()[..., None])[..., 0] * g).sum().backward()
    for leaf, truth in zip(leaves, wide, strict=True):
        assert leaf.grad is not None
        assert truth.grad is not None
        rtol = 8e-3 if leaf.dtype == torch.bfloat16 else 1e-5  # the interpreter rounds towards 0
        torch.testing.assert_close(leaf.grad.double(), truth.grad.nan_to_num(0), rtol=rtol, atol=1e-5)


def test_not_a_number_stays(device):
    x, k, c, key = window_problem((2, 4, 6, 5), False, torch.float32, device)
    x[0, 1, 2, 3] = math.nan  # in the window at (0, 1)
    fired, _ = operations.fire_pool(rows(x), k, c, key, 4, 6)
    drawn, _ = operations.threshold_pool(rows(x), rows(x), k, k, k, c, 4, 6)
    for states in (fired, drawn):
        assert states.isnan().nonzero().tolist() == [[1, 3]]


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
def test_states_of_pictures_are_the_pool_of_their_product_bit_for_bit(shape, weights, use):
    use("C")
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
def test_gradients_of_pictures_are_those_of_the_units_that_won(shape, weights, drawn, use):
    use("C")
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


def test_threads_change_no_bit(use):
    use("C")
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
