"""How far erf is from the exact blank-out law, and how biased the estimators are: results/law.json, the docs' tables.

python benchmarks/core.py
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.stats

from nsm import record
from nsm.estimators import get_estimator

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))  # the oracles of the tests

from enumeration import distance_of_atoms, estimator_bias, kolmogorov_distance  # noqa: E402

SEED = 0
DRAWS = 20
FAN_INS = (8, 12, 25, 64, 100, 400)
KEEP = (0.1, 0.25, 0.5)
GRADIENT_SAMPLES = 400_000


def distances(fan_ins: Sequence[int] = FAN_INS) -> list[dict]:
    """The distance for weights drawn from a normal, of equal size, and with one ten times the others together."""
    rows = []
    for fan_in in fan_ins:
        drawn = np.random.default_rng(SEED).normal(size=(DRAWS, fan_in))
        for p in KEEP:
            normal = [kolmogorov_distance(weights, p) for weights in drawn]
            kept = np.arange(fan_in)  # of all equal weights but one
            others = scipy.stats.binom.pmf(kept, fan_in - 1, p)
            small = 0.1 * kept / (fan_in - 1)
            rows.append(
                {
                    "fan_in": fan_in,
                    "p": p,
                    "normal": float(np.mean(normal)),
                    "normal_std": float(np.std(normal, ddof=1)),
                    "equal": _with_last_weight(kept, others, 1.0, p),
                    "dominant": _with_last_weight(small, others, 1.0, p),
                }
            )
    return rows


def _with_last_weight(sums: np.ndarray, chance: np.ndarray, weight: float, p: float) -> float:
    return distance_of_atoms(np.concatenate([sums, sums + weight]), np.concatenate([chance * (1 - p), chance * p]))


def estimators() -> list[dict]:
    """The bias of each estimator on the tiny network of tests/enumeration.py."""
    names = ("probability", "straight_through", "concrete")
    return [{"estimator": name, **estimator_bias(get_estimator(name), GRADIENT_SAMPLES)} for name in names]


def distance_table(rows: list[dict]) -> str:
    """The distances as Markdown."""
    lines = ["| fan-in | p | normal weights | equal weights | one dominant |", "|---|---|---|---|---|"]
    for r in rows:
        cells = f"{r['normal']:.4f} ± {r['normal_std']:.4f} | {r['equal']:.4f} | {r['dominant']:.4f}"
        lines.append(f"| {r['fan_in']} | {r['p']} | {cells} |")
    return "\n".join(lines)


def estimator_table(rows: list[dict]) -> str:
    """The biases as Markdown."""
    lines = ["| estimator | relative bias | cosine |", "|---|---|---|"]
    for r in rows:
        lines.append(
            f"| `{r['estimator']}` | {r['relative_bias']:.2f} ± {r['standard_error']:.2f} | {r['cosine']:.2f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    measured = {
        "settings": {
            "seed": SEED,
            "weight_draws": DRAWS,
            "gradient_samples": GRADIENT_SAMPLES,
            "enumerated_up_to_fan_in": 12,
        },
        "distances": distances(),
        "estimators": estimators(),
    }
    record.write(ROOT / "results" / "law.json", measured)
    print(distance_table(measured["distances"]), estimator_table(measured["estimators"]), sep="\n\n")
