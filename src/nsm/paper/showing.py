"""What the figures share: where results lie, how they are written, and colours that everybody can tell apart."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsm.data.errors import DataError
from nsm.display import save_figure
from nsm.recipes import Recipe
from nsm.record import provenance

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULTS = Path("results")

#: From the palette of Okabe and Ito, which the colour-blind can tell apart; line styles differ as well.
COLORS = {
    "NSM": "#0072B2",
    "NSM, harder inputs": "#000000",
    "NSM, harder inputs, no biases": "#999999",
    "StNN": "#D55E00",
    "ReLU": "#009E73",
    "additive noise": "#56B4E9",
    "BinConcrete": "#E69F00",
    "sigmoid": "#CC79A7",
}
STYLES = {
    "NSM": "-", "NSM, harder inputs": "-", "NSM, harder inputs, no biases": "--", "StNN": "--", "ReLU": ":",
    "additive noise": "-.", "BinConcrete": "--", "sigmoid": ":",
}  # fmt: skip


def write(name: str, result: dict[str, Any], results: Path = RESULTS) -> dict[str, Any]:
    """Write ``results/NAME.json``, with provenance and numbers rounded to five digits; returns what it holds.

    A record with the same content stays, with the provenance that it has.
    """
    made, content, before = provenance(), _rounded(result), read(name, results)
    record = {**made, **content}
    if before is not None and {**before, **made} == record:
        return before
    path = results / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(_text(record) + "\n")
    temporary.replace(path)
    return record


def read(name: str, results: Path = RESULTS) -> dict[str, Any] | None:
    """What ``results/NAME.json`` holds; None if there is no such file, and a DataError if it is no record."""
    path = results / f"{name}.json"
    try:
        record = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:  # neither UTF-8 nor JSON
        raise DataError(f"Expected {path} to be JSON, but got {error}") from None
    if not isinstance(record, dict):
        raise DataError(f"Expected {path} to be a JSON object, but got {type(record).__name__}")
    return record


def measured(
    name: str,
    settings: dict[str, Any],
    measure: Callable[[], dict[str, Any]],
    draw: Callable[[dict[str, Any]], "Figure"],
    results: Path = RESULTS,
) -> dict[str, Any]:
    """The record of a figure, which is drawn: measured now, unless the one in ``results`` stands.

    It stands where it was made with the same settings and at least as many seeds. A full one also stands where a quick
    one or fewer seeds are asked for, whatever the settings: whoever wants that moves the record away.

    Args:
        name: Of the record and the drawing.
        settings: What the record says of itself: "quick", "seeds", and all that the numbers depend on.
        measure: Makes the rest of the record.
        draw: Makes the drawing from it.
        results: Folder of the results.
    """
    record = read(name, results)
    if record is not None and _stands(record, _rounded(settings)):
        seeds = f"{record['seeds']} seed{'s' * (record['seeds'] > 1)}"
        print(f"{name}: {results / name}.json of {seeds} stands and is only drawn", file=sys.stderr)
    else:
        began = time.perf_counter()
        record = write(name, {**settings, **measure(), "seconds": time.perf_counter() - began}, results)
    save(draw(record), name, results)
    return record


def _stands(record: dict[str, Any], settings: dict[str, Any]) -> bool:
    quick, seeds = settings["quick"], settings["seeds"]
    if not record["quick"] and (quick or seeds < record["seeds"]):
        return True
    known = [key for key in settings if key in record and key not in ("about", "quick", "seeds", "recipes")]
    same = all(record[key] == settings[key] for key in known)  # a younger setting was what it is
    same = same and _whole(record.get("recipes", settings["recipes"])) == _whole(settings["recipes"])
    return same and record["quick"] == quick and seeds <= record["seeds"]


def _whole(recipes: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Recipes with the fields that are younger than a record, which had their defaults."""
    return {name: {**Recipe().to_dict(), **recipe} for name, recipe in recipes.items()}


def save(figure: "Figure", name: str, results: Path = RESULTS) -> list[Path]:
    """Write ``results/figures/NAME.png`` and ``.svg``."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": name}):
        return save_figure(figure, results / "figures" / name)


def command(
    name: str, about: str | None, run: Callable[..., object], draw: Callable[..., "Figure"], **numbers: Any
) -> None:
    """Run a figure from the shell, or only draw its record again; ``numbers`` are further options, with defaults."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--draw", action="store_true", help="draw the record that is there")
    for option, default in numbers.items():
        parser.add_argument(f"--{option}", type=type(default) if default is not None else int, default=default)
    asked = vars(parser.parse_args())
    record = read(name) if asked.pop("draw") else None
    if record:
        save(draw(record), name)
    else:
        run(**asked)


def logarithmic(panel: Any) -> None:
    """A logarithmic axis of errors, with ticks that can be read."""
    from matplotlib.ticker import LogLocator, NullFormatter

    panel.set_yscale("log")
    panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
    panel.yaxis.set_major_formatter("{x:g}")
    panel.yaxis.set_minor_formatter(NullFormatter())


def label(result: dict[str, Any]) -> str:
    """What a title must say of a run that was cut short."""
    return "quick version: " if result.get("quick") else ""


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_rounded(each) for each in value]
    return value


def _text(value: Any, indent: int = 0) -> str:
    """JSON with one line for every list of numbers, so that a long curve does not make a long file."""
    pad = " " * (indent + 1)
    if isinstance(value, dict) and value:
        inner = ",\n".join(f"{pad}{json.dumps(key)}: {_text(each, indent + 1)}" for key, each in value.items())
        return "{\n" + inner + "\n" + " " * indent + "}"
    if isinstance(value, list) and any(isinstance(each, dict | list) for each in value):
        return "[\n" + ",\n".join(pad + _text(each, indent + 1) for each in value) + "\n" + " " * indent + "]"
    return json.dumps(value, ensure_ascii=False)
