"""However large a tensor is, a card has programs for it: 2³¹ − 1 along the first axis, 65,535 along the others."""

import pytest
import torch

pytest.importorskip("triton")
from nsm.kernels import counters, fire, pool, toss
from nsm.noise import Bernoulli
from nsm.philox import Keyed
from twins import problem

KERNELS = {
    fire: ("_fire", "_back", "_blank"),
    pool: ("_fire_pool", "_threshold_pool", "_back_pool"),
    toss: ("_chances", "_fire", "_draw", "_cross"),
    counters: ("_words", "_integers", "_blank", "_jitter"),
}
MOST = 2_000_000_000  # numbers that a layer of kernels may have


@pytest.fixture
def grids(monkeypatch):
    """The grids of all launches, none of which takes place."""
    seen = []

    class Noted:
        def __getitem__(self, grid):
            seen.append(grid)
            return lambda *arguments, **options: None

    for module, names in KERNELS.items():
        for name in names:
            monkeypatch.setattr(module, name, Noted())
    return seen


def meta(*shape, dtype=torch.float32):
    """A tensor of which there is only the shape."""
    return torch.empty(shape, dtype=dtype, device="meta")


def check(grids, count):
    assert len(grids) == count
    for first, *others in grids:
        assert 0 < first < 2**31
        assert 0 < max(others, default=1) <= 65_535


@pytest.mark.parametrize("units", [1, 40, 2_200_000, 40_000_000, MOST])
def test_units_by_themselves(units, grids):
    """Where every position has a line of its own, all numbers of a picture are units."""
    x, line, key = meta(MOST // units, units), meta(units), meta(2, dtype=torch.int64)
    fire.fire(x, line, line, key, x)
    fire.fire_back(x, x, line, line, x, meta(2, fire.parts(x), units))
    fire.blank(x, 0.5, key, x)
    check(grids, 3)


@pytest.mark.parametrize("places", [False, True])
@pytest.mark.parametrize("size", [2, 600, 5000])
def test_units_with_the_pool(size, places, grids):
    images, key = MOST // (size * size * 64), meta(2, dtype=torch.int64)
    x, line = meta(images * size * size, 64), meta(size * size * 64 if places else 64)
    sums = meta(2, *pool.pool_parts(x, line), len(line) // 4 if places else 64)
    pool.fire_pool(x, line, line, key, x, x, size, size)
    pool.threshold_pool(x, x, line, line, x, x, size, size)
    pool.pool_back(x, x, x, line, line, x, sums, size, size)
    check(grids, 3)


@pytest.mark.parametrize("elements", [1, 20_000_000, 200_000_000])
def test_predicting(elements, grids):
    rows = MOST // elements
    row, line = meta(rows, dtype=torch.int32), meta(elements)
    keyed = toss.Rows(row, row, meta(1, dtype=torch.int64), 0)
    x = meta(rows, 1, 1, elements)
    toss.chances(x, line, line, (1, 1))
    toss.fire(x, line, line, (1, 1), keyed, torch.bfloat16)
    toss.draw(x, 3, keyed, torch.bfloat16)
    toss.cross(x, x, line, line, (1, 1))
    counters.words(row, row, keyed.key, 0, elements)
    counters.integers(row, row, keyed.key, 0, elements, torch.int32)
    counters.blank(row, row, keyed.key, 0, meta(1, elements), 0.1, Bernoulli(0.1).bound, torch.bfloat16)
    counters.jitter(row, row, keyed.key, 0, meta(1, elements), 0.1, torch.bfloat16)
    check(grids, 8)


def test_fewer_and_larger_programs_draw_the_same(monkeypatch):
    x, k, c, _ = problem(2, 520, torch.float32, "cpu")
    source = Keyed(5, torch.arange(2), torch.arange(2))
    rows = toss.Rows(*source.counters, 0)
    picture = x.nan_to_num().view(2, 1, 1, 520)
    found = []
    for programs in (65_535, 1):
        monkeypatch.setattr(fire, "PROGRAMS", programs)
        e = toss.chances(picture, k, c, (1, 1))
        states = toss.fire(picture, k, c, (1, 1), rows, x.dtype), toss.draw(e, 1, rows, x.dtype)
        crossed = toss.cross(picture, picture, k, k, (1, 1))
        numbers = counters.integers(*source.counters, 0, 1100, torch.int32), *counters.words(*source.counters, 0, 300)
        given = *source.counters, 0, x.nan_to_num()
        noisy = counters.blank(*given, 0.5, Bernoulli(0.5).bound, x.dtype), counters.jitter(*given, 0.5, x.dtype)
        found.append((e, *states, crossed, *numbers, *noisy))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.nan_to_num(7), other.nan_to_num(7))
