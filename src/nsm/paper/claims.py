"""What the paper says and what we found, claim by claim: a verdict by a stated rule, with the numbers of results/.

Every claim is a function of `Findings`. Its docstring is what the paper says; it returns a verdict, what was found and
the rule, or None where the records it needs are not there. Nothing is written by hand, so no verdict can outlive its
numbers.
"""

import math
import statistics
from collections.abc import Callable
from typing import Any

from nsm.paper.estimates import Estimate, of_row, of_seeds, paired
from nsm.paper.figure_curves import mean_curve, worst
from nsm.paper.figure_statistics import LAYERS, layer_cosines, mean_cosine
from nsm.paper.findings import Findings, percent
from nsm.paper.precision import at_the_edge
from nsm.paper.verdict import OPEN, Judged, Verdict

#: When the rules were made and what they ask for, which a reader of verdicts must know.
RULES_WRITTEN = (
    "The rules were written before any row of a table was run, but after the percentiles and short versions of the "
    "other figures had been seen: those of covariate shift, stable weights, gradient angles and fixed precision were "
    "not blind to them, nor was that of operations to their counts. Four were changed once results had been seen: "
    "that of the deterministic twin (a lower mean, then one lower by two standard errors; now comparable and better "
    "are judged apart, as the paper says both), that of additive noise (it compared errors, where the paper speaks "
    "of what noise does to the scale of weights), and the two of scaling (they compared networks as if they were not "
    "the same ones); that of a trained start was written when its first rows had been seen. Two standard errors "
    "decide wherever errors of rows or of scaled networks are called equal or lower, and in one half of covariate "
    "shift; stable weights, convergence, straight-through and binary networks, fixed precision, gradient angles, the "
    "loss over all factors and the other half of covariate shift compare plain means. Few seeds make two standard "
    "errors wide, so each difference stands with its own."
)
#: sigmoid(x) is nearest to ½(1 + erf t) for x = 1.702 √2 t, so w·z of an StNN is worth this much less t.
LOGIT_PER_T = 1.702 * math.sqrt(2)


_Claim = Callable[[Findings], Judged | None]
_CLAIMS: list[tuple[str, str, tuple[str, ...], _Claim]] = []


def _claim(title: str, rule: str, *sources: str) -> Callable[[_Claim], _Claim]:
    def add(judge: _Claim) -> _Claim:
        _CLAIMS.append((title, rule, sources, judge))
        return judge

    return add


def verdicts(findings: Findings) -> list[Verdict]:
    """Every claim, judged by what was found."""
    found = []
    for title, rule, sources, judge in _CLAIMS:
        judged, paper = judge(findings), " ".join((judge.__doc__ or "").split())
        if judged is None:
            found.append(Verdict(title, paper, OPEN, OPEN, rule, sources))
        else:
            found.append(Verdict(title, paper, judged.verdict, judged.found, rule, sources, judged.quick, judged.parts))
    return found


# ------------------------------------------------------------------------- the claims


@_claim(
    "self-normalisation",
    "confirmed if scaling the weights with the biases, by one factor and row by row, changes the error of the same "
    "networks by no more than two standard errors of the change",
    "paper/scaling.json",
)
def _self_normalisation(findings: Findings) -> Judged | None:
    """The noise normalises the weights: any positive factor of a unit's weights cancels in its firing probability."""
    ways = _scaled(findings).get("NSM")
    if not ways:
        return None
    plain = ways["weights and biases"]["1.0"]
    together, rows = (paired(ways[way]["0.1"], plain) for way in ("weights and biases", "rows"))
    return Judged(
        [together.zero, rows.zero],
        f"error {_words(plain)} as trained; of the same networks it changes by {together} with weights and biases "
        f"× 0.1, by {rows} with a factor between 0.1 and 10 for each unit (n = {plain['n']})",
        _quick(findings.records["scaling"]),
    )


