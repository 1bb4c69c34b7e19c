"""Weights in shares (FSDP): of every weight, its gradient and its moments each process keeps a part.

A layer's weights are put together just before it needs them; its gradient is averaged and cut up just after. What is
done with a network beside training it, such as measuring or saving it, is done with a whole one: `collect`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import torch
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def strategy(world_size: int) -> ModelParallelStrategy:
    """How the fabric sets up a network: in ``world_size`` shares."""
    return ModelParallelStrategy(shard, data_parallel_size=world_size, tensor_parallel_size=1)


def shard(network: nn.Module, mesh: "DeviceMesh") -> nn.Module:
    """Cut all weights into shares along axis 0, in place; each layer is put together, and cut again, by itself."""
    network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    for layer in dict.fromkeys(_layers(network)):
        layer.register_forward_hook(_no_view)
        fully_shard(layer, mesh=mesh["data_parallel"])
    return cast(nn.Module, fully_shard(network, mesh=mesh["data_parallel"]))


def _no_view(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """A copy of an output that is a view: what is hooked to it for the way back would be lost by a change in place."""
    return output.clone() if output._is_view() else output


def _layers(network: nn.Module) -> Iterator[nn.Module]:
    """What a network is made of: its parts, or what these contain where they are mere containers."""
    for part in network.children():
        if type(part) in (nn.Sequential, nn.ModuleList, nn.ModuleDict):
            yield from _layers(part)
        elif next(part.parameters(), None) is not None:
            yield part


def follow(optimizer: torch.optim.Optimizer, network: nn.Module, shares: nn.Module) -> None:
    """Turn the optimiser of a whole network to the same network in shares; its moments are cut up like the weights."""
    cut: dict[Tensor, Tensor] = dict(zip(network.parameters(), shares.parameters(), strict=True))
    for group in optimizer.param_groups:
        group["params"] = [cut[weight] for weight in group["params"]]
    for weight in list(optimizer.state):
        moments = optimizer.state.pop(weight)
        optimizer.state[cut[weight]] = {name: _like(cut[weight], value) for name, value in moments.items()}


def _like(weight: Tensor, value: Tensor) -> Tensor:
    if not isinstance(weight, DTensor) or value.shape != weight.shape:
        return value  # the count of steps is no share of anything
    return distribute_tensor(value.contiguous(), weight.device_mesh, weight.placements, src_data_rank=None)


def whole(value: Tensor) -> Tensor:
    """A value put together, in every process, of its shares; what is not in shares is whole already."""
    return value.full_tensor() if isinstance(value, DTensor) else value


@torch.no_grad()
def collect(source: nn.Module, target: nn.Module) -> None:
    """Give ``target``, a whole network, the values of ``source``, the same one in shares."""
    values = target.state_dict()
    for name, value in source.state_dict().items():
        values[name].copy_(whole(value))
