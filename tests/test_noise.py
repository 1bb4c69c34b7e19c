import copy
import math
import pickle

import numpy as np
import pytest
import scipy.stats
import torch

import law
from law import check_rate
from noise_repeats import SHAPES, check_no_repeats, check_uncorrelated
from nsm.noise import Bernoulli, Empirical, Gaussian, LogNormal, Noise, Uniform, check_noise, integers

ids = [type(noise).__name__ for noise in law.NOISES]


@pytest.mark.parametrize("noise", law.NOISES, ids=ids)
def test_mean_and_variance_are_those_of_the_textbook(noise):
    m, s = law.moments_of(noise)
    assert noise.mean == pytest.approx(m, rel=1e-12)
    assert noise.variance == pytest.approx(s**2, rel=1e-12)


@pytest.mark.parametrize("noise", law.NOISES, ids=ids)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_draws_follow_the_distribution(noise, dtype):
    """The rate of ξ ≤ x at one x, moved off the values a half-precision type can hold."""
    drawn = noise.sample((1000, 351), generator=torch.Generator().manual_seed(0), dtype=dtype)
    assert drawn.dtype == dtype
    assert drawn.shape == (1000, 351)
    x = 0.83203125 + 2**-13
    atoms = law.discrete_atoms(noise)
    truth = sum(p for v, p in atoms if v <= x) if atoms else law.continuous(noise).cdf(x)
    spacing = 0.0 if atoms or dtype in (torch.float32, torch.float64) else 2e-3
    check_rate(int((drawn.double() <= x).sum()), drawn.numel(), float(truth), tolerance=spacing)


@pytest.mark.parametrize("noise", law.NOISES, ids=ids)
def test_same_seed_same_draws_and_no_two_alike_otherwise(noise):
    first, again = (noise.sample((10, 100), generator=torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(noise.sample((100,)), noise.sample((100,)))
    assert noise.sample((0, 3)).shape == (0, 3)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_noise_never_repeats(shape, compiled):
    check_no_repeats(shape, compiled=compiled)


def test_a_repeated_stretch_of_noise_is_seen():
    noise = torch.randn(100_003).sign().double()
    other = torch.randn(100_003).sign().double()
    check_uncorrelated([noise, other])
    other[50_000:60_000] = noise[1_000:11_000]
    with pytest.raises(AssertionError, match="draw 0 repeats in draw 1"):
        check_uncorrelated([noise, other])
    noise[50_000:] = noise[:50_003].clone()
    with pytest.raises(AssertionError, match="draw 0 repeats in draw 0 at a distance of"):
        check_uncorrelated([noise])


@pytest.mark.parametrize("noise", law.NOISES, ids=ids)
def test_compares_copies_and_prints_by_value(noise):
    for twin in (copy.deepcopy(noise), pickle.loads(pickle.dumps(noise))):
        assert twin == noise
        assert hash(twin) == hash(noise)
    assert noise != Gaussian(0.123)
    assert type(noise).__name__ in repr(noise)


def test_reprs():
    assert repr(Bernoulli(0.5)) == "Bernoulli(p=0.5)"
    assert repr(Gaussian()) == "Gaussian(sigma=1.0)"
    assert repr(Uniform(0, 2)) == "Uniform(low=0, high=2)"
    assert repr(Empirical([0.5, 1.5])) == "Empirical(2 values in [0.5, 1.5], mean=1, variance=0.25)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Bernoulli(0), r"Expected argument `p` to be in \(0, 1\), but got 0"),
        (lambda: Bernoulli(1), r"Expected argument `p` to be in \(0, 1\), but got 1"),
        (lambda: Bernoulli(1.2), r"Expected argument `p` to be in \(0, 1\), but got 1.2"),
        (lambda: Bernoulli(math.nan), r"Expected argument `p` to be in \(0, 1\), but got nan"),
        (lambda: Gaussian(0), "Expected argument `sigma` to be positive and finite, but got 0"),
        (lambda: Gaussian(-1), "Expected argument `sigma` to be positive and finite, but got -1"),
        (lambda: Gaussian(math.inf), "Expected argument `sigma` to be positive and finite, but got inf"),
        (lambda: LogNormal(math.nan), "Expected argument `sigma` to be positive and finite, but got nan"),
        (lambda: LogNormal(30), "Expected argument `sigma` to be at most 10"),
        (lambda: Uniform(1, 1), "to be finite with low < high, but got 1 and 1"),
        (lambda: Uniform(2, 1), "to be finite with low < high, but got 2 and 1"),
        (lambda: Uniform(0, math.inf), "to be finite with low < high, but got 0 and inf"),
        (lambda: Empirical([]), "Expected argument `values` to be finite numbers"),
        (lambda: Empirical([1.0, math.nan]), "Expected argument `values` to be finite numbers"),
        (lambda: Empirical([1.0, 1.0]), "Expected argument `values` to have a positive variance, but got 1.0 alone"),
        (lambda: Empirical([1.0, 2.0], counts=[1, 0]), "to have a positive variance, but got 1.0 alone"),
        (lambda: Empirical([1.0, 2.0], counts=[1]), "Expected argument `counts` to be 2 non-negative numbers"),
        (lambda: Empirical([1.0, 2.0], counts=[1, -1]), "Expected argument `counts` to be 2 non-negative numbers"),
        (lambda: Empirical([1.0, 2.0], counts=[0, 0]), "Expected argument `counts` to be 2 non-negative numbers"),
    ],
)
def test_refuses_what_is_not_a_distribution(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_empirical_takes_arrays_histograms_and_csv_files(tmp_path):
    generator = np.random.default_rng(0)
    measured = generator.choice([0.8, 1.0, 1.3], size=(50, 40), p=[0.2, 0.5, 0.3])
    from_array = Empirical(measured)
    values, counts = np.unique(measured, return_counts=True)
    assert Empirical(values, counts) == from_array
    assert Empirical(values[::-1], counts[::-1] * 10) == from_array
    assert Empirical(torch.from_numpy(measured)) == from_array
    column = tmp_path / "device.csv"
    column.write_text("conductance\n" + "\n".join(map(str, measured.ravel())))
    assert Empirical(column) == from_array
    histogram = tmp_path / "histogram.csv"
    histogram.write_text("".join(f"{v},{c}\n" for v, c in zip(values, counts, strict=True)))
    assert Empirical(str(histogram)) == from_array
    histogram.write_text("# device 3, 2024\nvalue,count\n" + histogram.read_text())
    assert Empirical(histogram) == from_array
    assert from_array.mean == pytest.approx(measured.mean())
    assert from_array.variance == pytest.approx(measured.var())


@pytest.mark.parametrize("text", ["1.0,2,3\n2.0,1,1\n", "1.0\nx\n", "1,2\n3\n", "", "only a heading\n", "1;2\n3;4\n"])
def test_empirical_refuses_a_csv_that_is_not_one(tmp_path, text):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"Expected .*one or two columns of numbers, separated by a comma, but got"):
        Empirical(path)
    with pytest.raises(ValueError, match="Expected argument `counts` to be None beside a CSV file"):
        Empirical(path, counts=[1])