@_claim(
    "less internal covariate shift",
    "confirmed if the percentiles of the last hidden layer's input move less in the NSM, both relative to their first "
    "width and on the scale of the firing probability (in units of t; an StNN's w·z is worth 1/2.41 of it)",
    "figure-percentiles.json",
)
def _covariate_shift(findings: Findings) -> Judged | None:
    """The evolution of the input distribution is more stable in the NSM than in the StNN."""
    record = findings.records.get("percentiles")
    if not record:
        return None
    relative = {name: of_seeds(network["movement"]) for name, network in record["networks"].items()}
    in_t = {
        name: _movement(network["percentiles"]) / (1 if name == "NSM" else LOGIT_PER_T)
        for name, network in record["networks"].items()
    }
    words = {name: f"{moved.mean:.3f} ± {moved.error:.3f}" for name, moved in relative.items()}
    return Judged(
        [(relative["NSM"] - relative["StNN"]).negative, in_t["NSM"] < in_t["StNN"]],
        f"over {record['steps']} mini-batches the percentiles are on average {words['NSM']} first half-widths from "
        f"their start (StNN {words['StNN']}, {record['seeds']} seeds); in units of t {in_t['NSM']:.2f} (StNN "
        f"{in_t['StNN']:.2f})",
        record["quick"],
    )


@_claim(
    "stable weights",
    "confirmed if the standard deviation of the third layer's weights grows less in the NSM",
    "figure-weights.json",
)
def _stable_weights(findings: Findings) -> Judged | None:
    """The distribution of weights remains more stable in the NSM than in the StNN, whose weights grow faster."""
    record = findings.records.get("weights")
    if not record:
        return None
    last = {name: of_seeds(network["last_std_ratio_per_seed"]) for name, network in record["networks"].items()}
    words = {
        name: f"× {grown.mean:.3f}" + f" ± {grown.error:.3f}" * (record["seeds"] > 1) for name, grown in last.items()
    }
    moved = {name: _farthest(network["mean_shift"]) for name, network in record["networks"].items()}
    return Judged(
        [last["NSM"].mean < last["StNN"].mean],
        f"after {_epochs(record)} the standard deviation is {words['NSM']} (StNN {words['StNN']}, "
        f"n = {record['seeds']}); their mean moves by at most {moved['NSM']:.1g} (StNN {moved['StNN']:.1g}) "
        "first standard deviations",
        record["quick"],
    )


@_claim(
    "faster convergence than the StNN",
    "an iteration of the paper may be an epoch or a batch; measured is the test error after every epoch: confirmed if "
    "its mean is lower for the NSM in nine of ten epochs, not confirmed if in one of ten",
    "paper/convergence.json",
)
def _convergence(findings: Findings) -> Judged | None:
    """Both the speed of convergence and the accuracy within 200 iterations are higher in the NSM than in the StNN."""
    record = findings.records.get("convergence")
    if not record or not {"NSM", "StNN"} <= set(record["curves"]):
        return None
    nsm, other = (mean_curve(record["curves"][name]) for name in ("NSM", "StNN"))
    share = statistics.fmean(a < b for a, b in zip(nsm, other, strict=False))
    epochs = record["curves"]["NSM"]["epochs"]
    return Judged(
        [share >= 0.9, share > 0.1],
        f"NSM below StNN in {100 * share:.0f} % of {len(nsm)} epochs; after epoch {epochs[0]} {nsm[0]:.2f} % (StNN "
        f"{other[0]:.2f} %), after epoch {epochs[-1]} {nsm[-1]:.2f} % (StNN {other[-1]:.2f} %), "
        f"n = {len(record['curves']['NSM']['errors'])}",
        _quick(record),
    )


@_claim(
    "more accurate than the StNN",
    "confirmed if lower by more than two standard errors of the difference",
    "paper.json",
)
def _better_than_stnn(findings: Findings) -> Judged | None:
    """On permutation-invariant MNIST the NSM's error is 1.36 %, the StNN's 1.47 %."""
    nsm, other = (findings.row("table1", "PI MNIST", model) for model in ("NSM", "StNN"))
    if not (nsm and other):
        return None
    apart = _apart(nsm, other)
    found = f"NSM {_words(nsm)}, StNN {_words(other)}, difference {apart} (n = {nsm['n']} and {other['n']})"
    return Judged([apart.negative], found, _quick(nsm, other))


