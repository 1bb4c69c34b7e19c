"""Verdicts follow their rules, and what is missing is not yet measured."""

import json
import shutil
from pathlib import Path

import pytest

from nsm.paper.claims import CONFIRMED, MIXED, NOT_CONFIRMED, OPEN, verdicts
from nsm.paper.findings import Findings, gather
from paper_results import make_up

ROOT = Path(__file__).resolve().parents[2]


def row(model, mean, error=0.02, data="PI MNIST", table="table1"):
    return {"table": table, "data": data, "model": model, "mean": mean, "standard_error": error, "paper": None, "n": 5}


def judge(title, rows=(), **records):
    findings = Findings(list(rows), {}, records)
    return next(claim for claim in verdicts(findings) if claim.title == title)


def test_nothing_is_measured_without_results(tmp_path):
    found = verdicts(gather(tmp_path))
    assert len(found) == 13
    assert {claim.verdict for claim in found} == {OPEN}
    assert all(claim.paper and claim.rule for claim in found)


@pytest.mark.parametrize(("mean", "verdict"), [(1.30, CONFIRMED), (1.43, NOT_CONFIRMED), (1.60, NOT_CONFIRMED)])
def test_lower_means_by_more_than_two_standard_errors(mean, verdict):
    """The error of the difference of 1.45 ± 0.02 and … ± 0.02 is 0.028."""
    found = judge("more accurate than the StNN", [row("NSM", mean), row("StNN", 1.45)])
    assert found.verdict == verdict
    assert f"NSM {mean:.2f} ± 0.02 %" in found.found


def test_scaled_weights():
    plain, scaled = row("NSM", 1.5), row("NSM scaled (weights and biases)", 1.53)
    assert judge("self-normalisation", [plain]).verdict == OPEN
    assert judge("self-normalisation", [plain, scaled]).verdict == CONFIRMED
    rows = row("NSM scaled (each row by its own factor)", 2.0)
    assert judge("self-normalisation", [plain, scaled, rows]).verdict == MIXED


@pytest.mark.parametrize(("worse", "verdict"), [(0, CONFIRMED), (2, MIXED), (10, NOT_CONFIRMED)])
def test_convergence(worse, verdict):
    nsm = [3.0 if epoch < worse else 1.0 for epoch in range(10)]
    curves = {
        "NSM": {"epochs": list(range(10)), "errors": [nsm]},
        "StNN": {"epochs": list(range(10)), "errors": [[2.0] * 10]},
    }
    found = judge("faster convergence than the StNN", convergence={"curves": curves})
    assert found.verdict == verdict
    assert f"NSM below StNN in {100 - 10 * worse} % of 10 epochs" in found.found


def test_the_twin_is_compared_on_every_data_set():
    rows = [
        row("dCNN", 1.0, data="MNIST", table="table2"),
        row("bNSM", 0.8, data="MNIST", table="table2"),
        row("dCNN", 10.0, data="CIFAR-10", table="table3"),
        row("bNSM*", 11.0, data="CIFAR-10", table="table3"),
    ]
    assert judge("better than its deterministic twin", rows[:2]).verdict == CONFIRMED
    close = [rows[0], row("bNSM", 0.97, data="MNIST", table="table2")]  # within two standard errors
    assert judge("better than its deterministic twin", close).verdict == NOT_CONFIRMED
    found = judge("better than its deterministic twin", rows)
    assert found.verdict == MIXED
    assert "CIFAR-10 bNSM* 11.00 ± 0.02 % (dCNN 10.00 ± 0.02 %)" in found.found


def test_precision_weighs_rails_and_error():
    def network(name, rails, lost):
        share = {"at_rails": [0.0, rails]}
        return [
            {"network": name, "bits": 4, "mean": 2 + lost, **share},
            {"network": name, "bits": None, "mean": 2, **share},
        ]

    def precision(nsm):
        rows = [*nsm, *network("StNN", 0.3, 0.5), *network("ReLU", 0.2, 0.4)]
        return {"rows": rows, "epochs": 40, "seeds": 3, "quick": False}

    title = "robustness to fixed range and precision"
    assert judge(title, precision=precision(network("NSM", 0.1, 0.1))).verdict == CONFIRMED
    assert judge(title, precision=precision(network("NSM", 0.1, 0.6))).verdict == MIXED
    found = judge(title, precision=precision(network("NSM", 0.4, 0.6)))
    assert found.verdict == NOT_CONFIRMED
    assert "NSM 40.0 % at the rails, error +0.60 points" in found.found


def test_covariate_shift_is_also_judged_on_the_scale_of_the_probability():
    def network(scale):
        return {"movement": [scale, scale * 1.01], "percentiles": [[-1, -1 - scale], [0, 0], [1, 1 + scale]]}

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
    assert f"mnist (mnist-cnn) {100 * share:.2f} %" in found["almost exclusively additions and comparisons"].found


def test_every_claim_can_be_judged_of_full_results(tmp_path):
    folder = make_up(tmp_path, share=1.0)
    for name in ("operations", "figure-percentiles", "figure-weights", "figure-statistics", "precision"):
        shutil.copy(ROOT / "results" / f"{name}.json", folder)
    assert OPEN not in {claim.verdict for claim in verdicts(gather(folder))}
