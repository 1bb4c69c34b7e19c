"""Table 1: permutation-invariant MNIST. Beside it: scaled weights, and how fast the NSM and the StNN learn."""

from dataclasses import replace
from pathlib import Path

from nsm import record
from nsm.paper.runs import SCALED, Quick, Run, from_rows
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
    scaling = curves(results, done, SCALED, "scaling")
    if scaling:
        record.write(results / "paper" / "scaling.json", {"curves": scaling})
    convergence = curves(results, done, CONVERGENCE, "errors")
    if convergence:
        record.write(results / "paper" / "convergence.json", {"curves": convergence})
