"""Verdicts follow their rules, and what is missing is not yet measured."""

import json
import shutil
from pathlib import Path

import pytest

from nsm.paper.claims import CLAIMS, RULES_WRITTEN, verdicts
from nsm.paper.findings import Findings, gather
from nsm.paper.verdict import CONFIRMED, MIXED, NOT_CONFIRMED, OPEN
from paper_results import make_up, scaled, summary

ROOT = Path(__file__).resolve().parents[2]


def row(model, mean, error=0.02, data="PI MNIST", table="table1"):
    return {"table": table, "data": data, "model": model, "mean": mean, "standard_error": error, "paper": None, "n": 5}


def judge(title, rows=(), **records):
    findings = Findings(list(rows), {}, records)
    return next(claim for claim in CLAIMS if claim.title == title).judge(findings)


def test_nothing_is_measured_without_results(tmp_path):
    found = verdicts(gather(tmp_path))
    assert len(found) == 16
    assert {claim.verdict for claim in found} == {OPEN}
    assert all(claim.paper and claim.rule for claim in found)


@pytest.mark.parametrize(("mean", "verdict"), [(1.30, CONFIRMED), (1.43, NOT_CONFIRMED), (1.60, NOT_CONFIRMED)])
def test_lower_means_by_more_than_two_standard_errors(mean, verdict):
    """The error of the difference of 1.45 ± 0.02 and … ± 0.02 is 0.028."""
    found = judge("more accurate than the StNN", [row("NSM", mean), row("StNN", 1.45)])
    assert found.verdict == verdict
    assert f"NSM {mean:.2f} ± 0.02 %, StNN 1.45 ± 0.02 %, difference {mean - 1.45:+.3f} ± 0.028" in found.found


def scaling(**lost):
    return {"curves": {name.replace("_", " "): scaled(by) for name, by in lost.items()}}


def test_scaled_weights_are_compared_seed_by_seed():
    """Seeds are 0.1 apart; unpaired, a change of 0.05 in each of them would be within the error of 0.07."""
    assert judge("self-normalisation of weights with their bias").verdict == OPEN
    same = judge("self-normalisation of weights with their bias", scaling=scaling(NSM=1.4))
    assert same.verdict == CONFIRMED
    assert "changes by +0.000 ± 0.000 with weights and biases × 0.1" in same.found
    record = scaling(NSM=1.45)
    found = judge("self-normalisation of weights with their bias", scaling=record)
    assert found.verdict == NOT_CONFIRMED
    assert "changes by +0.050 ± 0.000" in found.found
    record["curves"]["NSM"]["rows"]["0.1"]["values"] = [1.2, 1.5, 1.3, 1.6, 1.4]  # ±0.1 in turn
    assert judge("self-normalisation of weights with their bias", scaling=record).verdict == MIXED


def test_a_single_network_is_not_compared_with_itself_without_error():
    record = scaling(NSM=1.45)
    for factors in record["curves"]["NSM"].values():
        for found in factors.values():
            found.update(standard_error=None, n=1, values=[found["mean"]])
    assert (
        judge("self-normalisation of weights with their bias", scaling=record).verdict == CONFIRMED
    )  # 14 and 14.5 of 1,000 are equal


def test_robustness_to_scaling():
    record = scaling(NSM=1.4, ReLU_network=60.0)
    assert judge("robustness to scaling", scaling=record).verdict == CONFIRMED
    record["curves"]["NSM"]["weights"]["0.1"] = summary(22.0)
    found = judge("robustness to scaling", scaling=record)
    assert found.verdict == MIXED
    assert "the same networks change by +20.60 ± 0.00 (n = 5)" in found.found
    assert "ReLU network 60.00 ± 0.07 %, +58.60 ± 0.00 more than unscaled" in found.found
    assert "without biases" not in found.found
    record["curves"]["NSM, harder inputs, no biases"] = scaled(1.5)
    assert "networks without biases by +0.100 ± 0.000 (n = 5)" in judge("robustness to scaling", scaling=record).found


def test_additive_noise_is_judged_by_what_scaling_does():
    title, rows = (
        "multiplicative noise does what additive noise does not",
        [row("NSM", 1.84), row("additive noise", 1.5)],
    )
    assert judge(title, rows[:1]).verdict == OPEN
    for record in ({}, {"scaling": scaling(NSM=1.4)}):
        found = judge(title, rows, **record)
        assert found.verdict == OPEN
        assert "NSM 1.84 ± 0.02 %, additive noise 1.50 ± 0.02 %, difference +0.340 ± 0.028 (n = 5 and 5)" in found.found
        assert "additive noise: not yet measured" in found.found
    found = judge(title, rows, scaling=scaling(NSM=1.4, additive_noise=40.0))  # though its error is the lower one
    assert found.verdict == CONFIRMED
    assert "the NSM changes by +0.000 ± 0.000 at its worst, additive noise by +38.60 ± 0.00" in found.found
    assert judge(title, rows, scaling=scaling(NSM=1.4, additive_noise=1.4)).verdict == NOT_CONFIRMED