@_claim(
    "robustness to scaling",
    "confirmed if weights × 0.1 change the error of the same networks by no more than two standard errors of the "
    "change, and from × 0.01 to × 100 (with biases) the NSM loses less than the ReLU network",
    "paper/scaling.json",
)
def _scaling(findings: Findings) -> Judged | None:
    """With weights × 0.1 at inference the error is 1.38 in place of 1.36 %; other networks are lost by such scaling."""
    curves = _scaled(findings)
    if "NSM" not in curves:
        return None
    plain, scaled = (curves["NSM"]["weights"][factor] for factor in ("1.0", "0.1"))
    change, lost = paired(scaled, plain), {name: paired(*worst(ways)) for name, ways in curves.items()}
    parts = [f"{name} {_words(worst(ways)[0])}, {lost[name]} above as trained" for name, ways in curves.items()]
    against = [lost["NSM"].mean < lost["ReLU network"].mean] if "ReLU network" in lost else []
    alone = ""
    if unbiased := curves.get("NSM, harder inputs, no biases", {}).get("weights"):
        alone = f", networks without biases by {paired(unbiased['0.1'], unbiased['1.0'])} (n = {unbiased['1.0']['n']})"
    return Judged(
        [change.zero, *against],
        f"NSM {_words(plain)} as trained, {_words(scaled)} with weights alone × 0.1: the same networks change by "
        f"{change} (n = {plain['n']}){alone}; largest error from × 0.01 to × 100 with biases: {'; '.join(parts)}",
        _quick(findings.records["scaling"]),
    )


@_claim(
    "robustness to fixed range and precision",
    "confirmed if at 2 to 8 bits the NSM has, on average, fewer weights at the rails and loses less accuracy to the "
    "grid than both other networks",
    "precision.json",
)
def _precision(findings: Findings) -> Judged | None:
    """Stable weights mitigate saturation at the boundaries of fixed-range weights, and fixed precision is borne."""
    record = findings.records.get("precision")
    if not record:
        return None
    loss, rails = {}, {}
    for name in dict.fromkeys(row["network"] for row in record["rows"]):
        rows = {row["bits"]: row for row in record["rows"] if row["network"] == name}
        coarse = [row for bits, row in rows.items() if bits is not None]
        loss[name] = statistics.fmean(row["mean"] for row in coarse) - rows[None]["mean"]
        rails[name] = 100 * statistics.fmean(row["at_rails"][-1] for row in coarse)
    words = [f"{name} {rails[name]:.1f} % at the rails, error {loss[name]:+.2f} points" for name in loss]
    fewest = [rails["NSM"] < rails[name] for name in rails if name != "NSM"]
    least = [loss["NSM"] <= loss[name] for name in loss if name != "NSM"]
    return Judged(
        [*fewest, *least],
        f"mean of the precisions tried, against clipping alone ({_epochs(record)}, n = {record['seeds']}): "
        + "; ".join(words)
        + f". {at_the_edge(record)[:-1]}",
        record["quick"],
    )


@_claim(
    "gradient angles near BinConcrete's",
    "confirmed if, at the same weights, BinConcrete's gradient has at least 0.9 of the cosine with the NSM's that "
    "another draw of the NSM's own gradient has, and the sigmoid network's less than that",
    "figure-statistics.json",
)
def _angles(findings: Findings) -> Judged | None:
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
        [relaxed >= 0.9 * again, smooth < 0.9 * again],
        f"cosine with the NSM's gradient at the same weights, mean of the layers: BinConcrete {relaxed:.2f}, another "
        f"draw of the NSM {again:.2f}, sigmoid {smooth:.2f}; layer by layer BinConcrete has {share[low]:.2f} ({low}) "
        f"to {share[high]:.2f} ({high}) of what another draw has; along their own trajectories BinConcrete "
        f"{own['BinConcrete']:.2f}, sigmoid {own['sigmoid']:.2f} (last third of {record['steps']} mini-batches, "
        f"n = {record['seeds']})",
        record["quick"],
    )


