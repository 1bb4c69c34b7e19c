"""Several networks of one architecture as one module, which learn side by side on one device."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from nsm.layers import NSMLayer


class Ensemble(nn.Module):
    """Networks side by side: inputs (members, batch, …) to outputs (members, batch, classes).

    Parameters and buffers are stacked along axis 0 under the members' names with / for a dot. On CUDA each layer of all
    members is one set of kernels (``vmap``); but since it has no fast convolution of many images with many kernels,
    networks that convolve have a stream each there, and on the CPU all take their turn. Each draws its own noise, and
    since Adam works element by element, each learns as it would alone.

    Example:
        >>> import torch
        >>> both = Ensemble([nn.Linear(3, 2), nn.Linear(3, 2)])
        >>> x = torch.randn(2, 5, 3)
        >>> torch.allclose(both(x)[1], both.member(1)(x[1]), atol=1e-6)
        True
    """

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        names = [[name for name, _ in members[0].named_parameters(remove_duplicate=once)] for once in (True, False)]
        if names[0] != names[1]:
            twice = next(name for name in names[1] if name not in names[0])
            raise ValueError(f"Expected argument `seeds` to be 1 for a network that has a layer twice, but got {twice}")
        self._template = (_copy(members[0], vmapped=True),)  # in a tuple: its parameters are not this module's
        parameters, buffers = stack_module_state(list(members))
        for name, value in parameters.items():
            trained = members[0].get_parameter(name).requires_grad
            self.register_parameter(name.replace(".", "/"), nn.Parameter(value.detach(), requires_grad=trained))
        for name, value in buffers.items():
            self.register_buffer(name.replace(".", "/"), value)
        self.size = len(members)
        self._run: Callable[[dict[str, Tensor], Tensor], Tensor] = self._one
        self._streams: list[torch.cuda.Stream] = []

    def forward(self, inputs: Tensor) -> Tensor:
        """Every member's output for its own inputs."""
        self._template[0].train(self.training)
        if self.apart:
            return torch.stack(self._on_streams(inputs) if inputs.is_cuda else self._in_turn(inputs))
        state = {name: _Packed.apply(value) for name, value in self._state().items()}
        return vmap(self._one, randomness="different")(state, inputs)

    def _one(self, state: dict[str, Tensor], x: Tensor) -> Any:
        return functional_call(self._template[0], state, (x,))

    def _on_streams(self, inputs: Tensor) -> list[Tensor]:
        self._streams = self._streams or [torch.cuda.Stream(inputs.device) for _ in range(self.size)]
        main, outputs = torch.cuda.current_stream(inputs.device), []
        for state, x, stream in zip(self._slices(), inputs, self._streams, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                outputs.append(self._run(state, x))
        for stream in self._streams:
            main.wait_stream(stream)
        return outputs

    def _in_turn(self, inputs: Tensor) -> list[Tensor]:
        return [self._run(state, x) for state, x in zip(self._slices(), inputs, strict=True)]

    @property
    def apart(self) -> bool:
        """Whether members run one by one: on the CPU, and with the weights of convolutions, stacked, on CUDA."""
        return any(not value.is_cuda or value.dim() == 5 for value in self.parameters())

    def compile_members(self, **options: Any) -> None:
        """Compile what runs one by one, once for all."""
        self._run = torch.compile(self._one, **options)

    def member(self, k: int) -> nn.Module:
        """A copy of member ``k``, on the device of the ensemble."""
        state = self._state()
        network = _copy(self._template[0], vmapped=False).to(next(iter(state.values())).device)
        network.load_state_dict({name: value[k].detach() for name, value in state.items()})
        return network.train(self.training)

    def _slices(self) -> list[dict[str, Tensor]]:
        slices = {name: value.unbind() for name, value in self._state().items()}
        return [{name: values[k] for name, values in slices.items()} for k in range(self.size)]

    def _state(self) -> dict[str, Tensor]:
        both = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        return {name.replace("/", "."): value for name, value in both.items()}


def _copy(network: nn.Module, vmapped: bool) -> nn.Module:
    network = copy.deepcopy(network)
    for module in network.modules():
        if isinstance(module, NSMLayer):
            module.vmapped = vmapped
    return network


class _Packed(torch.autograd.Function):
    """The identity, whose gradient lies in memory as the weights do; in another order it would be copied."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient.contiguous()
