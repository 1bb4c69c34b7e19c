"""``fit``: the loop that trains, over lightning-fabric, which knows devices, precision and processes.

A run is a function of its recipe, its data and its start; one that was cut anywhere and resumed ends with the same bits
as one that was not, since all that the next step depends on is in its `State`, and a checkpoint is all of that.
"""

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from nsm import checkpoint
from nsm.batches import Batches, derive
from nsm.data import load
from nsm.display import plot, progress, tensorboard
from nsm.layers import NSMLayer
from nsm.networks import build
from nsm.processes import Interrupted, agree, on_first, processes, signals
from nsm.recipes import Recipe
from nsm.state import State


@dataclass(frozen=True)
class History:
    """What was measured in every epoch.

    Attributes:
        rows: For each epoch its number, the steps so far, learning rate, mean loss, validation error (a fraction, None
            without validation data) and seconds; with several seeds also ``losses`` and ``validation_errors``.
    """

    rows: tuple[dict[str, Any], ...]

    @property
    def loss(self) -> list[float]:
        """The mean training loss of every epoch."""
        return [row["loss"] for row in self.rows]

    @property
    def validation_error(self) -> list[float | None]:
        """The fraction of wrong labels on the validation data after every epoch."""
        return [row["validation_error"] for row in self.rows]


def fit(
    model: nn.Module,
    train: Any,
    recipe: Recipe,
    *,
    validation: Any = None,
    run_dir: str | Path | None = None,
    resume: bool = False,
) -> History:
    """Train ``model`` in place.

    Torch's generators are seeded from the recipe and left as they were found. With ``seeds`` above 1, copies of the
    model with weights drawn anew are trained beside it, and it ends as the first of them.

    Args:
        model: A network from inputs to logits (B, C).
        train: A data set of `nsm.data`, or any of torch with a length.
        recipe: How to train; its ``data`` and ``network`` are not looked at here.
        validation: Data to measure the error of every epoch on.
        run_dir: A folder to keep the run in; without one, nothing is written and nothing can be resumed.
        resume: Go on with the run in ``run_dir``, which must have been started with the same recipe and model.

    Raises:
        Diverged: A loss or gradient was not finite; the last checkpoint is kept.
        Interrupted: SIGINT or SIGTERM came while training with a ``run_dir``; the run is saved.

    Example:
        >>> import nsm
        >>> from torch.utils.data import TensorDataset
        >>> x = torch.randn(200, 8).sign()
        >>> data = TensorDataset(x, (x.sum(1) > 0).long())
        >>> net = nn.Sequential(nsm.NSMLinear(8, 32), nn.Linear(32, 2))
        >>> history = nsm.fit(net, data, nsm.Recipe(epochs=5, batch_size=20, lr=1e-2, accelerator="cpu"))
        >>> history.loss[-1] < history.loss[0]
        True
    """
    for name, asked in (("resume", resume), ("tensorboard", recipe.tensorboard)):
        if asked and run_dir is None:
            raise ValueError(f"Expected argument `run_dir` to be a folder beside {name}=True, but got None")
    if resume and run_dir is not None:
        _check_recipe(recipe, run_dir)
    with contextlib.ExitStack() as stack:
        fabric = stack.enter_context(processes(recipe))
        root, ranks = fabric.global_rank == 0, (fabric.global_rank, fabric.world_size)
        batches = Batches(train, recipe, fabric.device, *ranks)
        held_out = Batches(validation, recipe, fabric.device, *ranks, "validation") if validation is not None else None
        batches.check(model.to(fabric.device))
        if held_out is not None:
            held_out.check_labels(model)
        stack.enter_context(_beta_as_asked(model, recipe))
        folder = _open(stack, fabric, run_dir)
        came = stack.enter_context(signals(folder))
        state = State(model, batches, recipe, fabric)
        if folder and resume and (folder / checkpoint.CHECKPOINT).exists():
            state.restore(checkpoint.read(folder), folder)
        else:
            state.begin(folder)
        step = state.stepper()
        write = stack.enter_context(tensorboard(folder if root and recipe.tensorboard else None))
        total, images = recipe.epochs * len(batches), recipe.batch_size * recipe.seeds
        show = stack.enter_context(progress(root, total, len(batches), images))
        while state.epoch < recipe.epochs:
            began = time.perf_counter()
            lr = set_rates(state.optimizer, recipe, state.epoch)
            order = batches.order(state.order)
            with contextlib.closing(batches.epoch(state.epoch, order, state.batch)) as ahead:
                while some := list(itertools.islice(ahead, _until_save(state.step, recipe.save_every, step.together))):
                    losses = step.several(some)
                    state.losses += losses
                    state.batch, state.step = state.batch + len(some), state.step + len(some)
                    show(state.step, losses / len(some), state.history)
                    save = recipe.save_every is not None and state.step % recipe.save_every == 0
                    number = agree(fabric, came)
                    if step.synchronous or save or number or state.batch == len(batches):
                        step.check(state.step, state.losses, folder)
                    if (save or number) and folder:
                        state.save(folder)
                    if number and folder:
                        raise Interrupted(number, folder)
            state.average()
            row = state.measure(held_out)
            row |= {"lr": lr, "seconds": time.perf_counter() - began}
            state.next_epoch(row)
            show(state.step, [row["loss"]], state.history)
            write(row)
            if folder and (recipe.save_every is None or state.epoch == recipe.epochs):
                state.save(folder)
        if folder and root:
            plot(state.history, folder / "learning-curve.png")
        state.finish()
        return History(tuple(state.history))


