import math

import pytest
import torch

import law
from law import check_rate
from noise_repeats import check_uncorrelated
from nsm import philox
from nsm.noise import Bernoulli, Empirical, Gaussian
from nsm.philox import Keyed, keyed


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # the known answers that the authors of Philox published with it
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(counter, key, expected):
    words = philox.philox(tuple(torch.tensor([c]) for c in counter), key)  # type: ignore[arg-type]
    assert tuple(int(word) for word in words) == expected


def source(samples: int = 3, inputs: int = 5, seed: int = 1, first: int = 0) -> Keyed:
    return Keyed(seed, torch.arange(samples).repeat_interleave(inputs), first + torch.arange(inputs).repeat(samples))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["uniform", "standard_normal"])
def test_a_number_depends_on_what_it_is_for_and_on_nothing_else(kind, dtype):
    whole = getattr(source(4, 6), kind)((24, 7, 3), dtype).reshape(4, 6, 21)
    two_axes = getattr(source(4, 6), kind)((4, 6, 21), dtype)
    assert torch.equal(whole, two_axes)
    part = Keyed(1, torch.tensor([2, 3]), torch.tensor([5, 0]))  # two rows of it, in another order
    assert torch.equal(getattr(part, kind)((2, 21), dtype), torch.stack([whole[2, 5], whole[3, 0]]))
    assert not torch.equal(getattr(source(4, 6, seed=2), kind)((24, 21), dtype), whole.reshape(24, 21))
    again = source(4, 6)
    assert not torch.equal(getattr(again, kind)((24, 21), dtype), getattr(again, kind)((24, 21), dtype))  # draws
    assert len(whole.unique()) == whole.numel()


def test_pieces_do_not_change_the_numbers(monkeypatch):
    whole = source(10, 10).uniform((100, 50), torch.float32)
    monkeypatch.setattr(philox, "_PIECE", 37)
    assert torch.equal(source(10, 10).uniform((100, 50), torch.float32), whole)


def test_distributions_and_independence():
    n = law.DRAWS
    for dtype in (torch.float32, torch.float64):
        uniform = source(1, 100, seed=7).uniform((100, n // 100), dtype)
        assert uniform.min() >= 0
        assert uniform.max() < 1
        check_rate(int((uniform < 0.3).sum()), n, 0.3)
        normal = source(1, 100, seed=8).standard_normal((100, n // 100), dtype)
        check_rate(int((normal < 0.5).sum()), n, 0.5 * math.erfc(-0.5 / math.sqrt(2)))
        check_rate(int((normal.abs() > 2).sum()), n, math.erfc(2 / math.sqrt(2)))
    rows = source(2, 2, seed=9)
    draws = [rows.uniform((4, 30_011), torch.float32) for _ in range(2)]
    signs = [torch.where(row < 0.5, -1.0, 1.0).double() for draw in draws for row in draw]
    check_uncorrelated(signs)


def test_noise_comes_from_the_source_within_the_context_alone():
    shape = (3, 5, 40)
    for noise in (Bernoulli(0.3), Gaussian(0.5), Empirical([0.0, 1.0, 3.0])):
        with keyed(source()):
            first = noise.sample(shape)
        with keyed(source()):
            state = torch.get_rng_state()
            again = noise.sample(shape)
            assert torch.equal(state, torch.get_rng_state())  # torch's own generator is not touched
            explicit = noise.sample(shape, generator=torch.Generator().manual_seed(0))
        assert torch.equal(first, again)
        assert torch.equal(explicit, noise.sample(shape, generator=torch.Generator().manual_seed(0)))
    assert philox.source is None
    with pytest.raises(RuntimeError, match="within"), keyed(source()):
        raise RuntimeError("within")
    assert philox.source is None


def test_a_draw_without_rows_is_left_to_torch():
    assert source().fits((15, 4))
    assert source().fits((3, 5, 4))
    assert source().fits((15,))
    assert not source().fits((4, 15))
    assert not source().fits(())
    with keyed(source()):
        torch.manual_seed(0)
        first = Bernoulli(0.5).sample((4, 15))
        torch.manual_seed(0)
        assert torch.equal(first, Bernoulli(0.5).sample((4, 15)))
