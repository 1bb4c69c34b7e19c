"""Adam for vectors, Muon for matrices.

Adam takes every number by itself. But the weights of a layer are a matrix, and the law of its units knows the direction
of their weights alone. The mean gradient M = U S Vᵀ of such a matrix has a few large singular values and many small
ones: most of what Adam turns, it turns the same few ways. Muon (K. Jordan, 2024) makes them all alike,

    W ← W − η √n U Vᵀ,    n the longer side of W, so that η is the root mean square of the change,

by products alone (`orthogonalized`), without a decomposition.
"""

from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

MOMENTUM = 0.95  # of the mean gradient


class Muon(torch.optim.Optimizer):
    """Muon for groups of weights with a ``muon`` above 0, and AdamW for all others.

    Args:
        groups: Of parameters, as other optimisers have them. ``muon`` is η in units of the learning rate.
        lr: Learning rate of Adam.
        stacked: How many axes in front of a weight count networks side by side.
        options: ``foreach``, ``capturable`` and ``fused``, as AdamW has them.

    Example:
        >>> layer = torch.nn.Linear(4, 3)
        >>> before = layer.weight.detach().clone()
        >>> optimizer = Muon([{"params": [layer.weight], "muon": 1.0}, {"params": [layer.bias]}], lr=0.01)
        >>> layer(torch.randn(9, 4)).square().sum().backward()
        >>> optimizer.step()
        >>> change = (layer.weight.detach() - before).square().mean().sqrt()
        >>> bool(0.0065 < change < 0.013)  # singular values come out nearly, not quite, alike
        True
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float | Tensor, stacked: int = 0, **options: Any) -> None:
        adam = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
        super().__init__(
            groups, {"lr": lr, "muon": 0.0, **adam, "foreach": None, "capturable": False, "fused": None, **options}
        )
        self.stacked = stacked
        for group in self.param_groups:
            for weight in group["params"]:
                self.state[weight]["exp_avg"] = torch.zeros_like(weight)
                if not group["muon"]:
                    self.state[weight]["exp_avg_sq"] = torch.zeros_like(weight)
                    still = weight.device if group["capturable"] or group["fused"] else "cpu"
                    self.state[weight]["step"] = torch.zeros((), device=still)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Change all weights that have a gradient."""
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if weights and group["muon"]:
                self._turn(weights, **{key: group[key] for key in ("lr", "muon", "weight_decay")})
            elif weights:
                self._adam(weights, group)

    def _turn(self, weights: list[Tensor], lr: float | Tensor, muon: float, weight_decay: float) -> None:
        alike: dict[torch.Size, list[Tensor]] = {}  # weights of one shape are turned together
        for weight in weights:
            alike.setdefault(weight.shape, []).append(weight)
        for shape, some in alike.items():
            ahead = [self._ahead(weight) for weight in some]
            m = torch.stack(ahead).flatten(self.stacked + 2)  # (weights, ..., out, in)
            turns = orthogonalized(m) * (muon * max(m.shape[-2:]) ** 0.5)
            for weight, turn in zip(some, turns.view(len(some), *shape), strict=True):
                weight.mul_(1 - lr * weight_decay).sub_(lr * turn)

    def _ahead(self, weight: Tensor) -> Tensor:
        """The mean gradient with this one in it once more, as Nesterov has it."""
        gradient: Any = weight.grad
        mean = self.state[weight]["exp_avg"].lerp_(gradient, 1 - MOMENTUM)
        return gradient.lerp(mean, MOMENTUM)

    def _adam(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        states = [self.state[weight] for weight in weights]
        first, second, steps = ([state[key] for state in states] for key in ("exp_avg", "exp_avg_sq", "step"))
        beta1, beta2 = group["betas"]
        options = {key: group[key] for key in ("lr", "weight_decay", "eps", "foreach", "capturable", "fused")}
        gradients: Any = [weight.grad for weight in weights]
        adamw(
            weights, gradients, first, second, [], steps,
            amsgrad=False, maximize=False, beta1=beta1, beta2=beta2, **options,
        )  # fmt: skip


def orthogonalized(m: Tensor) -> Tensor:
    """U Vᵀ of matrices M = U S Vᵀ, (..., rows, columns), nearly: its singular values are within about 0.3 of 1.

    Newton's and Schulz's way: X ← a X + b (X Xᵀ) X + c (X Xᵀ)² X changes singular values alone, each x into
    a x + b x³ + c x⁵. With Jordan's numbers five turns bring what is above 0.01 or so near 1.

    >>> found = torch.linalg.svdvals(orthogonalized(torch.randn(20, 50)))
    >>> bool(found.min() > 0.65), bool(found.max() < 1.3)
    (True, True)
    """
    wide = m.shape[-2] <= m.shape[-1]
    x = m if wide else m.mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-12)
    x = x.bfloat16() if x.is_cuda else x  # what is lost is far less than what five turns leave
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return (x if wide else x.mT).to(m.dtype)
