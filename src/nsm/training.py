"""``fit``: the loop that trains, over lightning-fabric, which knows devices, precision and processes.

A run is a function of its recipe, its data and its start. Whatever the next step depends on (weights, moments, place in
the epoch, generators) is in `_State`, and a checkpoint is all of it; so a run that was cut anywhere and resumed ends
with the same bits as one that was not.
"""

import contextlib
import copy
import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from torch import Generator, Tensor, nn

from nsm import checkpoint
from nsm.batches import Batches, derive
from nsm.checkpoint import Checkpoint, CheckpointError
from nsm.data import load
from nsm.display import plot, progress, tensorboard
from nsm.ensemble import Ensemble
from nsm.initialization import initialize, start_from
from nsm.layers import NSMLayer
from nsm.networks import build
from nsm.processes import Interrupted, agree, gather, on_first, processes, reduce, share_buffers, signals
from nsm.recipes import Recipe
from nsm.sampling import predict
from nsm.sharding import collect, follow, whole
from nsm.steps import COMPILE, GraphedStep, Step

INITIAL_BATCH = 100  # inputs for the data-dependent start, as in the paper
OWN = ("losses", "random/augment", "random/noise", "random/cuda")  # in a checkpoint, what each process has of its own


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
        held_out = Batches(validation, recipe, fabric.device, *ranks) if validation is not None else None
        batches.check(model.to(fabric.device))
        folder = _open(stack, fabric, run_dir)
        came = stack.enter_context(signals(folder))
        state = _State(model, batches, recipe, fabric)
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


