"""What the paper says of networks that have learned: their errors, what scaled weights do to them, what they cost."""

import itertools
import math
from typing import Any

from nsm.paper.estimates import Estimate, of_row, paired
from nsm.paper.figure_curves import worst
from nsm.paper.findings import Findings, percent
from nsm.paper.verdict import OPEN, Judged, claim, short

_FEWEST = 1000  # test inputs by which networks are compared
_TWINS = {"ReLU network": ("NSM",), "dCNN": ("bNSM", "gNSM", "bNSM*", "gNSM*")}  # of the same architecture


@claim(
    "self-normalisation of weights with their bias",
    "confirmed if scaling the weights with the biases, by one factor and row by row, changes the error of the same "
    "networks by no more than two standard errors of the change",
    "paper/scaling.json",
)
def self_normalisation(findings: Findings) -> Judged | None:
    """The noise normalises the weights: any positive factor of a unit's weights cancels in its firing probability."""
    ways = _scaled(findings).get("NSM")
    if not ways:
        return None
    plain = ways["weights and biases"]["1.0"]
    together, rows = (paired(ways[way]["0.1"], plain) for way in ("weights and biases", "rows"))
    others = {name: by for name, by in _scaled(findings).items() if not name.startswith("NSM")}
    lost = ", ".join(f"{name} {paired(by['rows']['0.1'], by['weights']['1.0'])}" for name, by in others.items())
    return Judged(
        [together.zero, rows.zero],
        f"error {_words(plain)} after the last epoch; of the same networks it changes by {together} with weights and "
        f"biases × 0.1, by {rows} with a factor between 0.1 and 10 for each unit, one draw of factors for all networks"
        + (f" (by which others change: {lost})" if lost else "")
        + f", n = {plain['n']}; weights alone are under robustness to scaling",
        short(findings.records["scaling"]),
    )


@claim(
    "more accurate than the StNN",
    "confirmed if lower by more than two standard errors of the difference",
    "paper.json",
)
def better_than_stnn(findings: Findings) -> Judged | None:
    """On permutation-invariant MNIST the NSM's error is 1.36 %, the StNN's 1.47 %."""
    nsm, other = (findings.row("table1", "PI MNIST", model) for model in ("NSM", "StNN"))
    if not (nsm and other):
        return None
    apart = _apart(nsm, other)
    found = f"NSM {_words(nsm)}, StNN {_words(other)}, difference {apart}{_n(nsm, other)}"
    return Judged([apart.negative], found, short(nsm, other))


@claim(
    "robustness to scaling",
    "confirmed if weights × 0.1 change the error of the same networks by no more than two standard errors of the "
    "change, and from × 0.01 to × 100 (with biases) the NSM loses less than the ReLU network",
    "paper/scaling.json",
)
def scaling(findings: Findings) -> Judged | None:
    """With weights × 0.1 at inference the error is 1.38 in place of 1.36 %; other networks are lost by such scaling."""
    curves = _scaled(findings)
    if "NSM" not in curves:
        return None
    plain, scaled = (curves["NSM"]["weights"][factor] for factor in ("1.0", "0.1"))
    change, lost = paired(scaled, plain), {name: paired(*worst(ways)) for name, ways in curves.items()}
    parts = [f"{name} {_words(worst(ways)[0])}, {lost[name]} more than unscaled" for name, ways in curves.items()]
    against = [lost["NSM"].mean < lost["ReLU network"].mean] if "ReLU network" in lost else []
    alone = ""
    if unbiased := curves.get("NSM, harder inputs, no biases", {}).get("weights"):
        alone = f", networks without biases by {paired(unbiased['0.1'], unbiased['1.0'])} (n = {unbiased['1.0']['n']})"
    return Judged(
        [change.zero, *against],
        f"NSM {_words(plain)} after the last epoch, {_words(scaled)} with weights alone × 0.1: the same networks "
        f"change by {change} (n = {plain['n']}){alone}; largest error from × 0.01 to × 100 with biases: "
        + "; ".join(parts),
        short(findings.records["scaling"]),
    )


@claim(
    "better than its deterministic twin",
    "of every NSM row of every data set that was run: comparable if not above the network of rectifiers by more than "
    "two standard errors of the difference, better if below by more; confirmed if all are better, mixed if some are "
    "comparable, not confirmed if none is. Shown and not judged are rows of our recipes, which were searched for with "
    "the NSM, and of fewer than 1,000 test inputs",
    "paper.json",
)
def twin(findings: Findings) -> Judged | None:
    """NSMs perform comparably to or better than the deterministic network of the same architecture."""
    judged: list[Estimate] = []
    parts, beside, quick = [], [], False
    for table, data in dict.fromkeys((row["table"], row["data"]) for row in findings.rows):
        for way, (name, models) in itertools.product(("", ", tuned", ", Muon", ", harder inputs"), _TWINS.items()):
            twin = findings.row(table, data, f"{name}{way}")
            for row in (findings.row(table, data, f"{model}{way}") for model in models):
                if twin and row:
                    apart = _apart(row, twin)
                    word = "better" if apart.negative else "worse" if apart.positive else "comparable"
                    words = f"{data} {row['model']} {_words(row)}, {twin['model']} {_words(twin)}, {apart}"
                    few = (row.get("test_inputs") or math.inf) < _FEWEST
                    (beside if way or few else parts).append(f"{words}{_n(row, twin)}: {word}")
                    judged += [] if way or few else [apart]
                    quick |= short(twin, row)
    if not judged:
        return None
    comparable, better = [not apart.positive for apart in judged], [apart.negative for apart in judged]
    found = f"{sum(comparable)} of {len(judged)} comparable, {sum(better)} of them better"
    return Judged(comparable + better, found, quick, [*parts, *(f"not judged: {words}" for words in beside)])


