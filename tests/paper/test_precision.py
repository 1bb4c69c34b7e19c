"""Learning at few bits, on few digits."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from nsm import data
from nsm.ensemble import Ensemble
from nsm.paper import precision
from nsm.paper.fixed_point import FixedPoint
from nsm.paper.learning import learn, start


@pytest.fixture(scope="module")
def digits():
    return precision._first(data.load("mnist", "test"), 200)


@pytest.mark.parametrize("name", list(precision.RECIPES))
def test_weights_of_networks_side_by_side_stay_on_their_own_grids(digits, name):
    recipe = replace(precision.RECIPES[name], epochs=1, lr=1e-3)
    members = [start(replace(recipe, seed=k), digits) for k in range(3)]
    bits, ensemble = [2, 5, None], Ensemble(members)
    storage = precision.Storage(ensemble, bits, reach=2.0)
    assert len(storage.weights) == 4
    storage.round()
    for _ in learn(ensemble, digits, recipe, after=storage.round):
        for weight in storage.weights.values():
            limit = 2.0 / weight.shape[-1] ** 0.5
            for k in (0, 1):
                values = FixedPoint(bits[k], limit).values()
                nearest = (weight[k].detach().flatten()[:, None] - values).abs().amin(1)
                assert nearest.max() < 1e-5 * limit
            assert weight[2].unique().numel() > 1000
            assert weight[2].abs().max() <= limit


def test_a_small_run_makes_rows_and_a_picture(digits):
    recipe = replace(precision.RECIPES["NSM"], epochs=2, lr=1e-3)
    with torch.random.fork_rng():
        found = precision._train(recipe, digits, digits, (2, 4, None), 2, 2.0, 5)
        rows = [outcome.tested(digits, 5) for outcome in found]
    assert [len(row["at_rails"]) for row in rows] == [3, 3, 3]
    assert rows[0]["at_rails"][0] == pytest.approx(
        1 / 24, abs=2e-3
    )  # |w| uniform in 0 to 3/6: up from 2/6 with its share
    assert rows[1]["at_rails"][0] == 0
    for row in rows:
        assert row["mean"] == pytest.approx(sum(row["values"]) / 2)
        assert row["n"] == 2
        assert 0 < row["mean"] < 90
    shown = [
        {"network": name, "bits": b, **row}
        for name in precision.RECIPES
        for b, row in zip((2, 4, None), rows, strict=True)
    ]
    result = {"quick": True, "seeds": 2, "epochs": 2, "reach": 2.0, "rows": shown, "rates": [1e-4, 1e-3]}
    figure = precision.draw(result)
    assert [panel.get_title() for panel in figure.axes] == ["error", "saturation", "saturation at 4 bits"]
    assert figure.get_suptitle() == "quick version: PI-MNIST, n = 2"
    said = precision.caption(result)
    assert said.endswith("the largest tried, 0.001, was the best for NSM 3 of 3, StNN 3 of 3, ReLU 3 of 3.")
    words = " → ".join(f"{row['mean']:.2f} ± {row['standard_error']:.2f}" for row in reversed(rows))
    assert f"at 2 bits NSM {words} %" in said
    rails = " → ".join(f"{100 * row['at_rails'][-1]:.1f}" for row in reversed(rows))
    assert f"the weights at the rails at the end: NSM {rails} %" in said
    assert "β and biases keep full precision. 2 epochs, n = 2." in said


def test_the_ensemble_of_one_precision_is_stored_too():
    recipe = precision.RECIPES["ReLU"]
    ensemble = Ensemble([start(recipe, precision._first(data.load("mnist", "test"), 100))])
    storage = precision.Storage(ensemble, [1], reach=1.0)
    storage.round()
    assert storage.at_rails().tolist() == [1.0]


def test_networks_that_were_not_rounded_are_noticed(digits):
    ensemble = Ensemble([start(precision.RECIPES["ReLU"], digits)])
    storage = precision.Storage(ensemble, [4], reach=2.0)
    with pytest.raises(RuntimeError, match="weights of fc1/0/weight to be on their grid"):
        storage.check()
    storage.round()
    storage.check()
    with torch.no_grad():
        storage.weights["out/weight"][0, 0, 0] += 0.3 / 300**0.5
    with pytest.raises(RuntimeError, match="weights of out/weight"):
        storage.check()


def test_the_rate_is_the_one_that_is_best_on_validation_digits(monkeypatch, tmp_path):
    """With outcomes given: the others never see the test digits, but every try is kept."""
    validation = {1e-4: 3.0, 3e-4: 2.0, 1e-3: 2.5}

    def train(recipe, digits, held_out, bits, seeds, reach, num_samples):
        networks: list[nn.Module] = [nn.Linear(1, 1).requires_grad_(recipe.lr == 3e-4) for _ in range(seeds)]
        return [precision._Outcome(recipe.lr, networks, validation[recipe.lr], [0.0, 0.1]) for _ in bits]

    def error(network, digits, num_samples, seed):
        assert network.weight.requires_grad, "a network of another rate was tested"
        return 9.0

    monkeypatch.setattr(precision, "_train", train)
    monkeypatch.setattr(precision, "_error", error)
    result = precision.run(seeds=2, epochs=4, results=tmp_path)
    assert len(result["rows"]) == 3 * len(precision.BITS)
    for row in result["rows"]:
        assert (row["lr"], row["mean"]) == (3e-4, 9.0)
        assert row["validation_error_by_lr"] == {"0.0001": 3.0, "0.0003": 2.0, "0.001": 2.5}
    assert (tmp_path / "figures" / "precision.png").exists()