class _State:
    """Everything that the next step depends on."""

    def __init__(self, model: nn.Module, batches: Batches, recipe: Recipe, fabric: Fabric) -> None:
        self.recipe, self.fabric, self.batches = recipe, fabric, batches
        self.model = model
        for layer in model.modules():
            if isinstance(layer, NSMLayer):
                layer.beta.requires_grad_(recipe.train_beta)
        self.epoch = self.batch = self.step = 0
        self.losses = torch.zeros(recipe.seeds, dtype=torch.float64, device=fabric.device)
        self.history: list[dict[str, Any]] = []
        self.order = Generator(batches.order_device).manual_seed(derive(recipe.seed, "order"))
        self.augment = Generator(fabric.device).manual_seed(derive(recipe.seed, "augment", fabric.global_rank))
        self.order_before = self.order.get_state()  # whence the order of this epoch is drawn
        self.shares: nn.Module | None = None  # with fsdp, what is trained in place of the whole network

    def begin(self, folder: Path | None) -> None:
        """A fresh start: weights that every process agrees on, then noise that is each one's own."""
        recipe, device, text = self.recipe, self.fabric.device, repr(self.model)
        members = self._members()
        for k, member in enumerate(members):
            torch.manual_seed(derive(recipe.seed, "start", k))
            if recipe.init_from:
                start_from(member, _trained(recipe.init_from, recipe.seed + k).to(device))
            elif k:
                _draw_anew(member)
            if recipe.initialize and any(isinstance(module, NSMLayer) for module in member.modules()):
                some = Generator().manual_seed(derive(recipe.seed, "initialize", k))
                initialize(member, self.batches.head(INITIAL_BATCH, some))
        self._assemble(members)
        torch.manual_seed(derive(recipe.seed, "noise", self.fabric.global_rank))
        if folder:
            on_first(self.fabric, lambda: checkpoint.begin(folder, recipe, text))
            self.save(folder)

    def restore(self, saved: Checkpoint, folder: Path) -> None:
        """The state of a checkpoint."""
        checkpoint.check_architecture(saved, self.model, folder)
        if saved.progress["samples"] != len(self.batches.dataset):
            raise CheckpointError(
                f"Expected {saved.progress['samples']} inputs, with which {folder} began, "
                f"but got {len(self.batches.dataset)}"
            )
        self._assemble(self._members())
        tensors, rank = saved.tensors, self.fabric.global_rank
        # copies, since a generator reads the memory of its state from the start, whatever part of it a view shows
        own = {name: value[rank].clone() for name, value in tensors.items() if name in OWN}
        self.network.load_state_dict(saved.part("model"))
        self.kept.load_state_dict(saved.part("average") or saved.part("model"))
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in saved.part("optimizer").items():
            index, key = name.split("/")
            moments.setdefault(int(index), {})[key] = value
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})
        for weight, state in self.optimizer.state.items():  # which lie in memory as their weights do
            state.update({n: torch.empty_like(weight).copy_(v) for n, v in state.items() if v.shape == weight.shape})
        self.epoch, self.batch, self.step = (saved.progress[key] for key in ("epoch", "batch", "step"))
        self.history = list(saved.progress["history"])
        self.losses.copy_(own["losses"])
        self.order_before = tensors["random/order"]
        self.order.set_state(self.order_before)
        self.augment.set_state(own["random/augment"])
        torch.set_rng_state(own["random/noise"])
        if "random/cuda" in own:
            torch.cuda.set_rng_state(own["random/cuda"], self.fabric.device)

    def save(self, folder: Path) -> None:
        """Make this the run's checkpoint; every process takes part, the first writes."""
        self._collect()
        tensors = {f"model/{name}": value for name, value in self.network.state_dict().items()}
        if self.kept is not self.network:
            tensors |= {f"average/{name}": value for name, value in self.kept.state_dict().items()}
        # sorted: after a resume each process has an order of its own, but they must ask for the same shares together
        for index, moments in sorted(self.optimizer.state_dict()["state"].items()):
            tensors |= {f"optimizer/{index}/{key}": whole(value).cpu() for key, value in sorted(moments.items())}
        own = {"losses": self.losses, "random/augment": self.augment.get_state(), "random/noise": torch.get_rng_state()}
        if self.fabric.device.type == "cuda":
            own["random/cuda"] = torch.cuda.get_rng_state(self.fabric.device)
        tensors |= {name: gather(self.fabric, value) for name, value in own.items()}
        tensors["random/order"] = self.order_before
        place = {"epoch": self.epoch, "batch": self.batch, "step": self.step, "samples": len(self.batches.dataset)}
        on_first(self.fabric, lambda: checkpoint.save(folder, tensors, {**place, "history": self.history}))

    def measure(self, held_out: Batches | None) -> dict[str, Any]:
        """What there is to say of an epoch that is over."""
        losses = (reduce(self.fabric, self.losses) / len(self.batches) / self.fabric.world_size).tolist()
        row: dict[str, Any] = {"epoch": self.epoch + 1, "step": self.step, "loss": sum(losses) / len(losses)}
        row["validation_error"] = errors = None
        last = self.recipe.measure_last or self.recipe.epochs
        if held_out is not None and self.epoch >= self.recipe.epochs - last:
            self._collect()
            networks = (network.to(self.fabric.device) for network in self._networks())
            errors = [_error(network, held_out, self.epoch, self.fabric) for network in networks]
            row["validation_error"] = sum(errors) / len(errors)
            self._make_room()
        return row | ({"losses": losses, "validation_errors": errors} if self.recipe.seeds > 1 else {})

    @torch.no_grad()
    def average(self) -> None:
        """Take the weights of an epoch that is over into the network that is kept."""
        if self.kept is self.network:
            return
        self._collect()
        share = 1 / min(self.epoch + 1, self.recipe.average_epochs)
        for mean, value in zip(_tensors(self.kept), _tensors(self.network), strict=True):
            if mean.is_floating_point():
                mean.lerp_(value, share)
            else:
                mean.copy_(value)

    def next_epoch(self, row: dict[str, Any]) -> None:
        """Close an epoch."""
        self.history.append(row)
        self.epoch, self.batch = self.epoch + 1, 0
        self.losses.zero_()
        self.order_before = self.order.get_state()

    def stepper(self) -> Step:
        """A step of the network as the fabric runs it: in its precision, in all processes, compiled, captured."""
        recipe, fabric = self.recipe, self.fabric
        network: Any = self.network.train()
        if recipe.strategy == "fsdp":
            network = self.shares = copy.deepcopy(network)
            self._make_room()
        alone = fabric.world_size == 1 and self.shares is None
        apart = isinstance(network, Ensemble) and network.apart
        if recipe.compile and apart:
            network.compile_members(**COMPILE)
        elif recipe.compile and not alone:
            network = torch.compile(network, **COMPILE)
        if self.shares is None:
            runs, updates = fabric.setup(network, self.optimizer)
        else:
            runs = fabric.setup_module(network)
            follow(self.optimizer, self.network, self.shares)
            updates = fabric.setup_optimizers(self.optimizer)
        read = partial(self.batches.read, generator=self.augment)
        parts = (recipe, network if alone else runs, updates, fabric, read)
        whole = recipe.compile and alone and not apart
        if recipe.cuda_graph:
            return GraphedStep(*parts, whole=whole, generators=(self.augment,))
        return Step(*parts, whole=whole)

    def finish(self) -> None:
        """Leave the trained weights in the caller's model."""
        self._collect()
        self.model.to(self.fabric.device)
        if self.kept is not self.model:
            self.model.load_state_dict(self._networks()[0].state_dict())

    def _collect(self) -> None:
        """Bring the whole network, in every process, to where the training of it stands."""
        share_buffers(self.fabric, self.shares or self.network)
        if self.shares is not None:
            collect(self.shares, self.network)

    def _make_room(self) -> None:
        """Keep whole networks off the device while one is trained in shares."""
        if self.shares is not None:
            self.network.cpu()
            self.kept.cpu()

    def _networks(self) -> list[nn.Module]:
        if isinstance(self.kept, Ensemble):
            return [self.kept.member(k) for k in range(self.kept.size)]
        return [self.kept]

    def _members(self) -> list[nn.Module]:
        """The caller's model and its copies."""
        layout = torch.channels_last  # in which convolutions are fastest
        first = cast(Any, self.model).to(self.fabric.device, memory_format=layout)
        return [first, *(copy.deepcopy(first) for _ in range(self.recipe.seeds - 1))]

    def _assemble(self, members: list[nn.Module]) -> None:
        recipe = self.recipe
        self.network = Ensemble(members) if len(members) > 1 else members[0]
        self.kept = copy.deepcopy(self.network) if recipe.average_epochs > 1 else self.network
        groups: dict[float, list[nn.Parameter]] = {}  # by decay
        for name, value in self.network.named_parameters():
            if value.requires_grad:
                kind = name.replace("/", ".").rpartition(".")[2]
                decay = {"weight": recipe.weight_decay, "beta": recipe.beta_decay}.get(kind, 0.0)
                groups.setdefault(decay, []).append(value)
        graph = recipe.cuda_graph  # which keeps no number that changes, so the rate is a tensor
        self.optimizer = torch.optim.AdamW(
            [{"params": values, "weight_decay": decay} for decay, values in groups.items()],
            lr=torch.tensor(recipe.lr, device=self.fabric.device) if graph else recipe.lr,
            capturable=graph,
            # one pass on the CPU, but whole weights and shares would be rounded differently; on CUDA a compiled list
            fused=self.fabric.device.type == "cpu" and self.fabric.world_size == 1,
            foreach=True if self.fabric.device.type == "cuda" else None,
        )


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


