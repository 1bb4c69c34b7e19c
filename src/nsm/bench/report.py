"""What was measured, as a line, a table, a file and a picture."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nsm import record
from nsm.bench.goals import goals

Row = Mapping[str, Any]


def slug(hardware: str) -> str:
    """A file's name for a machine.

    >>> slug("NVIDIA H200"), slug("AMD EPYC, 2 cores")
    ('nvidia-h200', 'amd-epyc-2-cores')
    """
    return re.sub(r"[^a-z0-9]+", "-", hardware.lower()).strip("-")


def duration(seconds: float | None) -> str:
    """A time in a unit that suits it.

    >>> duration(2.5), duration(0.0123), duration(4e-5), duration(0.0009998), duration(None)
    ('2.50 s', '12.3 ms', '40.0 µs', '1.00 ms', '–')
    """
    if seconds is None:
        return "–"
    rounded = float(f"{seconds:.3g}")
    unit, factor = ("s", 1) if rounded >= 1 else ("ms", 1e3) if rounded >= 1e-3 else ("µs", 1e6)
    return f"{rounded * factor:#.3g} {unit}".replace(". ", " ")


def cells(row: Row) -> dict[str, str]:
    """What a row says, cell by cell; without a time where its result was wrong or it was not run."""
    units = {"seconds": " s", "ratio": " ×"}
    goal = ", ".join(f"≤ {limit:.3g}{units[figure]}" for figure, limit in row["goal"].items())
    work = row["work"] + (" (quick: smaller sizes)" if row.get("quick") else "")
    if row.get("reason"):
        return {"work": work, "time": "–", "quartiles": "–", "ratio": "–", "goal": goal, "met": row["reason"]}
    spread = row["spread"]
    ratio = "–" if row["ratio"] is None else f"{row['ratio']:.3f}"
    if (same := row.get("same_dtype_ratio")) is not None:
        ratio += f" (bf16 ÷ bf16: {same:.3f})"
    if (share := row.get("share_of_integer_limit")) is not None:
        ratio += f" ({share:.0%} of the card's integer limit)"
    quick = " (extrapolated)" if row.get("extrapolated") else ""
    return {
        "work": work,
        "time": duration(row["seconds"]) + quick,
        "quartiles": "–" if spread is None else f"{duration(spread[0])} to {duration(spread[1])}",
        "ratio": ratio,
        "goal": goal,
        "met": {True: "yes", False: "no", None: "–"}[row["met"]],
    }


def table(rows: Sequence[Row]) -> str:
    """The rows as text in columns."""
    lines = [dict(zip(_HEAD, _HEAD, strict=True)), *map(cells, rows)]
    widths = {name: max(len(line[name]) for line in lines) for name in _HEAD}
    return "\n".join("  ".join(line[name].ljust(widths[name]) for name in _HEAD).rstrip() for line in lines)


_HEAD = ("work", "time", "quartiles", "ratio", "goal", "met")


def markdown(found: Mapping[str, Any]) -> str:
    """One machine's record as Markdown: the goals, and all that was tried on the way."""
    threads = f", {found['threads']} threads" if found["device"] == "cpu" else ""
    lines = [f"### {found['hardware']} (torch {found['versions']['torch']}{threads})", ""]
    lines += ["| " + " | ".join(_HEAD) + " |", "|" + "---|" * len(_HEAD)]
    lines += ["| " + " | ".join(cells(row).values()) + " |" for row in found["rows"]]
    lines += ["", "| in the same run | time | quartiles |", "|---|---|---|"]
    for way in found["peers"]:
        spread = "–" if way["seconds"] is None else " to ".join(map(duration, way["spread"]))
        fewer = f" (× {way['scale']:g}, of fewer passes)" if "scale" in way else ""
        lines.append(f"| {way['work']}: {way['name']}{fewer} | {duration(way['seconds'])} | {spread} |")
    return "\n".join(lines)


def save(path: Path, found: dict[str, Any]) -> list[Path]:
    """Write the record, and a picture of it beside (PNG and SVG); rows of other works in an older record stay.

    Each row has its own commit, so a work can be measured again by itself; one that was not has a row that says so.
    """
    found = whole(_merge(json.loads(path.read_text()), found) if path.exists() else found)
    record.write(path, found)
    return [path, *plot(found, path.with_suffix(".png"))]


def whole(found: dict[str, Any]) -> dict[str, Any]:
    """With a row for every goal, in their order, and judged by it."""
    old = {row["work"]: row for row in found["rows"]}
    rows = [(goal, old.get(goal.what) or goal.row(None)) for goal in goals(found["device"])]
    return {**found, "rows": [row if "reason" in row else goal.judge(row) for goal, row in rows]}


def _merge(old: Mapping[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """New rows in the places of old ones."""
    if old.get("device") != new["device"] or old.get("quick") or new["quick"]:
        return new
    again = {row["name"] for row in new["rows"]}
    rows = {row["work"]: row for row in [*old["rows"], *new["rows"]]}
    peers = [way for way in old["peers"] if way["work"] not in again] + new["peers"]
    return {**new, "rows": list(rows.values()), "peers": peers}


def plot(found: Mapping[str, Any], path: Path) -> list[Path]:
    """A bar for every figure with a goal, as a share of the goal; PNG, and SVG beside it."""
    from matplotlib.figure import Figure

    bars = [
        (f"{row['work']}\n{figure}: {row[figure]:.3g}, goal ≤ {limit:.3g}", row[figure] / limit)
        for row in found["rows"]
        for figure, limit in row["goal"].items()
        if row.get(figure) is not None
    ]
    figure = Figure(figsize=(9, 1.2 + 0.55 * max(1, len(bars))), layout="constrained")
    axes = figure.subplots()
    names, shares = [name for name, _ in bars][::-1], [share for _, share in bars][::-1]
    colours = ["#0072B2" if share <= 1 else "#D55E00" for share in shares]  # told apart by all eyes
    axes.barh(names, shares, color=colours)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlim(0, 1.08 * max([1, *shares]))
    axes.set_xlabel("measured ÷ goal (left of the line: met)")
    axes.set_title(f"{found.get('hardware') or record.hardware()}", loc="left")
    axes.tick_params(axis="y", labelsize=7)
    targets = [path, path.with_suffix(".svg")]
    for target in targets:
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target, dpi=150, metadata={"Date": None} if target.suffix == ".svg" else None)
    return targets
