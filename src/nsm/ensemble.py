"""Several networks of one architecture as one module, which learn side by side on one device."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap


class Ensemble(nn.Module):
    """Networks side by side: inputs (members, batch, …) to outputs (members, batch, classes).

    Parameters and buffers are stacked along axis 0 under the members' names with / for a dot. Each layer of all members
    is one set of kernels (``vmap``); but since CUDA has no fast convolution of many images with many kernels, there
    networks that convolve have a stream each. Each draws its own noise, and since Adam works element by element, each
    learns as it would alone.

    Example:
        >>> import torch
        >>> both = Ensemble([nn.Linear(3, 2), nn.Linear(3, 2)])
        >>> x = torch.randn(2, 5, 3)
        >>> torch.allclose(both(x)[1], both.member(1)(x[1]), atol=1e-6)
        True
    """

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self._template = (copy.deepcopy(members[0]),)  # in a tuple: its parameters are not this module's
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
        if self.streamed:
            return self._on_streams(inputs)
        return vmap(self._one, randomness="different")(self._state(), inputs)

    def _one(self, state: dict[str, Tensor], x: Tensor) -> Any:
        return functional_call(self._template[0], state, (x,))

    def _on_streams(self, inputs: Tensor) -> Tensor:
        self._streams = self._streams or [torch.cuda.Stream(inputs.device) for _ in range(self.size)]
        slices = {name: value.unbind() for name, value in self._state().items()}
        main, outputs = torch.cuda.current_stream(inputs.device), []
        for k, stream in enumerate(self._streams):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                outputs.append(self._run({name: values[k] for name, values in slices.items()}, inputs[k]))
        for stream in self._streams:
            main.wait_stream(stream)
        return torch.stack(outputs)

    @property
    def streamed(self) -> bool:
        """Whether every member has a stream of its own."""
        return any(
            value.is_cuda and value.dim() == 5 for value in self.parameters()
        )  # weights of convolutions, stacked

    def compile_members(self, **options: Any) -> None:
        """Compile what the streams run, once for all."""
        self._run = torch.compile(self._one, **options)

    def member(self, k: int) -> nn.Module:
        """A copy of member ``k``, on the device of the ensemble."""
        state = self._state()
        network = copy.deepcopy(self._template[0]).to(next(iter(state.values())).device)
        network.load_state_dict({name: value[k].detach() for name, value in state.items()})
        return network.train(self.training)

    def _state(self) -> dict[str, Tensor]:
        both = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        return {name.replace("/", "."): value for name, value in both.items()}
