"""Learning from what a trained network says."""

from dataclasses import replace

import pytest
import torch
from lightning_fabric import Fabric
from torch import nn
from torch.nn import functional as F

from nsm import data
from nsm.networks import build
from nsm.processes import Interrupted
from nsm.recipes import PI_MNIST
from nsm.sampling import predict
from nsm.steps import TEMPERATURE, Step
from nsm.training import fit, train
from test_steps import cut_after
from test_training import TINY, assert_equal_runs

SMALL = replace(
    PI_MNIST, epochs=4, lr=1e-3, schedule="constant", batch_size=50, validation_split=None, accelerator="cpu"
)


def begun(recipe):
    torch.manual_seed(0)
    return build(recipe)


def digits(n=600):
    every = data.load("mnist")
    return replace(every, stored=every.stored[:n], labels=every.labels[:n])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run whose two networks were taught wrong labels: 9 for 0, 8 for 1, …"""
    path = tmp_path_factory.mktemp("trained")
    recipe = replace(SMALL, unit="dCNN", seeds=2)
    fit(begun(recipe), replace(digits(), labels=9 - digits().labels), recipe, run_dir=path)
    return path


@pytest.mark.parametrize("samples", [1, 3])
def test_the_loss_is_shared_between_labels_and_teacher(samples):
    """With two seeds, and a teacher that sees each input once."""
    weight, seen = nn.Parameter(torch.ones(())), []

    def teacher(x):
        seen.append(x)
        return 5 * x.flip(-1)

    torch.manual_seed(0)
    x, y = torch.randn(2, 5, 3), torch.randint(3, (2, 5))
    recipe, fabric = replace(TINY, loss_samples=samples, distill=0.3), Fabric(accelerator="cpu", devices=1)
    learner = (lambda x: weight * x, torch.optim.SGD([weight], lr=1.0))
    step = Step(recipe, *learner, fabric, lambda *what: what, teacher=teacher)
    losses = step((x, y), 5)
    assert torch.equal(seen[0], x)
    labels = F.cross_entropy(x.flatten(0, 1), y.flatten(), reduction="none").view(2, 5)
    said, told = ((each / TEMPERATURE).log_softmax(-1) for each in (x, 5 * x.flip(-1)))
    apart = TEMPERATURE**2 * F.kl_div(said, told, reduction="none", log_target=True).sum(-1)
    torch.testing.assert_close(losses, (0.7 * labels + 0.3 * apart).mean(-1).double(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_network_learns_what_its_teacher_says(folder, seeds):
    """Whatever the labels are: it is told both."""
    right = []
    for share in (0.0, 0.99):
        recipe = replace(SMALL, init_from=str(folder), distill=share, seeds=seeds)
        model = begun(recipe)
        fit(model, digits(), recipe)
        label = predict(model, digits().inputs, 20, seed=0).label
        right.append([float((label == truth).float().mean()) for truth in (digits().labels, 9 - digits().labels)])
    (own, other), (own_taught, other_taught) = right
    assert own > 0.5 > other
    assert other_taught > 0.5 > own_taught


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_cut_run_with_a_teacher_ends_like_one_that_was_not(folder, tmp_path, monkeypatch, seeds):
    recipe = replace(SMALL, init_from=str(folder), imitate=200, distill=0.5, seeds=seeds, epochs=2)
    fit(begun(recipe), digits(300), recipe, run_dir=tmp_path / "whole")
    with monkeypatch.context() as patch:
        cut_after(patch, 8)  # in the second of two epochs of six steps
        with pytest.raises(Interrupted):
            fit(begun(recipe), digits(300), recipe, run_dir=tmp_path / "cut")
    fit(begun(recipe), digits(300), recipe, run_dir=tmp_path / "cut", resume=True)
    assert_equal_runs(tmp_path / "whole", tmp_path / "cut")


def test_there_must_be_a_teacher():
    with pytest.raises(ValueError, match=r"Expected argument `init_from` with distill=0.5, but got None"):
        train(replace(SMALL, distill=0.5))


@pytest.mark.gpu
@pytest.mark.parametrize("seeds", [1, 2])
def test_a_teacher_in_a_captured_step(folder, seeds):
    fast = {"accelerator": "cuda", "precision": "bf16-mixed", "compile": True, "cuda_graph": True}
    recipe = replace(SMALL, init_from=str(folder), distill=0.99, seeds=seeds, **fast)
    model = begun(recipe)
    fit(model, digits(), recipe)
    label = predict(model, digits().inputs.cuda(), 20, seed=0).label.cpu()
    assert float((label == 9 - digits().labels).float().mean()) > 0.5