def test_empirical_names_the_line_that_is_none_and_what_is_no_text(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text("# device\nvalue\n1.0\n\n1.x\n")
    with pytest.raises(ValueError, match=r"but got '1\.x' in line 5"):
        Empirical(path)
    path.write_bytes(b"\xff\xfe1\x00")
    with pytest.raises(ValueError, match=r"bad.csv` to hold .*, but got no text"):
        Empirical(path)


def test_a_measured_device_of_many_values_is_drawn_as_often_as_seen():
    measured = scipy.stats.gamma(4, scale=0.25).rvs(10_000, random_state=np.random.default_rng(1))
    noise = Empirical(measured)
    drawn = noise.sample((law.DRAWS,), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    check_rate(int((drawn <= np.median(measured)).sum()), law.DRAWS, float((measured <= np.median(measured)).mean()))


def test_a_new_noise_is_a_subclass_with_three_members():
    class Flip(Noise):
        spread = 1.0

        @property
        def mean(self) -> float:
            return 0.0

        @property
        def variance(self) -> float:
            return self.spread

        def sample(self, shape, *, generator=None, device=None, dtype=None):
            return Bernoulli(0.5).sample(shape, generator=generator, device=device, dtype=dtype) * 2 - 1

    noise = check_noise(Flip())
    assert repr(noise) == "Flip(mean=0, variance=1)"
    assert set(noise.sample((100,)).tolist()) == {-1.0, 1.0}
    with pytest.raises(TypeError, match="abstract"):
        Noise()  # type: ignore[abstract]
    with pytest.raises(TypeError, match=r"Expected argument `noise` to be an nsm.Noise, but got 0.5"):
        check_noise(0.5)
    Flip.spread = 0.0
    with pytest.raises(ValueError, match="Expected argument `noise` to have a finite mean and a positive"):
        check_noise(Flip())


@pytest.mark.parametrize("kind", [torch.int8, torch.int16, torch.int32])
def test_integers_are_the_same_within_a_transform(kind):
    """Where torch cannot see 64 bits as others, they are cut by shifts."""

    def draw(_):
        return integers((3, 7), kind, None, None)

    torch.manual_seed(0)
    inside = torch.vmap(draw, randomness="same")(torch.zeros(2))
    torch.manual_seed(0)
    assert torch.equal(inside[1], draw(None))
