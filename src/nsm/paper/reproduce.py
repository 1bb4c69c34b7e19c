"""What the paper ran, run again: the tables' runs that are not in results yet, and the figures."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nsm.data.catalogue import find
from nsm.data.store import data_root, find_files, subject
from nsm.paper import summary, table1
from nsm.paper.queue import Job, jobs, work_through
from nsm.paper.runs import Run

TABLES = ("table1", "table2", "table3", "table4")
FIGURES = ("figure-percentiles", "figure-weights", "figure-statistics", "precision", "operations")
FULL = Path("runs") / "paper", Path("results")  # the folders of runs and of results
PEOPLE = 23, 6  # whose gestures are learned from and measured
QUICK = Path("runs") / "quick" / "runs", Path("runs") / "quick" / "results"  # apart, so that they never meet


def reproduce(
    what: str,
    *,
    quick: bool = False,
    seeds: int | None = None,
    processes: int = 1,
    together: int | None = None,
    ray: bool = False,
    root: Path | None = None,
    work: Path | None = None,
    results: Path | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Run a table, a figure, or all of them.

    A run that is in ``results`` with the same recipe and as many seeds is not run again, nor is a figure.

    Args:
        what: One of `TABLES` or `FIGURES`, or all.
        quick: Run a small version of everything.
        seeds: Networks for each row, and for each curve. Default: 5 for a row, of a small version 2; each figure's own.
        processes: Parts of runs, which only tables have, trained at the same time on this machine.
        together: Seeds trained together as one part; all of them if None, one with ``ray``.
        ray: Spread parts over a Ray cluster instead.
        root: Folder for data.
        work: Folder of the runs, which are resumed from there. Default: that of `FULL` or `QUICK`.
        results: Folder of the results. Default: that of `FULL` or `QUICK`, the only one of a quick version, as for
            ``work``.
        say: Told what happens.

    Returns:
        The rows of the tables that were asked for, what the figures returned, and what was not finished.
    """
    if quick and (work or results):
        raise ValueError(
            f"Expected arguments `work` and `results` to be None for quick=True, but got {work or results}"
        )
    work, results = (given or usual for given, usual in zip((work, results), QUICK if quick else FULL, strict=True))
    tables = [name for name in TABLES if what in (name, "all")]
    known: dict[str, Run] = {}
    for name in TABLES:
        module = importlib.import_module(f"nsm.paper.{name}")
        known |= {run.name: module.QUICK.of(run) if quick else run for run in module.runs().values()}
    wanted = [known[name] for table in tables for name in importlib.import_module(f"nsm.paper.{table}").runs()]
    for_rows = seeds or (2 if quick else 5)
    together = together or (1 if ray else for_rows)
    there = with_data(wanted, root, say)
    waiting = jobs(there, work=work, results=results, seeds=for_rows, together=together, known=known)
    left = _work_through(waiting, ray, processes, root, work, results, say)
    found: dict[str, Any] = {"quick": quick, "results": str(results), "not_finished": left, "figures": {}}
    if tables:
        path = summary.write(results, known)
        table1.finish(results, known)
        found |= {"file": str(path), "rows": [row for row in summary.load(results) if row["table"] in tables]}
    for name in FIGURES:
        if what in (name, "all"):
            figure = importlib.import_module(f"nsm.paper.{name.replace('-', '_')}")
            asked = {} if seeds is None else {"seeds": seeds}
            found["figures"][name] = figure.run(quick=quick, results=results, **asked)
    return found


def _work_through(
    waiting: list[Job],
    ray: bool,
    processes: int,
    root: Path | None,
    work: Path,
    results: Path,
    say: Callable[[str], None],
) -> list[str]:
    if ray:
        from nsm.paper.cluster import work_through as on_cluster

        return on_cluster(waiting, work=work, results=results, root=root, say=say)
    return work_through(waiting, work=work, results=results, root=root, processes=processes, say=say)


def with_data(runs: list[Run], root: Path | None, say: Callable[[str], None]) -> list[Run]:
    """The runs whose data are on this machine; of event cameras, as many recordings or people as they ask for."""
    there, place = [], data_root(root)
    for run in runs:
        entry = find(run.recipe.data)
        files = {} if entry.kind == "embedded" else find_files(entry, place)
        if entry.kind != "embedded" and not {"train", "test"} <= set(files):
            say(f"{run.name}: left out, since {entry.name} is not in {place} (nsm data get {entry.name})")
            continue
        count, wanted, what = {
            "nmnist": (len, run.sizes, "recordings"),
            "dvsgesture": (_people, PEOPLE, "people's recordings"),
        }.get(entry.kind, (len, None, ""))
        if wanted is not None and (found := (count(files["train"]), count(files["test"]))) != wanted:
            say(f"{run.name}: left out, since {place} has {found[0]:,} + {found[1]:,} {what} of {entry.name}")
        else:
            there.append(run)
    return there


def _people(paths: Sequence[Path]) -> int:
    return len({subject(path) for path in paths} - {None})