def train(
    recipe: Recipe,
    run_dir: str | Path | None = None,
    *,
    resume: bool = False,
    root: str | Path | None = None,
    progress: Callable[[str], Any] | None = None,
) -> History:
    """Train the recipe's network on the recipe's data: what ``nsm train`` does.

    Args:
        recipe: What to do.
        run_dir: As in `fit`.
        resume: As in `fit`.
        root: Folder for data, as in `nsm.data.load`.
        progress: For reading data, as in `nsm.data.load`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(recipe.seed, "weights"))
        model = build(recipe)
    data = load(recipe.data, recipe.train_split, root, progress=progress)
    held_out = recipe.validation_split and load(recipe.data, recipe.validation_split, root, progress=progress)
    return fit(model, data, recipe, validation=held_out or None, run_dir=run_dir, resume=resume)


def _until_save(step: int, every: int | None, most: int) -> int:
    """How many steps to take before the host must look again.

    >>> [_until_save(step, 8, 5) for step in (0, 5, 8)]
    [5, 3, 5]
    """
    return most if every is None else min(most, every - step % every)


def schedule(recipe: Recipe, epoch: int) -> tuple[float, float]:
    """The learning rate and Adam's first moment in an epoch, counted from 0.

    >>> from nsm.recipes import CIFAR10_CNN, MNIST_CNN
    >>> [schedule(MNIST_CNN, epoch)[0] for epoch in (0, 49, 50, 199)]
    [0.0003, 0.0003, 0.00015, 3.75e-05]
    >>> [schedule(CIFAR10_CNN, epoch) for epoch in (0, 99, 150)]
    [(0.0003, 0.9), (0.0003, 0.9), (0.00015, 0.5)]
    """
    lr, since = recipe.lr, recipe.schedule_epochs
    if recipe.schedule == "halving":
        return lr * 0.5 ** (epoch // since), 0.9
    left = (recipe.epochs - epoch) / max(1, recipe.epochs - since)  # of the fall, from 1 to 0
    if recipe.schedule == "linear" and epoch >= since:
        return lr * left, 0.5
    if recipe.schedule == "cosine" and epoch >= since:
        return lr * 0.5 * (1 - math.cos(math.pi * left)), 0.9
    return lr, 0.9


def set_rates(optimizer: torch.optim.Optimizer, recipe: Recipe, epoch: int) -> float:
    """Give the optimiser the rates of an epoch; returns the learning rate."""
    lr, first_moment = schedule(recipe, epoch)
    for group in optimizer.param_groups:
        group["betas"] = (first_moment, 0.999)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr
    return lr


# ------------------------------------------------------------------------- around the loop


def _check_recipe(recipe: Recipe, run_dir: str | Path) -> None:
    """Raise unless the run there was started with this recipe."""
    given, known = recipe.to_dict(), checkpoint.read_recipe(run_dir).to_dict()
    for name in given:
        if given[name] != known[name]:
            raise ValueError(
                f"Expected argument `recipe` to be that of {run_dir}, with {name}={known[name]!r}, "
                f"but got {given[name]!r}"
            )


@contextlib.contextmanager
def _beta_as_asked(model: nn.Module, recipe: Recipe) -> Iterator[None]:
    """Without ``train_beta`` no β learns; afterwards those may that did before."""
    betas = [layer.beta for layer in model.modules() if isinstance(layer, NSMLayer) and layer.beta.requires_grad]
    try:
        for beta in betas:
            beta.requires_grad_(recipe.train_beta)
        yield
    finally:
        for beta in betas:
            beta.requires_grad_(True)


def _open(stack: contextlib.ExitStack, fabric: Fabric, run_dir: str | Path | None) -> Path | None:
    """The run's folder, held by the first process; where it cannot have it, every process ends."""
    if run_dir is not None:
        on_first(fabric, lambda: stack.enter_context(checkpoint.locked(run_dir)))
    return None if run_dir is None else Path(fabric.broadcast(str(run_dir)))