@_claim(
    "better than its deterministic twin",
    "of every NSM row of every data set that was run: comparable if not above the dCNN by more than two standard "
    "errors of the difference, better if below by more; confirmed if all are better, mixed if some are comparable, not "
    "confirmed if none is. Rows of our recipes are shown and not judged: those were searched for with the NSM",
    "paper.json",
)
def _twin(findings: Findings) -> Judged | None:
    """NSMs perform comparably to or better than the deterministic network of the same architecture."""
    judged: list[Estimate] = []
    parts, beside, quick = [], [], False
    for table, data in dict.fromkeys((row["table"], row["data"]) for row in findings.rows):
        for way in ("", ", tuned", ", Muon"):
            twin = findings.row(table, data, f"dCNN{way}")
            for model in ("bNSM", "gNSM", "bNSM*", "gNSM*"):
                row = findings.row(table, data, f"{model}{way}")
                if twin and row:
                    apart = _apart(row, twin)
                    word = "better" if apart.negative else "worse" if apart.positive else "comparable"
                    words = f"{data} {row['model']} {_words(row)}, dCNN{way} {_words(twin)}, {apart}: {word}"
                    (beside if way else parts).append(words)
                    judged += [] if way else [apart]
                    quick |= _quick(twin, row)
    if not judged:
        return None
    comparable, better = [not apart.positive for apart in judged], [apart.negative for apart in judged]
    found = f"{sum(comparable)} of {len(judged)} comparable, {sum(better)} of them better"
    return Judged(comparable + better, found, quick, [*parts, *(f"not judged: {words}" for words in beside)])


@_claim(
    "better than straight-through and binary networks",
    "confirmed if bNSM's error is the lowest of all",
    "paper.json",
)
def _others(findings: Findings) -> Judged | None:
    """On MNIST the NSM (0.775 %) is better than bNSM (STE), BD, wBD, SN and BN (1.10 to 3.11 %)."""
    nsm = findings.row("table2", "MNIST", "bNSM")
    others = {model: findings.row("table2", "MNIST", model) for model in ("bNSM (STE)", "BD", "wBD", "SN", "BN")}
    there = [row for row in others.values() if row]
    if not (nsm and there):
        return None
    words = [f"bNSM {_words(nsm)}", *(f"{row['model']} {_words(row)}" for row in there)]
    words += _lacking([model for model, row in others.items() if not row])
    return Judged([nsm["mean"] < row["mean"] for row in there], "; ".join(words), _quick(nsm, *there))


@_claim(
    "neuron or synapse noise does not matter",
    "noise at synapses is drawn by its moments, with which blank-out and Gaussian noise have one law; confirmed if the "
    "errors differ by no more than two standard errors of their difference",
    "paper.json",
)
def _site(findings: Findings) -> Judged | None:
    """Whether the neuron or the synapse is stochastic did not significantly affect the results."""
    models = [("table1", "PI MNIST", "NSM"), ("table2", "MNIST", "bNSM"), ("table2", "MNIST", "gNSM")]
    return _two_ways(findings, models, {"neuron": "", "synapse": ", synapse noise"})


@_claim(
    "a trained start does not matter",
    "confirmed if the errors differ by no more than two standard errors of their difference",
    "paper.json",
)
def _start(findings: Findings) -> Judged | None:
    """Initialised with the weights of the trained deterministic network or not, the NSM's performance was similar."""
    models = [("table3", data, model) for data in ("CIFAR-10", "CIFAR-100") for model in ("bNSM", "gNSM")]
    return _two_ways(findings, models, {"fresh": "*", "trained": ""})


def _two_ways(findings: Findings, models: list[tuple[str, str, str]], ways: dict[str, str]) -> Judged | None:
    """Whether the errors of models, each (table, data, model), are the same in two ways, each named by an ending."""
    rows = [[findings.row(*model[:2], model[2] + ending) for ending in ways.values()] for model in models]
    found = [(model, one, other) for model, (one, other) in zip(models, rows, strict=True) if one and other]
    if not found:
        return None
    apart = [_apart(other, one) for _, one, other in found]
    first, second = ways
    words = [
        f"{data} {model}: {first} {_words(one)}, {second} {_words(other)}, difference {by}"
        for ((_, data, model), one, other), by in zip(found, apart, strict=True)
    ]
    words += _lacking([f"{data} {model}" for (_, data, model), pair in zip(models, rows, strict=True) if not all(pair)])
    quick, same = any(_quick(one, other) for _, one, other in found), [by.zero for by in apart]
    by_how_much = ", ".join(f"{data} {model} {by}" for ((_, data, model), *_), by in zip(found, apart, strict=True))
    return Judged(same, f"{sum(same)} of {len(same)} within two standard errors ({by_how_much})", quick, words)


