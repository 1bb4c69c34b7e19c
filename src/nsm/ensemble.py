"""Several networks of one architecture as one module, so that each layer of all of them is one set of kernels."""

import copy
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap


class Ensemble(nn.Module):
    """Networks side by side: inputs (members, batch, …) to outputs (members, batch, classes).

    Parameters and buffers are stacked along axis 0 under the members' names with / for a dot. Each member draws its
    own noise, and since Adam works element by element, each learns as it would alone.

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

    def forward(self, inputs: Tensor) -> Tensor:
        """Every member's output for its own inputs."""
        template = self._template[0].train(self.training)

        def one(state: dict[str, Tensor], x: Tensor) -> Any:
            return functional_call(template, state, (x,))

        return vmap(one, randomness="different")(self._state(), inputs)

    def member(self, k: int) -> nn.Module:
        """A copy of member ``k``, on the device of the ensemble."""
        state = self._state()
        network = copy.deepcopy(self._template[0]).to(next(iter(state.values())).device)
        network.load_state_dict({name: value[k].detach() for name, value in state.items()})
        return network.train(self.training)

    def _state(self) -> dict[str, Tensor]:
        both = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        return {name.replace("/", "."): value for name, value in both.items()}
