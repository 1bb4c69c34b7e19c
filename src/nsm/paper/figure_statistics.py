"""Weights and gradients of the MNIST CNN: NSM, the NSM trained with BinConcrete, and the sigmoid network.

The three have the same weights at the start and see the same mini-batches. Their gradients are compared once along
their own trajectories, as in the paper, where after a while they are gradients of different functions; and once at the
same weights, those of the NSM as it learns, where only the way of the gradient differs. Since the first two are random,
the angle between two draws of the NSM's own gradient is shown beside: no other can be expected to be smaller.
"""

import copy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nsm import data
from nsm.estimators import Concrete
from nsm.layers import NSMLayer
from nsm.paper.learning import device, differentiate, layers, minibatches, start
from nsm.paper.showing import COLORS, RESULTS, STYLES, command, label, measured
from nsm.recipes import MNIST_CNN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "figure-statistics"
RECIPES = {
    "NSM": MNIST_CNN,
    "BinConcrete": replace(MNIST_CNN, unit="bNSM (BinConcrete)"),
    "sigmoid": replace(MNIST_CNN, unit="sigmoid"),
}
LAYERS = {"conv1": "convolution 1", "conv2": "convolution 2", "fc1": "fully connected 1", "out": "fully connected 2"}
EPOCHS = 10
DIGITS = 60_000  # that are learned from
POINTS = 60
WINDOW = 5  # mini-batches around a point that is shown, since a single gradient says little