@_claim(
    "multiplicative noise does what additive noise does not",
    "confirmed if weights and biases scaled by × 0.01 to × 100 cost the network with additive noise more than the NSM, "
    "by more than two standard errors; errors as trained are stated and not judged",
    "paper.json",
    "paper/scaling.json",
)
def _additive(findings: Findings) -> Judged | None:
    """Additive noise does not endow the network with any properties beyond its activation function."""
    nsm, other = (findings.row("table1", "PI MNIST", model) for model in ("NSM", "additive noise"))
    if not (nsm and other):
        return None
    found = f"as trained NSM {_words(nsm)}, additive noise {_words(other)}, difference {_apart(nsm, other)}"
    curves = _scaled(findings)
    if not {"NSM", "additive noise"} <= set(curves):
        return Judged([], f"{found}; scaled weights of the network with additive noise: {OPEN}", _quick(nsm, other))
    lost = {name: paired(*worst(curves[name])) for name in ("NSM", "additive noise")}
    found += f"; scaled, the NSM changes by {lost['NSM']} at its worst, additive noise by {lost['additive noise']}"
    return Judged([(lost["additive noise"] - lost["NSM"]).positive], found, _quick(nsm, other))


@_claim(
    "almost exclusively additions and comparisons",
    "confirmed if in every network of the paper with blank-out noise fewer than one operation in a hundred is a "
    "multiplication",
    "operations.json",
)
def _operations(findings: Findings) -> Judged | None:
    """Inference requires almost exclusively addition and comparison operations."""
    record = findings.records.get("operations")
    if not record:
        return None
    shares, ratios, parts = [], [], []
    fewer, more = [], []  # multiplications and additions of all samples, against one pass of the twin
    for row in record["rows"]:
        if row["unit"] == "bNSM" and row["site"] == "neuron":
            counts, whole = row["one_sample"], row["all_samples"]
            twin = next(r for r in record["rows"] if (r["data"], r["network"], r["unit"]) == (*_key(row), "dCNN"))
            kinds = ("additions", "comparisons", "multiplications", "exponentials")
            shares.append(counts["multiplications"] / sum(counts[kind] for kind in kinds))
            ratios.append(twin["one_sample"]["multiplications"] / counts["multiplications"])
            fewer.append(twin["one_sample"]["multiplications"] / whole["multiplications"])
            more.append(whole["additions"] / twin["one_sample"]["additions"])
            words = f"{100 * shares[-1]:.2f} %, {ratios[-1]:.0f} times fewer than its twin"
            parts.append(f"{row['data']} ({row['network']}): {words}")
    most = max(row["samples"] for row in record["rows"])
    found = (
        f"at most {100 * max(shares):.2f} % of the operations of one sample are multiplications, {min(ratios):.0f} to "
        f"{max(ratios):.0f} times fewer than the deterministic twin has; against one pass of the twin {most} samples "
        f"have {min(fewer):.1f} to {max(fewer):.1f} times fewer multiplications, and {min(more):.0f} to "
        f"{max(more):.0f} times as many additions"
    )
    return Judged([share < 0.01 for share in shares], found, parts=parts)


# ------------------------------------------------------------------------- comparing


def _key(row: dict[str, Any]) -> tuple[str, str]:
    return row["data"], row["network"]


def _words(row: dict[str, Any]) -> str:
    return f"{percent(row)} %"


def _lacking(names: list[str]) -> list[str]:
    return [f"not yet run: {', '.join(names)}"] if names else []


def _epochs(record: dict[str, Any]) -> str:
    return f"{record['epochs']} epoch{'s' * (record['epochs'] > 1)}"


def _quick(*found: dict[str, Any]) -> bool:
    return any(each.get("quick") for each in found)


def _apart(one: dict[str, Any], other: dict[str, Any]) -> Estimate:
    """By how much the error of one row is above that of another."""
    return of_row(one) - of_row(other)


def _scaled(findings: Findings) -> dict[str, Any]:
    """Errors with scaled weights, of every network: way, factor, summary of the seeds."""
    return findings.records.get("scaling", {"curves": {}})["curves"]


def _movement(percentiles: list[list[float]]) -> float:
    """The mean distance of curves from where they began."""
    return statistics.fmean(abs(value - curve[0]) for curve in percentiles for value in curve)


def _farthest(values: list[float]) -> float:
    return max(map(abs, values))
