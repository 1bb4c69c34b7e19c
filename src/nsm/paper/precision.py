"""Learning with weights of fixed range and few bits: NSM, StNN and the ReLU network on permutation-invariant MNIST.

The paper says that the NSM mitigates saturation at the boundaries of fixed-range weights and is robust to their fixed
precision, and shows no figure. Here all weights, the output layer's too, are clipped to ± `reach`/√fan-in and stored
with 2 to 8 bits, updates being rounded at random (`nsm.paper.fixed_point`); biases and β, one for each unit, are not.
The learning rate is chosen for every network and precision on the validation digits, from the same three, and the
record keeps what each of them gave; the range was set beforehand and is the same for all.

On a GPU all precisions and seeds of a network are trained side by side.
"""

import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nsm import data
from nsm.ensemble import Ensemble
from nsm.layers import Stochastic
from nsm.paper.fixed_point import FixedPoint, at_rails, round_stochastically
from nsm.paper.learning import device, learn, start
from nsm.paper.runs import summary
from nsm.paper.showing import COLORS, RESULTS, STYLES, command, label, logarithmic, measured
from nsm.recipes import PI_MNIST, PI_MNIST_STNN, Recipe
from nsm.sampling import predict
from nsm.steps import COMPILE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "precision"
RECIPES = {"NSM": PI_MNIST, "StNN": PI_MNIST_STNN, "ReLU": replace(PI_MNIST, unit="dCNN")}
BITS = (2, 3, 4, 5, 6, 7, 8, None)
RATES = (1e-4, 3e-4, 1e-3)
REACH = 2.0
EPOCHS = 40
_QUICK: Any = ((2, 4, 8, None), (1e-3,), 1, 1000, 10)  # bits, rates, epochs, test digits, samples


class Storage:
    """The grids of networks side by side, one for each; rounds all their weights after an update.

    Args:
        ensemble: The networks.
        bits: Of each network's weights.
        reach: Their range in units of 1/√fan-in.
    """

    def __init__(self, ensemble: Ensemble, bits: list[int | None], reach: float) -> None:
        self.weights = {n: p for n, p in ensemble.named_parameters() if n.endswith("weight") and p.dim() == 3}
        on_gpu = next(ensemble.parameters()).is_cuda
        self.rounded = torch.compile(round_stochastically, **COMPILE) if on_gpu else round_stochastically
        self.grids: dict[str, tuple[Tensor, Tensor]] = {}
        for name, weight in self.weights.items():  # (networks, out, in)
            grids = [FixedPoint(b, reach / math.sqrt(weight.shape[-1])) for b in bits]
            rows = [[grid.limit for grid in grids], [grid.step for grid in grids]]
            limit, step = weight.new_tensor(rows)[..., None, None]
            self.grids[name] = limit, step

    @torch.no_grad()
    def round(self) -> None:
        """Put every weight on its grid."""
        for name, weight in self.weights.items():
            weight.copy_(self.rounded(weight, *self.grids[name]))

    @torch.no_grad()
    def check(self) -> None:
        """Raise unless every weight is on its grid, so that nothing is recorded of networks that were not rounded."""
        for name, weight in self.weights.items():
            limit, step = self.grids[name]
            place = torch.where(step > 0, (weight + limit) / step.clamp(min=1e-9), 0.0)
            away = float((place - place.round()).abs().max())
            if away > 1e-2 or bool((weight.abs() > limit).any()):
                raise RuntimeError(
                    f"Expected the weights of {name} to be on their grid, but got some {away:.2g} steps off"
                )

    @torch.no_grad()
    def at_rails(self) -> Tensor:
        """Of each network the share of weights at the ends of the range, all layers together."""
        ends = [at_rails(weight, *self.grids[name]).flatten(1) for name, weight in self.weights.items()]
        return torch.cat(ends, 1).mean(1).cpu()