def test_equal_errors_show_their_difference():
    rows = [row("NSM", 1.5), row("NSM, synapse noise", 1.55)]
    found = judge("neuron or synapse noise does not matter", rows)
    assert found.verdict == CONFIRMED
    assert found.found == "1 of 1 within two standard errors (PI MNIST NSM +0.050 ± 0.028)"
    assert "difference +0.050 ± 0.028" in found.parts[0]


def test_a_trained_start():
    rows = [row(name, mean, table="table3", data="CIFAR-10") for name, mean in (("bNSM*", 9.4), ("bNSM", 9.43))]
    found = judge("a trained start does not matter", rows)
    assert found.verdict == CONFIRMED
    assert (
        "CIFAR-10 bNSM: fresh 9.40 ± 0.02 %, trained 9.43 ± 0.02 %, difference +0.030 ± 0.028 (n = 5 and 5)"
        in found.parts
    )
    assert "not yet run: CIFAR-10 gNSM, CIFAR-100 bNSM, CIFAR-100 gNSM" in found.parts
    rows += [row(name, mean, table="table3", data="CIFAR-100") for name, mean in (("gNSM*", 34.0), ("gNSM", 36.0))]
    assert judge("a trained start does not matter", rows).verdict == MIXED


@pytest.mark.parametrize(
    ("worse", "verdict"),
    [((0, 0), CONFIRMED), ((0, 2), MIXED), ((2, 0), MIXED), ((10, 0), MIXED), ((10, 10), NOT_CONFIRMED)],
)
def test_convergence(worse, verdict):
    """In so many of ten looks, after mini-batches and after epochs, the NSM has the larger error."""

    def curves(count):
        nsm = [3.0 if look < count else 1.0 for look in range(10)]
        return {"NSM": [nsm, nsm], "StNN": [[2.0] * 10] * 2}

    steps, epochs = map(curves, worse)
    records = {
        "percentiles": {
            "networks": {name: {"errors": errors} for name, errors in steps.items()},
            "measured_after": list(range(20, 220, 20)), "seeds": 2, "quick": False,
        },
        "convergence": {"curves": {n: {"epochs": list(range(1, 11)), "errors": e} for n, e in epochs.items()}},
    }  # fmt: skip
    title = "faster convergence than the StNN"
    found = judge(title, **records)
    assert found.verdict == verdict
    for unit, count, first, last in (("mini-batch", worse[0], 20, 200), ("epoch", worse[1], 1, 10)):
        said = f"NSM below StNN in {100 - 10 * count} % of 10 looks; after {unit} {first} "
        assert said in found.found
        assert f"after {unit} {last} " in found.found
    for name in records:
        assert judge(title, **{name: records[name]}).verdict == OPEN
    few = {"rows": [{"network": "StNN", "bits": bits, "lr": lr} for bits, lr in ((4, 1e-4), (None, 1e-3))]}
    assert judge(title, **records, precision=few).found.endswith("the StNN's best of those tried is 0.001")


@pytest.mark.parametrize(
    ("bnsm", "gnsm", "verdict", "said"),
    [
        (0.80, 0.82, CONFIRMED, "2 of 2 comparable, 2 of them better"),
        (0.97, 1.03, MIXED, "2 of 2 comparable, 0 of them better"),
        (0.80, 1.20, MIXED, "1 of 2 comparable, 1 of them better"),
        (1.20, 1.30, NOT_CONFIRMED, "0 of 2 comparable, 0 of them better"),
    ],
)
def test_the_twin_may_be_comparable_or_worse(bnsm, gnsm, verdict, said):
    rows = [row(*each, data="MNIST", table="table2") for each in (("dCNN", 1.0), ("bNSM", bnsm), ("gNSM", gnsm))]
    found = judge("better than its deterministic twin", rows)
    assert found.verdict == verdict
    assert said in found.found


def test_the_twin_is_compared_on_every_data_set():
    rows = [
        row("dCNN", 1.0, data="MNIST", table="table2"),
        row("bNSM", 0.8, data="MNIST", table="table2"),
        row("dCNN", 10.0, data="CIFAR-10", table="table3"),
        row("bNSM*", 11.0, data="CIFAR-10", table="table3"),
    ]
    found = judge("better than its deterministic twin", rows)
    assert found.verdict == MIXED
    assert "CIFAR-10 bNSM* 11.00 ± 0.02 %, dCNN 10.00 ± 0.02 %, +1.000 ± 0.028 (n = 5 and 5): worse" in found.parts


