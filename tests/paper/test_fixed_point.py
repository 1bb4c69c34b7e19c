"""Weights on a grid: which values there are, rounding without bias, and an optimiser that keeps to them."""

import pytest
import torch
from torch import nn

from law import LawBroken, check_rate
from nsm.paper.fixed_point import FixedPoint, store


def on_grid(weights, grid):
    return bool((weights.flatten()[:, None] - grid.values()).abs().amin(1).max() < 1e-6 * grid.limit * 10)


@pytest.mark.parametrize("bits", [1, 2, 5, 8])
def test_rounding_gives_the_neighbours(bits):
    torch.manual_seed(bits)
    grid = FixedPoint(bits, 0.7)
    weights = torch.linspace(-1, 1, 5001)
    rounded = grid.round(weights)
    assert len(grid.values()) == 2**bits
    assert on_grid(rounded, grid)
    assert ((rounded - weights.clamp(-0.7, 0.7)).abs() <= grid.step * (1 + 1e-5)).all()
    assert (rounded.abs() <= 0.7).all()


def test_rounding_has_no_bias():
    """Of n weights at a share f between two values, those that go up are Binomial(n, f)."""
    torch.manual_seed(0)
    grid, n = FixedPoint(3, 7.0), 200_000  # values −7, −5, …, 7
    for share in (0.01, 0.3, 0.5, 0.99):
        up = int((grid.round(torch.full((n,), 1 + 2 * share)) == 3).sum())
        check_rate(up, n, share, tolerance=1e-6)
    with pytest.raises(LawBroken):  # rounding to the nearest would be seen
        check_rate(0, n, 0.3)


def test_values_of_the_grid_stay():
    torch.manual_seed(0)
    grid = FixedPoint(4, 0.25)
    weights = grid.values().repeat(10_000)
    moved = ((grid.round(weights) - weights).abs() > grid.step / 2).double().mean().item()
    assert moved < 1e-4  # float rounding of a quotient can leave a value a hair from itself


def test_without_bits_it_only_clips():
    grid = FixedPoint(None, 0.5)
    assert grid.round(torch.tensor([-2.0, 0.123, 0.6])).tolist() == pytest.approx([-0.5, 0.123, 0.5])
    assert grid.at_rails(torch.tensor([-0.5, 0.1, 0.5, 0.2])) == 0.5


def test_the_share_at_the_rails():
    grid = FixedPoint(3, 7.0)
    assert grid.at_rails(grid.values()) == 2 / 8
    assert grid.at_rails(torch.tensor([5.0, -5.0, 1.0])) == 0


def test_an_optimiser_that_stores():
    """On the grid at once and after every step; other parameters are left alone, and small updates add up."""
    torch.manual_seed(0)
    layer = nn.Linear(200, 50)
    grid = FixedPoint(4, 0.1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    store(optimizer, [layer.weight], grid)
    assert on_grid(layer.weight.detach(), grid)
    with torch.no_grad():
        layer.weight.copy_(grid.values()[4].expand_as(layer.weight))
    for _ in range(20):
        optimizer.zero_grad()
        (-(grid.step / 20) * layer.weight.sum() + layer.bias.sum()).backward()
        optimizer.step()
        assert on_grid(layer.weight.detach(), grid)
    moved = (layer.weight.mean() - grid.values()[4]).item()
    assert moved == pytest.approx(grid.step, abs=0.07 * grid.step)  # std of the mean 0.01 steps: seven of them
    assert not on_grid(layer.bias.detach(), grid)


def test_wrong_grids_are_refused():
    with pytest.raises(ValueError, match="`bits` to be 1 to 16 or None, but got 0"):
        FixedPoint(0, 1.0)
    with pytest.raises(ValueError, match="`limit` to be positive, but got -1"):
        FixedPoint(2, -1)
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    with pytest.raises(ValueError, match="one for each of 1 parameters, but got 2"):
        store(optimizer, [layer.weight], [FixedPoint(2, 1.0)] * 2)
