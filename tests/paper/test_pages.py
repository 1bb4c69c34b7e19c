"""docs/paper.md and the README's table equal what results/ say."""

import re
from pathlib import Path

import pytest

from nsm.paper import pages
from nsm.paper.findings import gather, mark, ours
from paper_results import make_up

ROOT = Path(__file__).resolve().parents[2]


def test_the_pages_of_the_repository_are_those_of_its_results():
    """If this fails, results/ have changed: run `python -m nsm.paper.pages`."""
    results = ROOT / "results"
    findings = gather(results)
    assert (ROOT / "docs" / "paper.md").read_text() == pages.claims_page(findings, results)
    assert pages.readme_part(findings, results) in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_pages_of_any_results(tmp_path, share):
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(f"# Title\n\n{pages.BEGIN}\nfrom before\n{pages.END}\n\nmore\n")
    make_up(tmp_path / "results", share)
    pages.main(tmp_path)
    readme, page = (tmp_path / "README.md").read_text(), (tmp_path / "docs" / "paper.md").read_text()
    assert readme.startswith("# Title\n\n")
    assert readme.endswith("\n\nmore\n")
    assert "from before" not in readme
    rows = gather(tmp_path / "results").rows
    theirs = [row for row in rows if row["paper"] is not None and not row["own"]]
    run = [row for row in theirs if row["mean"] is not None]
    assert readme.count("\n| ") == len(run) + (1 if run else 0)
    counted = f"{len(run)} rows of the paper were run (two for its one of scaled weights), {len(theirs) - len(run)} "
    assert (counted if run else "No row of the paper has been run yet.") in readme
    for row in run:
        assert f"| {row['paper']:g} | {ours(row)} | {row['n']} | {mark(row)} | " in readme
        for tuned in pages.beside(row, rows)[:1]:
            assert re.search(rf"\| {ours(tuned)} \(.*{pages.named(tuned['model'])[1]}\) \| {tuned['n']} \| ", readme)
    assert all((f"| {row['data']} | " in page) == bool(run) for row in rows)


def test_beside_a_row_stand_our_recipes_for_the_same_network_the_best_first(tmp_path):
    rows = gather(make_up(tmp_path, share=1.0)).rows
    for model, recipes in {
        "NSM": {"NSM, tuned", "NSM, harder inputs", "NSM, harder inputs, no biases"},
        "NSM scaled (weights)": {
            "NSM, harder inputs, scaled (weights)",
            "NSM, harder inputs, no biases, scaled (weights)",
        },
        "StNN": set(),
    }.items():
        row = next(row for row in rows if row["model"] == model)
        found = pages.beside(row, rows)
        assert {other["model"] for other in found} == recipes
        assert found == sorted(found, key=lambda other: other["mean"])


def test_a_readme_without_its_markers_is_refused():
    with pytest.raises(ValueError, match="Expected argument `readme` to hold"):
        pages.with_part("# Title", "part")
