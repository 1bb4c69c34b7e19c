"""`nsm reproduce`: which runs a table has, that quick results are kept apart, and what is shown."""

import importlib
import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest

import nsm
from data import samples
from nsm import cli
from nsm.commands.measuring import What, _comparison
from nsm.commands.saying import open_console
from nsm.paper import (
    figure_percentiles,
    figure_statistics,
    figure_weights,
    precision,
    showing,
    table1,
    table2,
    table3,
    table4,
)
from nsm.paper import reproduce as room
from nsm.paper.reproduce import reproduce
from nsm.paper.rows import ROWS
from nsm.paper.runs import Quick, from_rows


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(nsm.__file__).parent.parent))
    monkeypatch.setenv("NSM_DATA", str(tmp_path / "data"))
    return tmp_path


def test_tables_have_the_runs_of_their_rows():
    for module, name in ((table1, "table1"), (table2, "table2"), (table3, "table3"), (table4, "table4")):
        runs = module.runs()
        assert {row.run for row in ROWS if row.table == name and row.run} <= set(runs)
        small = [module.QUICK.of(run) for run in runs.values()]
        assert all(run.quick and run.recipe.epochs <= 2 and run.inputs == module.QUICK.inputs for run in small)
    extra = set(table1.runs()) - set(from_rows("table1"))
    assert extra == set(table1.CONVERGENCE.values())
    assert all(table1.runs()[name].recipe.measure_last is None for name in extra)


def only(monkeypatch, *names: str) -> None:
    """Let Table 1 have these runs alone, and tiny ones."""
    whole = table1.runs
    monkeypatch.setattr(table1, "runs", lambda: {name: whole()[name] for name in names})
    monkeypatch.setattr(table1, "QUICK", Quick(inputs=(200, 20), epochs=1, samples=1))
    monkeypatch.setattr(table1, "CONVERGENCE", {})
    monkeypatch.setattr(table1, "SCALED", {"NSM": "pi-mnist-nsm"})


