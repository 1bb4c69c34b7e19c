r"""How a gradient passes the sign.

A unit's state is z = sgn(u), and P(z = +1) = ½(1 + erf t). An estimator makes the state from t and, if it
needs it, the drawn u, and decides what a derivative finds on its way back:

| estimator           | forward                                                    | backward                    |
|---------------------|------------------------------------------------------------|-----------------------------|
| `Probability`       | sgn(u), sampled                                            | of 2P − 1 = erf t           |
| `StraightThrough`   | sgn(u), sampled                                            | dz/du := 1, through noisy u |
| `Concrete`          | 2X − 1, X = sigmoid((logit P + L)/λ), L ~ Logistic         | through X                   |
| `Deterministic`     | sgn(E[u]) = sgn(t)                                         | of erf t                    |

In ``z + (e − e.detach())`` the bracket is exactly zero, so a state is exactly −1 or +1 in every type.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nsm.noise import uniform


def sgn(u: Tensor) -> Tensor:
    """−1 or +1 with sgn(0) = +1; NaN stays NaN, where a comparison alone would hide it.

    >>> sgn(torch.tensor([-2.0, -0.0, 0.0, 3.0, float("nan")]))
    tensor([-1.,  1.,  1.,  1., nan])
    """
    return torch.where(u.isnan(), u, torch.copysign(u.new_ones(()), u + 0.0))  # the sum turns −0 into +0


class Estimator(ABC):
    """A rule that turns t and the drawn u into a state that gradients can pass.

    Subclasses are immutable and compare by value.
    """

    @abstractmethod
    def __call__(self, t: Tensor, u: Callable[[], Tensor], *, generator: torch.Generator | None = None) -> Tensor:
        """The states of units with erf argument ``t``.

        Args:
            t: E[u]/√(2 Var[u]), with its gradient.
            u: draws the pre-activation, with its gradient; a rule that needs no u does not call it.
            generator: for a rule that draws something of its own.
        """


@dataclass(frozen=True)
class Probability(Estimator):
    """The paper's: sample the sign, differentiate 2P − 1 = erf(t), so that dz/dt := (2/√π) exp(−t²)."""

    def __call__(self, t, u, *, generator=None) -> Tensor:
        """sgn(u) forward, erf(t) backward."""
        states = sgn(u().detach())
        return states + pass_gradient(torch.erf(t)) if torch.is_grad_enabled() else states


@dataclass(frozen=True)
class StraightThrough(Estimator):
    """Sample the sign, and pass the gradient through as if it were not there: dz/du := 1."""

    def __call__(self, t, u, *, generator=None) -> Tensor:
        """sgn(u) forward, u backward."""
        drawn = u()
        return sgn(drawn.detach()) + pass_gradient(drawn)


@dataclass(frozen=True)
class Deterministic(Estimator):
    """No noise at all: sgn(E[u]) forward, the gradient of erf(t) backward."""

    def __call__(self, t, u, *, generator=None) -> Tensor:
        """sgn(t) forward, which is sgn(E[u]), and erf(t) backward."""
        return sgn(t.detach()) + pass_gradient(torch.erf(t))


@dataclass(frozen=True)
class Concrete(Estimator):
    """Relaxed states from the BinConcrete distribution, whose location is the log-**odds** of P.

    The states are in (−1, 1) and independent; site, draw and ξ play no part. At prediction a network
    trained this way samples hard states like any other.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ValueError(f"Expected argument `temperature` to be positive and finite, but got {self.temperature}")

    def __call__(self, t, u, *, generator=None) -> Tensor:
        """2X − 1 = tanh((logit P + L)/2λ)."""
        chance = uniform(t.shape, generator, t.device, t.dtype)
        return self.relax(t, torch.logit(chance, eps=torch.finfo(t.dtype).tiny))

    def relax(self, t: Tensor, logistic: Tensor) -> Tensor:
        """The relaxed state for a given draw of the logistic variable."""
        return torch.tanh((logit_firing_probability(t) + logistic) / (2 * self.temperature))


def logit_firing_probability(t: Tensor) -> Tensor:
    """Log P − log(1 − P) for P = ½(1 + erf t), accurate and differentiable far into both tails.

    >>> logit_firing_probability(torch.tensor([0.0, 1.0, 30.0]))
    tensor([  0.0000,   2.4608, 904.6673])
    """
    t = t.clamp(-1e4, 1e4)  # a unit without variance has t = ±∞, and no gradient
    return _log_firing_probability(t) - _log_firing_probability(-t)


def _log_firing_probability(t: Tensor) -> Tensor:
    """Log ½ erfc(−t). Left of 0, erfc(x) = exp(−x²) erfcx(x) keeps every digit; torch's log_ndtr has no vmap rule."""
    left, right = t.clamp(max=0), t.clamp(min=0)
    return torch.where(t < 0, torch.special.erfcx(-left).log() - left.square(), torch.erfc(-right).log()) - math.log(2)


_BY_NAME: dict[str, Estimator] = {
    "probability": Probability(),
    "straight_through": StraightThrough(),
    "concrete": Concrete(),
}


def get_estimator(estimator: str | Estimator) -> Estimator:
    """The estimator of that name, or the object itself.

    >>> get_estimator("concrete")
    Concrete(temperature=1.0)
    """
    if isinstance(estimator, Estimator):
        return estimator
    if isinstance(estimator, str) and estimator in _BY_NAME:
        return _BY_NAME[estimator]
    raise ValueError(
        f"Expected argument `estimator` to be one of {sorted(_BY_NAME)} or an nsm.Estimator, but got {estimator!r}"
    )


def pass_gradient(e: Tensor) -> Tensor:
    """Zero, with the gradient of ``e``; NaN where ``e`` is not finite."""
    return e - e.detach()
