"""The processes of a run: started on their devices, agreeing with each other, and ending well.

Devices, precision and processes are lightning-fabric's; here is what a training loop asks of them.
"""

import atexit
import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import torch
from lightning_fabric import Fabric
from lightning_fabric.utilities.rank_zero import rank_zero_only
from torch import Tensor, nn

from nsm import sharding
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
    accelerator = ("cuda" if cuda else "cpu") if recipe.accelerator == "auto" else recipe.accelerator
    _check_launch(recipe)
    there = torch.cuda.device_count() if accelerator == "cuda" else os.cpu_count() or 1  # a process for each
    if recipe.devices > there:
        kind = "CUDA devices" if accelerator == "cuda" else "CPU cores"
        raise ValueError(f"Expected argument `devices` to be at most the {there} {kind} here, but got {recipe.devices}")
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it has nothing to say that a run does not show
    alone = recipe.world_size == 1 and recipe.strategy == "ddp"  # shares need a process group, if of one
    together = sharding.strategy(recipe.world_size) if recipe.strategy == "fsdp" else "ddp"
    fabric = Fabric(
        accelerator=accelerator,
        devices=recipe.devices,
        num_nodes=recipe.num_nodes,
        strategy="auto" if alone else together,
        precision=recipe.precision,
    )
    if not alone:
        atexit.register(_part)  # not sooner: a group that is formed again in the same processes meets the old one
    try:
        with _ended_by_signals():  # while processes wait for each other nothing of Python's would come to pass
            fabric.launch()
        with torch.random.fork_rng([fabric.device] if fabric.device.type == "cuda" else []):
            yield fabric
            fabric.barrier()
    except (Diverged, Interrupted):
        fabric.barrier()  # all processes come here; after any other error the rest may be anywhere
        raise
    except RuntimeError as error:
        if isinstance(error, torch.distributed.DistError) or "/gloo/" in str(error):
            raise ConnectionError(
                f"Expected all {recipe.world_size} processes to go on, but lost another one; what was saved is whole, "
                "and `nsm resume` goes on with it"
            ) from error
        raise


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGINT end the process at once, as SIGTERM does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _check_launch(recipe: Recipe) -> None:
    """Refuse a run of other processes than torchrun or srun started: it would wait for them, or be run many times."""
    if torch.distributed.is_torchelastic_launched():
        by, started, here = "torchrun", os.environ["WORLD_SIZE"], os.environ["LOCAL_WORLD_SIZE"]
    elif recipe.world_size == 1:
        return  # srun may start many runs of one process each
    elif "SLURM_NTASKS" in os.environ and os.environ.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        by, started, here = "srun", os.environ["SLURM_NTASKS"], os.environ.get("SLURM_NTASKS_PER_NODE")
        if here is None:
            raise ValueError(f"Expected srun to be told --ntasks-per-node={recipe.devices}, but got no such option")
    elif recipe.num_nodes > 1 and "MASTER_ADDR" not in os.environ:
        raise ValueError(
            f"Expected argument `num_nodes` to be 1 without torchrun or srun, but got {recipe.num_nodes}: "
            "who should start the other machines?"
        )
    else:
        return
    if (int(started), int(here)) != (recipe.world_size, recipe.devices):
        raise ValueError(
            f"Expected arguments `devices` and `num_nodes` to make the {started} processes that {by} started, "
            f"{here} on this machine, but got {recipe.devices} and {recipe.num_nodes}"
        )


def _part() -> None:
    if torch.distributed.is_initialized():
        gloo = torch.distributed.get_backend() == "gloo"
        torch.distributed.destroy_process_group()
        if gloo:  # torch's caches keep groups of shares, whose threads may yet need Python to let go of a tensor
            time.sleep(0.1)


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
    """The signals that came, where the run can be saved; a second Ctrl-C acts at once, as it would have without us.

    SIGTERM may come any number of times: ``timeout`` sends it to the process, and then to its group.
    """
    came: list[int] = []
    if folder is None or threading.current_thread() is not threading.main_thread():
        yield came
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, _: object) -> None:
        came.append(number)
        if number == signal.SIGINT:
            signal.signal(number, before[signal.SIGINT])

    for number in before:
        signal.signal(number, note)
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def agree(fabric: Fabric, came: list[int]) -> int:
    """The signal that came, or 0; processes end together, so the first that has one tells the others."""
    number = came[0] if came else 0
    return int(reduce(fabric, torch.tensor(number, device=fabric.device), "max")) if fabric.world_size > 1 else number


def reduce(fabric: Fabric, value: Tensor, how: str = "sum") -> Tensor:
    """The sum, or the maximum, of a value over all processes."""
    return value if fabric.world_size == 1 else cast(Tensor, fabric.all_reduce(value, reduce_op=how))


def share_buffers(fabric: Fabric, network: nn.Module) -> None:
    """Give all processes the first one's buffers, such as the running means of a batch norm, in place."""
    if fabric.world_size > 1:
        for buffer in network.buffers():
            torch.distributed.broadcast(buffer, 0)


def gather(fabric: Fabric, value: Tensor) -> Tensor:
    """The values of all processes, (processes, …), on the CPU."""
    if fabric.world_size == 1:
        return value[None]
    parts = [torch.empty_like(value, device=fabric.device) for _ in range(fabric.world_size)]
    torch.distributed.all_gather(parts, value.to(fabric.device))
    return torch.stack(parts).cpu()
