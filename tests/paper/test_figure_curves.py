"""The curves beside Table 1."""

import json

import pytest

from nsm.paper.figure_curves import draw_convergence, draw_scaling, mean_curve, worst
from paper_results import make_up


@pytest.fixture
def records(tmp_path):
    folder = make_up(tmp_path) / "paper"
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in ("scaling", "convergence")}


def test_scaling(records):
    assert worst(records["scaling"], "NSM") == (1.45, 1.4)
    figure = draw_scaling(records["scaling"])
    assert "NSM 1.40 → 1.45 %, StNN 1.40 → 30.00 %" in figure.get_suptitle()
    lines = figure.axes[0].get_legend_handles_labels()[1]
    assert lines == ["NSM", "StNN", "ReLU network"]


def test_convergence(records):
    curve = records["convergence"]["curves"]["NSM"]
    assert mean_curve(curve)[0] == pytest.approx(2 * (2 + 3) / 2)
    figure = draw_convergence(records["convergence"])
    assert "NSM 5.00 % after the first epoch" in figure.get_suptitle()
    assert len(figure.axes[0].lines) == 6  # two seeds and a mean for each of two networks
