from nsm.networks import build
from nsm.paper.rows import ROWS
from nsm.recipes import Recipe

PAPER = {  # METHOD: the paper's numbers, counted
    "table1": [1.36, 1.47, 1.38],
    "table2": [0.880, 0.775, 0.805, 6.938, 6.185, 6.256, 0.927, 0.689, 0.701, 2.13, 3.11, 2.72, 2.05, 1.10, 0.78],
    "table3": [9.98, 34.85, 10.35, 34.84, 10.47, 34.37, 9.94, 35.19, 9.81, 34.93],
    "table4": [8.23, 8.56, 8.83, 9.16],
}


def test_every_figure_of_the_paper_has_a_row():
    for table, figures in PAPER.items():
        found = {row.paper for row in ROWS if row.table == table and not row.own}
        assert found == set(figures)


def test_rows_are_told_apart_and_runs_mean_one_thing():
    names = [(row.table, row.data, row.model) for row in ROWS]
    assert len(set(names)) == len(names)
    meaning: dict[str, tuple[Recipe | None, str | None, int]] = {}
    for row in ROWS:
        if row.run is not None:
            assert meaning.setdefault(row.run, (row.recipe, row.start, row.last)) == (row.recipe, row.start, row.last)
    runs = {row.run for row in ROWS}
    assert all(row.start in runs for row in ROWS if row.start is not None)


def test_unofficial_data_are_never_the_papers():
    for row in ROWS:
        if "unofficial" in row.data or "recordings" in row.data:
            assert row.own
            assert row.paper is None


def test_the_networks_of_all_rows_can_be_built():
    for row in ROWS:
        assert (row.recipe is None) == (row.run is None)
        assert row.reason
        if row.recipe is not None:
            assert len(build(row.recipe)) > 2
