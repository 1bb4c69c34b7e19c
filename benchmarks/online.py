"""Learning digit by digit, each seen once: results/online.json.

    python benchmarks/online.py [OUTPUT]

The NSM, whose learning and inference are one network, beside the same architecture with batch normalisation, both at
batch size 1. The learning rate of each is the best of a few on the validation digits; the test digits are for the
final number.
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch

from nsm import data, record
from nsm.networks import build
from nsm.recipes import MNIST_ONLINE, MNIST_ONLINE_BATCH_NORM, Recipe
from nsm.sampling import predict
from nsm.training import fit

ROOT = Path(__file__).resolve().parent.parent
RATES = (1e-4, 3e-4)
SEEDS = 3


def learn(recipe: Recipe) -> tuple[list[float], list[float]]:
    """The validation and test errors of ``SEEDS`` networks trained together by one recipe."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(recipe.seed)
    network = build(recipe)
    validation, test = (data.load(recipe.data, split).to(device) for split in ("validation", "test"))
    fit(network, data.load(recipe.data, recipe.train_split), recipe)
    network = network.to(device)
    errors = []
    for split in (validation, test):
        found = predict(network, split.inputs, 100, seed=0)
        errors.append(float((found.label != split.labels).double().mean()))
    return errors[0], errors[1]  # type: ignore[return-value]


def main(output: Path) -> None:
    """Choose a rate on one seed, then train with it from several."""
    rows = []
    for name, recipe in (("bNSM", MNIST_ONLINE), ("batch norm", MNIST_ONLINE_BATCH_NORM)):
        tried = {rate: learn(replace(recipe, lr=rate, save_every=None))[0] for rate in RATES}
        best = min(tried, key=lambda rate: tried[rate])
        found = [learn(replace(recipe, lr=best, seed=seed, save_every=None))[1] for seed in range(1, 1 + SEEDS)]
        mean = sum(found) / SEEDS
        spread = float(torch.tensor(found).std()) / SEEDS**0.5
        rows.append(
            {
                "unit": name,
                "lr": best,
                "validation": tried,
                "test_errors": found,
                "mean": mean,
                "standard_error": spread,
            }
        )
        print(rows[-1], flush=True)
    record.write(output, {"recipe": MNIST_ONLINE.to_dict(), "seeds": SEEDS, "samples": 100, "rows": rows})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "results" / "online.json")
