"""One run: networks trained by one recipe, their test errors over the last epochs, and the file that keeps them.

A run is made of *parts*, each some seeds trained together in a folder of its own, so that parts can be trained beside
each other, on other machines, and resumed. ``collect`` joins the parts that are finished into
``results/paper/<name>.json``. A part can be run as a process:

    python -m nsm.paper.runs RUN --seed 0 --seeds 5 --work runs/paper --root DATA

where RUN is the name of a run of `nsm.paper.rows`, or a `Run` as JSON.
"""

import argparse
import itertools
import json
import math
import statistics
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from nsm import checkpoint, record
from nsm.batches import derive
from nsm.data import DataError, Dataset, load
from nsm.evaluation import evaluate
from nsm.networks import build
from nsm.paper.rows import ROWS, Row
from nsm.paper.scaling import scaling
from nsm.recipes import Recipe
from nsm.training import fit

#: Networks whose weights are scaled after training, under the names they are shown with.
SCALED = {
    "NSM": "pi-mnist-nsm", "StNN": "pi-mnist-stnn", "ReLU network": "pi-mnist-relu",
    "additive noise": "pi-mnist-additive", "NSM, harder inputs": "pi-mnist-nsm-harder",
    "NSM, harder inputs, no biases": "pi-mnist-nsm-harder-unbiased",
}  # fmt: skip
PART = "part.json"  # in the folder of a part, once it is finished
_MACHINE = (  # fields of a recipe that say how it is computed, not what
    "seed", "seeds", "init_from", "accelerator", "devices", "num_nodes", "precision", "compile", "cuda_graph",
    "num_workers", "save_every", "tensorboard",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Run:
    """What to train and measure.

    Attributes:
        name: Name of its result.
        recipe: How; its validation split, in its last epochs, is what the error is measured on.
        start: The run whose trained network it starts from.
        sizes: How many inputs to learn from and to be measured on the data must have; None for any.
        scaled: Whether to measure the trained networks with scaled weights too.
        inputs: Learn from so many inputs only, and measure on so many: (training, test); None for all.
        quick: Whether this is a small version, whose numbers stand for nothing.
    """

    name: str
    recipe: Recipe
    start: str | None = None
    sizes: tuple[int, int] | None = None
    scaled: bool = False
    inputs: tuple[int, int] | None = None
    quick: bool = False

    def to_json(self) -> str:
        """All of it, as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Run":
        """What `to_json` wrote."""
        values = json.loads(text)
        pairs = {key: tuple(values[key]) for key in ("sizes", "inputs") if values[key] is not None}
        return cls(**{**values, **pairs, "recipe": Recipe.from_dict(values["recipe"])})


@dataclass(frozen=True)
class Quick:
    """How small the quick version of a table is.

    Attributes:
        inputs: Inputs to learn from and to be measured on.
        epochs: Passes through them.
        samples: Monte-Carlo samples.
    """

    inputs: tuple[int, int]
    epochs: int
    samples: int

    def of(self, run: Run) -> Run:
        """The small version of a run, with a rate that learns something in that time."""
        recipe = replace(
            run.recipe,
            epochs=self.epochs,
            num_samples=self.samples,
            measure_last=None,
            lr=1e-3,
            schedule="constant",
            average_epochs=1,
            imitate=min(run.recipe.imitate, 50),
        )
        return replace(run, recipe=recipe, inputs=self.inputs, quick=True)


def from_rows(table: str | None = None, rows: tuple[Row, ...] = ROWS) -> dict[str, Run]:
    """The runs behind the rows of a table, or of all: learned from all training data, measured on the test data."""
    runs: dict[str, Run] = {}
    for row in rows:
        if row.recipe is None or row.run is None or table not in (None, row.table):
            continue
        recipe = replace(
            row.recipe,
            train_split="train+validation",
            validation_split="test",
            num_samples=100,
            measure_last=row.last,
        )
        runs[row.run] = Run(
            name=row.run, recipe=recipe, start=row.start, sizes=row.sizes, scaled=row.run in SCALED.values()
        )
    return runs


# ------------------------------------------------------------------------- training


def part_folder(run: Run, seed: int, seeds: int, work: Path) -> Path:
    """Where the part of a run is trained that begins with ``seed``."""
    return work / run.name / f"seed-{seed}" if seeds == 1 else work / run.name / f"seeds-{seed}-{seed + seeds - 1}"


def train_part(run: Run, seed: int, seeds: int, work: Path, root: Path | None = None) -> Path:
    """Train and measure some seeds of a run, from where it was cut if it was; returns the part's file.

    What another recipe left in the part's folder is set aside.
    """
    folder = part_folder(run, seed, seeds, work)
    if not _made_by(run, folder):
        set_aside(folder)
    if (folder / PART).exists() and _whole(run, json.loads((folder / PART).read_text())):
        return folder / PART
    recipe = replace(_on_device(run.recipe), seed=seed, seeds=seeds)
    if resume := (folder / checkpoint.RUN).exists():
        began = checkpoint.read_recipe(folder)
        recipe = replace(recipe, init_from=began.init_from)
        if recipe != began:  # on another kind of machine
            set_aside(folder)
            return train_part(run, seed, seeds, work, root)
    elif run.start is not None:
        recipe = replace(recipe, init_from=str(_start(run.start, seed, work)))
    train, test = _data(run, root)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "weights"))
        model = build(recipe)
    history = fit(model, train, recipe, validation=test, run_dir=folder, resume=resume)
    measured = [row for row in history.rows if row["validation_error"] is not None]
    errors = [row.get("validation_errors", [row["validation_error"]]) for row in measured]  # (epochs, seeds)
    part = {
        "seeds": list(range(seed, seed + seeds)),
        "start": run.start,
        "inputs": run.inputs and list(run.inputs),
        "recipe": recipe.to_dict(),
        "training_inputs": len(train),
        "test_inputs": len(test),
        "seconds": sum(row["seconds"] for row in history.rows),
        "epochs": [row["epoch"] for row in measured],
        "errors": [[round(100 * error, 6) for error in each] for each in zip(*errors, strict=True)],
        "losses": [round(row["loss"], 6) for row in history.rows],
    }
    if run.scaled:
        networks = [checkpoint.load(folder, member=k) for k in range(seeds)]
        part["scaling"] = scaling(networks, test, recipe)
    if test.recordings is not None and run.inputs is None:
        split, samples = str(recipe.validation_split), recipe.num_samples
        whole = evaluate(folder, split=split, num_samples=samples, root=root)["members"]
        part["errors_per_recording"] = [round(100 * member["error_per_recording"], 6) for member in whole]
    record.write(folder / PART, part)
    return folder / PART


def _on_device(recipe: Recipe) -> Recipe:
    """The recipe with all that makes a GPU fast, where there is one; checkpoints only every so often."""
    if not torch.cuda.is_available() or recipe.accelerator == "cpu":
        return replace(recipe, save_every=2000)
    return replace(recipe, precision="bf16-mixed", compile=True, cuda_graph=True, save_every=20_000)


def trained(name: str, work: Path) -> dict[int, Path]:
    """For every seed of a run whose network is in ``work``, the folder of its part."""
    parts = [path for path in sorted((work / name).glob(f"*/{PART}")) if _has_weights(path.parent)]
    return {seed: path.parent for path in parts for seed in json.loads(path.read_text())["seeds"]}


def _has_weights(folder: Path) -> bool:
    return (folder / checkpoint.CHECKPOINT).exists()


def _start(name: str, seed: int, work: Path) -> Path:
    """The folder that has the network of this seed to start from; where none has, the others take turns."""
    homes = trained(name, work)
    if not homes:
        raise FileNotFoundError(f"Expected {work / name} to hold a trained network to start from, but got none")
    return homes.get(seed) or homes[sorted(homes)[seed % len(homes)]]


def make_way(run: Run, work: Path) -> None:
    """Set aside all that another recipe left in the folder of a run."""
    for folder in sorted((work / run.name).glob("*/")):
        if not _made_by(run, folder):
            set_aside(folder)


def _made_by(run: Run, folder: Path) -> bool:
    """Whether what is in the folder of a part, if anything, was made by the recipe of this run."""
    files = (folder / name for name in (PART, checkpoint.RUN))
    return same(run, [json.loads(file.read_text()) for file in files if file.exists()])


def set_aside(folder: Path) -> None:
    """Move the folder of a part to ``stale`` among the runs, where nobody looks for it; nothing is deleted."""
    stale = folder.parent.parent / "stale" / folder.parent.name
    stale.mkdir(parents=True, exist_ok=True)
    with checkpoint.locked(folder):  # nobody trains there
        folder.rename(_free(stale / folder.name))


def _free(path: Path, suffix: str = "") -> Path:
    """The first of path-1, path-2, … that is not there."""
    return next(to for k in itertools.count(1) if not (to := path.with_name(f"{path.name}-{k}{suffix}")).exists())


def _data(run: Run, root: Path | None) -> tuple[Dataset, Dataset]:
    recipe = run.recipe
    train, test = (load(recipe.data, split, root) for split in (recipe.train_split, str(recipe.validation_split)))
    if run.sizes not in (None, (len(train), len(test))):
        wanted = " + ".join(f"{size:,}" for size in run.sizes or ())
        got = f"{len(train):,} + {len(test):,}"
        raise DataError(f"Expected {recipe.data} to have {wanted} inputs for {run.name}, but got {got}")
    if run.inputs is not None:
        train, test = (_head(dataset, count) for dataset, count in zip((train, test), run.inputs, strict=True))
    return train, test


def _head(dataset: Dataset, count: int) -> Dataset:
    """``count`` inputs spread evenly over a data set, whose order may be by class."""
    chosen = torch.arange(min(count, len(dataset))) * len(dataset) // min(count, len(dataset))
    recordings = None if dataset.recordings is None else dataset.recordings[chosen]
    return replace(dataset, stored=dataset.stored[chosen], labels=dataset.labels[chosen], recordings=recordings)


# ------------------------------------------------------------------------- results


def result_path(name: str, results: Path) -> Path:
    """Where the result of a run is kept."""
    return results / "paper" / f"{name}.json"


def same(run: Run, parts: list[dict[str, Any]]) -> bool:
    """Whether parts were made by the recipe of this run, from the same start and inputs, on whatever machine."""
    about = {"start": run.start, "inputs": run.inputs and list(run.inputs)}
    return all(
        _essence(part["recipe"]) == _essence(run.recipe.to_dict())
        and all(part.get(key, value) == value for key, value in about.items())  # older parts do not say
        for part in parts
    )


def _essence(recipe: dict[str, Any]) -> dict[str, Any]:
    whole = {**Recipe().to_dict(), **recipe}  # a field that is younger than the part had its default
    return {name: value for name, value in whole.items() if name not in _MACHINE}


def finished(run: Run, results: Path) -> list[dict[str, Any]]:
    """The parts of a run that its result holds; none if they were made by another recipe."""
    path = result_path(run.name, results)
    parts = json.loads(path.read_text())["parts"] if path.exists() else []
    return parts if same(run, parts) else []


def missing(run: Run, results: Path, seeds: int) -> list[int]:
    """Which of the first ``seeds`` seeds the result of a run does not have, with all that is to be measured."""
    done = {seed for part in finished(run, results) if _whole(run, part) for seed in part["seeds"]}
    return [seed for seed in range(seeds) if seed not in done]


def _whole(run: Run, part: dict[str, Any]) -> bool:
    """Whether a part has all that is to be measured; one may be older than the wish to scale its networks."""
    return "scaling" in part or not run.scaled


def collect(run: Run, work: Path, results: Path) -> dict[str, Any] | None:
    """Join the finished parts of a run with those of its result, and write what is new; None where there are none.

    A part that the result has already stays, though it was made once more: for its weights, on another machine. A
    result of another recipe is moved to ``stale`` beside it.
    """
    new = [json.loads(path.read_text()) for path in sorted((work / run.name).glob(f"*/{PART}"))]
    new = sorted((part for part in new if same(run, [part])), key=lambda part: -len(part["seeds"]))
    chosen: list[dict[str, Any]] = []
    # what has all that is to be measured comes first, then what is there already, then the larger of what is new
    for part in sorted([*finished(run, results), *new], key=lambda part: not _whole(run, part)):
        if not {seed for other in chosen for seed in other["seeds"]} & set(part["seeds"]):  # a seed counts once
            chosen.append(part)
    if not chosen:
        return None
    path = result_path(run.name, results)
    if path.exists() and not finished(run, results):
        stale = path.parent / "stale"
        stale.mkdir(exist_ok=True)
        path.rename(_free(stale / path.stem, path.suffix))
    chosen.sort(key=lambda part: part["seeds"])
    errors = [statistics.fmean(each) for part in chosen for each in part["errors"]]
    result = {
        "run": run.name,
        "start": run.start,
        "quick": run.quick,
        **summary(errors),
        "seconds": sum(part["seconds"] for part in chosen),
        "parts": chosen,
    }
    return keep(path, result, chosen)


def keep(path: Path, content: dict[str, Any], parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Write what was made of parts, with their provenance instead of this process's; not if that is there already."""
    made = {key: parts[0][key] for key in ("hardware", "python", "platform", "versions", "commit")}
    made["hardware"] = ", ".join(sorted({part["hardware"] for part in parts}))
    made["commit"] = ", ".join(dict.fromkeys(part["commit"] for part in parts if part["commit"])) or None
    whole = {**made, **content}
    if not path.exists() or json.loads(path.read_text()) != whole:
        record.write(path, whole)
    return whole


def summary(values: list[float]) -> dict[str, Any]:
    """The mean of one value for each seed, and its standard error (None of a single seed).

    >>> summary([1.0, 2.0, 3.0])["mean"]
    2.0
    """
    n = len(values)
    spread = statistics.stdev(values) / math.sqrt(n) if n > 1 else None
    return {"mean": statistics.fmean(values), "standard_error": spread, "n": n, "values": values}


def main(arguments: list[str] | None = None) -> int:
    """Run one part, as a process of its own."""
    parser = argparse.ArgumentParser(prog="python -m nsm.paper.runs", description="Train one part of a run.")
    parser.add_argument("run", help="name of a run, or a run as JSON")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds to train together")
    parser.add_argument("--work", type=Path, default=Path("runs/paper"), help="folder of the parts")
    parser.add_argument("--root", type=Path, default=None, help="folder of the data")
    asked = parser.parse_args(arguments)
    run = Run.from_json(asked.run) if asked.run.startswith("{") else from_rows()[asked.run]
    path = train_part(run, asked.seed, asked.seeds, asked.work, asked.root)
    part = json.loads(path.read_text())
    means = ", ".join(f"{statistics.fmean(each):.3f}" for each in part["errors"])
    print(f"{run.name}: {means} % in {part['seconds']:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
