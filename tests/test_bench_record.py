"""What `nsm bench` is asked, prints and keeps, and what is committed."""

import json
import runpy
from pathlib import Path

import pytest

from nsm import cli
from nsm.bench import __main__ as program
from nsm.bench import kernels, report, works
from nsm.bench.goals import GOALS, goals

ROOT = Path(__file__).resolve().parent.parent
RECORDS = sorted(p for p in (ROOT / "results" / "bench").glob("*.json") if not p.name.startswith("scaling-"))


def test_the_goals_are_those_that_were_set():
    asked = [(goal.device, goal.work, goal.case, dict(goal.most)) for goal in GOALS]
    kernel_rows = [row for row in asked if row[1] == "kernels"]
    assert all(row[3] == {"ratio": 1 / 1.2} for row in kernel_rows)
    for device in ("cuda", "cpu"):
        assert [row[2] for row in kernel_rows if row[0] == device] == list(kernels.cases(device))
    assert [row for row in asked if row not in kernel_rows] == [
        ("cuda", "mnist-step", "synapse", {"ratio": 0.9}),
        ("cuda", "mnist-step", "neuron", {"ratio": 1.0}),
        ("cuda", "cifar-step", "synapse", {"ratio": 1.15}),
        ("cuda", "cifar-step", "neuron", {"ratio": 1.35}),
        ("cuda", "epochs", "synapse", {"seconds": 20}),
        ("cuda", "epochs", "neuron", {"seconds": 20}),
        ("cuda", "seeds", "pi-mnist-mlp", {"ratio": 1.6}),
        ("cuda", "seeds-cnn", "mnist-cnn", {}),
        ("cuda", "mc", "synapse", {"seconds": 0.035, "ratio": 0.3}),
        ("cuda", "blankout", "linear", {"ratio": 1 / 20}),
        ("cuda", "memory", "peak", {"ratio": 1.05}),
        ("cpu", "mnist-step", "synapse", {"ratio": 1.2}),
        ("cpu", "mnist-step", "neuron", {"ratio": 1.2}),
        ("cpu", "mc", "synapse", {"ratio": 0.5}),
        ("cpu", "mc", "neuron", {"ratio": 0.5}),
        ("cpu", "memory", "peak", {"ratio": 1.05}),
    ]
    assert set(works.WORKS) == {goal.work for goal in GOALS}


def test_met():
    goal = next(goal for goal in GOALS if len(goal.most) == 2)
    assert goal.met({"seconds": 0.03, "ratio": 0.3}) is True
    assert goal.met({"seconds": 0.03, "ratio": 0.31}) is False
    assert goal.met({"seconds": 0.03, "ratio": None}) is None


def test_an_older_row_is_judged_by_the_goal_of_today():
    goal = next(goal for goal in GOALS if goal.device == "cpu" and goal.most == {"ratio": 0.5})
    old = {**goal.row({"seconds": 1.0, "ratio": 0.6}), "goal": {}, "met": None}
    wrong = {**goal.row(None, "wrong", wrong=True), "work": goals("cpu")[0].what}
    rows = {row["work"]: row for row in report.whole({"device": "cpu", "rows": [old, wrong]})["rows"]}
    assert rows[goal.what] == {**old, "goal": {"ratio": 0.5}, "met": False}
    assert rows[wrong["work"]] == wrong


def measured(**figures):
    case = {"seconds": 0.5, "spread": (0.4, 0.6), "ratio": 0.4, "peer": "dCNN", **figures}
    return {"synapse": case, "neuron": case}, [
        {"side": "dCNN", "name": "dCNN, fp32", "seconds": 1.0, "spread": (1.0, 1.1), "n": 3}
    ]


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setitem(works.WORKS, "mc", lambda device, quick: measured(same_dtype_ratio=1.25))
    memory = {"ratio": 1.01, "peer": "MC 10", "n": 1}
    monkeypatch.setitem(works.WORKS, "memory", lambda device, quick: ({"peak": memory}, []))
    monkeypatch.setattr(works, "device_here", lambda: "cpu")


def test_the_record(small, tmp_path, capsys):
    path = tmp_path / "bench.json"
    assert program.main(["--only", "mc", "--out", str(path)]) == 0
    assert "≤ 0.5 ×" in capsys.readouterr().out
    assert program.main(["--only", "memory", "--out", str(path), "--json"]) == 0
    found = json.loads(path.read_text())
    assert {"hardware", "versions", "commit", "threads", "rows", "peers", "device"} <= set(found)
    assert [(row["work"], row["goal"]) for row in found["rows"]] == [(goal.what, goal.most) for goal in goals("cpu")]
    rows = [row for row in found["rows"] if row.get("reason") != "not measured"]
    assert [row["name"] for row in rows] == ["mc", "mc", "memory"]  # the first two stay
    for row in rows:
        assert {"work", "seconds", "spread", "ratio", "peer", "goal", "met", "commit"} <= set(row)
        assert row["met"] is True
    assert [file.suffix for file in sorted(tmp_path.iterdir())] == [".json", ".png", ".svg"]
    said = json.loads(capsys.readouterr().out)
    assert said["files"] == [str(path.with_suffix(suffix)) for suffix in (".json", ".png", ".svg")]
    assert "0.400 (bf16 ÷ bf16: 1.250)" in report.markdown(found)
    assert "| mc: dCNN, fp32 | 1.00 s | 1.00 s to 1.10 s |" in report.markdown(found)


def test_quick_keeps_nothing_unasked(small, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert program.main(["--only", "mc", "--quick"]) == 0
    assert "(quick: smaller sizes)" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_extrapolated_times_say_so():
    row = {"work": "x", "seconds": 20.0, "spread": None, "ratio": None, "goal": {"seconds": 20}, "met": True}
    assert report.cells({**row, "extrapolated": True})["time"] == "20.0 s (extrapolated)"


def test_wrong_words(small, capsys):
    with pytest.raises(SystemExit) as end:
        program.main(["--only", "mcc"])
    assert end.value.code == 2
    assert (
        "Expected a work of mnist-step, mc, memory, kernels on this machine, but got 'mcc'" in capsys.readouterr().err
    )
    assert cli.main(["bench", "--only", "mcc"]) == 2
    assert "but got 'mcc'" in capsys.readouterr().err


def test_the_command(small, capsys):
    assert cli.main(["bench", "--only", "mc", "memory", "--quick", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["mc", "mc", "memory"]


# ------------------------------------------------------------------------- what is committed


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_committed_record_has_a_row_for_every_goal(path):
    found = json.loads(path.read_text())
    assert report.slug(found["hardware"]) == path.stem
    assert not found["quick"]
    asked = goals(found["device"])
    assert [(row["work"], row["goal"]) for row in found["rows"]] == [(goal.what, dict(goal.most)) for goal in asked]
    for row, goal in zip(found["rows"], asked, strict=True):
        assert row.get("commit") or row["reason"] == "not measured"
        assert row["met"] == goal.met(row)


def test_the_page_is_the_record():
    page = runpy.run_path(str(ROOT / "benchmarks" / "speed.py"))
    text = (ROOT / "docs" / "speed.md").read_text()
    assert text == page["filled"](text)