def test_tuned_twins_are_shown_but_not_judged():
    plain = [row("dCNN", 1.0, data="MNIST", table="table2"), row("bNSM", 0.8, data="MNIST", table="table2")]
    tuned = [
        row("bNSM, tuned", 0.9, data="MNIST", table="table2"),
        row("dCNN, tuned", 0.6, data="MNIST", table="table2"),
    ]
    assert "tuned" not in str(judge("better than its deterministic twin", [*plain, tuned[0]]).parts)
    found = judge("better than its deterministic twin", [*plain, *tuned])
    assert found.verdict == CONFIRMED
    assert (
        "bNSM, tuned 0.900 ± 0.020 %, dCNN, tuned 0.600 ± 0.020 %, +0.300 ± 0.028 (n = 5 and 5): worse"
        in found.parts[-1]
    )
    assert found.parts[-1].startswith("not judged: ")
    assert judge("better than its deterministic twin", tuned).verdict == OPEN


def test_few_test_inputs_are_shown_but_not_judged():
    rows = [row("dCNN", 4.0, 0.4, "N-MNIST", "table2"), row("bNSM", 2.8, 0.3, "N-MNIST", "table2")]
    title = "better than its deterministic twin"
    assert judge(title, rows).verdict == CONFIRMED
    few = [{**each, "test_inputs": 100} for each in rows]
    assert judge(title, few).verdict == OPEN
    found = judge(title, [*few, row("dCNN", 1.0, data="MNIST"), row("bNSM", 1.5, data="MNIST")])
    assert found.verdict == NOT_CONFIRMED
    assert found.parts[-1].startswith("not judged: N-MNIST bNSM 2.80 ± 0.30 %")


def test_angles_tell_what_the_mean_of_the_layers_hides():
    layers = ("conv1", "conv2", "fc1", "out")
    curves = {"same/NSM": (0.5, 0.5, 0.5, 0.5), "same/BinConcrete": (0.25, 0.6, 0.6, 0.75), "same/sigmoid": (0.1,) * 4}
    curves |= {"own/BinConcrete": (0.3,) * 4, "own/sigmoid": (0.0,) * 4}
    cosines = {name: {layer: [9.0, 9.0, v] for layer, v in zip(layers, by, strict=True)} for name, by in curves.items()}
    record = {"cosines": cosines, "steps": 3, "seeds": 2, "quick": False}
    title = "gradient angles near BinConcrete's"
    found = judge(title, statistics=record)
    assert found.verdict == MIXED  # the mean of the layers is as near as another draw, the first layer is not
    assert "BinConcrete has 0.50 (convolution 1) to 1.50 (fully connected 2) of what another draw has" in found.found
    assert "n = 2" in found.found
    cosines["same/BinConcrete"]["conv1"] = [9.0, 9.0, 0.46]
    assert judge(title, statistics=record).verdict == CONFIRMED
    cosines["own/sigmoid"] = cosines["own/BinConcrete"]
    assert judge(title, statistics=record).verdict == MIXED


def test_sizes_of_weights_and_gradients_are_judged_layer_by_layer():
    layers = ("conv1", "conv2", "fc1", "out")

    def record(weights, gradients):
        sizes = {"std weight/NSM": 1.0, "std weight/sigmoid": weights}
        sizes |= {"mean size of gradient/NSM": 1.0, "mean size of gradient/sigmoid": gradients}
        return {"curves": {k: {n: [9.0, 9.0, v] for n in layers} for k, v in sizes.items()}, "seeds": 2, "quick": False}

    title = "smaller weights and gradients than the sigmoid network"
    assert judge(title, statistics=record(2.0, 2.0)).verdict == CONFIRMED
    assert judge(title, statistics=record(0.5, 0.5)).verdict == NOT_CONFIRMED
    found = judge(title, statistics=record(2.0, 0.5))
    assert found.verdict == MIXED
    assert "standard deviation of weights of the sigmoid network larger in 4 of 4 layers: convolution 1 2 (NSM 1)" in (
        found.found
    )
    assert "size of gradients of the sigmoid network larger in 0 of 4 layers" in found.found


