"""Two curves beside Table 1: error against the factor of the weights, and error against the epoch."""

import statistics
from typing import TYPE_CHECKING, Any

from nsm.paper.showing import COLORS, STYLES, logarithmic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHORT: dict[str, str] = {"ReLU network": "ReLU"}


def draw_scaling(record: dict[str, Any]) -> "Figure":
    """Error of trained networks whose hidden weights are multiplied: weights alone, and weights with biases."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.2), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, way in zip(panels, ("weights", "weights and biases"), strict=True):
        for name, ways in record["curves"].items():
            points = sorted((float(factor), found) for factor, found in ways.get(way, {}).items())
            short = SHORT.get(str(name), str(name))
            panel.errorbar(
                [factor for factor, _ in points],
                [found["mean"] for _, found in points],
                [found["standard_error"] or 0 for _, found in points],
                color=COLORS[short], linestyle=STYLES[short], marker="o", markersize=4, capsize=3, label=name,
            )  # fmt: skip
        panel.set(xscale="log", xlabel=f"factor of the {way} of hidden layers")
        logarithmic(panel)
    panels[0].set_ylabel("test error (%)")
    panels[0].legend(frameon=False)
    figure.suptitle(f"PI-MNIST, trained networks with scaled weights. {_worst(record)}", fontsize=10)
    return figure


def worst(record: dict[str, Any], name: str, way: str = "weights and biases") -> tuple[float, float]:
    """The largest error of a network over all factors, and its error as trained."""
    found = record["curves"][name][way]
    return max(each["mean"] for each in found.values()), found["1.0"]["mean"]


def _worst(record: dict[str, Any]) -> str:
    parts = [f"{name} {worst(record, name)[1]:.2f} → {worst(record, name)[0]:.2f} %" for name in record["curves"]]
    return "Largest error with\nweights and biases between × 0.01 and × 100: " + ", ".join(parts)


def draw_convergence(record: dict[str, Any]) -> "Figure":
    """Test error after every epoch, NSM against StNN; thin lines are single seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    panel = figure.subplots()
    for name, curve in record["curves"].items():
        line: Any = {"color": COLORS[name], "linestyle": STYLES[name]}
        for errors in curve["errors"]:
            panel.plot(curve["epochs"], errors, linewidth=0.6, alpha=0.4, **line)
        panel.plot(curve["epochs"], mean_curve(curve), linewidth=2, label=name, **line)
    panel.set(xlabel="epoch", ylabel="test error (%)")
    logarithmic(panel)
    panel.legend(frameon=False)
    parts = [f"{name} {mean_curve(c)[0]:.2f} % after the first epoch, {mean_curve(c)[-1]:.2f} % after {c['epochs'][-1]}"
             for name, c in record["curves"].items()]  # fmt: skip
    figure.suptitle("PI-MNIST, learning curves. " + ";\n".join(parts), fontsize=10)
    return figure


def mean_curve(curve: dict[str, Any]) -> list[float]:
    """The mean error of all seeds after every epoch."""
    return [statistics.fmean(errors) for errors in zip(*curve["errors"], strict=True)]
