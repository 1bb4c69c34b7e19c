"""The input to the last hidden layer while the network learns: percentiles, NSM against StNN.

For every one of the first 200 mini-batches, the 15th, 50th and 85th percentile of what decides whether a unit of the
last hidden layer fires: t for the NSM, whose P is ½(1 + erf t), and w·z for the StNN, whose P is sigmoid(w·z). All
units and inputs of the mini-batch are pooled. Each mini-batch is looked at before it is learned from.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nsm import data
from nsm.layers import NSMLayer
from nsm.paper.estimates import of_seeds
from nsm.paper.learning import device, differentiate, layers, minibatches, start
from nsm.paper.showing import COLORS, RESULTS, command, label, measured
from nsm.recipes import PI_MNIST, PI_MNIST_STNN, Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "figure-percentiles"
PERCENTILES = (0.15, 0.50, 0.85)
RECIPES = {"NSM": PI_MNIST, "StNN": PI_MNIST_STNN}


def run(quick: bool = False, seeds: int = 5, results: Path = RESULTS) -> dict[str, Any]:
    """Learn from 200 mini-batches (40 in the quick version) with each network and seed, write the record and draw it.

    Of every mini-batch the record has the percentiles, averaged over seeds, and for every seed how far they moved.
    """
    steps = 40 if quick else 200
    settings = {
        "about": "percentiles of the input to the last hidden layer, pooled over units and inputs of a mini-batch",
        "quick": quick,
        "seeds": seeds,
        "steps": steps,
        "shares": list(PERCENTILES),
        "recipes": {name: recipe.to_dict() for name, recipe in RECIPES.items()},
    }
    return measured(NAME, settings, lambda: {"networks": _networks(seeds, steps)}, draw, results)


def _networks(seeds: int, steps: int) -> dict[str, Any]:
    digits = data.load("mnist", "train+validation").to(device())
    networks = {}
    with torch.random.fork_rng(enabled=True):
        for name, recipe in RECIPES.items():
            curves = torch.stack([_curve(replace(recipe, seed=seed), digits, steps) for seed in range(seeds)])
            networks[name] = {
                "percentiles": curves.mean(0).T.tolist(),  # (3, steps)
                "movement": _movement(curves).tolist(),
            }
    return networks


def _curve(recipe: Recipe, digits: data.Dataset, steps: int) -> Tensor:
    """The percentiles before each step, (steps, 3)."""
    network = start(recipe, digits)
    last = layers(network)["fc3"]
    seen: list[Tensor] = []

    def look(module: Any, given: Any, gave: Tensor) -> None:
        with torch.no_grad():
            fired_by = module.erf_argument(given[0]) if isinstance(module, NSMLayer) else gave
            seen.append(torch.quantile(fired_by.flatten(), fired_by.new_tensor(PERCENTILES)).cpu())

    last.register_forward_hook(look)
    optimizer = torch.optim.Adam(network.parameters(), lr=recipe.lr)
    for x, y in minibatches(digits, recipe, steps):
        differentiate(network, x, y)
        optimizer.step()
    return torch.stack(seen)


def _movement(curves: Tensor) -> Tensor:
    """Of each seed, the mean distance of the three percentiles from where they began, in units of their first spread.

    The spread is half the distance of the outer percentiles at the first mini-batch, so that the two networks, whose
    inputs have scales of their own, can be compared. Curves (seeds, steps, 3) to (seeds,).
    """
    first = curves[:, :1]
    spread = (first[..., 2] - first[..., 0]) / 2  # (seeds, 1)
    return ((curves - first).abs().mean(-1) / spread).mean(-1)


def draw(result: dict[str, Any]) -> "Figure":
    """One panel for each network, a line for each percentile."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), layout="constrained")
    panels = figure.subplots(1, 2)
    steps = range(1, result["steps"] + 1)
    titles = {"NSM": "NSM: t = β w·z/‖w‖ + b/(√2 s ‖w‖)", "StNN": "StNN: w·z"}
    for panel, (name, network) in zip(panels, result["networks"].items(), strict=True):
        low, middle, high = network["percentiles"]
        panel.fill_between(steps, low, high, color=COLORS[name], alpha=0.15, linewidth=0)
        for share, curve, style in zip(result["shares"], (low, middle, high), ("--", "-", "-."), strict=True):
            panel.plot(steps, curve, color=COLORS[name], linestyle=style, linewidth=1.6, label=f"{100 * share:.0f}th")
        panel.axhline(0, color="0.6", linewidth=0.6, zorder=0)
        reach = 1.6 * max(abs(value) for value in (*low, *high))
        panel.set(xlabel="mini-batch of 100 digits", ylabel="input to the last hidden layer", title=titles[name])
        panel.set(ylim=(-reach, reach), xlim=(1, result["steps"]))
        panel.legend(title="percentile", loc="lower left", ncols=3, frameon=False)
    figure.suptitle(f"{label(result)}PI-MNIST, n = {result['seeds']}", fontsize=10)
    return figure


def caption(result: dict[str, Any]) -> str:
    """What is seen: how far the percentiles move."""
    moved = {name: of_seeds(network["movement"]) for name, network in result["networks"].items()}
    words = ", ".join(f"{name} {by.mean:.3f}" + f" ± {by.error:.3f}" * (by.error > 0) for name, by in moved.items())
    return (
        f"What makes a unit of the last hidden layer fire, in the first {result['steps']} mini-batches of learning "
        f"(n = {result['seeds']}): the 15th, 50th and 85th percentile over all units and digits, of t in the NSM "
        f"(left) and of w·z in the StNN (right), each on its own scale. Mean distance from where they began, in first "
        f"half-widths of the band: {words}."
    )


if __name__ == "__main__":
    command(NAME, __doc__, run, draw, seeds=5)
