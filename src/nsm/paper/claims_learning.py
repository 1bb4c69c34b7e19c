"""What the paper says of networks that learn, judged by the records of the figures."""

import statistics
from typing import Any

from nsm.paper.estimates import of_seeds
from nsm.paper.figure_curves import mean_curve
from nsm.paper.figure_percentiles import in_units_of_t, mean_errors
from nsm.paper.figure_statistics import LAYERS, last_third, layer_cosines, mean_cosine
from nsm.paper.figure_weights import last_shift
from nsm.paper.findings import Findings
from nsm.paper.precision import at_the_edge
from nsm.paper.verdict import Judged, claim, short
from nsm.recipes import PI_MNIST


@claim(
    "less internal covariate shift",
    "confirmed if the percentiles of the last hidden layer's input move less in the NSM, by more than two standard "
    "errors, both relative to their first width and on the scale of the firing probability (in units of t; an StNN's "
    "w·z is worth 1/2.41 of it)",
    "figure-percentiles.json",
)
def covariate_shift(findings: Findings) -> Judged | None:
    """The evolution of the input distribution is more stable in the NSM than in the StNN."""
    record = findings.records.get("percentiles")
    if not record:
        return None
    relative = {name: of_seeds(network["movement"]) for name, network in record["networks"].items()}
    in_t = {name: of_seeds(in_units_of_t(name, network)) for name, network in record["networks"].items()}
    first, second = (
        {name: f"{moved.mean:.3f} ± {moved.error:.3f}" for name, moved in by.items()} for by in (relative, in_t)
    )
    return Judged(
        [(by["NSM"] - by["StNN"]).negative for by in (relative, in_t)],
        f"over {record['steps']} mini-batches the percentiles are on average {first['NSM']} first half-widths from "
        f"their start (StNN {first['StNN']}, {record['seeds']} seeds); in units of t {second['NSM']} (StNN "
        f"{second['StNN']})",
        record["quick"],
    )


@claim(
    "stable weights",
    "confirmed if the standard deviation of the third layer's weights grows less in the NSM",
    "figure-weights.json",
)
def stable_weights(findings: Findings) -> Judged | None:
    """The distribution of weights remains more stable in the NSM than in the StNN, whose weights grow faster."""
    record = findings.records.get("weights")
    if not record:
        return None
    last = {name: of_seeds(network["last_std_ratio_per_seed"]) for name, network in record["networks"].items()}
    words = {
        name: f"× {grown.mean:.3f}" + f" ± {grown.error:.3f}" * (record["seeds"] > 1) for name, grown in last.items()
    }
    moved = {name: last_shift(network) for name, network in record["networks"].items()}
    return Judged(
        [last["NSM"].mean < last["StNN"].mean],
        f"after {_epochs(record)} the standard deviation is {words['NSM']} (StNN {words['StNN']}, "
        f"n = {record['seeds']}); their mean has moved by {moved['NSM']} (StNN {moved['StNN']}) first standard "
        "deviations",
        record["quick"],
    )


@claim(
    "faster convergence than the StNN",
    "an iteration of the paper's figure is a mini-batch, elsewhere it may be an epoch; so the test error is measured "
    "within 200 mini-batches, and after every epoch: confirmed if its mean is lower for the NSM in nine of ten looks "
    "of either kind, not confirmed if in one of ten of both",
    "figure-percentiles.json",
    "paper/convergence.json",
)
def convergence(findings: Findings) -> Judged | None:
    """Both the speed of convergence and the accuracy within 200 iterations are higher in the NSM than in the StNN."""
    steps, epochs = findings.records.get("percentiles"), findings.records.get("convergence")
    if not steps or not epochs or not {"NSM", "StNN"} <= set(epochs["curves"]):
        return None
    first, later = ([found[name] for name in ("NSM", "StNN")] for found in (steps["networks"], epochs["curves"]))
    shares, words = [], []
    for unit, at, (nsm, other), n in (
        ("mini-batch", steps["measured_after"], map(mean_errors, first), steps["seeds"]),
        ("epoch", later[0]["epochs"], map(mean_curve, later), len(later[0]["errors"])),
    ):
        shares.append(statistics.fmean(a < b for a, b in zip(nsm, other, strict=True)))
        words.append(
            f"NSM below StNN in {100 * shares[-1]:.0f} % of {len(at)} looks; after {unit} {at[0]} {nsm[0]:.2f} % (StNN "
            f"{other[0]:.2f} %), after {unit} {at[-1]} {nsm[-1]:.2f} % (StNN {other[-1]:.2f} %), n = {n}"
        )
    holds = [share >= 0.9 for share in shares] + [share > 0.1 for share in shares]
    few = findings.records.get("precision", {"rows": []})["rows"]
    for best in (row["lr"] for row in few if row["network"] == "StNN" and row["bits"] is None):
        words.append(
            f"both at the recipe's rate of {PI_MNIST.lr:g}; with clipped weights the StNN's best of those tried is "
            f"{best:g}"
        )
    return Judged(holds, "; ".join(words), short(steps, epochs))


