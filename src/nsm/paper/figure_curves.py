"""Two curves beside Table 1: error against the factor of the weights, and error against the epoch."""

import statistics
from typing import TYPE_CHECKING, Any

from nsm.paper.showing import COLORS, STYLES, label, logarithmic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHORT: dict[str, str] = {"ReLU network": "ReLU"}
MARKERS = {
    "NSM": "o", "NSM, harder inputs": "s", "NSM, harder inputs, no biases": "D", "StNN": "^", "ReLU": "v",
    "additive noise": "x",
}  # fmt: skip


def draw_scaling(record: dict[str, Any]) -> "Figure":
    """Error of trained networks whose hidden weights are multiplied: weights alone, and weights with biases."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, way in zip(panels, ("weights", "weights and biases"), strict=True):
        for name, ways in record["curves"].items():
            points = sorted((float(factor), found) for factor, found in ways.get(way, {}).items())
            short = SHORT.get(str(name), str(name))
            panel.errorbar(
                [factor for factor, _ in points],
                [found["mean"] for _, found in points],
                [found["standard_error"] or 0 for _, found in points],
                color=COLORS[short], linestyle=STYLES[short], marker=MARKERS[short], markersize=4, capsize=3,
                label=name,
            )  # fmt: skip
        panel.set(xscale="log", xlabel=f"factor of the {way} of hidden layers")
        logarithmic(panel)
    panels[0].set_ylabel("test error (%)")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower left", ncols=2, frameon=False)
    title = f"{label(record)}PI-MNIST, scaled weights of trained networks, n = {_networks(record)}"
    figure.suptitle(title, fontsize=10)
    return figure


def caption_scaling(record: dict[str, Any]) -> str:
    """What is seen: what a tenth of the weights alone costs, and the worst factor of weights and biases."""
    tenth, most = [], []
    for name, ways in record["curves"].items():
        largest, plain = worst(ways)
        tenth.append(f"{name} {plain['mean']:.2f} → {ways['weights']['0.1']['mean']:.2f} %")
        most.append(f"{name} {plain['mean']:.2f} → {largest['mean']:.2f} %")
    return (
        f"Test error, after the last epoch, of networks whose hidden layers are multiplied by × 0.01 to × 100, n = "
        f"{_networks(record)}; bars are one standard error. Left, weights alone: with × 0.1 {', '.join(tenth)}. Right, "
        f"weights and biases together: with the worst factor {', '.join(most)}."
    )


def _networks(record: dict[str, Any]) -> str:
    """How many networks of each kind were trained."""
    return " or ".join(dict.fromkeys(str(ways["weights"]["1.0"]["n"]) for ways in record["curves"].values()))


def worst(ways: dict[str, Any], way: str = "weights and biases") -> tuple[dict[str, Any], dict[str, Any]]:
    """What a network's seeds gave at the factor, other than 1, with the largest mean error, and as trained."""
    others = [found for factor, found in ways[way].items() if factor != "1.0"]
    return max(others, key=lambda found: found["mean"]), ways[way]["1.0"]


def draw_convergence(record: dict[str, Any]) -> "Figure":
    """Test error after every epoch, NSM against StNN; thin lines are single seeds."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    panel = figure.subplots()
    for name, curve in record["curves"].items():
        line: Any = {"color": COLORS[name], "linestyle": STYLES[name]}
        for errors in curve["errors"]:
            panel.plot(curve["epochs"], errors, linewidth=0.6, alpha=0.4, **line)
        panel.plot(curve["epochs"], mean_curve(curve), linewidth=2, label=name, **line)
    panel.set(xlabel="epoch", ylabel="test error (%)")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    logarithmic(panel)
    panel.legend(frameon=False)
    figure.suptitle(f"{label(record)}PI-MNIST, learning curves, n = {_seeds(record)}", fontsize=10)
    return figure


def caption_convergence(record: dict[str, Any]) -> str:
    """What is seen: the errors at both ends."""
    parts = [
        f"{name} {curve[0]:.2f} % after epoch {each['epochs'][0]}, {curve[-1]:.2f} % after epoch {each['epochs'][-1]}"
        for name, each in record["curves"].items()
        for curve in [mean_curve(each)]
    ]
    return (
        f"Test error after every epoch, n = {_seeds(record)}: thin lines are single seeds, thick ones their mean. "
        f"{'; '.join(parts)}."
    )


def _seeds(record: dict[str, Any]) -> str:
    return " or ".join(dict.fromkeys(str(len(curve["errors"])) for curve in record["curves"].values()))


def mean_curve(curve: dict[str, Any]) -> list[float]:
    """The mean error of all seeds after every epoch."""
    return [statistics.fmean(errors) for errors in zip(*curve["errors"], strict=True)]
