"""The curves beside Table 1."""

import json

import pytest

from nsm.paper.figure_curves import (
    caption_convergence,
    caption_scaling,
    draw_convergence,
    draw_scaling,
    mean_curve,
    worst,
)
from nsm.paper.runs import SCALED
from paper_results import make_up, scaled


@pytest.fixture
def records(tmp_path):
    folder = make_up(tmp_path) / "paper"
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in ("scaling", "convergence")}


def test_scaling(records):
    record = records["scaling"]
    assert [each["mean"] for each in worst(record["curves"]["NSM"])] == [1.45, 1.4]
    figure = draw_scaling(record)
    assert figure.get_suptitle() == "PI-MNIST, scaled weights of trained networks, n = 5"
    lines = figure.axes[0].get_legend_handles_labels()[1]
    assert lines == list(SCALED)
    record["curves"]["StNN"]["weights"]["0.1"]["mean"] = 20.0
    said = caption_scaling(record)
    assert "n = 5" in said
    assert "Left, weights alone: with × 0.1 NSM 1.40 → 1.45 %, StNN 1.40 → 20.00 %" in said
    assert "with the worst factor NSM 1.40 → 1.45 %, StNN 1.40 → 30.00 %" in said


def test_the_worst_factor_is_not_that_of_the_trained_network():
    """Else a network that scaling makes no worse would seem to have been measured once."""
    assert [each["mean"] for each in worst(scaled(lost=1.3, plain=1.4))] == [1.3, 1.4]


def test_convergence(records):
    curve = records["convergence"]["curves"]["NSM"]
    assert mean_curve(curve)[0] == pytest.approx(2 * (2 + 3) / 2)
    figure = draw_convergence(records["convergence"])
    assert figure.get_suptitle() == "PI-MNIST, learning curves, n = 2"
    said = caption_convergence(records["convergence"])
    assert "n = 2: thin lines" in said
    assert "NSM 5.00 % after epoch 1, 2.30 % after epoch 10; StNN 7.50 % after epoch 1" in said
    assert len(figure.axes[0].lines) == 6  # two seeds and a mean for each of two networks
