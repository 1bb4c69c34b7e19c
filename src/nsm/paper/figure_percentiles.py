"""The input to the last hidden layer while the network learns: percentiles, NSM against StNN.

For every one of the first 200 mini-batches, the 15th, 50th and 85th percentile of what decides whether a unit of the
last hidden layer fires: t for the NSM, whose P is ½(1 + erf t), and w·z for the StNN, whose P is sigmoid(w·z). All
units and inputs of the mini-batch are pooled. Each mini-batch is looked at before it is learned from. Beside them, how
well the networks know the test digits on the way.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nsm import data
from nsm.layers import NSMLayer
from nsm.paper.estimates import of_seeds
from nsm.paper.learning import device, differentiate, layers, minibatches, start
from nsm.paper.scaling import error_of
from nsm.paper.showing import COLORS, RESULTS, STYLES, command, label, measured
from nsm.recipes import PI_MNIST, PI_MNIST_STNN, Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "figure-percentiles"
PERCENTILES = (0.15, 0.50, 0.85)
RECIPES = {"NSM": PI_MNIST, "StNN": PI_MNIST_STNN}
EVERY = 20  # mini-batches between two looks at the test digits


def run(quick: bool = False, seeds: int = 5, results: Path = RESULTS) -> dict[str, Any]:
    """Learn from 200 mini-batches (40 in the quick version) with each network and seed, write the record and draw it.

    Of every mini-batch the record has the percentiles, averaged over seeds, and for every seed how far they moved and
    the test errors.
    """
    steps, samples = (40, 5) if quick else (200, 100)
    settings = {
        "about": "percentiles of the input to the last hidden layer, pooled over units and inputs of a mini-batch",
        "quick": quick,
        "seeds": seeds,
        "steps": steps,
        "num_samples": samples,
        "shares": list(PERCENTILES),
        "recipes": {name: recipe.to_dict() for name, recipe in RECIPES.items()},
    }
    return measured(NAME, settings, lambda: _measure(seeds, steps, samples), draw, results)


def _measure(seeds: int, steps: int, samples: int) -> dict[str, Any]:
    digits, test = (data.load("mnist", split).to(device()) for split in ("train+validation", "test"))
    networks = {}
    with torch.random.fork_rng(enabled=True):
        for name, recipe in RECIPES.items():
            recipe = replace(recipe, num_samples=samples)
            found = [_learn(replace(recipe, seed=seed), digits, test, steps) for seed in range(seeds)]
            curves = torch.stack([curve for curve, _ in found])
            networks[name] = {
                "percentiles": curves.mean(0).T.tolist(),  # (3, steps)
                "distance": _distance(curves).tolist(),
                "movement": _movement(curves).tolist(),
                "errors": [errors for _, errors in found],
            }
    return {"measured_after": list(range(EVERY, steps + 1, EVERY)), "networks": networks}


def _learn(recipe: Recipe, digits: data.Dataset, test: data.Dataset, steps: int) -> tuple[Tensor, list[float]]:
    """The percentiles before each step, (steps, 3), and the test error in percent after every so many."""
    network = start(recipe, digits)
    last = layers(network)["fc3"]
    seen: list[Tensor] = []
    errors: list[float] = []

    def look(module: Any, given: Any, gave: Tensor) -> None:
        with torch.no_grad():
            fired_by = module.erf_argument(given[0]) if isinstance(module, NSMLayer) else gave
            seen.append(torch.quantile(fired_by.flatten(), fired_by.new_tensor(PERCENTILES)).cpu())

    optimizer = torch.optim.Adam(network.parameters(), lr=recipe.lr)
    for step, (x, y) in enumerate(minibatches(digits, recipe, steps), 1):
        with last.register_forward_hook(look):
            differentiate(network, x, y)
        optimizer.step()
        if step % EVERY == 0:
            errors.append(error_of(network, test, recipe, seed=recipe.seed))
    return torch.stack(seen), errors


def _distance(curves: Tensor) -> Tensor:
    """Of each seed, the mean distance of the percentiles from where they began: (seeds, steps, 3) to (seeds,)."""
    return (curves - curves[:, :1]).abs().mean((1, 2))


def _movement(curves: Tensor) -> Tensor:
    """The same in units of their first spread, (seeds,).

    The spread is half the distance of the outer percentiles at the first mini-batch, so that the two networks, whose
    inputs have scales of their own, can be compared.
    """
    return _distance(curves) / ((curves[:, 0, 2] - curves[:, 0, 0]) / 2)


def in_units_of_t(name: str, network: dict[str, Any]) -> list[float]:
    """Of each seed, the mean distance of the percentiles from where they began, on the scale of the probability.

    sigmoid(x) is nearest to ½(1 + erf t) for x = 1.702 √2 t, so w·z of an StNN is worth so much less t.
    """
    return [far / (1 if name == "NSM" else 1.702 * math.sqrt(2)) for far in network["distance"]]


def draw(result: dict[str, Any]) -> "Figure":
    """One panel for each network, a line for each percentile; then the test errors, thin lines being single seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.5, 4.2), layout="constrained")
    *panels, last = figure.subplots(1, 3)
    steps = range(1, result["steps"] + 1)
    titles = {"NSM": "NSM: t = β w·z/‖w‖ + b/(√2 s ‖w‖)", "StNN": "StNN: w·z"}
    for panel, (name, network) in zip(panels, result["networks"].items(), strict=True):
        low, middle, high = network["percentiles"]
        panel.fill_between(steps, low, high, color=COLORS[name], alpha=0.15, linewidth=0)
        for share, curve, style in zip(result["shares"], (low, middle, high), ("--", "-", "-."), strict=True):
            panel.plot(steps, curve, color=COLORS[name], linestyle=style, linewidth=1.6, label=f"{100 * share:.0f}th")
        panel.axhline(0, color="0.6", linewidth=0.6, zorder=0)
        reach = 1.6 * max(abs(value) for value in (*low, *high))
        panel.set(ylabel="input to the last hidden layer", title=titles[name], ylim=(-reach, reach))
        panel.legend(title="percentile", loc="lower left", ncols=3, frameon=False)
        line: Any = {"color": COLORS[name], "linestyle": STYLES[name]}
        for errors in network["errors"]:
            last.plot(result["measured_after"], errors, linewidth=0.6, alpha=0.4, **line)
        last.plot(result["measured_after"], mean_errors(network), linewidth=2, label=name, **line)
    last.set(ylabel="test error (%)", title="NSM and StNN: test error", ylim=(0, None))
    last.legend(frameon=False)
    for panel in (*panels, last):
        panel.set(xlabel="mini-batch of 100 digits", xlim=(1, result["steps"]))
    figure.suptitle(f"{label(result)}PI-MNIST, n = {result['seeds']}", fontsize=10)
    return figure


