"""Variants of a recipe, learned from the training split and measured on the validation split: which one wins?

    python benchmarks/search_recipes.py pi-mnist --minutes 8 --processes 6 --seeds 3 [--epochs 200] [--only NAME …]

Each variant is a run of `nsm.paper.runs`, kept in --results as a file of its own as soon as it is finished; what a
limit of time cuts is saved under --work, and the same command goes on with it. The table at the end, best first, is
also in results/search/<grid>.json. The test data are never looked at.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from nsm import record
from nsm.paper.queue import jobs, work_through
from nsm.paper.runs import Run, result_path, same, summary
from nsm.recipes import CIFAR10_CNN, CIFAR10_CNN_TUNED, EMNIST_CNN, MNIST_CNN, PI_MNIST, Recipe

ROOT = Path(__file__).resolve().parent.parent

_DROP: dict[str, Any] = {"input_dropout": 0.2}
_DROP_MORE: dict[str, Any] = {"input_dropout": 0.3}
_FLIP: dict[str, Any] = {"input_flip": 0.05}
_LEVEL: dict[str, Any] = {"data": "mnist-grey", "input_level": 0.3}
_MUON: dict[str, Any] = {"muon_lr": 2e-4}
_MEAN: dict[str, Any] = {"average_epochs": 20}
_IMITATE = {"init_from": "dcnn", "imitate": 300}
GRIDS: dict[str, tuple[Recipe, dict[str, dict[str, Any]]]] = {
    "pi-mnist": (
        PI_MNIST,
        {
            "plain": {},
            "mean": _MEAN,
            "drop": _DROP,
            "drop mean": _DROP | _MEAN,
            "drop mean concrete": _DROP | _MEAN | {"unit": "bNSM (BinConcrete)"},
            "drop 0.3 mean": _DROP_MORE | _MEAN,
            "drop 0.3 mean smooth": _DROP_MORE | _MEAN | {"label_smoothing": 0.1},
            "drop 0.3 mean 1e-3": _DROP_MORE | _MEAN | {"lr": 1e-3},
            "drop 0.3 mean decay": _DROP_MORE | _MEAN | {"beta_decay": 1.0},
            "drop 0.4 mean": _MEAN | {"input_dropout": 0.4},
            "swap 0.2 mean": _MEAN | {"input_swap": 0.2},
            "flip 0.05 mean": _FLIP | _MEAN,
            "flip 0.1 mean": _MEAN | {"input_flip": 0.1},
            "flip 0.05 level 0.3 mean": _FLIP | _LEVEL | _MEAN,
            "flip 0.05 level 0.4 mean": _FLIP | _LEVEL | _MEAN | {"input_level": 0.4},
        },
    ),
    "mnist-cnn": (
        MNIST_CNN,
        {
            "shift": {"augmentation": "shift"},
            "shift mean": {"augmentation": "shift"} | _MEAN,
            "shift mean 1e-3": {"augmentation": "shift", "lr": 1e-3} | _MEAN,
            "shift mean gaussian": {"augmentation": "shift", "unit": "gNSM"} | _MEAN,
            "shift drop mean": {"augmentation": "shift"} | _DROP | _MEAN,
            "mean": _MEAN,
            "drop mean": _DROP | _MEAN,
            "plain": {},
        },
    ),
    "emnist-cnn": (
        replace(EMNIST_CNN, data="emnist-letters-unofficial"),
        {"plain": {}, "mean": _MEAN, "shift mean": {"augmentation": "shift"} | _MEAN},
    ),
    "cifar10-cnn": (
        CIFAR10_CNN,
        {
            "1e-3": {"lr": 1e-3},
            "1e-3 mean": {"lr": 1e-3} | _MEAN,
            "1e-3 cosine": {"lr": 1e-3, "schedule": "cosine", "schedule_epochs": 1},
            "1e-3 mean cosine": {"lr": 1e-3, "schedule": "cosine", "schedule_epochs": 1} | _MEAN,
            "1e-3 mean decay": {"lr": 1e-3, "weight_decay": 0.015} | _MEAN,
            "1e-3 mean more decay": {"lr": 1e-3, "weight_decay": 0.06} | _MEAN,
            "3e-3 mean decay": {"lr": 3e-3, "weight_decay": 0.015} | _MEAN,
            "1e-3 mean smooth": {"lr": 1e-3, "label_smoothing": 0.1} | _MEAN,
            "1e-3 mean two samples": {"lr": 1e-3, "loss_samples": 2} | _MEAN,
            "plain": {},
            "dcnn": {"unit": "dCNN"},
            "imitate": _IMITATE,
            "imitate mean decay": {"weight_decay": 0.05} | _IMITATE | _MEAN,
            "imitate 1e-3 mean decay": {"lr": 1e-3, "weight_decay": 0.015} | _IMITATE | _MEAN,
        },
    ),
    "cifar10-harder": (  # around the best of cifar10-cnn
        CIFAR10_CNN_TUNED,
        {
            "tuned": {},
            "cutout 8": {"input_cutout": 8},
            "cutout 12": {"input_cutout": 12},
            "cutout 8 more decay": {"input_cutout": 8, "weight_decay": 0.06},
        },
    ),
    "cifar10-muon": (  # likewise; the decay says how fast weights turn, muon_lr hardly (decision 0007)
        CIFAR10_CNN_TUNED,
        {
            "tuned": {},
            "smooth": {"label_smoothing": 0.1},
            "muon": _MUON,
            "muon more decay": _MUON | {"weight_decay": 0.06},
            "muon most decay": _MUON | {"weight_decay": 0.24},
            "muon more decay smooth": _MUON | {"weight_decay": 0.06, "label_smoothing": 0.1},
            "muon more decay batch 500": {  # of a fifth of the steps: the same memory
                "muon_lr": 4.5e-4,
                "weight_decay": 0.15,
                "lr": 2e-3,
                "batch_size": 500,
            },
        },
    ),
    "mnist-start": (  # a few epochs tell how much a start is worth
        MNIST_CNN,
        {"dcnn": {"unit": "dCNN"}, "fresh": {}, "trained": {"init_from": "dcnn"}, "imitate": _IMITATE},
    ),
}


def variant(grid: str, name: str, epochs: int | None, last: int, inputs: tuple[int, int] | None) -> Run:
    """The run of one variant; fewer epochs than the recipe's shrink its schedule alike, and the memory of its decay."""
    base, changes = GRIDS[grid]
    others = dict(changes[name])
    start = others.pop("init_from", None)  # another variant, which has not seen the validation data either
    recipe = replace(base, **others, num_samples=100, measure_last=last)
    if epochs is not None:
        share = epochs / recipe.epochs
        shorter = max(1, round(recipe.schedule_epochs * share))
        mean = max(1, round(recipe.average_epochs * share)) if recipe.average_epochs > 1 else 1
        decay = round(recipe.weight_decay / share, 9)  # so that as large a share of the run is remembered
        recipe = replace(recipe, epochs=epochs, schedule_epochs=shorter, average_epochs=mean, weight_decay=decay)
    return Run(name=_name(grid, name), recipe=recipe, inputs=inputs, start=start and _name(grid, start))


