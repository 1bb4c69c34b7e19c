"""The weights of the third layer, watched for a few steps."""

from dataclasses import replace

import pytest
import torch

from nsm import data
from nsm.ensemble import Ensemble
from nsm.paper import figure_weights
from nsm.paper.learning import learn, start
from nsm.recipes import PI_MNIST


@pytest.fixture(scope="module")
def digits():
    whole = data.load("mnist", "test")
    return replace(whole, stored=whole.stored[:300], labels=whole.labels[:300])


def test_a_summary_of_known_weights():
    mean, std, *shares = figure_weights._summary(torch.linspace(-1, 1, 1001)[None])[0].tolist()
    assert mean == pytest.approx(0, abs=1e-6)
    assert std == pytest.approx(1 / 3**0.5, rel=2e-3)
    assert shares == pytest.approx([2 * q - 1 for q in figure_weights.PERCENTILES], abs=1e-6)


def test_networks_side_by_side_begin_where_they_should_and_learn(digits):
    recipe = replace(PI_MNIST, epochs=1, lr=1e-3)
    members = [start(replace(recipe, seed=seed), digits) for seed in range(2)]
    first = [member[3].weight.detach().clone() for member in members]  # type: ignore[index]
    ensemble = Ensemble(members)
    weights = ensemble.get_parameter("fc3/weight")
    steps = [(step, weights.detach().clone()) for _, step in learn(ensemble, digits, recipe)]
    assert [step for step, _ in steps] == [0, 1, 2, 3]
    assert all(torch.equal(steps[0][1][k], first[k]) for k in range(2))
    moved = (steps[1][1] - steps[0][1]).abs().amax((1, 2))
    assert moved.tolist() == pytest.approx([1e-3, 1e-3], rel=0.05)  # Adam's first step is the learning rate


@pytest.mark.parametrize("seeds", [1, 2])
def test_what_is_watched_can_be_drawn(digits, seeds):
    recipe = replace(PI_MNIST, epochs=2)
    found = figure_weights._watch(recipe, digits, seeds)
    assert found["epoch"][0] == 0
    assert found["epoch"][-1] == 2
    assert found["mean_shift"][0] == 0
    assert found["std_ratio"][0] == 1
    assert len(found["last_std_ratio_per_seed"]) == seeds
    assert found["first_std"] == pytest.approx(1 / (3 * 300) ** 0.5, rel=0.01)  # uniform in ±1/√300
    result = {"quick": True, "epochs": 2, "seeds": seeds, "shares": figure_weights.PERCENTILES}
    result["networks"] = {"NSM": found, "StNN": found}
    assert figure_weights.draw(result).get_suptitle() == f"quick version: PI-MNIST, n = {seeds}"
    said = figure_weights.caption(result)
    assert f"in 2 of the recipe's 200 epochs of learning, n = {seeds}." in said
    ratio = sum(found["last_std_ratio_per_seed"]) / seeds
    assert f"the standard deviation is NSM × {ratio:.3f}" in said
    assert ("±" in said) == (seeds > 1)
