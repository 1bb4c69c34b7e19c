"""docs/paper.md and the README's table equal what results/ say."""

from pathlib import Path

import pytest

from nsm.paper import pages
from nsm.paper.findings import gather
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
    (tmp_path / "README.md").write_text(f"# Title\n\n{pages.BEGIN}\nold\n{pages.END}\n\nmore\n")
    make_up(tmp_path / "results", share)
    pages.main(tmp_path)
    readme, page = (tmp_path / "README.md").read_text(), (tmp_path / "docs" / "paper.md").read_text()
    assert readme.startswith("# Title\n\n")
    assert readme.endswith("\n\nmore\n")
    assert "old" not in readme
    rows = gather(tmp_path / "results").rows
    beside = [row for row in rows if row["paper"] is not None]
    run = [row for row in beside if row["mean"] is not None]
    assert readme.count("\n| ") == len(run) + (1 if run else 0)
    theirs, tuned = (sum(row["own"] == own for row in run) for own in (False, True))
    lacking = sum(not row["own"] and row["mean"] is None for row in beside)
    counted = f"{theirs} rows of the paper were run (two for its one of scaled weights), {lacking} were not; "
    assert (counted if run else "No row of the paper has been run yet.") in readme
    assert (f"{tuned} rows above are recipes of ours" in readme) == bool(run)
    for row in run:
        digits = 3 if row["mean"] < 1 else 2
        assert f"| {row['paper']:g} | {row['mean']:.{digits}f}" in readme
    assert all((f"| {row['data']} | " in page) == bool(run) for row in rows)


def test_a_readme_without_its_markers_is_refused():
    with pytest.raises(ValueError, match="Expected argument `readme` to hold"):
        pages.with_part("# Title", "part")
