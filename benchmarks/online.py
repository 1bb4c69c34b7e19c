"""Learning digit by digit, each seen once: results/online.json.

    python benchmarks/online.py [OUTPUT]

The NSM, whose learning and inference are one network, beside the same architecture with batch normalisation, both at
batch size 1. The learning rate of each is the best on the validation digits, of a grid that is widened until the best
lies inside; the test digits are for the final number.
"""

import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from nsm import data, record
from nsm.evaluation import evaluate
from nsm.networks import build
from nsm.recipes import MNIST_ONLINE, MNIST_ONLINE_BATCH_NORM, Recipe
from nsm.training import fit

ROOT = Path(__file__).resolve().parent.parent
RATES = (1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
START = slice(3, 6)  # the first to be tried
SEEDS = 3  # networks trained together


def learn(recipe: Recipe, splits: tuple[str, ...] = ("validation", "test")) -> dict[str, dict]:
    """Train by one recipe and evaluate on some splits."""
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(recipe.seed)
        fit(build(recipe), data.load(recipe.data, recipe.train_split), recipe, run_dir=folder)
        return {split: evaluate(folder, split=split) for split in splits}


def search(recipe: Recipe) -> tuple[float, dict[float, dict[str, dict]]]:
    """The best rate, which has a worse one on either side unless the grid ends there, and all that were tried."""
    tried, ahead = {}, list(RATES[START])
    while True:
        tried |= {rate: learn(replace(recipe, lr=rate)) for rate in ahead}
        best = min(tried, key=lambda rate: tried[rate]["validation"]["error"])
        at = RATES.index(best)
        ahead = [rate for rate in RATES[max(at - 1, 0) : at + 2] if rate not in tried]
        if not ahead:
            return best, dict(sorted(tried.items()))


def row(name: str, recipe: Recipe) -> dict[str, Any]:
    """Choose a rate by validation, report the test error of the chosen one."""
    best, tried = search(replace(recipe, seeds=SEEDS, save_every=None, cuda_graph=torch.cuda.is_available()))
    test = tried[best]["test"]
    found = {
        "unit": name,
        "lr": best,
        "validation_error_of_each_lr": {str(rate): found["validation"]["error"] for rate, found in tried.items()},
        "test_error": test["error"],
        "standard_error": test["standard_error"],
        "test_errors": [member["error"] for member in test["members"]],
        "num_samples": test["num_samples"],
    }
    print(found, flush=True)
    return found


def main(output: Path) -> None:
    """Both networks; on the CPU beside each other, each on a core of its own."""
    names = {"bNSM": MNIST_ONLINE, "batch norm": MNIST_ONLINE_BATCH_NORM}
    if torch.cuda.is_available():
        rows = list(map(row, names, names.values()))
    else:
        with ProcessPoolExecutor(len(names), get_context("spawn"), torch.set_num_threads, (1,)) as pool:
            rows = list(pool.map(row, names, names.values()))
    record.write(output, {"recipe": MNIST_ONLINE.to_dict(), "seeds": SEEDS, "rows": rows})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "results" / "online.json")
