"""What each of several processes does in tests/test_training.py; started by torch's own launcher.

torchrun --nproc-per-node 2 tests/two_processes.py FOLDER
"""

import atexit
import contextlib
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nsm import training
from nsm.processes import Interrupted
from nsm.steps import Step
from nsm.training import fit
from test_training import TINY, net, smooth, tiny

TWO = replace(TINY, devices=2, epochs=2, save_every=3)


class Probe(nn.Module):
    """Notes what torch's generator gives while the network trains."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[torch.Tensor] = []

    def forward(self, x):
        if self.training:
            self.drawn.append(torch.rand(1000))
        return x


def main(folder: Path) -> None:
    rank = int(os.environ["RANK"])
    atexit.register(lambda: torch.distributed.is_initialized() or (folder / f"parted-{rank}").touch())  # comes last
    fit(smooth(), tiny(), TWO, validation=tiny(9), run_dir=folder / "smooth")
    whole = nn.Sequential(probe := Probe(), *net())
    fit(whole, tiny(), TWO, validation=tiny(9), run_dir=folder / "whole")
    torch.save(torch.stack(probe.drawn), folder / f"drawn-{rank}.pt")

    class Cut(Step):
        calls = 0

        def __call__(self, *arguments):
            Cut.calls += 1
            if Cut.calls == 6 and rank == 1:  # one process alone is told
                os.kill(os.getpid(), signal.SIGTERM)
            return super().__call__(*arguments)

    patched: Any = training
    patched.Step = Cut
    with contextlib.suppress(Interrupted):
        fit(nn.Sequential(Probe(), *net()), tiny(), TWO, validation=tiny(9), run_dir=folder / "cut")
    patched.Step = Step
    assert Cut.calls == 6
    fit(nn.Sequential(Probe(), *net()), tiny(), TWO, validation=tiny(9), run_dir=folder / "cut", resume=True)
    assert torch.distributed.is_initialized()
    (folder / f"done-{rank}").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
