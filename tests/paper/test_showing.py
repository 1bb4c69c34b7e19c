"""How records and figures are written."""

import json

import pytest
from matplotlib.figure import Figure

from nsm.paper.showing import COLORS, STYLES, read, save, write


def test_a_record_is_written_rounded_with_its_provenance_and_read_again(tmp_path):
    result = {
        "mean": 1.23456789,
        "n": 123456789,
        "curve": (1 / 3, 2 / 3),
        "rows": [{"x": [1e-9]}],
        "none": None,
        "yes": True,
    }
    written = write("sub/name", result, tmp_path)
    assert read("sub/name", tmp_path) == written
    assert {"hardware", "versions", "commit", "python"} <= set(written)
    assert written["mean"] == 1.2346
    assert written["n"] == 123456789
    assert written["curve"] == [0.33333, 0.66667]
    assert written["rows"] == [{"x": [1e-9]}]
    assert written["yes"] is True
    text = (tmp_path / "sub" / "name.json").read_text()
    assert json.loads(text) == written
    assert '"curve": [0.33333, 0.66667]' in text  # a list of numbers takes one line
    assert [path.name for path in (tmp_path / "sub").iterdir()] == ["name.json"]


def test_what_is_not_there_is_none(tmp_path):
    assert read("nothing", tmp_path) is None


def test_the_same_figure_is_the_same_file(tmp_path):
    contents = []
    for folder in ("a", "b"):
        figure = Figure()
        figure.subplots().plot([1, 2], [3, 4])
        paths = save(figure, "name", tmp_path / folder)
        assert sorted(path.name for path in paths) == ["name.png", "name.svg"]
        contents.append([path.read_bytes() for path in sorted(paths)])
    assert contents[0] == contents[1]


def test_networks_that_share_a_panel_differ_in_more_than_color():
    for together in (("NSM", "StNN", "ReLU"), ("NSM", "BinConcrete", "sigmoid")):
        assert len({STYLES[name] for name in together}) == len({COLORS[name] for name in together}) == 3
    assert set(COLORS) == set(STYLES)
    with pytest.raises(KeyError):
        COLORS["unknown"]
