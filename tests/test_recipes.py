"""Recipes: the paper's settings, and nothing that could be meant otherwise."""

import json
from dataclasses import FrozenInstanceError, fields, replace
from typing import get_args

import pytest

from nsm import networks
from nsm.data import names
from nsm.recipes import CIFAR10_CNN, MNIST_CNN, NOISY, PI_MNIST, RECIPES, Network, Recipe, Unit, find


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "Expected argument `epochs` to be an int of at least 1, but got 0"),
        ({"epochs": 1.5}, "Expected argument `epochs` to be an int of at least 1, but got 1.5"),
        ({"epochs": True}, "Expected argument `epochs` to be an int of at least 1, but got True"),
        ({"batch_size": -1}, "Expected argument `batch_size` to be an int of at least 1, but got -1"),
        ({"lr": 0}, "Expected argument `lr` to be positive and finite, but got 0"),
        ({"lr": float("nan")}, "Expected argument `lr` to be positive and finite, but got nan"),
        ({"lr": "fast"}, "Expected argument `lr` to be a float, but got 'fast'"),
        ({"data": 3}, "Expected argument `data` to be a str, but got 3"),
        ({"compile": 1}, "Expected argument `compile` to be a bool, but got 1"),
        ({"seed": -1}, "Expected argument `seed` to be an int of at least 0, but got -1"),
        ({"save_every": 0}, "Expected argument `save_every` to be an int of at least 1, but got 0"),
        ({"init_from": 7}, "Expected argument `init_from` to be a str, but got 7"),
        ({"schedule": "halve"}, "'cosine'], but got 'halve'; did you mean 'halving'?"),
        ({"input_dropout": 1.0}, "`input_dropout` to be a float of at least 0 and below 1, but got 1.0"),
        ({"beta_decay": float("nan")}, "`beta_decay` to be a float of at least 0, but got nan"),
        ({"unit": "GNSM"}, "but got 'GNSM'; did you mean 'gNSM'?"),
        ({"unit": "dCNN", "site": "synapse"}, "`site` to be 'neuron' and `draw` 'auto' for dCNN"),
        ({"draw": "moments"}, "Expected argument `draw` to be 'auto' for site='neuron', but got 'moments'"),
        (
            {"cuda_graph": True, "devices": 2},
            "`cuda_graph` to be False with 2 processes, but got True",
        ),
        ({"cuda_graph": True, "strategy": "fsdp"}, "`cuda_graph` to be False with strategy='fsdp', but got True"),
        (
            {"schedule": "linear", "epochs": 60, "schedule_epochs": 60},
            "`schedule_epochs` to be below epochs=60",
        ),
        ({"beta_decay": 0.1, "train_beta": False}, "`beta_decay` to be 0 with train_beta=False, but got 0.1"),
        ({"beta_decay": 0.1, "unit": "dCNN"}, "`beta_decay` to be 0 with dCNN, which has no β, but got 0.1"),
        ({"muon_lr": 1e-3, "unit": "wBD"}, "`muon_lr` to be 0 for wBD, whose weights are computed from others"),
        ({"weight_decay": 0.1, "unit": "wBD"}, "`weight_decay` to be 0 for wBD, whose weights are computed from"),
        ({"unit": "BN", "site": "synapse"}, "`site` to be 'neuron' and `draw` 'auto' for BN, whose noise"),
        ({"strategy": "fspd"}, "but got 'fspd'; did you mean 'fsdp'?"),
    ],
)
def test_wrong_fields(changes, message):
    with pytest.raises(ValueError, match=r"^Expected argument ") as error:
        Recipe(**changes)
    assert message in str(error.value)


def test_a_recipe_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        MNIST_CNN.lr = 1.0  # type: ignore[misc]


def test_recipes_survive_json():
    for _, recipe in RECIPES.values():
        assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
    with pytest.raises(ValueError, match=r"but got 'learning_rate'$"):
        Recipe.from_dict({"learning_rate": 1.0})


def test_every_field_is_explained():
    text = Recipe.__doc__ or ""
    assert all(f"        {each.name}: " in text for each in fields(Recipe))


def test_the_settings_of_the_paper():
    for name in ("pi-mnist", "mnist-cnn", "emnist-cnn", "nmnist-cnn", "cifar10-cnn", "cifar100-cnn", "dvs-cnn"):
        recipe = find(name)
        assert (recipe.epochs, recipe.batch_size, recipe.lr) == (200, 100, 3e-4)
    assert (CIFAR10_CNN.schedule, CIFAR10_CNN.schedule_epochs) == ("linear", 100)
    assert {recipe.data for _, recipe in RECIPES.values()} == {
        "mnist", "mnist-grey", "emnist-letters", "nmnist", "cifar10", "cifar100", "dvsgesture",
    }  # fmt: skip
    assert {recipe.data for _, recipe in RECIPES.values()} <= set(names())
    with pytest.raises(ValueError, match="did you mean 'pi-mnist'"):
        find("pi-mnits")


def test_names_are_those_of_the_networks():
    assert set(get_args(Unit)) == set(networks.UNITS)
    for unit in get_args(Unit):
        network = networks.build(replace(PI_MNIST, unit=unit))
        assert (unit in NOISY) == any("NSM" in type(module).__name__ for module in network.modules())
    for name in get_args(Network):
        data = {"cifar-cnn": "cifar10", "cifar-cnn-plain": "cifar100", "dvs-cnn": "dvsgesture"}.get(name, "mnist")
        assert len(list(networks.build(Recipe(network=name, data=data)).parameters()))
    layer = networks.build(Recipe(network="pi-mnist-mlp", site="synapse", draw="moments")).get_submodule("fc1")
    assert "site='synapse', draw='moments'" in repr(layer)
