"""Numbers to ±1 states without noise: pixels by a threshold, and the sign that baselines and inputs pass through."""

import math

from torch import Tensor, nn

from nsm.estimators import Estimator, StraightThrough


def binarize(x: Tensor, threshold: float = 0.5) -> Tensor:
    """+1 where x ≥ threshold, else −1; gradients pass as if it were not there.

    >>> import torch
    >>> binarize(torch.tensor([0.0, 0.49, 0.5, 1.0]))
    tensor([-1., -1.,  1.,  1.])
    """
    if not isinstance(x, Tensor) or not x.is_floating_point():
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"Expected argument `x` to be a floating-point tensor, but got {kind}")
    return StraightThrough()(x, lambda: x - threshold)


class Binarize(nn.Module):
    """`binarize` as a module: turns pixels into the ±1 states that NSM layers read."""

    def __init__(self, threshold: float = 0.5) -> None:
        super().__init__()
        if not math.isfinite(threshold):
            raise ValueError(f"Expected argument `threshold` to be finite, but got {threshold}")
        self.threshold = threshold

    def forward(self, x: Tensor) -> Tensor:
        """States −1 or +1."""
        return binarize(x, self.threshold)

    def extra_repr(self) -> str:
        """The threshold."""
        return f"threshold={self.threshold}"


class Sign(nn.Module):
    """sgn(x), passed by gradients in the way of ``estimator``: `StraightThrough` (x) or `Deterministic` (erf x)."""

    def __init__(self, estimator: Estimator) -> None:
        super().__init__()
        self.estimator = estimator

    def forward(self, x: Tensor) -> Tensor:
        """States −1 or +1."""
        return self.estimator(x, lambda: x)

    def extra_repr(self) -> str:
        """The estimator."""
        return repr(self.estimator)