@pytest.mark.parametrize(
    ("nsm", "best", "verdict"),
    [(0.02, 3e-4, CONFIRMED), (0.05, 3e-4, MIXED), (0.02, 1e-4, MIXED), (0.05, 1e-3, NOT_CONFIRMED)],
)
def test_learning_online(nsm, best, verdict):
    """A better rate may lie beyond the smallest or the largest that was tried."""
    tried = {"0.0001": 0.1, "0.0003": 0.1, "0.001": 0.1}
    rows = [
        {
            "unit": name,
            "test_errors": [error - 0.001, error, error + 0.001],
            "lr": best,
            "validation_error_of_each_lr": tried,
        }
        for name, error in (("bNSM", nsm), ("batch norm", 0.05))
    ]
    found = judge("an online alternative to batch normalisation", online={"rows": rows, "seeds": 3})
    assert found.verdict == verdict
    assert f"NSM {100 * nsm:.2f} ± 0.06 %, batch normalisation 5.00 ± 0.06 %" in found.found
    assert found.found.endswith(" and ".join([f"{best:g} (tried from 0.0001 to 0.001)"] * 2))


def test_what_is_said_of_the_rules_is_so():
    """Those that are said to compare plain means do not speak of standard errors, and the others do."""
    rules = {claim.title: "standard errors" in claim.rule for claim in verdicts(Findings([], {}, {}))}
    plain = {
        "stable weights", "faster convergence than the StNN", "robustness to fixed range and precision",
        "gradient angles near BinConcrete's", "smaller weights and gradients than the sigmoid network",
        "better than straight-through and binary networks", "almost exclusively additions and comparisons",
    }  # fmt: skip
    assert {title for title, errors in rules.items() if not errors} == plain
    assert "Seven were changed once results had been seen" in RULES_WRITTEN
    assert "as the others do" not in RULES_WRITTEN


def test_precision_weighs_rails_and_error():
    def network(name, rails, lost):
        share = {"at_rails": [0.0, rails], "lr": 1e-3 if name == "StNN" else 1e-4}
        return [
            {"network": name, "bits": bits, "values": [1.9 + by, 2.1 + by], **share}
            for bits, by in ((4, lost), (None, 0))
        ]

    def precision(nsm):
        rows = [*nsm, *network("StNN", 0.3, 0.5), *network("ReLU", 0.2, 0.4)]
        return {"rows": rows, "epochs": 40, "seeds": 3, "quick": False, "rates": [1e-4, 1e-3]}

    title = "robustness to fixed range and precision"
    assert judge(title, precision=precision(network("NSM", 0.1, 0.1))).verdict == CONFIRMED
    assert judge(title, precision=precision(network("NSM", 0.1, 0.6))).verdict == MIXED
    found = judge(title, precision=precision(network("NSM", 0.4, 0.6)))
    assert found.verdict == NOT_CONFIRMED
    assert "NSM 40.0 % at the rails, error +0.600 ± 0.000 points" in found.found
    assert found.found.endswith("the largest tried, 0.001, was the best for NSM 0 of 2, StNN 2 of 2, ReLU 0 of 2")


def test_covariate_shift_is_also_judged_on_the_scale_of_the_probability():
    def network(scale):
        return {"movement": [scale, scale * 1.01], "distance": [scale / 3, scale * 1.01 / 3]}

    def record(nsm, stnn):
        return {"networks": {"NSM": network(nsm), "StNN": network(stnn)}, "steps": 2, "seeds": 2, "quick": True}

    title = "less internal covariate shift"
    assert judge(title, percentiles=record(0.1, 1.0)).verdict == CONFIRMED
    assert judge(title, percentiles=record(0.5, 1.0)).verdict == MIXED  # 1.0 of w·z is 0.41 of t
    found = judge(title, percentiles=record(2.0, 1.0))
    assert found.verdict == NOT_CONFIRMED
    assert found.quick


def test_records_of_the_repository_are_judged(tmp_path):
    found = {claim.title: claim for claim in verdicts(gather(ROOT / "results"))}
    operations = json.loads((ROOT / "results" / "operations.json").read_text())
    cnn = next(r for r in operations["rows"] if (r["data"], r["network"], r["unit"]) == ("mnist", "mnist-cnn", "bNSM"))
    counts = cnn["one_sample"]
    share = counts["multiplications"] / (sum(counts.values()) - counts["random_bits"])
    claim = found["almost exclusively additions and comparisons"]
    assert any(part.startswith(f"mnist (mnist-cnn): {100 * share:.2f} %,") for part in claim.parts)


def test_every_claim_can_be_judged_of_full_results(tmp_path):
    folder = make_up(tmp_path, share=1.0)
    for name in ("operations", "figure-percentiles", "figure-weights", "figure-statistics", "precision", "online"):
        shutil.copy(ROOT / "results" / f"{name}.json", folder)
    assert OPEN not in {claim.verdict for claim in verdicts(gather(folder))}