@claim(
    "better than straight-through and binary networks",
    "confirmed if bNSM's error is the lowest of all",
    "paper.json",
)
def others(findings: Findings) -> Judged | None:
    """On MNIST the NSM (0.775 %) is better than bNSM (STE), BD, wBD, SN and BN (1.10 to 3.11 %)."""
    nsm = findings.row("table2", "MNIST", "bNSM")
    others = {model: findings.row("table2", "MNIST", model) for model in ("bNSM (STE)", "BD", "wBD", "SN", "BN")}
    there = [row for row in others.values() if row]
    if not (nsm and there):
        return None
    words = [f"{row['model']} {_words(row)} (n = {row['n']})" for row in (nsm, *there)]
    words += _lacking([model for model, row in others.items() if not row])
    return Judged([nsm["mean"] < row["mean"] for row in there], "; ".join(words), short(nsm, *there))


@claim(
    "neuron or synapse noise does not matter",
    "noise at synapses is drawn by its moments, with which blank-out and Gaussian noise have one law; confirmed if the "
    "errors differ by no more than two standard errors of their difference",
    "paper.json",
)
def site(findings: Findings) -> Judged | None:
    """Whether the neuron or the synapse is stochastic did not significantly affect the results."""
    models = [("table1", "PI MNIST", "NSM"), ("table2", "MNIST", "bNSM"), ("table2", "MNIST", "gNSM")]
    return _two_ways(findings, models, {"neuron": "", "synapse": ", synapse noise"})


@claim(
    "a trained start does not matter",
    "confirmed if the errors differ by no more than two standard errors of their difference",
    "paper.json",
)
def start(findings: Findings) -> Judged | None:
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
        f"{data} {model}: {first} {_words(one)}, {second} {_words(other)}, difference {by}{_n(one, other)}"
        for ((_, data, model), one, other), by in zip(found, apart, strict=True)
    ]
    words += _lacking([f"{data} {model}" for (_, data, model), pair in zip(models, rows, strict=True) if not all(pair)])
    quick, same = any(short(one, other) for _, one, other in found), [by.zero for by in apart]
    by_how_much = ", ".join(f"{data} {model} {by}" for ((_, data, model), *_), by in zip(found, apart, strict=True))
    return Judged(same, f"{sum(same)} of {len(same)} within two standard errors ({by_how_much})", quick, words)


@claim(
    "multiplicative noise does what additive noise does not",
    "confirmed if weights and biases scaled by × 0.01 to × 100 cost the network with additive noise more than the NSM, "
    "by more than two standard errors; errors as trained are stated and not judged",
    "paper.json",
    "paper/scaling.json",
)
def additive(findings: Findings) -> Judged | None:
    """Additive noise does not endow the network with any properties beyond its activation function."""
    nsm, other = (findings.row("table1", "PI MNIST", model) for model in ("NSM", "additive noise"))
    if not (nsm and other):
        return None
    found = f"NSM {_words(nsm)}, additive noise {_words(other)}, difference {_apart(nsm, other)}{_n(nsm, other)}"
    curves = _scaled(findings)
    if not {"NSM", "additive noise"} <= set(curves):
        return Judged([], f"{found}; scaled weights of the network with additive noise: {OPEN}", short(nsm, other))
    lost = {name: paired(*worst(curves[name])) for name in ("NSM", "additive noise")}
    found += f"; scaled, the NSM changes by {lost['NSM']} at its worst, additive noise by {lost['additive noise']}"
    return Judged([(lost["additive noise"] - lost["NSM"]).positive], found, short(nsm, other))


@claim(
    "almost exclusively additions and comparisons",
    "confirmed if in every network of the paper with blank-out noise fewer than one operation in a hundred is a "
    "multiplication",
    "operations.json",
)
def operations(findings: Findings) -> Judged | None:
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
        f"with blank-out noise at most {100 * max(shares):.2f} % of the operations of one sample are multiplications, "
        f"{min(ratios):.0f} to {max(ratios):.0f} times fewer than the deterministic twin has; against one pass of the "
        f"twin {most} samples have {min(fewer):.1f} to {max(fewer):.1f} times fewer multiplications, and "
        f"{min(more):.0f} to {max(more):.0f} times as many additions"
    )
    return Judged([share < 0.01 for share in shares], found, parts=parts)


# ------------------------------------------------------------------------- comparing


def _key(row: dict[str, Any]) -> tuple[str, str]:
    return row["data"], row["network"]


def _words(row: dict[str, Any]) -> str:
    return f"{percent(row)} %"


def _n(*rows: dict[str, Any]) -> str:
    return f" (n = {' and '.join(str(row['n']) for row in rows)})"


def _lacking(names: list[str]) -> list[str]:
    return [f"not yet run: {', '.join(names)}"] if names else []


def _apart(one: dict[str, Any], other: dict[str, Any]) -> Estimate:
    """By how much the error of one row is above that of another."""
    return of_row(one) - of_row(other)


def _scaled(findings: Findings) -> dict[str, Any]:
    """Errors with scaled weights, of every network: way, factor, summary of the seeds."""
    return findings.records.get("scaling", {"curves": {}})["curves"]
