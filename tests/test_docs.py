"""Every Python example in README and docs runs as it stands, and every table is its record."""

import doctest
import json
import re
import runpy
from pathlib import Path
from statistics import mean
from types import SimpleNamespace

import pytest
import torch

from nsm.recipes import MNIST_ONLINE, MNIST_ONLINE_BATCH_NORM

ROOT = Path(__file__).resolve().parent.parent
core = SimpleNamespace(**runpy.run_path(str(ROOT / "benchmarks" / "core.py")))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def examples(page: Path) -> list[str]:
    return re.findall(r"^```python\n(?!>>>)(.*?)^```", page.read_text(), re.S | re.M)


@pytest.mark.parametrize("page", list(filter(examples, PAGES)), ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_run(page, tmp_path, monkeypatch):
    """One after the other, as a reader would type them; an error of any is an error here."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = {"__name__": "__main__"}
    for code in examples(page):
        exec(compile(code, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_interactive_examples_print_what_they_say(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert outcome.failed == 0


def test_the_quick_start_is_short_and_its_loop_learns(capsys):
    start, loop, _ = examples(ROOT / "README.md")
    assert len([line for line in start.splitlines() if line.strip()]) <= 15
    assert len([line for line in loop.splitlines() if line.strip()]) <= 30
    exec(loop, {})
    error, confidence, on_noise = map(float, re.findall(r"[\d.]+", capsys.readouterr().out))
    assert error < 5
    assert confidence > on_noise + 0.1


def test_tables_of_the_law_are_the_record():
    record = json.loads((ROOT / "results" / "law.json").read_text())
    page = (ROOT / "docs" / "law.md").read_text()
    assert core.distance_table(record["distances"]) in page
    assert core.estimator_table(record["estimators"]) in page
    assert {"commit", "hardware", "versions", "settings"} <= set(record)


def test_the_record_of_the_law_can_be_made_again():
    """Up to a fan-in of 12 it is exact and quick, so it is done here."""
    record = json.loads((ROOT / "results" / "law.json").read_text())
    made = core.distances(fan_ins=(8, 12))
    for old, new in zip(record["distances"][: len(made)], made, strict=True):
        assert new == pytest.approx(old, rel=1e-9)


def test_figures_of_the_readme_are_the_records():
    readme = (ROOT / "README.md").read_text()
    early, online, framing = (
        json.loads((ROOT / "results" / name).read_text())["rows"]
        for name in ("early-stopping.json", "online.json", "bench-data.json")
    )
    assert f"{100 * mean(row['test_error_100_samples'] for row in early):.2f} % (mean of three noise seeds)" in readme
    for error in (1e-2, 1e-3):
        rows = [row for row in early if row["error"] == error]
        samples, same = mean(row["mean_samples"] for row in rows), mean(row["same_label"] for row in rows)
        assert f"{samples:.1f} on average, the label of 100 samples on {100 * same:.3f} % of digits" in readme
    for row in online:
        assert f"{100 * row['test_error']:.2f} ± {100 * row['standard_error']:.2f} % (3 seeds)" in readme
    assert f"{next(row['ratio'] for row in framing if 'ratio' in row):.2f} times faster" in readme


def test_speeds_of_the_readme_are_the_records():
    readme = (ROOT / "README.md").read_text()
    for name, step, sampled in (
        ("nvidia-h200", "{:.2f} with noise at synapses (moments), {:.2f} at neurons", "{:.2f} ({:.0f} ms)"),
        (
            "amd-epyc-2-cores",
            "{:.2f} and {:.2f}",
            "(both in bfloat16: {2:.2f} and {5:.2f}) | {0:.2f} with noise at synapses, {3:.2f} at neurons |",
        ),
    ):
        rows = json.loads((ROOT / "results" / "bench" / f"{name}.json").read_text())["rows"]
        assert step.format(*(row["ratio"] for row in rows if row["name"] == "mnist-step")) in readme
        mc = [row for row in rows if row["name"] == "mc"]
        figures = [(row["ratio"], 1000 * row["seconds"], row.get("same_dtype_ratio")) for row in mc]
        assert sampled.format(*(figure for row in figures for figure in row)) in readme


def test_times_of_small_versions_are_the_record():
    rows = json.loads((ROOT / "results" / "quick.json").read_text())["quick"]
    seconds = {row["what"]: row["seconds"] for row in rows}
    page = " ".join((ROOT / "docs" / "reproduce.md").read_text().split())
    said = ("{table1:.0f}, {table2:.0f} and {table3:.0f} seconds", "`precision` {precision:.0f} and of each figure")
    for part in said:
        assert part.format(**seconds) in page
    assert max(value for name, value in seconds.items() if name.startswith("figure")) < 50
    assert max(seconds.values()) < 600


def test_online_recipes_have_the_best_rate_of_the_record():
    rows = json.loads((ROOT / "results" / "online.json").read_text())["rows"]
    for row, recipe in zip(rows, (MNIST_ONLINE, MNIST_ONLINE_BATCH_NORM), strict=True):
        assert (recipe.unit, recipe.lr) == (row["unit"], row["lr"])
        tried = row["validation_error_of_each_lr"]
        assert tried[str(row["lr"])] == min(tried.values())


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} → {target}"