def run(quick: bool = False, seeds: int = 1, epochs: int | None = None, results: Path = RESULTS) -> dict[str, Any]:
    """Train the three networks for 10 epochs (a sixth of one in the quick version), write the record and draw it.

    Args:
        quick: 100 mini-batches.
        seeds: Starts; curves are means over them, histograms are of the first.
        epochs: Another number of epochs; such a record says that it is a short one.
        results: Folder of the results.
    """
    digits = data.load("mnist", "train+validation")
    epochs = epochs or EPOCHS
    steps = 100 if quick else epochs * -(-len(digits) // MNIST_CNN.batch_size)
    settings = {
        "about": "MNIST CNN: histograms at the end, means of weights and gradients, cosines of gradients per layer",
        "quick": quick or epochs < EPOCHS,
        "seeds": seeds,
        "steps": steps,
        "recipes": {name: recipe.to_dict() for name, recipe in RECIPES.items()},
    }

    def measure() -> dict[str, Any]:
        with torch.random.fork_rng():
            found = [_compare(digits.to(device()), seed, steps) for seed in range(seeds)]
        return {
            "step": found[0]["step"],
            "histograms": found[0]["histograms"],
            "curves": _mean([each["curves"] for each in found]),
            "cosines": _mean([each["cosines"] for each in found]),
        }

    return measured(NAME, settings, measure, draw, results)


def _compare(digits: data.Dataset, seed: int, steps: int) -> dict[str, Any]:
    """One start: three networks through the same mini-batches."""
    networks = _starts(digits, seed)
    first = {key: layer.weight.detach().std().item() for key, layer in layers(networks["NSM"]).items()}
    optimizers = {name: torch.optim.Adam(n.parameters(), lr=MNIST_CNN.lr) for name, n in networks.items()}
    shown, every = [], max(WINDOW, steps // POINTS)
    rows: list[dict[str, Tensor]] = []  # (layers,) of every quantity, in the mini-batches that are looked at
    for step, (x, y) in enumerate(minibatches(digits, replace(MNIST_CNN, seed=seed), steps)):
        gradients = {}
        for name, network in networks.items():
            differentiate(network, x, y)
            gradients[name] = _gradients(network)
        if step % every < WINDOW:
            here = _at_the_same_weights(networks["NSM"], networks["sigmoid"], gradients["NSM"], x, y)
            rows.append({**_statistics(networks, gradients), **_own(gradients), **here})
            shown.append(step)
        for optimizer in optimizers.values():
            optimizer.step()
    points = {key: torch.stack([row[key] for row in rows]).cpu() for key in rows[0]}  # (looks, layers)
    windows = [k for k, step in enumerate(shown) if step % every == 0] + [len(shown)]
    smooth = {key: torch.stack([v[a:b].mean(0) for a, b in pairwise(windows)]) for key, v in points.items()}
    named = {key: dict(zip(LAYERS, v.T.tolist(), strict=True)) for key, v in smooth.items()}
    return {
        "step": [shown[k] for k in windows[:-1]],
        "histograms": {name: _histograms(network, first) for name, network in networks.items()},
        "curves": {key: value for key, value in named.items() if not key.startswith(("own", "same"))},
        "cosines": {key: value for key, value in named.items() if key.startswith(("own", "same"))},
    }


def _starts(digits: data.Dataset, seed: int) -> dict[str, nn.Module]:
    """The three networks with the same weights; β and b from the same inputs."""
    found: dict[str, nn.Module] = {}
    for name in ("sigmoid", "NSM", "BinConcrete"):
        found[name] = start(replace(RECIPES[name], seed=seed), digits, weights=found.get("sigmoid"))
    return {name: found[name] for name in RECIPES}


def _gradients(network: nn.Module) -> list[Tensor]:
    """Of the weights of every layer, flat."""
    return [layer.weight.grad.flatten().clone() for layer in layers(network).values()]  # type: ignore[union-attr]


def _statistics(networks: dict[str, nn.Module], gradients: dict[str, list[Tensor]]) -> dict[str, Tensor]:
    rows = {}
    for name, network in networks.items():
        weights = [layer.weight.detach() for layer in layers(network).values()]
        rows[f"mean weight/{name}"] = torch.stack([w.mean() for w in weights])
        rows[f"std weight/{name}"] = torch.stack([w.std() for w in weights])
        rows[f"mean gradient/{name}"] = torch.stack([g.mean() for g in gradients[name]])
        rows[f"mean size of gradient/{name}"] = torch.stack([g.abs().mean() for g in gradients[name]])
    return rows


def _own(gradients: dict[str, list[Tensor]]) -> dict[str, Tensor]:
    others = ("BinConcrete", "sigmoid")
    return {f"own/{name}": cosines(gradients["NSM"], gradients[name]) for name in others}


def _at_the_same_weights(
    nsm: nn.Module, sigmoid: nn.Module, gradient: list[Tensor], x: Tensor, y: Tensor
) -> dict[str, Tensor]:
    """The NSM's gradient against another draw of it, BinConcrete's, and the sigmoid network's with its w and b."""
    again, relaxed, smooth = copy.deepcopy(nsm), copy.deepcopy(nsm), copy.deepcopy(sigmoid)
    for layer in layers(relaxed).values():
        if isinstance(layer, NSMLayer):
            layer.estimator = Concrete()
    with torch.no_grad():
        for own, other in zip(layers(smooth).values(), layers(nsm).values(), strict=True):
            own.weight.copy_(other.weight)
            own.bias.copy_(other.bias)  # type: ignore[union-attr, arg-type]
    found = {}
    for name, network in {"NSM": again, "BinConcrete": relaxed, "sigmoid": smooth}.items():
        differentiate(network, x, y)
        found[f"same/{name}"] = cosines(gradient, _gradients(network))
    return found


def cosines(one: list[Tensor], other: list[Tensor]) -> Tensor:
    """The cosine of the angle between two gradients, for every layer.

    >>> cosines([torch.tensor([1.0, 0.0])], [torch.tensor([1.0, 1.0])])
    tensor([0.7071])
    """
    return torch.stack([torch.nn.functional.cosine_similarity(a, b, dim=0) for a, b in zip(one, other, strict=True)])


def _histograms(network: nn.Module, first: dict[str, float]) -> dict[str, Any]:
    """Of each layer's weights the density, over a range that holds all but one in a thousand, and the std."""
    found = {}
    for name, layer in layers(network).items():
        weights = layer.weight.detach().flatten().cpu()
        reach = torch.quantile(weights.abs(), 0.999).item()
        bins = min(41, len(weights) // 50)
        density, edges = torch.histogram(weights, bins, range=(-reach, reach), density=True)
        found[name] = {
            "edges": [edges[0].item(), edges[-1].item()],
            "density": density.tolist(),
            "std": weights.std().item(),
            "first_std": first[name],
        }
    return found


def _mean(found: list[Any]) -> Any:
    """The mean of nested records of numbers."""
    if isinstance(found[0], dict):
        return {key: _mean([each[key] for each in found]) for key in found[0]}
    if isinstance(found[0], list):
        return [_mean(list(each)) for each in zip(*found, strict=True)]
    return sum(found) / len(found)


# ------------------------------------------------------------------------- the picture


def draw(result: dict[str, Any]) -> "Figure":
    """A column for each layer; rows for histograms, mean weights, gradients, and the two kinds of angles."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 12), layout="constrained")
    grid = figure.subplots(5, len(LAYERS))
    for column, (key, title) in enumerate(LAYERS.items()):
        panels = [row[column] for row in grid]
        _draw_histogram(panels[0], result, key)
        panels[0].set_title(title)
        for panel, what in ((panels[1], "mean weight"), (panels[2], "mean gradient")):
            for name in RECIPES:
                panel.plot(result["step"], result["curves"][f"{what}/{name}"][key], **_line(name))
            panel.axhline(0, color="0.6", linewidth=0.6, zorder=0)
            panel.ticklabel_format(axis="y", scilimits=(-2, 3))
        later = [abs(g) for name in RECIPES for g in result["curves"][f"mean gradient/{name}"][key][1:]]
        if later:  # the first look is far above all others
            panels[2].set(ylim=(-1.1 * max(later), 1.1 * max(later)))
        for panel, kind in ((panels[3], "own"), (panels[4], "same")):
            for name in RECIPES:
                if curve := result["cosines"].get(f"{kind}/{name}"):
                    panel.plot(result["step"], curve[key], **_line(name))
            panel.set(ylim=(-0.3, 1.02))
            panel.axhline(0, color="0.6", linewidth=0.6, zorder=0)
        for panel in panels[1:]:
            panel.set(xlim=(0, result["steps"]))
        panels[-1].set(xlabel="mini-batch")
    for row, what in zip(
        grid[:, 0],
        (
            "density of weights\nat the end",
            "mean weight",
            "mean gradient",
            "cosine with the NSM's\ngradient, own trajectories",
            "cosine with the NSM's\ngradient, same weights",
        ),
        strict=True,
    ):
        row.set_ylabel(what)
    grid[2, -1].set(ylim=grid[2, -2].get_ylim())  # what is there is rounding: gradients of a softmax's inputs sum to 0
    figure.legend(handles=grid[0, 0].get_legend_handles_labels()[0], loc="outside upper left", ncols=3, frameon=False)
    grid[4, 0].legend(
        handles=grid[4, 0].lines[:3], labels=["NSM, another draw", "BinConcrete", "sigmoid"], frameon=False, fontsize=8
    )
    figure.suptitle(f"{label(result)}MNIST CNN, n = {result['seeds']}", fontsize=11)
    return figure


def caption(result: dict[str, Any]) -> str:
    """What is seen, row by row, in numbers."""
    recipe = result["recipes"]["NSM"]
    epochs = result["steps"] * recipe["batch_size"] / DIGITS
    grown, far = [], []
    for name in RECIPES:
        ratios = [each["std"] / each["first_std"] for each in result["histograms"][name].values()]
        grown.append(f"{name} × {min(ratios):.2f} to {max(ratios):.2f}")
        gradients = [g for curve in result["curves"][f"mean gradient/{name}"].values() for g in curve]
        far.append(f"{name} {max(map(abs, gradients)):.1g}")
    last = {name: round(mean_cosine(result, name), 2) + 0 for name in result["cosines"]}  # + 0: not −0
    return (
        f"The same start and mini-batches for all, n = {result['seeds']}; curves are means of {WINDOW} mini-batches. "
        f"From above: the weights after {result['steps']} mini-batches ({epochs:.2g} epochs of the recipe's "
        f"{recipe['epochs']}) of the first start, whose standard deviation is, over the layers, {', '.join(grown)} of "
        f"what it was; their mean; the mean of their gradient (at most {', '.join(far)} from 0, in the first "
        f"{WINDOW} mini-batches, which are cut off; none in the last layer, where the classes' cancel); the cosine of "
        f"the angle with the NSM's gradient, along the networks' own trajectories (last third, mean of the layers: "
        f"BinConcrete {last['own/BinConcrete']:.2f}, sigmoid {last['own/sigmoid']:.2f}) and at the NSM's weights "
        f"(BinConcrete {last['same/BinConcrete']:.2f}, another draw of the NSM {last['same/NSM']:.2f}, sigmoid "
        f"{last['same/sigmoid']:.2f})."
    )


def last_third(curves: dict[str, list[float]]) -> dict[str, float]:
    """Of every layer's curve, the mean over the last third of the run."""
    thirds = {layer: curve[-max(1, len(curve) // 3) :] for layer, curve in curves.items()}
    return {layer: sum(curve) / len(curve) for layer, curve in thirds.items()}


def layer_cosines(result: dict[str, Any], name: str) -> dict[str, float]:
    """Of every layer, the cosine with the NSM's gradient in the last third of the run."""
    return last_third(result["cosines"][name])


def mean_cosine(result: dict[str, Any], name: str) -> float:
    """The mean over the last third of the run and all layers."""
    layers = layer_cosines(result, name)
    return sum(layers.values()) / len(layers)


def _draw_histogram(panel: Any, result: dict[str, Any], key: str) -> None:
    for name in RECIPES:
        found = result["histograms"][name][key]
        (low, high), count = found["edges"], len(found["density"])
        middle = [low + (high - low) * (k + 0.5) / count for k in range(count)]
        style = {**_line(name), "label": name}
        panel.plot(middle, found["density"], **style)
    panel.set(ylim=(0, None), xlabel="weight")


def _line(name: str) -> dict[str, Any]:
    return {"color": COLORS[name], "linestyle": STYLES[name], "linewidth": 1.6, "label": name}


if __name__ == "__main__":
    command(NAME, __doc__, run, draw, seeds=1, epochs=None)
