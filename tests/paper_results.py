"""A folder of made-up results of the real form, for tests of what is made from them."""

import json
import random
from pathlib import Path
from typing import Any

from nsm.paper.rows import ROWS
from nsm.paper.runs import SCALED
from nsm.recipes import PI_MNIST, Recipe

MACHINE = {"hardware": "A made-up machine", "commit": "0123456789abcdef", "versions": {"torch": "2.13.0"}}


def make_up(folder: Path, share: float = 0.8, seed: int = 0) -> Path:
    """Write paper.json, the runs' files and the curves; about ``share`` of the rows have a result."""
    chance, rows = random.Random(seed), []
    (folder / "paper").mkdir(parents=True, exist_ok=True)
    for row in ROWS:
        shown: dict[str, Any] = {
            key: getattr(row, key) for key in ("table", "data", "model", "paper", "own", "run", "reason", "note")
        }
        if row.run is None or chance.random() > share:
            rows.append({**shown, "mean": None, "standard_error": None, "n": 0, "quick": False, "values": None})
            continue
        n = chance.choice((1, 5))
        mean = (row.paper or 2.0) * chance.uniform(0.8, 1.2)
        recipe = {**(row.recipe or Recipe()).to_dict(), "seeds": n}
        shown |= {
            "mean": mean,
            "standard_error": 0.03 if n > 1 else None,
            "n": n,
            "values": [mean] * n,
            "epochs": 200,
            "samples": 100,
            "test_inputs": 10_000,
            "recipe": recipe,
            "seconds": 90.0,
            "quick": False,
            "reason": None,
        }
        rows.append({**shown, **MACHINE})
        part = {"seeds": list(range(n)), "recipe": recipe, "seconds": 90.0, **MACHINE}
        write(folder / "paper" / f"{row.run}.json", {**MACHINE, "run": row.run, "seconds": 90.0, "parts": [part]})
    write(folder / "paper.json", {**MACHINE, "rows": rows})
    write(folder / "paper" / "convergence.json", {**MACHINE, "curves": {"NSM": _learning(2.0), "StNN": _learning(3.0)}})
    lost = dict(zip(SCALED, (1.45, 30.0, 60.0, 40.0, 1.4, 1.5), strict=True))
    write(folder / "paper" / "scaling.json", {**MACHINE, "curves": {name: scaled(by) for name, by in lost.items()}})
    for name in ("pi-mnist-nsm-convergence", "pi-mnist-stnn-convergence"):
        part = {"seeds": [0], "recipe": {**PI_MNIST.to_dict(), "epochs": 30}, "seconds": 9.0, **MACHINE}
        write(folder / "paper" / f"{name}.json", {**MACHINE, "run": name, "seconds": 9.0, "parts": [part]})
    return folder


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False))


def _learning(scale: float) -> dict[str, Any]:
    return {"epochs": list(range(1, 11)), "errors": [[scale * (1 + k / e) for e in range(1, 11)] for k in (1, 2)]}


def scaled(lost: float, plain: float = 1.4) -> dict[str, Any]:
    """Errors of a network with scaled weights: ``plain`` as trained, ``lost`` with any factor."""
    ways = dict.fromkeys(("weights", "weights and biases"), ("0.01", "0.1", "1.0", "10.0", "100.0"))
    ways |= dict.fromkeys(("output too", "rows"), ("0.1",))
    return {way: {f: summary(plain if f == "1.0" else lost) for f in factors} for way, factors in ways.items()}


def summary(mean: float) -> dict[str, Any]:
    """Five seeds that are 0.1 apart: a standard error of 0.07."""
    values = [mean - 0.2 + 0.1 * k for k in range(5)]
    return {"mean": mean, "standard_error": 0.0707, "n": 5, "values": values}
