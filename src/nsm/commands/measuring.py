"""`nsm reproduce`, `report` and `bench`: the paper run again, and how fast."""

import functools
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from nsm.commands.saying import Folder, UsageError, open_console, print_json

What = Literal[
    "table1", "table2", "table3", "table4",
    "figure-percentiles", "figure-weights", "figure-statistics", "precision", "operations", "all",
]  # fmt: skip


def reproduce(
    what: Annotated[What, tyro.conf.Positional],
    quick: bool = False,
    seeds: Annotated[int | None, tyro.conf.arg(metavar="NUMBER")] = None,
    processes: int = 1,
    ray: bool = False,
    root: Folder = None,
    work: Folder = None,
    results: Folder = None,
    json: bool = False,
) -> int:
    """Run a table or figure of the paper again, and show how it came out beside the paper.

    What is in the results already, with the same recipe and as many seeds, is not run again; a table that was cut is
    resumed. Beyond the paper's tables and figures, precision is learning with weights of few bits, and operations
    counts what an inference takes.

    Example: nsm reproduce table1 --quick --seeds 1

    Args:
        what: Which table or figure, or all.
        quick: A small version, in minutes on two cores; its numbers are marked and kept apart, in runs/quick.
        seeds: Networks for each row and curve. Default: 5, of a small version 2; of a figure what it is made for.
        processes: How many runs of tables to train at the same time on this machine.
        ray: Spread the runs of tables over a Ray cluster; RAY_ADDRESS names it.
        root: Folder for data. Default: NSM_DATA, else the platform's cache folder.
        work: Folder of the tables' runs. Default: runs/paper
        results: Folder of the results. Default: results
        json: Print JSON instead of a table.
    """
    for option, value in (("--seeds", seeds), ("--processes", processes)):
        if value is not None and value < 1:
            raise UsageError(f"Expected {option} to be at least 1, but got {value}")
    if quick and (work or results):
        given = f"--work {work}" if work else f"--results {results}"
        raise UsageError(f"Expected no other folder than runs/quick with --quick, but got {given}")
    if what == "operations" and seeds:
        raise UsageError(f"Expected --seeds with what is trained, but got {what}")
    if not what.startswith("table") and what != "all":
        for option, value in (("--processes", processes > 1), ("--ray", ray), ("--root", root), ("--work", work)):
            if value:
                raise UsageError(f"Expected {option} with a table or all, but got {what}")
    from nsm.paper.reproduce import reproduce as run_again

    said = functools.partial(print, file=sys.stderr, flush=True)
    places: dict[str, Any] = {"root": root, "work": work, "results": results}
    try:
        found = run_again(what, quick=quick, seeds=seeds, processes=processes, ray=ray, say=said, **places)
    except KeyboardInterrupt as cut:
        cut.args = ("interrupted; the same command goes on where tables were cut",)
        raise
    except ValueError as error:
        if not str(error).startswith("Expected Ray"):
            raise
        raise UsageError(str(error)) from None
    if json:
        print_json(found)
    elif "rows" in found:
        open_console().print(_comparison(found["rows"], quick))
        print(f"{found['file']} has all rows")
    for name in found["figures"] if not json else ():
        drawing = Path(found["results"]) / "figures" / f"{name}.png"
        print(f"{name}: see {drawing if drawing.exists() else Path(found['results']) / f'{name}.json'}")
    return 1 if found["not_finished"] else 0


def _comparison(rows: list[dict[str, Any]], quick: bool) -> Any:
    """The table that sets our errors beside the paper's; small versions are not compared."""
    from rich import box
    from rich.table import Table

    from nsm.paper.findings import MEANING, difference, mark, ours

    title = "test error in percent" + (" (quick version: not to be compared)" if quick else "")
    legend = None if quick else "; ".join(f"{sign} {meaning}" for sign, meaning in MEANING.items())
    table = Table(box=box.SIMPLE_HEAD, title=title, caption=legend, title_justify="left", caption_justify="left",
                  pad_edge=False, padding=(0, 1, 0, 0))  # fmt: skip
    for column in ("data", "model", "paper", "ours", "n", *(() if quick else ("difference", ""))):
        table.add_column(column, justify="left" if column in ("data", "model") else "right", overflow="fold")
    for row in rows:
        paper, apart = ("" if row["paper"] is None else f"{row['paper']:g}"), difference(row)
        compared = () if quick else ("" if apart is None else f"{apart:+.2f}", mark(row))
        table.add_row(row["data"], row["model"], paper, ours(row), str(row["n"] or ""), *compared)
    return table


def report(
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")] = Path("report.html"),
    results: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("results"),
    json: bool = False,
) -> None:
    """Make one page of everything that was measured: tables beside the paper's, figures, settings.

    Example: nsm report --out report.html

    Args:
        out: The HTML file, which needs no other.
        results: Folder of the results.
        json: Print the rows and the claims as JSON instead of a sentence.
    """
    if not results.is_dir():
        hint = "of `nsm reproduce`, with --quick runs/quick/results"
        raise UsageError(f"Expected --results to be the folder of results {hint}, but got {results}")
    if out.is_dir():
        raise UsageError(f"Expected --out to be a file, but got the folder {out}")
    from nsm.paper import report as paper_report

    findings = paper_report.write(out, results)
    if json:
        print_json({"file": str(out), **paper_report.summary(findings)})
        return
    run = sum(row["mean"] is not None for row in findings.rows)
    print(f"{out}: {run} of {len(findings.rows)} rows were run, {len(findings.records)} other records")


def bench(
    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="WORK ...")] = (),
    quick: bool = False,
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    json: bool = False,
) -> int:
    """Measure the speed of this machine, beside the networks an NSM replaces.

    Works are mnist-step, mc, memory and kernels; on a GPU also cifar-step, epochs, seeds, seeds-cnn and blankout. The
    work scaling draws time and memory against sizes, and is done only where it is named. A time is printed once its
    result was checked.

    Example: nsm bench --only mnist-step mc

    Args:
        only: Some works. Default: all that concern this machine.
        quick: Few repeats and small sizes; nothing is kept without --out.
        out: The JSON file, with a PNG and an SVG beside it. Default: results/bench/HARDWARE.json
        json: Print JSON instead of a table.
    """
    from nsm.bench.__main__ import bench

    try:
        return bench(list(only), quick, out, json)
    except ValueError as error:
        if not str(error).startswith(("Expected a work", "Expected --out")):
            raise
        raise UsageError(str(error)) from None
