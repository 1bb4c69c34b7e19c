"""What was found: the records under results/, any of which may be missing, and how they are put in words."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nsm.data.errors import DataError
from nsm.paper.rows import ROWS, Row
from nsm.paper.showing import RESULTS, read

BETTER, EQUAL, WORSE = "▲", "≈", "▼"
MEANING = {BETTER: "better than the paper", EQUAL: "equal within two standard errors", WORSE: "worse than the paper"}
ABBREVIATIONS = (
    "NSM: Neural Sampling Machine, bNSM with blank-out (Bernoulli) noise, gNSM with Gaussian noise. PI MNIST: "
    "permutation-invariant, the network is not told which pixels are neighbours. StNN: stochastic network of sigmoid "
    "units. dCNN: deterministic network of rectifiers. BD: binary deterministic network (sign, straight-through "
    "gradient), wBD with weight normalisation. SN: noisy rectifier. BN: the NSM without its noise. STE: "
    "straight-through estimator. BinConcrete: learned with relaxed states. *: from scratch, not from the trained dCNN."
)
_FIELDS = {"table", "data", "model", "paper", "mean", "standard_error", "n"}  # that a row cannot be shown without


@dataclass(frozen=True)
class Findings:
    """Everything under a folder of results.

    Attributes:
        rows: Of every table, in the order of the paper; one that was not run has no mean and a reason.
        runs: The record of every run, of a row or not, by name.
        records: Of the figures and of what lies beyond the tables, by name; those that are there.
        searches: For recipes, on validation data, by name.
    """

    rows: list[dict[str, Any]]
    runs: dict[str, dict[str, Any]]
    records: dict[str, dict[str, Any]]
    searches: dict[str, dict[str, Any]] = field(default_factory=dict)

    def row(self, table: str, data: str, model: str) -> dict[str, Any] | None:
        """A row that was run; None if it was not."""
        wanted = (table, data, model)
        found = (row for row in self.rows if (row["table"], row["data"], row["model"]) == wanted)
        return next((row for row in found if row["mean"] is not None), None)


RECORDS = {  # name: file
    "operations": "operations",
    "percentiles": "figure-percentiles",
    "weights": "figure-weights",
    "statistics": "figure-statistics",
    "precision": "precision",
    "scaling": "paper/scaling",
    "convergence": "paper/convergence",
    "online": "online",
}


def gather(results: Path = RESULTS) -> Findings:
    """Read what is there; a file that is broken raises a DataError."""
    paper = read("paper", results)
    rows = _checked(paper, results / "paper.json") if paper else [_not_run(row) for row in ROWS]
    runs = {name: record for name, record in _folder(results, "paper") if "parts" in record}
    records = {name: record for name, file in RECORDS.items() if (record := read(file, results))}
    return Findings(rows, runs, records, dict(_folder(results, "search")))


def _folder(results: Path, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted((results / name).glob("*.json")):
        yield path.stem, read(f"{name}/{path.stem}", results) or {}


def _checked(paper: dict[str, Any], path: Path) -> list[dict[str, Any]]:
    rows = paper.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) and set(row) >= _FIELDS for row in rows):
        raise DataError(f"Expected {path} to have `rows`, each with {', '.join(sorted(_FIELDS))}, but got others")
    return rows


def _not_run(row: Any) -> dict[str, Any]:
    shown = {name: getattr(row, name) for name in ("table", "data", "model", "paper", "own", "run", "reason", "note")}
    return {**shown, "mean": None, "standard_error": None, "n": 0, "quick": False, "values": None}


def error_of(row: dict[str, Any]) -> float:
    """The standard error of a row: over its seeds; of a single network, that of a share of the test inputs."""
    if row.get("standard_error") is not None:
        return row["standard_error"]
    share = row["mean"] / 100
    return 100 * math.sqrt(share * (1 - share) / (row.get("test_inputs") or 10_000))


def difference(row: dict[str, Any]) -> float | None:
    """Ours less the paper's, in percent; None where one of them is missing."""
    return None if row["mean"] is None or row["paper"] is None else row["mean"] - row["paper"]


def mark(row: dict[str, Any]) -> str:
    """Better, equal or worse than the paper; empty where nothing can be compared, as in a quick version.

    >>> row = {"mean": 1.3, "paper": 1.36, "standard_error": 0.02}
    >>> mark(row), mark({**row, "standard_error": 0.05}), mark({**row, "mean": 1.5}), mark({**row, "mean": None})
    ('▲', '≈', '▼', '')
    >>> mark({**row, "quick": True})
    ''
    """
    apart = difference(row)
    if apart is None or row.get("quick"):
        return ""
    if abs(apart) <= 2 * error_of(row):
        return EQUAL
    return BETTER if apart < 0 else WORSE


def of_the_paper(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that the paper has, without those of ours that stand beside its figure."""
    return [row for row in rows if row["paper"] is not None and not row.get("own")]


def ours(row: dict[str, Any]) -> str:
    """Our figure with its standard error, or why there is none.

    >>> ours({"mean": 1.3, "standard_error": 0.02, "n": 5, "quick": False})
    '1.30 ± 0.02'
    >>> ours({"mean": None, "reason": "no data"})
    'not run: no data'
    """
    if row["mean"] is None:
        return f"not run: {why}" if (why := reason(row)) else Row.reason
    return f"{percent(row)}{' (quick)' if row.get('quick') else ''}"


def reason(row: dict[str, Any]) -> str | None:
    """Why there is no result, where more can be said than that there is none yet."""
    why = row.get("reason")
    return None if row["mean"] is not None or why == Row.reason else why


def notes(rows: list[dict[str, Any]]) -> list[str]:
    """What a reader of some rows must know, with the rows it is of.

    >>> row = {"data": "MNIST", "model": "wBD", "mean": 2.6, "note": "one start"}
    >>> notes([row, {**row, "model": "BD"}, {**row, "model": "SN", "note": None}, {**row, "mean": None}])
    ['MNIST wBD, BD: one start']
    """
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["mean"] is not None and row.get("note"):
            found.setdefault((row["data"], row["note"]), []).append(row["model"])
    return [f"{data} {', '.join(models)}: {note}" for (data, note), models in found.items()]


def percent(row: dict[str, Any]) -> str:
    """The error with its standard error over seeds, if there are several; a third digit below one percent."""
    digits = 3 if row["mean"] < 1 else 2
    error = row.get("standard_error")
    return f"{row['mean']:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")


def amount(count: float) -> str:
    """A large number in words of three digits.

    >>> amount(8528896), amount(909), amount(1477980979200), amount(23040)
    ('8.53 M', '909', '1.48 T', '23.0 k')
    """
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            value = count / size
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"
    return f"{count:g}"


def short(commit: str | None) -> str:
    """A commit in twelve letters, and whether files had been changed.

    >>> short("0123456789abcdef"), short("0123456789abcdef+changes"), short(None)
    ('0123456789ab', '0123456789ab+changes', '–')
    """
    name, changes, more = (commit or "–").partition("+")
    return name[:12] + changes + more


def duration(seconds: float) -> str:
    """Seconds in words.

    >>> duration(12.34), duration(125), duration(7300)
    ('12.3 s', '2 min 5 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
