"""What is read from results, whatever part of them is there."""

import math
import shutil

import pytest

from nsm.data import DataError
from nsm.paper.findings import RECORDS, difference, error_of, gather, mark, of_the_paper
from nsm.paper.rows import ROWS
from paper_results import make_up, write


def test_an_empty_folder_has_every_row_and_none_was_run(tmp_path):
    findings = gather(tmp_path)
    assert [row["model"] for row in findings.rows] == [row.model for row in ROWS]
    assert all(row["mean"] is None and mark(row) == "" and difference(row) is None for row in findings.rows)
    assert findings.runs == {}
    assert findings.records == {}
    assert findings.row("table1", "PI MNIST", "NSM") is None


@pytest.mark.parametrize("missing", ["paper.json", "paper/scaling.json", "paper/pi-mnist-nsm.json"])
def test_any_file_may_be_missing(tmp_path, missing):
    make_up(tmp_path, share=1.0)
    whole = gather(tmp_path)
    assert whole.row("table1", "PI MNIST", "NSM") is not None
    (tmp_path / missing).unlink()
    part = gather(tmp_path)
    assert len(part.rows) == len(whole.rows)
    assert ("scaling" in part.records) == (missing != "paper/scaling.json")
    assert ("pi-mnist-nsm" in part.runs) == (missing != "paper/pi-mnist-nsm.json")
    shutil.rmtree(tmp_path / "paper")
    assert gather(tmp_path).runs == {}


def test_the_error_of_a_single_network_is_that_of_a_share():
    row = {"mean": 2.0, "standard_error": None, "test_inputs": 2500, "paper": 2.5}
    assert error_of(row) == pytest.approx(100 * math.sqrt(0.02 * 0.98 / 2500))  # 0.28
    assert mark(row) == "≈"
    assert mark({**row, "test_inputs": 40_000}) == "▲"


def test_a_quick_row_has_no_mark():
    row = {"mean": 1.0, "standard_error": 0.01, "paper": 2.0}
    assert mark(row) == "▲"
    assert mark({**row, "quick": True}) == ""


def test_every_run_is_there_whether_of_a_row_or_not(tmp_path):
    found = gather(make_up(tmp_path, share=1.0))
    assert {"pi-mnist-nsm", "pi-mnist-nsm-convergence", "pi-mnist-stnn-convergence"} <= set(found.runs)
    assert not {"scaling", "convergence"} & set(found.runs)


@pytest.mark.parametrize("paper", [{"row": []}, {"rows": {}}, {"rows": [1]}, {"rows": [{"table": "table1"}]}])
def test_rows_that_are_none_are_refused(tmp_path, paper):
    write(tmp_path / "paper.json", paper)
    with pytest.raises(DataError, match=r"Expected .*paper.json to have `rows`, each with data, mean"):
        gather(tmp_path)


def test_rows_of_ours_beside_the_papers_figure_are_not_the_papers(tmp_path):
    models = [row["model"] for row in of_the_paper(gather(tmp_path).rows)]
    assert "NSM" in models
    assert not [model for model in models if "," in model]


def test_names_of_records_are_files():
    assert len(set(RECORDS.values())) == len(RECORDS)
