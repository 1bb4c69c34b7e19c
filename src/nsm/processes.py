"""The processes of a run: started on their devices, agreeing with each other, and ending well.

Devices, precision and processes are lightning-fabric's; here is what a training loop asks of them.
"""

import atexit
import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import torch
from lightning_fabric import Fabric
from lightning_fabric.utilities.rank_zero import rank_zero_only
from torch import Tensor

from nsm.recipes import Recipe


class Diverged(ArithmeticError):
    """A loss or gradient was not finite."""


class Interrupted(KeyboardInterrupt):
    """A signal ended the run after the step at hand, which is saved.

    Attributes:
        signal: Which signal.
        run_dir: Where to resume.
    """

    def __init__(self, number: int, run_dir: Path) -> None:
        super().__init__(f"{signal.Signals(number).name} ended the run, which is saved in {run_dir}")
        self.signal, self.run_dir = number, run_dir


@contextlib.contextmanager
def processes(recipe: Recipe) -> Iterator[Fabric]:
    """Devices and processes, started; at the end they wait for each other, and torch's generators are as they were."""
    cuda = torch.cuda.is_available()
    if recipe.accelerator == "cuda" and not cuda:
        raise ValueError("Expected argument `accelerator` to be 'cpu' or 'auto' without a CUDA device, but got 'cuda'")
    if recipe.cuda_graph and (not cuda or recipe.accelerator == "cpu"):
        raise ValueError("Expected argument `cuda_graph` to be False on the CPU, but got True")
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it has nothing to say that a run does not show
    accelerator = ("cuda" if cuda else "cpu") if recipe.accelerator == "auto" else recipe.accelerator
    fabric = Fabric(
        accelerator=accelerator,
        devices=recipe.devices,
        num_nodes=recipe.num_nodes,
        strategy="ddp" if recipe.world_size > 1 else "auto",
        precision=recipe.precision,
    )
    fabric.launch()
    if recipe.world_size > 1:
        atexit.register(_part)  # not sooner: a group that is formed again in the same processes meets the old one
    try:
        with torch.random.fork_rng([fabric.device] if fabric.device.type == "cuda" else []):
            yield fabric
            fabric.barrier()
    except (Diverged, Interrupted):
        fabric.barrier()  # all processes come here; after any other error the rest may be anywhere
        raise


def _part() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def on_first(fabric: Fabric, do: Callable[[], object]) -> None:
    """Let the first process do something for all; where it fails, it fails in all of them."""
    problem: Exception | None = None
    if fabric.global_rank == 0:
        try:
            do()
        except (OSError, ValueError) as error:
            problem = error
    problem = fabric.broadcast(problem)
    if problem is not None:
        raise problem


def is_first_process() -> bool:
    """Whether this process is the one that speaks for all."""
    return getattr(rank_zero_only, "rank", 0) == 0


@contextlib.contextmanager
def signals(folder: Path | None) -> Iterator[list[int]]:
    """The signals that came, where the run can be saved; a second one acts at once, as it would have without us."""
    came: list[int] = []
    if folder is None or threading.current_thread() is not threading.main_thread():
        yield came
        return
    numbers = signal.SIGINT, signal.SIGTERM
    before = [signal.getsignal(number) for number in numbers]

    def restore() -> None:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)

    def note(number: int, _: object) -> None:
        came.append(number)
        restore()

    for number in numbers:
        signal.signal(number, note)
    try:
        yield came
    finally:
        restore()


def agree(fabric: Fabric, came: list[int]) -> int:
    """The signal that came, or 0; processes end together, so the first that has one tells the others."""
    number = came[0] if came else 0
    return int(reduce(fabric, torch.tensor(number, device=fabric.device), "max")) if fabric.world_size > 1 else number


def reduce(fabric: Fabric, value: Tensor, how: str = "sum") -> Tensor:
    """The sum, or the maximum, of a value over all processes."""
    return value if fabric.world_size == 1 else cast(Tensor, fabric.all_reduce(value, reduce_op=how))


def gather(fabric: Fabric, value: Tensor) -> Tensor:
    """The values of all processes, (processes, …), on the CPU."""
    if fabric.world_size == 1:
        return value[None]
    parts = [torch.empty_like(value, device=fabric.device) for _ in range(fabric.world_size)]
    torch.distributed.all_gather(parts, value.to(fabric.device))
    return torch.stack(parts).cpu()
