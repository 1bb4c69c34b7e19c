"""Train with and without shares in one process, on the device that is named: python tests/one_process.py cpu."""

import sys
from dataclasses import replace
from typing import Any

import torch

from nsm.training import fit
from test_training import TINY, net, smooth, tiny


def main(device: Any) -> None:
    """Shares of one are the whole: to the bit on the CPU, but for rounding on CUDA."""
    noisy = [(net, {"average_epochs": 2})] if device == "cpu" else []  # where rounding turns signs, nothing is equal
    for network, changes in ((smooth, {}), (smooth, {"seeds": 2}), *noisy):
        models = []
        for strategy in ("ddp", "fsdp"):
            recipe = replace(TINY, accelerator=device, strategy=strategy, **changes)
            models.append(network())
            fit(models[-1], tiny(), recipe, validation=tiny(9))
        for one, other in zip(*(model.parameters() for model in models), strict=True):
            assert other.device.type == device
            assert torch.allclose(one, other, rtol=0, atol=0 if device == "cpu" else 1e-4)


if __name__ == "__main__":
    main(sys.argv[1])
