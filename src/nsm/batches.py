"""The batches of an epoch, in an order that is given: whole data sets on the device, or any torch data set loaded.

Nothing here remembers a position. An epoch is its order and the batch to begin with, so a run that was cut continues
with the very batch that was next, whatever loads it.
"""

import collections.abc
import hashlib
import random
import signal
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.utils import data

from nsm.data import DataError, Dataset, random_crop, random_cutout, random_flip, random_shift
from nsm.recipes import Recipe
from nsm.signs import binarize

Batch = tuple[tuple[Tensor, ...], int]  # what stands for it, and its size in all processes together


@dataclass(frozen=True)
class Batches:
    """Where batches come from.

    Attributes:
        dataset: One of `nsm.data`, which is kept on the device whole; or any other data set of torch with a length,
            which a ``DataLoader`` reads with ``recipe.num_workers`` processes.
        recipe: For the size of batches, augmentation and workers.
        device: Where the batches are wanted.
        rank: Which of the processes that share each batch this is.
        world_size: How many they are.
        name: Which argument of the caller the data are.
    """

    dataset: Any
    recipe: Recipe
    device: torch.device
    rank: int = 0
    world_size: int = 1
    name: str = "train"

    def __post_init__(self) -> None:
        """Refuse what has no length, or nothing in it."""
        what, mine = type(self.dataset).__name__, f"Expected argument `{self.name}`"
        if isinstance(self.dataset, data.IterableDataset) or not (
            isinstance(self.dataset, Sized) and hasattr(self.dataset, "__getitem__")
        ):
            raise TypeError(f"{mine} to be a data set with a length and indices, but got {what}")
        if len(self.dataset) == 0:
            raise ValueError(f"{mine} to hold at least one input, but got an empty {what}")
        if isinstance(self.dataset, Dataset):
            object.__setattr__(self, "dataset", self.dataset.to(self.device))

    @property
    def learned_from(self) -> str:
        """What the data set calls itself."""
        return self.dataset.name if isinstance(self.dataset, Dataset) else type(self.dataset).__name__

    def __len__(self) -> int:
        """Batches in an epoch; the last may be smaller."""
        return -(-len(self.dataset) // self.recipe.batch_size)

    @property
    def order_device(self) -> torch.device:
        """Where inputs are looked up by their index."""
        return self.device if isinstance(self.dataset, Dataset) else torch.device("cpu")

    def order(self, generator: Generator) -> Tensor:
        """A fresh order of the inputs for every network that is trained, (seeds, N), drawn where it is used."""
        one: dict[str, Any] = {"generator": generator, "device": generator.device}
        return torch.stack([torch.randperm(len(self.dataset), **one) for _ in range(self.recipe.seeds)])

    def epoch(self, number: int, order: Tensor, first: int) -> collections.abc.Generator[Batch, None, None]:
        """From batch ``first`` on: what stands for it, to be given to `read`, and the number of inputs in all of it."""
        size = self.recipe.batch_size
        indexed = isinstance(self.dataset, Dataset)
        order = order.to(self.order_device)
        chunks = (order[:, k * size : (k + 1) * size] for k in range(first, len(self)))
        shares = ((chunk[:, self.rank :: self.world_size], chunk.shape[1]) for chunk in chunks)  # (seeds, own batch)
        if indexed:
            yield from (((share,), many) for share, many in shares)
            return
        own = list(shares)
        yield from zip(self._load(number, [share for share, _ in own]), (many for _, many in own), strict=True)

    def read(self, *what: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Inputs, augmented, and labels: (batch, …) and (batch,), with the seeds in front if there are several.

        A data set of `nsm.data` is read here, by indices; of another one the inputs and labels are given.
        """
        seeds = self.recipe.seeds
        inputs, labels = self._gather(what[0].flatten()) if len(what) == 1 else what
        inputs = self._augment(inputs, generator)
        return (inputs, labels) if seeds == 1 else (inputs.unflatten(0, (seeds, -1)), labels.view(seeds, -1))

    @cached_property
    def _gather(self) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """Inputs and labels at indices; on CUDA compiled, if the rest of the step is."""
        compiles = self.recipe.compile and self.device.type == "cuda"
        return torch.compile(self.dataset.batch) if compiles else self.dataset.batch

    def all(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Every input of this process's share once, in order and as it is, with its label."""
        many = 10_000 if self.device.type == "cuda" else 1000
        return self._read(0, list(torch.arange(self.rank, len(self.dataset), self.world_size)[None].split(many, 1)))

    def _read(self, epoch: int, shares: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        if isinstance(self.dataset, Dataset):
            for share in shares:
                yield self.dataset.batch(share.flatten().to(self.device))
            return
        yield from self._load(epoch, shares)

    def _load(self, epoch: int, shares: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        if not shares:
            return
        nothing = [share.numel() == 0 for share in shares]  # of fewer inputs than processes; a loader reads one for it
        loader = data.DataLoader(
            _Seeded(self.dataset, self.recipe.seed, epoch),
            batch_sampler=[share.flatten().tolist() or [0] for share in shares],
            num_workers=self.recipe.num_workers,
            worker_init_fn=_leave_signals_to_the_parent,
            generator=Generator().manual_seed(0),  # else a loader draws from the generator of the noise
        )
        for none, (inputs, labels) in zip(nothing, loader, strict=True):
            inputs, labels = inputs.to(self.device), torch.as_tensor(labels).to(self.device)
            labels = labels if labels.is_floating_point() else labels.long()  # the floats are refused
            yield (inputs[:0], labels[:0]) if none else (inputs, labels)

    @cached_property
    def background(self) -> float:
        """The value of an empty pixel: that of the data set, or −1 where its inputs are ±1, else 0."""
        known = getattr(self.dataset, "background", None)
        return (-1.0 if _are_states(self._some()[0]) else 0.0) if known is None else known

    def _some(self) -> tuple[Tensor, Tensor]:
        """Some inputs and labels, as they are, from all over the data, which may be in the order of their labels."""
        count = min(100, len(self.dataset))
        return next(self._read(0, [(torch.arange(count) * len(self.dataset) // count)[None]]))

    def _augment(self, images: Tensor, generator: Generator) -> Tensor:
        recipe = self.recipe
        options = recipe.input_cutout, recipe.input_level, recipe.input_dropout, recipe.input_swap
        if recipe.augmentation == "none" and not any(options):
            return images
        fill = self.background
        match recipe.augmentation:
            case "shift":
                images = random_shift(images, 2, fill=fill, generator=generator)
            case "crop-flip":
                images = random_flip(random_crop(images, 4, fill=fill, generator=generator), generator=generator)
        if side := recipe.input_cutout:
            images = random_cutout(images, side, fill=fill, generator=generator)
        if reach := recipe.input_level:
            chance = torch.rand(len(images), 1, 1, 1, generator=generator, device=images.device)
            images, fill = binarize(images - reach * (2 * chance - 1)), -1.0
        dropped, swapped = recipe.input_dropout, recipe.input_swap
        if dropped or swapped:
            chance = torch.rand(images.shape, generator=generator, device=images.device)
            if swapped:  # with those of the neighbour, which the same network learns from
                others = images.unflatten(0, (recipe.seeds, -1)).roll(1, 1).flatten(0, 1)
                images = torch.where(chance > 1 - swapped, others, images)
            images = images.masked_fill(chance < dropped, fill) if dropped else images
        return images

    def head(self, count: int, generator: Generator) -> Tensor:
        """``count`` inputs (or all, if they are fewer) at random, as they are."""
        indices = torch.randperm(len(self.dataset), generator=generator)[:count]
        return next(self._read(0, [indices[None]]))[0]

    @torch.no_grad()
    def check(self, model: nn.Module) -> None:
        """Refuse data that ``model`` could not learn from, as far as `check_labels` looks at them."""
        inputs = self.check_labels(model)
        recipe, states, pictures = self.recipe, _are_states(inputs), inputs.dim() == 4
        if recipe.augmentation != "none" and not pictures:
            raise ValueError(
                f"Expected argument `augmentation` to be 'none' for inputs of shape {tuple(inputs.shape[1:])}, "
                f"but got {recipe.augmentation!r}"
            )
        if recipe.input_cutout and not (pictures and recipe.input_cutout < min(inputs.shape[2:])):
            raise ValueError(
                "Expected argument `input_cutout` to be 0, or below the sides of inputs that are pictures, "
                f"but got {recipe.input_cutout} for inputs of shape {tuple(inputs.shape[1:])}"
            )
        if recipe.input_level and (states or not pictures or inputs.shape[1] != 1):
            kind = "±1" if states else f"of shape {tuple(inputs.shape[1:])}"
            raise ValueError(
                f"Expected argument `input_level` to be 0 for inputs that are {kind}, not grey, "
                f"but got {recipe.input_level}"
            )
        if recipe.input_flip and not (states or recipe.input_level):
            raise ValueError(
                f"Expected argument `input_flip` to be 0 for inputs that are not ±1, but got {recipe.input_flip}"
            )

    @torch.no_grad()
    def check_labels(self, model: nn.Module) -> Tensor:
        """Refuse data that are none of ``model``; looks at some inputs, which it returns, and all labels it can."""
        inputs, labels = self._some()
        if isinstance(self.dataset, Dataset):
            labels = self.dataset.labels
        if not inputs.is_floating_point() or not inputs.isfinite().all():
            bad = inputs.dtype if not inputs.is_floating_point() else f"{int((~inputs.isfinite()).sum())} that are not"
            raise DataError(f"Expected inputs of `{self.name}` to be finite floating-point numbers, but got {bad}")
        if labels.is_floating_point() or labels.dim() != 1:
            kind = f"{labels.dtype} of shape {tuple(labels.shape)}"
            raise DataError(f"Expected labels of `{self.name}` to be integers, one for each input, but got {kind}")
        training = model.training
        try:
            logits = model.eval()(inputs[:2])
        finally:
            model.train(training)
        if logits.dim() != 2:
            raise ValueError(f"Expected argument `model` to return logits (B, C), but got {tuple(logits.shape)}")
        if not 0 <= int(labels.min()) <= int(labels.max()) < logits.shape[1]:
            mine, most = f"Expected labels of `{self.name}`", logits.shape[1] - 1
            span = f"{int(labels.min())} to {int(labels.max())}"
            raise DataError(f"{mine} to be in 0 to {most}, as the model has outputs, but got {span}")
        return inputs


def _are_states(inputs: Tensor) -> bool:
    return bool((inputs.abs() == 1).all())


def _leave_signals_to_the_parent(worker: int) -> None:
    """Who signals all processes, as a terminal, ``timeout`` and SLURM do: the parent still needs its batch.

    The second SIGTERM ends a worker: the parent sends some to one that does not come back.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: signal.signal(number, signal.SIG_DFL))


@dataclass(frozen=True)
class _Seeded(data.Dataset[Any]):
    """A data set whose own random transforms depend on seed, epoch and index alone, not on who loads the input."""

    dataset: Any
    seed: int
    epoch: int

    def __getitem__(self, index: int) -> Any:
        key = derive(self.seed, "input", self.epoch, index)
        python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - of others' transforms
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(key)
                random.seed(key)
                np.random.seed(key % 2**32)  # noqa: NPY002
                return self.dataset[index]
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]

    def __len__(self) -> int:
        return len(self.dataset)


def derive(seed: int, *purpose: str | int) -> int:
    """A seed for one purpose, unlike that of any other.

    >>> derive(0, "order") == derive(0, "order"), derive(0, "noise", 0) == derive(0, "noise", 1)
    (True, False)
    """
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