def _name(grid: str, variant: str) -> str:
    return f"{grid} {variant}".replace(" ", "-")


def table(runs: dict[str, Run], results: Path) -> list[dict[str, Any]]:
    """What is known of every variant, the best first, whichever of its last epochs were measured."""
    rows = []
    for name, run in runs.items():
        path = result_path(run.name, results)
        parts = json.loads(path.read_text())["parts"] if path.exists() else []
        measured = [replace(run, recipe=replace(run.recipe, measure_last=len(part["epochs"]))) for part in parts]
        parts = [part for part, as_measured in zip(parts, measured, strict=True) if same(as_measured, [part])]
        errors = [sum(each) / len(each) for part in parts for each in part["errors"]]
        if errors:
            about = {"loss": parts[0]["losses"][-1], "seconds": sum(part["seconds"] for part in parts)}
            about |= {"measured_epochs": parts[0]["epochs"], "hardware": parts[0]["hardware"]}
            about |= {"recipe": parts[0]["recipe"]}
            rows.append({"variant": name, **summary(errors), **about})
    return sorted(rows, key=lambda row: row["mean"])


def main() -> int:
    """Run what is missing, and show what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grid", choices=GRIDS)
    parser.add_argument("--only", nargs="*", help="variants to run; all if none is named")
    parser.add_argument("--epochs", type=int, default=None, help="fewer than the recipe's")
    parser.add_argument("--last", type=int, default=10, help="last epochs whose errors are averaged")
    parser.add_argument("--inputs", type=int, nargs=2, default=None, help="learn from and measure on so many")
    parser.add_argument("--minutes", type=float, default=None)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--together", type=int, default=10, help="seeds trained together in one process")
    parser.add_argument("--root", type=Path, default=None, help="folder of the data")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "search")
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "search")
    asked = parser.parse_args()
    changes = GRIDS[asked.grid][1]
    inputs = tuple(asked.inputs) if asked.inputs else None
    runs = {name: variant(asked.grid, name, asked.epochs, asked.last, inputs) for name in changes}
    some = [runs[name] for name in asked.only or changes]
    known = {run.name: run for run in runs.values()}
    waiting = jobs(
        some, work=asked.work, results=asked.results, seeds=asked.seeds, together=asked.together, known=known
    )
    left = work_through(
        waiting,
        work=asked.work,
        results=asked.results,
        root=asked.root,
        processes=asked.processes,
        minutes=asked.minutes,
    )
    rows = table(runs, asked.results)
    for row in rows:
        print(f"{row['mean']:.3f} ± {row['standard_error'] or 0:.3f} %  n={row['n']}  {row['variant']}")
    base = GRIDS[asked.grid][0].to_dict()
    record.write(
        asked.results / f"{asked.grid}.json",
        {"recipe": base, "epochs": asked.epochs, "variants": changes, "rows": rows},
    )
    print(f"not finished: {', '.join(left) or 'none'}")
    return bool(left)


if __name__ == "__main__":
    sys.exit(main())