@claim(
    "robustness to fixed range and precision",
    "confirmed if at 2 to 8 bits the NSM has, on average, fewer weights at the rails and loses less accuracy to the "
    "grid than both other networks",
    "precision.json",
)
def precision(findings: Findings) -> Judged | None:
    """Stable weights mitigate saturation at the boundaries of fixed-range weights, and fixed precision is borne."""
    record = findings.records.get("precision")
    if not record:
        return None
    loss, rails = {}, {}
    for name in dict.fromkeys(row["network"] for row in record["rows"]):
        rows = {row["bits"]: row for row in record["rows"] if row["network"] == name}
        coarse = [row for bits, row in rows.items() if bits is not None]
        of_each = zip(*(row["values"] for row in coarse), strict=True)  # seed
        pairs = zip(of_each, rows[None]["values"], strict=True)
        loss[name] = of_seeds([statistics.fmean(errors) - clipped for errors, clipped in pairs])
        rails[name] = 100 * statistics.fmean(row["at_rails"][-1] for row in coarse)
    words = [f"{name} {rails[name]:.1f} % at the rails, error {loss[name]} points" for name in loss]
    fewest = [rails["NSM"] < rails[name] for name in rails if name != "NSM"]
    least = [loss["NSM"].mean < loss[name].mean for name in loss if name != "NSM"]
    return Judged(
        [*fewest, *least],
        f"mean of the precisions tried, against clipping alone ({_epochs(record)}, n = {record['seeds']}): "
        + "; ".join(words)
        + f". {at_the_edge(record)[:-1]}",
        record["quick"],
    )


@claim(
    "gradient angles near BinConcrete's",
    "confirmed if, at the same weights, BinConcrete's gradient has at least 0.9 of the cosine with the NSM's that "
    "another draw of the NSM's own gradient has, in the mean of the layers and in each of them, and the sigmoid "
    "network's less than that; and if along the networks' own trajectories BinConcrete's is the nearer one",
    "figure-statistics.json",
)
def angles(findings: Findings) -> Judged | None:
    """The angles between the gradients of the NSM and of BinConcrete, which is unbiased, are close."""
    record = findings.records.get("statistics")
    if not record:
        return None
    again, relaxed, smooth = (mean_cosine(record, f"same/{name}") for name in ("NSM", "BinConcrete", "sigmoid"))
    own = {name: mean_cosine(record, f"own/{name}") for name in ("BinConcrete", "sigmoid")}
    best = layer_cosines(record, "same/NSM")
    share = {LAYERS[layer]: cosine / best[layer] for layer, cosine in layer_cosines(record, "same/BinConcrete").items()}
    low, high = min(share, key=share.__getitem__), max(share, key=share.__getitem__)
    return Judged(
        [relaxed >= 0.9 * again, share[low] >= 0.9, smooth < 0.9 * again, own["BinConcrete"] > own["sigmoid"]],
        f"cosine with the NSM's gradient at the same weights, mean of the layers: BinConcrete {relaxed:.2f}, another "
        f"draw of the NSM {again:.2f}, sigmoid {round(smooth, 2) + 0:.2f}; layer by layer BinConcrete has "
        f"{share[low]:.2f} ({low}) to {share[high]:.2f} ({high}) of what another draw has; along their own "
        f"trajectories BinConcrete {own['BinConcrete']:.2f}, sigmoid {own['sigmoid']:.2f} (last third of "
        f"{record['steps']} mini-batches, n = {record['seeds']})",
        record["quick"],
    )


@claim(
    "smaller weights and gradients than the sigmoid network",
    "confirmed if, in every layer, the sigmoid network's weights have the larger standard deviation and its gradients "
    "the larger mean size, over the last third of the run",
    "figure-statistics.json",
)
def sizes(findings: Findings) -> Judged | None:
    """The deterministic network has larger weights than the NSM and develops larger gradient steps."""
    record = findings.records.get("statistics")
    if not record:
        return None
    holds, words = [], []
    for what, said in (("std weight", "standard deviation of weights"), ("mean size of gradient", "size of gradients")):
        nsm, other = (last_third(record["curves"][f"{what}/{name}"]) for name in ("NSM", "sigmoid"))
        larger = [other[layer] > nsm[layer] for layer in LAYERS]
        holds += larger
        sizes = ", ".join(f"{LAYERS[layer]} {other[layer]:.2g} (NSM {nsm[layer]:.2g})" for layer in LAYERS)
        words.append(f"{said} of the sigmoid network larger in {sum(larger)} of {len(larger)} layers: {sizes}")
    return Judged(holds, f"{'; '.join(words)}; n = {record['seeds']}", record["quick"])


@claim(
    "an online alternative to batch normalisation",
    "one pass over the digits, one at a time, each network with its best rate of those tried: confirmed if the NSM's "
    "test error is lower than that of the same network with batch normalisation in place of the noise, by more than "
    "two standard errors, and worse rates lie on both sides of either's best",
    "online.json",
)
def online(findings: Findings) -> Judged | None:
    """Weight normalisation is not based on batches, so an NSM can learn online, where batch normalisation cannot."""
    record = findings.records.get("online")
    if not record:
        return None
    found = {row["unit"]: of_seeds([100 * error for error in row["test_errors"]]) for row in record["rows"]}
    nsm, other = found["bNSM"], found["batch norm"]
    words = [f"{name} {by.mean:.2f} ± {by.error:.2f} %" for name, by in (("NSM", nsm), ("batch normalisation", other))]
    inside, ends = [], []
    for row in record["rows"]:
        rates = sorted(map(float, row["validation_error_of_each_lr"]))
        inside.append(rates[0] < row["lr"] < rates[-1])
        ends.append(f"{row['lr']:g} (tried from {rates[0]:g} to {rates[-1]:g})")
    difference = (
        f"difference {nsm - other} (n = {record['seeds']}); best rates on validation digits {' and '.join(ends)}"
    )
    return Judged([(nsm - other).negative, *inside], f"{', '.join(words)}, {difference}")


# ------------------------------------------------------------------------- in words


def _epochs(record: dict[str, Any]) -> str:
    return f"{record['epochs']} epoch{'s' * (record['epochs'] > 1)}"
