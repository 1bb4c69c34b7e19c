"""How many samples a label needs: results/early-stopping.json.

    python benchmarks/early_stopping.py [OUTPUT]

Trains the MNIST CNN, then compares, on the test digits and with the same seed, the label after 100 samples with the
one at which `Confident` stopped.
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch

from nsm import data, record
from nsm.networks import build
from nsm.recipes import MNIST_CNN
from nsm.sampling import Confident, predict
from nsm.training import fit

ROOT = Path(__file__).resolve().parent.parent
RECIPE = replace(MNIST_CNN, epochs=20, lr=1e-3, schedule="linear", schedule_epochs=10, train_split="train+validation")
CAP = 100
ERRORS = (1e-2, 1e-3)
SEEDS = (0, 1, 2)  # of the noise


def main(output: Path) -> None:
    """Train, sample, compare, record."""
    torch.manual_seed(RECIPE.seed)
    network = build(RECIPE)
    fit(network, data.load(RECIPE.data, RECIPE.train_split), RECIPE)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    test = data.load(RECIPE.data, "test").to(device)
    network, inputs, rows = network.to(device), test.inputs, []
    for seed in SEEDS:
        whole = predict(network, inputs, CAP, seed=seed)
        for error in ERRORS:
            stopped = predict(network, inputs, CAP, seed=seed, stop=Confident(error))
            rows.append(
                {
                    "seed": seed,
                    "error": error,
                    "mean_samples": float(stopped.num_samples.double().mean()),
                    "same_label": float((stopped.label == whole.label).double().mean()),
                    "never_settled": float((stopped.num_samples == CAP).double().mean()),
                    "test_error_stopped": float((stopped.label != test.labels).double().mean()),
                    "test_error_100_samples": float((whole.label != test.labels).double().mean()),
                }
            )
            print(rows[-1], flush=True)
    record.write(output, {"recipe": RECIPE.to_dict(), "n": len(test), "cap": CAP, "rows": rows})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "results" / "early-stopping.json")
