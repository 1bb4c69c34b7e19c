"""Several networks of one architecture as one module, which learn side by side on one device."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap


class Ensemble(nn.Module):
    """Networks side by side: inputs (members, batch, …) to outputs (members, batch, classes).

    On the CPU each layer of all members is one set of kernels (``vmap``). On CUDA, where a small network leaves most of
    the card idle, every member has a stream of its own, and they run at the same time. Each member draws its own noise,
    and since Adam works element by element, each learns as it would alone.

    A state dict holds parameters and buffers stacked along axis 0, under the members' names with / for a dot.

    Example:
        >>> import torch
        >>> both = Ensemble([nn.Linear(3, 2), nn.Linear(3, 2)])
        >>> x = torch.randn(2, 5, 3)
        >>> torch.allclose(both(x)[1], both.members[1](x[1]), atol=1e-6)
        True
    """

    members: nn.ModuleList

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(copy.deepcopy(member) for member in members)
        self.runs: list[Callable[[Tensor], Tensor]] = list(self.members)
        self._streams: list[torch.cuda.Stream] = []

    def forward(self, inputs: Tensor) -> Tensor:
        """Every member's output for its own inputs."""
        return self._streamed(inputs) if inputs.is_cuda else self._stacked(inputs)

    def _stacked(self, inputs: Tensor) -> Tensor:
        members: list[nn.Module] = list(self.members)
        parameters = {n: torch.stack([m.get_parameter(n) for m in members]) for n, _ in members[0].named_parameters()}
        buffers = {n: torch.stack([m.get_buffer(n) for m in members]) for n, _ in members[0].named_buffers()}

        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Any:
            return functional_call(members[0], (parameters, buffers), (x,))

        outputs = vmap(one, randomness="different")(parameters, buffers, inputs)
        for name, values in buffers.items():  # the running statistics of batch norms have moved
            for member, value in zip(members, values, strict=True):
                member.get_buffer(name).copy_(value)
        return outputs

    def _streamed(self, inputs: Tensor) -> Tensor:
        self._streams = self._streams or [torch.cuda.Stream(inputs.device) for _ in self.members]
        main, outputs = torch.cuda.current_stream(inputs.device), []
        for run, stream, x in zip(self.runs, self._streams, inputs, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                outputs.append(run(x))
        for stream in self._streams:
            main.wait_stream(stream)
        return torch.stack(outputs)

    def compile_members(self, **options: Any) -> None:
        """Compile what each stream runs."""
        self.runs = [torch.compile(member, **options) for member in self.members]

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The members' states, stacked."""
        states = [member.state_dict(*args, **kwargs) for member in self.members]
        return {name.replace(".", "/"): torch.stack([state[name] for state in states]) for name in states[0]}

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Give every member its slice."""
        for k, member in enumerate(self.members):
            state = {name.replace("/", "."): value[k] for name, value in state_dict.items()}
            member.load_state_dict(state, *args, **kwargs)