def run(
    quick: bool = False, seeds: int = 3, epochs: int = EPOCHS, reach: float = REACH, results: Path = RESULTS
) -> dict[str, Any]:
    """Train every network at every precision, write the record and draw it.

    Args:
        quick: One epoch, four precisions, one learning rate, a thousand test digits.
        seeds: Networks of each kind and precision.
        epochs: The learning rate is halved at each quarter of them; with fewer the record says that it is a short one.
        reach: The range of weights in units of 1/√fan-in; weights begin within ±1 of these.
        results: Folder of the results.
    """
    bits, rates, count, num_samples = BITS, RATES, 10_000, 100
    if quick:
        bits, rates, epochs, count, num_samples = _QUICK
    halving: Any = {"epochs": epochs, "schedule": "halving", "schedule_epochs": max(1, epochs // 4)}
    recipes = {name: replace(recipe, **halving) for name, recipe in RECIPES.items()}
    settings = {
        "about": "PI-MNIST with weights clipped to ± reach/√fan-in and stored at few bits; bits null: clipped alone",
        "quick": quick or epochs < EPOCHS,
        "seeds": seeds,
        "epochs": epochs,
        "reach": reach,
        "bits": list(bits),
        "rates": list(rates),
        "test_digits": count,
        "num_samples": num_samples,
        "recipes": {name: recipe.to_dict() for name, recipe in recipes.items()},
    }

    def measure() -> dict[str, Any]:
        digits = data.load("mnist").to(device())
        held_out, test = (_first(data.load("mnist", split).to(device()), count) for split in ("validation", "test"))
        rows = []
        for name, recipe in recipes.items():
            tried = [_train(replace(recipe, lr=lr), digits, held_out, bits, seeds, reach, num_samples) for lr in rates]
            for b, outcomes in zip(bits, zip(*tried, strict=True), strict=True):  # of each rate
                best = min(outcomes, key=lambda outcome: outcome.validation_error)
                tries = {"validation_error_by_lr": {f"{each.lr:g}": each.validation_error for each in outcomes}}
                rows.append({"network": name, "bits": b, **best.tested(test, num_samples), **tries})
        return {"rows": rows}

    return measured(NAME, settings, measure, draw, results)


@dataclass(frozen=True)
class _Outcome:
    """Networks of one kind, precision and rate, one for each seed."""

    lr: float
    networks: list[nn.Module]
    validation_error: float
    at_rails: list[float]

    def tested(self, test: data.Dataset, num_samples: int) -> dict[str, Any]:
        """What the record says of them: the test digits are for the rate that was chosen alone."""
        values = [_error(network, test, num_samples, seed) for seed, network in enumerate(self.networks)]
        said = {key: getattr(self, key) for key in ("lr", "validation_error", "at_rails")}
        return {**summary(values), **said}


def _train(
    recipe: Recipe,
    digits: data.Dataset,
    held_out: data.Dataset,
    bits: tuple[int | None, ...],
    seeds: int,
    reach: float,
    num_samples: int,
) -> list[_Outcome]:
    """All precisions and seeds of one network side by side."""
    print(f"{NAME}: {recipe.unit} at a rate of {recipe.lr:g}", file=sys.stderr, flush=True)
    with torch.random.fork_rng():
        members = [start(replace(recipe, seed=seed), digits) for _ in bits for seed in range(seeds)]
    precisions = [b for b in bits for _ in range(seeds)]
    ensemble = Ensemble(members)
    storage = Storage(ensemble, precisions, reach)
    storage.round()
    rails, last = [], -1
    for epoch, _ in learn(ensemble, digits, recipe, after=storage.round):
        if epoch != last:
            rails.append(storage.at_rails())
            last = epoch
    storage.check()
    share = torch.stack(rails).unflatten(1, (len(bits), seeds)).mean(2)  # (epochs + 1, bits)
    found = []
    for k in range(len(bits)):
        networks = [ensemble.member(k * seeds + seed) for seed in range(seeds)]
        errors = [_error(network, held_out, max(1, num_samples // 5), seed) for seed, network in enumerate(networks)]
        found.append(_Outcome(recipe.lr, networks, sum(errors) / seeds, share[:, k].tolist()))
    return found


def _error(network: nn.Module, digits: data.Dataset, num_samples: int, seed: int) -> float:
    noisy = any(isinstance(module, Stochastic) for module in network.modules())
    found = predict(network, digits.inputs, num_samples if noisy else 1, seed=seed)
    return 100 * float((found.label != digits.labels).float().mean())


def _first(dataset: data.Dataset, count: int) -> data.Dataset:
    return replace(dataset, stored=dataset.stored[:count], labels=dataset.labels[:count])


# ------------------------------------------------------------------------- the picture


def draw(result: dict[str, Any]) -> "Figure":
    """Error against bits, saturation against bits, and saturation over time at 4 bits."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    bits = list(dict.fromkeys(row["bits"] for row in result["rows"]))
    places = {b: k for k, b in enumerate(bits)}
    for name in dict.fromkeys(row["network"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["network"] == name]
        line = {"color": COLORS[name], "linestyle": STYLES[name], "marker": "o", "markersize": 4, "label": name}
        at = [places[row["bits"]] for row in rows]
        left.errorbar(at, [r["mean"] for r in rows], [r["standard_error"] or 0 for r in rows], capsize=3, **line)
        middle.plot(at, [100 * r["at_rails"][-1] for r in rows], **line)
        for row in rows:
            if row["bits"] == 4:
                right.plot([100 * share for share in row["at_rails"]], **{**line, "marker": None})
    for panel in (left, middle):
        panel.set_xticks(range(len(bits)), ["none" if b is None else str(b) for b in bits])
        panel.set(xlabel="bits of a weight (none: clipped alone)")
    left.set(ylabel="test error (%)", title="error")
    logarithmic(left)
    middle.set(ylabel="weights at the rails at the end (%)", title="saturation", ylim=(0, None))
    right.set(xlabel="epoch", ylabel="weights at the rails (%)", title="saturation at 4 bits", ylim=(0, None))
    left.legend(frameon=False)
    figure.suptitle(f"{label(result)}PI-MNIST, n = {result['seeds']}", fontsize=10)
    return figure


def caption(result: dict[str, Any]) -> str:
    """What is seen: what few bits cost each network, and how many of its weights end at the rails."""
    errors, rails = [], []
    for name in dict.fromkeys(row["network"] for row in result["rows"]):
        rows = {row["bits"]: row for row in result["rows"] if row["network"] == name}
        shown = [rows[bits] for bits in (None, 4, 2)]
        errors.append(f"{name} {' → '.join(map(_percent, shown))} %")
        rails.append(f"{name} " + " → ".join(f"{100 * row['at_rails'][-1]:.1f}" for row in shown) + " %")
    epochs = f"{result['epochs']} epoch{'s' * (result['epochs'] > 1)}"
    return (
        f"All weights are clipped to ±{result['reach']:g}/√fan-in and stored at few bits, updates rounded at random; β "
        f"and biases keep full precision. {epochs}, n = {result['seeds']}. Left, the test error; without a grid, at 4 "
        f"and at 2 bits {'; '.join(errors)}. Middle, the weights at the rails at the end: {'; '.join(rails)}. Right, "
        f"their share over the epochs at 4 bits. {at_the_edge(result)}"
    )


def at_the_edge(result: dict[str, Any]) -> str:
    """How often the rate that was chosen is the largest one tried, so that a larger one might have been better."""
    most, words = max(result["rates"]), []
    for name in dict.fromkeys(row["network"] for row in result["rows"]):
        chosen = [row["lr"] for row in result["rows"] if row["network"] == name]
        words.append(f"{name} {sum(lr == most for lr in chosen)} of {len(chosen)}")
    return f"Rates were chosen on validation digits; the largest tried, {most:g}, was the best for {', '.join(words)}."


def _percent(row: dict[str, Any]) -> str:
    error = row["standard_error"]
    return f"{row['mean']:.2f}" + ("" if error is None else f" ± {error:.2f}")


if __name__ == "__main__":
    command(NAME, __doc__, run, draw, seeds=3, epochs=EPOCHS, reach=REACH)
