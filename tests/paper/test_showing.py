"""How records and figures are written."""

import json

import pytest
from matplotlib.figure import Figure

from nsm.data import DataError
from nsm.paper.showing import COLORS, STYLES, measured, read, save, write


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


def test_the_same_content_is_not_written_again(tmp_path):
    """Nor is it said to have been made here and now."""
    path = tmp_path / "name.json"
    write("name", {"rows": [1.0, 2.0]}, tmp_path)
    path.write_text(path.read_text().replace('"python": "3', '"python": "2'))
    assert write("name", {"rows": (1.0, 2.0)}, tmp_path)["python"].startswith("2")
    assert write("name", {"rows": [1.0, 3.0]}, tmp_path)["python"].startswith("3")


def test_a_figure_that_stands_is_only_drawn(tmp_path, capsys):
    """One of the same settings and no fewer seeds; a full one also before a smaller one of whatever settings."""
    recipes = {"NSM": {"epochs": 5, "lr": 1e-3}}
    full = {"about": "x", "quick": False, "seeds": 3, "steps": 200, "recipes": recipes}
    runs, drawn = list[int](), list[dict]()

    def draw(record):
        drawn.append(record)
        return Figure()

    def ask(**asked):
        """Whether it was measured."""
        before = len(runs)
        record = measured("name", {**full, **asked}, lambda: {"curve": runs.append(1) or [0.5]}, draw, tmp_path)
        assert record == read("name", tmp_path) == drawn[-1]
        return len(runs) > before

    assert ask()
    assert not ask(about="in other words")
    assert not ask(seeds=1)
    assert not ask(quick=True, steps=20)
    assert not ask(quick=True, steps=20, seeds=9)
    assert not ask(seeds=1, steps=300)
    assert not ask(recipes={"NSM": {**recipes["NSM"], "weight_decay": 0.0}})  # a field that is younger than the record
    assert not ask(new=1)
    assert capsys.readouterr().err.count("name.json of 3 seeds stands and is only drawn") == 7
    assert read("name", tmp_path)["seeds"] == 3  # type: ignore[index]
    assert ask(seeds=4)
    assert ask(seeds=4, recipes={"NSM": {"epochs": 5, "lr": 2e-3}})
    assert ask(seeds=4, steps=300)
    (tmp_path / "name.json").unlink()
    assert ask(quick=True, steps=20)
    assert not ask(quick=True, steps=20)
    assert ask(quick=True, steps=30)
    assert ask()


def test_what_is_not_there_is_none(tmp_path):
    assert read("nothing", tmp_path) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [(b'{"rows": [', "to be JSON"), (b"", "to be JSON"), (b"\xff\xfe{}", "to be JSON"), (b"[]", "got list")],
)
def test_a_broken_record_is_named(tmp_path, text, said):
    (tmp_path / "name.json").write_bytes(text)
    with pytest.raises(DataError, match=f"Expected .*name.json .*{said}"):
        read("name", tmp_path)


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
    for together in (("NSM", "StNN", "ReLU", "additive noise"), ("NSM", "BinConcrete", "sigmoid")):
        for look in (STYLES, COLORS):
            assert len({look[name] for name in together}) == len(together)
    assert set(COLORS) == set(STYLES)
    with pytest.raises(KeyError):
        COLORS["unknown"]
