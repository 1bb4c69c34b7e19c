"""From the results of runs to the rows of the tables: results/paper.json."""

import json
import statistics
from pathlib import Path
from typing import Any

from nsm import record
from nsm.paper.rows import ROWS, Row
from nsm.paper.runs import Run, finished, from_rows, summary

_EMPTY = dict.fromkeys(
    ("mean", "standard_error", "n", "epochs", "samples", "recipe", "hardware", "commit", "seconds", "values")
)


def rows(results: Path, runs: dict[str, Run] | None = None) -> list[dict[str, Any]]:
    """Every row of `ROWS` with what its run found, errors in percent; a row without a result has its reason."""
    runs = from_rows() if runs is None else runs
    return [_row(row, runs.get(str(row.run)), results) for row in ROWS]


def write(results: Path, runs: dict[str, Run] | None = None) -> Path:
    """Write all rows to paper.json, if one of them is new; the file of each run has more."""
    path, found = results / "paper.json", rows(results, runs)
    if not path.exists() or load(results) != found:
        record.write(path, {"rows": found})
    return path


def _row(row: Row, run: Run | None, results: Path) -> dict[str, Any]:
    parts = finished(run, results) if run is not None else []
    shown = {"table": row.table, "data": row.data, "model": row.model, "paper": row.paper, "own": row.own}
    shown |= {
        "run": row.run,
        "note": row.note,
        **_EMPTY,
        "n": 0,
        "quick": bool(run and run.quick),
        "reason": Row.reason if run and run.quick else row.reason,  # others are of the full tables
    }
    values = [value for part in parts for value in _values(row, part)]
    if run is None or not values:
        return shown
    recipe = parts[0]["recipe"]
    return shown | {
        **summary(values),
        "epochs": recipe["epochs"],
        "samples": recipe["num_samples"],
        "last": len(parts[0]["epochs"]) if row.measure == "error" else 1,
        "training_inputs": parts[0]["training_inputs"],
        "test_inputs": parts[0]["test_inputs"],
        "recipe": {**recipe, "seeds": len(values), "init_from": run.start},
        "hardware": ", ".join(sorted({part["hardware"] for part in parts})),
        "commit": ", ".join(dict.fromkeys(part["commit"] for part in parts if part["commit"])) or None,
        "seconds": sum(part["seconds"] for part in parts),
        "reason": None,
    }


def _values(row: Row, part: dict[str, Any]) -> list[float]:
    """One error for each seed of a part."""
    if row.measure == "error":
        return [statistics.fmean(errors) for errors in part["errors"]]
    if row.measure == "recordings":
        return part.get("errors_per_recording", [])
    return part.get("scaling", {}).get(row.measure, {}).get("0.1", [])


def curves(results: Path, runs: dict[str, Run], names: dict[str, str], pick: str) -> dict[str, Any]:
    """What ``pick`` takes from the parts of some runs, for each seed, under the names they are shown with."""
    found = {}
    for shown, name in names.items():
        parts = finished(runs[name], results)
        if pick == "scaling":
            parts = [part for part in parts if pick in part]
        if parts and pick == "scaling":
            ways = parts[0]["scaling"]
            found[shown] = {
                way: {by: summary([e for part in parts for e in part["scaling"][way][by]]) for by in ways[way]}
                for way in ways
            }
        elif parts:
            errors = [each for part in parts for each in part["errors"]]  # (seeds, epochs)
            found[shown] = {"epochs": parts[0]["epochs"], "errors": errors}
    return found


def load(results: Path) -> list[dict[str, Any]]:
    """The rows that were written."""
    return json.loads((results / "paper.json").read_text())["rows"]
