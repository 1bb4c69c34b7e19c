"""The weights of the third layer while the network learns, NSM against StNN.

The paper: in the NSM their distribution stays narrow around its mean, in the StNN it spreads, because the NSM's scale
is in β. Weights are shown in units of their standard deviation at the start, as the paper normalises them.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nsm import data
from nsm.ensemble import Ensemble
from nsm.paper.estimates import of_seeds
from nsm.paper.learning import device, learn, start
from nsm.paper.showing import COLORS, RESULTS, STYLES, command, label, measured
from nsm.recipes import PI_MNIST, PI_MNIST_STNN, Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "figure-weights"
RECIPES = {"NSM": PI_MNIST, "StNN": PI_MNIST_STNN}
PERCENTILES = (0.001, 0.05, 0.25, 0.5, 0.75, 0.95, 0.999)
SNAPSHOTS = 100


def run(quick: bool = False, seeds: int = 5, epochs: int | None = None, results: Path = RESULTS) -> dict[str, Any]:
    """Train both networks by the recipe of Table 1 (one epoch in the quick version), write the record and draw it.

    Args:
        quick: One epoch.
        seeds: Networks of each kind, trained side by side.
        epochs: Another number of epochs than the recipe's; such a record says that it is a short one.
        results: Folder of the results.
    """
    epochs = epochs or (1 if quick else PI_MNIST.epochs)
    recipes = {name: replace(recipe, epochs=epochs) for name, recipe in RECIPES.items()}
    settings = {
        "about": "weights of the third layer (300×300), mean over seeds; percentiles in units of the first std",
        "quick": quick or epochs < PI_MNIST.epochs,
        "seeds": seeds,
        "epochs": epochs,
        "shares": list(PERCENTILES),
        "recipes": {name: recipe.to_dict() for name, recipe in recipes.items()},
    }

    def measure() -> dict[str, Any]:
        digits = data.load("mnist", "train+validation").to(device())
        return {"networks": {name: _watch(recipe, digits, seeds) for name, recipe in recipes.items()}}

    return measured(NAME, settings, measure, draw, results)


def _watch(recipe: Recipe, digits: data.Dataset, seeds: int) -> dict[str, Any]:
    with torch.random.fork_rng():
        members = [start(replace(recipe, seed=seed), digits) for seed in range(seeds)]
    steps = recipe.epochs * -(-len(digits) // recipe.batch_size)
    every, rows, times = max(1, steps // SNAPSHOTS), [], []
    ensemble = Ensemble(members)
    weights = next(p for name, p in ensemble.named_parameters() if name.startswith("fc3") and p.dim() == 3)
    for _, step in learn(ensemble, digits, recipe):
        if step % every == 0 or step == steps:
            rows.append(_summary(weights.detach().flatten(1)))
            times.append(step / steps * recipe.epochs)
    rows = torch.stack(rows)  # (snapshots, seeds, 2 + percentiles)
    first = rows[0, :, 1]  # the standard deviation at the start
    scaled = (rows[..., 2:] / first[:, None]).mean(1)
    return {
        "epoch": times,
        "mean_shift": ((rows[..., 0] - rows[0, :, 0]) / first).mean(1).tolist(),
        "std_ratio": (rows[..., 1] / first).mean(1).tolist(),
        "first_std": first.mean().item(),
        "last_mean_shift_per_seed": ((rows[-1, :, 0] - rows[0, :, 0]) / first).tolist(),
        "last_std_ratio_per_seed": (rows[-1, :, 1] / first).tolist(),
        "percentiles": scaled.T.tolist(),
    }


def _summary(weights: Tensor) -> Tensor:
    """Mean, standard deviation and percentiles of each network's weights, (seeds, N) to (seeds, 2 + percentiles)."""
    shares = torch.quantile(weights, weights.new_tensor(PERCENTILES), dim=1).T
    return torch.cat([weights.mean(1, keepdim=True), weights.std(1, keepdim=True), shares], dim=1).cpu()


def draw(result: dict[str, Any]) -> "Figure":
    """Above the two distributions, below the mean and the standard deviation against the start."""
    from matplotlib.colors import to_rgba_array
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6.4), layout="constrained")
    above, below = figure.subplots(2, 2)
    networks = result["networks"]
    reach = 1.6 * max(abs(v) for n in networks.values() for curve in n["percentiles"] for v in curve)
    for panel, (name, network) in zip(above, networks.items(), strict=True):
        curves, half = network["percentiles"], len(result["shares"]) // 2
        for k in range(half):
            outer = f"{100 * result['shares'][k]:g}–{100 * result['shares'][-1 - k]:g} %"
            shade = to_rgba_array(COLORS[name])[0, :3] * (band := 0.2 + 0.2 * k) + 1 - band
            panel.fill_between(network["epoch"], curves[k], curves[-1 - k], color=shade, linewidth=0, label=outer)
        panel.plot(network["epoch"], curves[half], color=COLORS[name], linewidth=1.5, label="median")
        panel.set(title=f"{name}: weights of the third layer", ylabel="weight / first std", ylim=(-reach, reach))
        panel.legend(loc="upper left", ncols=2, frameon=False, fontsize=8)
    for panel, key, what in zip(
        below,
        ("mean_shift", "std_ratio"),
        ("mean − first mean, in first std", "std / first std"),
        strict=True,
    ):
        for name, network in networks.items():
            line = {"color": COLORS[name], "linestyle": STYLES[name], "linewidth": 1.8}
            panel.plot(network["epoch"], network[key], label=name, **line)
        panel.axhline(0 if key == "mean_shift" else 1, color="0.6", linewidth=0.6, zorder=0)
        panel.set(ylabel=what)
        panel.legend(frameon=False)
    for panel in figure.axes:
        panel.set(xlabel="epoch", xlim=(0, result["epochs"]))
    figure.suptitle(f"{label(result)}PI-MNIST, n = {result['seeds']}", fontsize=10)
    return figure


def caption(result: dict[str, Any]) -> str:
    """What is seen: how the weights spread and where their mean goes."""
    networks = result["networks"].items()
    last = {name: of_seeds(network["last_std_ratio_per_seed"]) for name, network in networks}
    grown = ", ".join(f"{name} × {by.mean:.3f}" + f" ± {by.error:.3f}" * (by.error > 0) for name, by in last.items())
    moved = ", ".join(f"{name} {last_shift(network)}" for name, network in networks)
    return (
        f"Weights of the third layer in {result['epochs']} of the recipe's {PI_MNIST.epochs} epochs of learning, n = "
        f"{result['seeds']}. Above, shares of their distribution in units of their first standard deviation; below, "
        f"their mean (left, also averaged over networks, which may move either way) and standard deviation (right). At "
        f"the end the standard deviation is {grown}, and the mean has moved by {moved} first standard deviations."
    )


def last_shift(network: dict[str, Any]) -> str:
    """How far the mean of the weights has moved, in first standard deviations; networks may move either way."""
    moved = of_seeds(network["last_mean_shift_per_seed"])
    return f"{moved.mean:+.4f}" + f" ± {moved.error:.4f}" * (moved.error > 0)


if __name__ == "__main__":
    command(NAME, __doc__, run, draw, seeds=5, epochs=None)