def test_quick_results_are_marked_and_kept_apart(place, monkeypatch, capsys):
    only(monkeypatch, "pi-mnist-nsm", "pi-mnist-relu")
    assert cli.main(["reproduce", "table1", "--quick", "--seeds", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["quick"]
    assert not (place / "results").exists()
    rows = {row["model"]: row for row in found["rows"]}
    assert rows["NSM"]["n"] == rows["ReLU network"]["n"] == 2
    assert all(row["quick"] for row in rows.values() if row["mean"] is not None)
    assert rows["StNN"]["mean"] is None
    curve = json.loads((place / "runs/quick/results/paper/scaling.json").read_text())["curves"]["NSM"]
    assert curve["weights"]["0.1"]["values"] == rows["NSM scaled (weights)"]["values"]
    monkeypatch.setattr(room, "work_through", lambda waiting, **_: [job.name for job in waiting])
    assert reproduce("table1", quick=True, seeds=2)["not_finished"] == []  # what is there is not run again
    assert reproduce("table1", quick=True, seeds=3)["not_finished"] == ["pi-mnist-nsm seed 2", "pi-mnist-relu seed 2"]
    assert len(reproduce("table1", seeds=2)["not_finished"]) == 2  # nor does it stand for a full one
    capsys.readouterr()
    assert cli.main(["reproduce", "table1", "--quick", "--seeds", "2"]) == 0
    shown = capsys.readouterr().out
    assert "quick version" in shown
    assert "1.36" in shown


@pytest.mark.parametrize("place", ["results", "work"])
def test_a_quick_version_has_folders_of_its_own(tmp_path, place):
    with pytest.raises(ValueError, match="Expected arguments `work` and `results` to be None for quick=True, but got"):
        reproduce("table1", quick=True, **{place: tmp_path})


def test_what_is_shown_is_compared_with_the_paper(capsys):
    rows = [{"data": "PI MNIST", "model": "NSM", "paper": 1.36, "standard_error": 0.02, "n": 5, "mean": 1.5}]
    rows += [{**rows[0], "model": "StNN", "mean": None, "n": 0, "reason": "no time"}]
    for quick in (False, True):
        open_console().print(_comparison([{**row, "quick": quick} for row in rows], quick))
        nsm_row, stnn_row = (line for line in capsys.readouterr().out.splitlines() if "PI MNIST" in line)
        end = ["1.50", "±", "0.02", "(quick)", "5"] if quick else ["1.50", "±", "0.02", "5", "+0.14", "▼"]
        assert nsm_row.split()[-len(end) :] == end
        assert stnn_row.rstrip().endswith("not run: no time")


def test_all_is_everything_and_each_can_be_had_alone(place, monkeypatch, capsys):
    assert set(get_args(What)) == {*room.TABLES, *room.FIGURES, "all"}
    page = Path(nsm.__file__).parents[2] / "docs" / "reproduce.md"
    assert not page.exists() or re.findall(r"^\| `(\S+)` \|", page.read_text(), re.M) == list(get_args(What))
    for name in room.FIGURES:
        module = importlib.import_module(f"nsm.paper.{name.replace('-', '_')}")
        monkeypatch.setattr(module, "run", lambda name=name, **asked: {"name": name, **asked})
    monkeypatch.setattr(room, "work_through", lambda waiting, **_: [])
    found = reproduce("all", seeds=3, say=lambda _: None)
    assert {row["table"] for row in found["rows"]} == set(room.TABLES)
    asked = {"quick": False, "seeds": 3, "results": Path("results")}
    assert found["figures"] == {name: {"name": name, **asked} for name in room.FIGURES}
    assert cli.main(["reproduce", "operations", "--results", "elsewhere"]) == 0
    assert capsys.readouterr().out == "operations: see elsewhere/operations.json\n"


@pytest.mark.parametrize(
    ("module", "inner", "outcome"),
    [
        (figure_percentiles, "_measure", {}),
        (figure_weights, "_watch", {}),
        (figure_statistics, "_compare", {"step": [], "histograms": {}, "curves": {}, "cosines": {}}),
        (
            precision,
            "_train",
            [SimpleNamespace(lr=1e-3, validation_error=1.0, tested=lambda *_: {})] * len(precision.BITS),
        ),
    ],
)
def test_a_figure_is_not_run_again(tmp_path, monkeypatch, module, inner, outcome):
    """Nor replaced by a smaller one; one with more seeds is run."""
    calls = list[None]()
    monkeypatch.setattr(module, inner, lambda *_: (calls.append(None), outcome)[1])
    monkeypatch.setattr(module, "draw", lambda _: None)
    monkeypatch.setattr(showing, "save", lambda *_: [])
    record = module.run(seeds=2, results=tmp_path)
    assert not record["quick"]
    assert (record["seeds"], set(record["recipes"])) == (2, set(module.RECIPES))
    first = len(calls)
    for asked in ({"seeds": 2}, {"seeds": 1}, {"seeds": 2, "quick": True}):
        assert module.run(**asked, results=tmp_path) == record
    assert len(calls) == first > 0
    module.run(seeds=3, results=tmp_path)
    assert len(calls) > first


def test_runs_without_their_data_are_left_out(place):
    said: list[str] = []
    found = reproduce("table4", seeds=1, say=said.append)
    assert len(said) == 3
    assert "dvs-bnsm: left out, since dvsgesture is not in" in said[0]
    assert [row["mean"] for row in found["rows"]] == [None] * 7
    assert (place / "results" / "paper.json").exists()


def test_a_few_recordings_are_not_taken_for_all(place):
    for part, count in (("Train", 1000), ("Test", 100)):
        for k in range(count):
            path = place / "data/nmnist" / part / str(k % 10) / f"{k:05}.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
    runs, said = from_rows("table2"), list[str]()
    there = room.with_data([runs["nmnist-bnsm"], runs["nmnist-subset-bnsm"]], place / "data", said.append)
    assert there == [runs["nmnist-subset-bnsm"]]
    assert said == [f"nmnist-bnsm: left out, since {place / 'data'} has 1,000 + 100 recordings of nmnist"]


def test_gestures_of_a_few_people_are_not_taken_for_those_of_all(place):
    run, said = from_rows("table4")["dvs-dcnn"], list[str]()
    for some, counted in ((range(1, 29), "23 + 5"), (range(2, 30), "22 + 6")):
        shutil.rmtree(place / "data", ignore_errors=True)
        samples.write_aedat(place / "data/dvsgesture", some)
        assert room.with_data([run], place / "data", said.append) == []
        assert said.pop().endswith(f"has {counted} people's recordings of dvsgesture")
    samples.write_aedat(place / "data/dvsgesture", range(1, 30))
    assert room.with_data([run], place / "data", said.append) == [run]


def test_wrong_arguments(place, capsys):
    for words, message in (
        (["table1", "--seeds", "0"], "Expected --seeds to be at least 1, but got 0"),
        (["table5"], "table5"),
        (
            ["table1", "--quick", "--results", "x"],
            "than runs/quick with --quick, but got --results x",
        ),
        (
            ["table1", "--quick", "--work", "y"],
            "than runs/quick with --quick, but got --work y",
        ),
        (["figure-weights", "--ray"], "Expected --ray with a table or all, but got figure-weights"),
        (["precision", "--processes", "2"], "Expected --processes with a table or all, but got precision"),
    ):
        assert cli.main(["reproduce", *words]) == 2
        assert message in capsys.readouterr().err


def test_a_cluster_needs_ray(place, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert cli.main(["reproduce", "table1", "--ray"]) == 2
    assert "pip install 'neural-sampling-machines[cluster]'" in capsys.readouterr().err
