"""Means, their errors and differences."""

import pytest

from nsm.paper.estimates import Estimate, of_row, of_seeds, paired


@pytest.mark.parametrize(
    ("mean", "sign"), [(-0.21, "negative"), (-0.2, "zero"), (0.0, "zero"), (0.2, "zero"), (0.21, "positive")]
)
def test_two_standard_errors_decide(mean, sign):
    found = Estimate(mean, 0.1)
    assert [name for name in ("negative", "zero", "positive") if getattr(found, name)] == [sign]


def test_nothing_is_lower_than_itself():
    assert (Estimate(1.0, 0.0) - Estimate(1.0, 0.0)).zero


def test_seeds_of_the_same_networks_are_taken_in_pairs():
    one = {"mean": 2.0, "standard_error": 1.0, "values": [1.0, 3.0]}
    other = {"mean": 1.5, "standard_error": 1.0, "values": [0.4, 2.6]}
    assert paired(one, other) == of_seeds([0.6, 0.4])
    assert (of_row(one) - of_row(other)).error == pytest.approx(2**0.5)
    with pytest.raises(ValueError, match="shorter"):
        paired(one, {**other, "values": [0.4]})


def test_a_single_network_has_the_error_of_a_share():
    one = {"mean": 2.0, "standard_error": None, "values": [2.0]}
    assert paired(one, one).error == pytest.approx(100 * (2 * 0.02 * 0.98 / 10_000) ** 0.5)
