"""Table 1: permutation-invariant MNIST. Beside it: scaled weights, and how fast the NSM and the StNN learn."""

from dataclasses import replace
from pathlib import Path

from nsm.paper.runs import SCALED, Quick, Run, finished, from_rows, keep
from nsm.paper.summary import curves

QUICK = Quick(inputs=(6_000, 300), epochs=2, samples=10)
CONVERGENCE_EPOCHS = 30
CONVERGENCE = {"NSM": "pi-mnist-nsm-convergence", "StNN": "pi-mnist-stnn-convergence"}


def runs() -> dict[str, Run]:
    """The rows' runs, and two shorter ones whose test error is measured after every epoch."""
    found = from_rows("table1")
    for shown, name in CONVERGENCE.items():
        whole = found[SCALED[shown]]
        recipe = replace(whole.recipe, epochs=CONVERGENCE_EPOCHS, measure_last=None)
        found[name] = replace(whole, name=name, recipe=recipe, scaled=False)
    return found


def finish(results: Path, done: dict[str, Run]) -> None:
    """Write the curves that are not rows: error against the factor of the weights, and against the epoch."""
    for name, shown, pick in (("scaling", SCALED, "scaling"), ("convergence", CONVERGENCE, "errors")):
        parts = [part for run in shown.values() for part in finished(done[run], results)]
        if parts:
            quick = any(done[run].quick for run in shown.values())
            content = {"quick": quick, "curves": curves(results, done, shown, pick)}
            keep(results / "paper" / f"{name}.json", content, parts)
