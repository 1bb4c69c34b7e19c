"""``python -m nsm.bench``: the command ``nsm bench`` where tyro is not installed."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SCALING = "scaling"


def bench(only: Sequence[str], quick: bool, out: Path | None, as_json: bool) -> int:
    """Measure, print and keep; the status is 1 where a result was wrong.

    Raises:
        ValueError: A name is not that of a work.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler tells of every start and stop
    from nsm import record
    from nsm.bench import report
    from nsm.bench.works import run

    if out and SCALING in only and len(only) > 1:
        raise ValueError(f"Expected --out to name the file of one record, but got {out} for works and for {SCALING}")
    name = report.slug(record_hardware())
    status, said = 0, {}
    if only != [SCALING]:
        found = run([work for work in only if work != SCALING], quick=quick, say=_quiet if as_json else _line)
        target = out or (None if quick else Path("results") / "bench" / f"{name}.json")
        files = report.save(target, found) if target else []
        status = int(any(row["met"] is False and row.get("reason") for row in found["rows"]))
        said |= {**record.provenance(), **found, "files": [str(path) for path in files]}
        if not as_json:
            print("", report.table(found["rows"]), "", *files, sep="\n")
    if SCALING in only:
        from nsm.bench import scaling

        curves = scaling.measure(quick=quick)
        target = out or (None if quick else Path("results") / "bench" / f"scaling-{name}.json")
        files = scaling.save(target, curves) if target else []
        said |= {"scaling": curves, "scaling_files": [str(path) for path in files]}
        if not as_json:
            print(scaling.table(curves), *files, sep="\n")
    if as_json:
        print(json.dumps(said, ensure_ascii=False))
    return status


def record_hardware() -> str:
    """The machine in words, with torch loaded so that a GPU is seen."""
    import torch  # noqa: F401

    from nsm import record

    return record.hardware()


def _line(row: dict[str, Any]) -> None:
    from nsm.bench import report

    print(" | ".join(value for value in report.cells(row).values() if value != "–"), flush=True)


def _quiet(row: dict[str, Any]) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse plainly, and run."""
    parser = argparse.ArgumentParser(prog="python -m nsm.bench", description="Measure the speed of this machine.")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORK", help="some works; scaling is one by itself")
    parser.add_argument("--quick", action="store_true", help="few repeats, small sizes; nothing is kept without --out")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the JSON file; default: results/bench/HARDWARE.json")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    try:
        return bench(options.only, options.quick, options.out, options.json)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