def _open(stack: contextlib.ExitStack, fabric: Fabric, run_dir: str | Path | None) -> Path | None:
    """The run's folder, held by the first process; where it cannot have it, every process ends."""
    if run_dir is not None:
        on_first(fabric, lambda: stack.enter_context(checkpoint.locked(run_dir)))
    return None if run_dir is None else Path(fabric.broadcast(str(run_dir)))


def _error(network: nn.Module, data: Batches, epoch: int, fabric: Fabric) -> float:
    """The fraction of wrong labels; each process looks at its share."""
    labels: list[Tensor] = []

    def inputs() -> Iterator[Tensor]:
        for some, truth in data.all():
            labels.append(truth)
            yield some

    seed = derive(data.recipe.seed, "validation", epoch, fabric.global_rank)
    wrong = torch.zeros((), dtype=torch.long, device=fabric.device)
    if fabric.global_rank < len(data.dataset):  # else there is nothing in its share
        with fabric.autocast():
            prediction = predict(network, inputs(), data.recipe.num_samples, seed=seed)
        wrong += (prediction.label != torch.cat(labels)).sum()
    return float(reduce(fabric, wrong)) / len(data.dataset)


def _trained(folder: str, seed: int) -> nn.Module:
    """The network of a seed in a run's folder; a seed beyond those that were trained there begins with the first."""
    run = checkpoint.read_recipe(folder)
    return checkpoint.load(folder, member=(seed - run.seed) % run.seeds)


def _tensors(network: nn.Module) -> list[Tensor]:
    return [*network.parameters(), *network.buffers()]


def _draw_anew(model: nn.Module) -> None:
    for module in model.modules():
        reset = getattr(module, "reset_parameters", None)
        if reset is not None:
            reset()
