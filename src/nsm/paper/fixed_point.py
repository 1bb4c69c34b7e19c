"""Weights of a fixed range, stored with few bits, and learning that lives with them.

A weight is one of 2^bits values, evenly spread over [−limit, +limit]. After every update it is clipped to that range
and rounded to one of its two neighbours at random, the nearer one more likely, so that on average nothing is lost: an
update of a hundredth of a step moves one weight in a hundred by a whole one. No other copy of the weights is kept.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from nsm.noise import uniform


@dataclass(frozen=True)
class FixedPoint:
    """The values that weights can have.

    Args:
        bits: How many bits a weight has; None for clipping alone.
        limit: The largest size of a weight.

    >>> FixedPoint(2, 3.0).values()
    tensor([-3., -1.,  1.,  3.])
    """

    bits: int | None
    limit: float

    def __post_init__(self) -> None:
        """Refuse what makes no grid."""
        if self.bits is not None and not 1 <= self.bits <= 16:
            raise ValueError(f"Expected argument `bits` to be 1 to 16 or None, but got {self.bits}")
        if not self.limit > 0:
            raise ValueError(f"Expected argument `limit` to be positive, but got {self.limit}")

    @property
    def step(self) -> float:
        """The distance of two values; 0 without a grid."""
        return 0.0 if self.bits is None else 2 * self.limit / (2**self.bits - 1)

    def values(self) -> Tensor:
        """All values a weight can have."""
        if self.bits is None:
            raise ValueError(
                "Expected argument `bits` to be a number, but got None: without a grid any value can be had"
            )
        return torch.linspace(-self.limit, self.limit, 2**self.bits)

    def round(self, weights: Tensor) -> Tensor:
        """``weights`` clipped, and rounded at random to the values on both sides.

        >>> FixedPoint(1, 1.0).round(torch.tensor([-7.0, 1.0, 2.0]))
        tensor([-1.,  1.,  1.])
        """
        return round_stochastically(weights, *(torch.tensor(x, device=weights.device) for x in (self.limit, self.step)))

    def at_rails(self, weights: Tensor) -> float:
        """The share of weights with one of the two outermost values."""
        return float(at_rails(weights, torch.tensor(self.limit), torch.tensor(self.step)).mean())


def round_stochastically(weights: Tensor, limit: Tensor, step: Tensor) -> Tensor:
    """Clip to ±limit and round to a multiple of ``step`` above −limit at random, without bias; step 0 only clips.

    Args:
        weights: Of any shape.
        limit: Broadcasts against the weights: networks side by side may have ranges of their own.
        step: Likewise.
    """
    inside = weights.clamp(-limit, limit)
    per_step = torch.where(step > 0, 1 / step, 0.0)  # one division for each network, not for each weight
    above = torch.floor((inside + limit) * per_step + uniform(weights.shape, None, weights.device, weights.dtype))
    return torch.where(step > 0, (above * step - limit).clamp(-limit, limit), inside)


def at_rails(weights: Tensor, limit: Tensor, step: Tensor) -> Tensor:
    """1 where a weight has one of the two outermost values, else 0."""
    return (weights.abs() > limit * (1 - 1e-4) - 0.25 * step).to(torch.float32)


def store(optimizer: Optimizer, parameters: Iterable[Tensor], grids: FixedPoint | Sequence[FixedPoint]) -> None:
    """From now on, ``optimizer`` stores these parameters in fixed point: at once, and after every step.

    Args:
        optimizer: Any; what it computes is the update that is rounded.
        parameters: The weights that have few bits.
        grids: One for all parameters, or one for each.

    Example:
        >>> from torch import nn
        >>> layer = nn.Linear(3, 2)
        >>> optimizer = torch.optim.Adam(layer.parameters())
        >>> store(optimizer, [layer.weight], FixedPoint(2, 0.3))
        >>> layer(torch.ones(3)).sum().backward()
        >>> _ = optimizer.step()
        >>> bool(torch.isclose(layer.weight.abs()[..., None], torch.tensor([0.1, 0.3])).any(-1).all())
        True
    """
    held = list(parameters)
    each = [grids] * len(held) if isinstance(grids, FixedPoint) else list(grids)
    if len(each) != len(held):
        raise ValueError(f"Expected argument `grids` to be one for each of {len(held)} parameters, but got {len(each)}")

    @torch.no_grad()
    def settle(*_: object) -> None:
        for parameter, grid in zip(held, each, strict=True):
            parameter.copy_(grid.round(parameter))

    settle()
    optimizer.register_step_post_hook(settle)
