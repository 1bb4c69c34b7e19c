"""What each of two processes does in tests/test_processes.py; started by torch's own launcher.

torchrun --nproc-per-node 2 tests/two_processes.py FOLDER STRATEGY
"""

import atexit
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from nsm import state
from nsm.processes import Diverged, Interrupted
from nsm.steps import Step
from nsm.training import fit
from test_options import CERTAIN
from test_training import TINY, net, smooth, tiny

DRAWN: list[torch.Tensor] = []


class Probe(nn.Module):
    """Notes what torch's generator gives while the network trains."""

    def forward(self, x):
        if self.training:
            DRAWN.append(torch.rand(1000))
        return x


def norm() -> nn.Module:
    """A network with buffers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(32, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 2))


class Watched(Step):
    """Steps that count, and note how much of the weights, gradients and moments is here."""

    calls = 0
    here: list[tuple[int, ...]]

    def __call__(self, *arguments):
        Watched.calls += 1
        losses = super().__call__(*arguments)
        weights = [weight for group in self.optimizer.param_groups for weight in group["params"]]
        kinds = weights, [w.grad for w in weights], [self.optimizer.state[w]["exp_avg"] for w in weights]
        own = [[v.to_local() if isinstance(v, DTensor) else v for v in values] for values in kinds]
        Watched.here = [tuple(sum(v.numel() for v in values) for values in each) for each in (kinds, own)]
        return losses


class Cut(Step):
    """Steps of which the sixth is cut, in one process alone."""

    calls = 0

    def __call__(self, *arguments):
        Cut.calls += 1
        if Cut.calls == 6 and self.fabric.global_rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().__call__(*arguments)


class Poisoned(Step):
    """Steps of which the sixth is not finite, in one process alone."""

    calls = 0

    def __call__(self, what, size):
        Poisoned.calls += 1
        if Poisoned.calls == 6 and self.fabric.global_rank == 1:
            inputs, labels = self.read(*what)
            self.read = lambda *_: (inputs * float("nan"), labels)
        return super().__call__(what, size)


@contextlib.contextmanager
def stepping(kind: type[Step], until: type[BaseException] | None = None) -> Iterator[None]:
    """Train with such steps, until that is raised."""
    patched: Any = state
    patched.Step = kind
    try:
        yield
        assert until is None
    except BaseException as error:
        if until is None or not isinstance(error, until):
            raise
    finally:
        patched.Step = Step


def main(folder: Path, strategy: Any) -> None:
    rank = int(os.environ["RANK"])
    atexit.register(lambda: torch.distributed.is_initialized() or (folder / f"parted-{rank}").touch())  # comes last
    two = replace(TINY, devices=2, epochs=2, save_every=3, strategy=strategy)

    model = smooth()
    with stepping(Watched):
        fit(model, tiny(), two, validation=tiny(9), run_dir=folder / "smooth")
    torch.save(model.state_dict(), folder / f"smooth-{rank}.pt")
    assert all(type(weight) is nn.Parameter for weight in model.parameters())
    torch.save(Watched.here, folder / f"here-{rank}.pt")

    much = replace(two, weight_decay=0.1, beta_decay=0.2, average_epochs=2, loss_samples=2, input_flip=0.1)
    fit(nn.Sequential(Probe(), *net()), tiny(), much, validation=tiny(9), run_dir=folder / "whole")
    torch.save(torch.stack(DRAWN), folder / f"drawn-{rank}.pt")
    with stepping(Cut, until=Interrupted):
        fit(nn.Sequential(Probe(), *net()), tiny(), much, validation=tiny(9), run_dir=folder / "cut")
    fit(nn.Sequential(Probe(), *net()), tiny(), much, validation=tiny(9), run_dir=folder / "cut", resume=True)

    model = smooth()
    with stepping(Poisoned, until=Diverged):
        fit(model, tiny(), two, run_dir=folder / "poisoned")
    assert all(weight.isfinite().all() for weight in model.parameters())
    (folder / f"diverged-{rank}").touch()

    model = norm()
    fit(model, tiny(), two, validation=tiny(1))  # one of the processes has nothing to measure
    torch.save(model.state_dict(), folder / f"norm-{rank}.pt")
    fit(smooth(), tiny(), replace(two, seeds=3), run_dir=folder / "seeds")
    fit(smooth(), tiny(), replace(two, input_flip=CERTAIN), run_dir=folder / "flipped")
    assert torch.distributed.is_initialized()
    (folder / f"done-{rank}").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
