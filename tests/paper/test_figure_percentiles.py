"""The percentiles of what makes the last hidden layer fire."""

import json
from dataclasses import replace

import pytest
import torch

from nsm import data
from nsm.paper import figure_percentiles
from nsm.paper.learning import layers, minibatches, start
from nsm.recipes import PI_MNIST


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return figure_percentiles.run(quick=True, seeds=2, results=tmp_path_factory.getbasetemp() / "percentiles")


def test_it_is_written_and_drawn(result, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "percentiles"
    assert json.loads((folder / "figure-percentiles.json").read_text()) == result
    assert {path.suffix for path in (folder / "figures").iterdir()} == {".png", ".svg"}
    assert figure_percentiles.draw(result).get_suptitle() == "quick version: PI-MNIST, n = 2"
    said = figure_percentiles.caption(result)
    assert "first 40 mini-batches of learning (n = 2)" in said
    assert f"NSM {sum(result['networks']['NSM']['movement']) / 2:.3f} ± " in said
    assert f"at last NSM {figure_percentiles.mean_errors(result['networks']['NSM'])[-1]:.1f} ± " in said


def test_looking_at_the_test_digits_changes_nothing(monkeypatch):
    """Percentiles of later mini-batches are those of a network that nobody looked at."""
    digits, test = (data.load("mnist", split) for split in ("train+validation", "test"))
    recipe, test = replace(PI_MNIST, num_samples=2), replace(test, stored=test.stored[:100], labels=test.labels[:100])
    looked, errors = figure_percentiles._learn(recipe, digits, test, 22)
    assert len(errors) == 1
    assert errors[0] < 80  # of ten classes; a network that has not learned has 90
    monkeypatch.setattr(figure_percentiles, "EVERY", 1000)
    assert torch.equal(figure_percentiles._learn(recipe, digits, test, 22)[0], looked)


def test_the_first_percentiles_are_those_of_the_start(result):
    """Recomputed from the equations, with the same seed: the draws of the layers below are the same."""
    digits = data.load("mnist", "train+validation")
    first = []
    for seed in range(2):
        recipe = replace(PI_MNIST, seed=seed)
        network = start(recipe, digits)
        x, _ = next(minibatches(digits, recipe, 1))
        fc = layers(network)["fc3"]
        with torch.no_grad():
            z = network[:3](x)  # type: ignore[index]
            norm = fc.weight.norm(dim=1)
            t = fc.beta * (z @ fc.weight.T) / norm + fc.bias / (2**0.5 * 0.5 * norm)  # type: ignore[union-attr]
        first.append([torch.quantile(t.flatten(), q).item() for q in (0.15, 0.5, 0.85)])
    mean = torch.tensor(first).mean(0).tolist()
    assert [curve[0] for curve in result["networks"]["NSM"]["percentiles"]] == pytest.approx(mean, abs=2e-4)


def test_the_nsm_starts_normalised_and_the_percentiles_are_ordered(result):
    low, middle, high = (torch.tensor(curve) for curve in result["networks"]["NSM"]["percentiles"])
    assert (low < middle).all()
    assert (middle < high).all()
    assert high[0] - low[0] == pytest.approx(2.07, abs=0.2)  # a standard normal variable: 2 × 1.036


def test_movement_is_in_units_of_the_first_spread():
    still = torch.tensor([[[-1.0, 0.0, 1.0], [-1.0, 0.0, 1.0]]])
    moved = torch.tensor([[[-2.0, 0.0, 2.0], [-4.0, 2.0, 4.0]]])
    assert figure_percentiles._movement(still).tolist() == [0]
    assert figure_percentiles._movement(moved).tolist() == [0.5]  # (0 + (2 + 2 + 2)/3/2)/2
    assert figure_percentiles._distance(moved).tolist() == [1.0]