def mean_errors(network: dict[str, Any]) -> list[float]:
    """The test error at every look, mean of the seeds."""
    return [statistics.fmean(errors) for errors in zip(*network["errors"], strict=True)]


def caption(result: dict[str, Any]) -> str:
    """What is seen: how far the percentiles move."""

    def each(pick: Callable[[str, dict[str, Any]], list[float]], digits: int) -> str:
        found = {name: of_seeds(pick(name, network)) for name, network in result["networks"].items()}
        words = {
            name: f"{by.mean:.{digits}f}" + f" ± {by.error:.{digits}f}" * (by.error > 0) for name, by in found.items()
        }
        return ", ".join(f"{name} {said}" for name, said in words.items())

    moved, in_t = each(lambda _, network: network["movement"], 3), each(in_units_of_t, 3)
    ends = each(lambda _, network: [errors[-1] for errors in network["errors"]], 1)
    return (
        f"What makes a unit of the last hidden layer fire, in the first {result['steps']} mini-batches of learning "
        f"(n = {result['seeds']}): the 15th, 50th and 85th percentile over all units and digits, of t in the NSM "
        f"(left) and of w·z in the StNN (middle), each on its own scale. Mean distance from where they began, as a "
        f"share of half the band's first width: {moved}; on one scale, that of t: {in_t}. Right: the test error in "
        f"percent, at last {ends}."
    )


if __name__ == "__main__":
    command(NAME, __doc__, run, draw, seeds=5)
