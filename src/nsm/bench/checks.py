"""What must hold of a result before its time is printed; each raises `Wrong` otherwise."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from nsm.bench.timing import Wrong
from nsm.functional import resolve_draw
from nsm.layers import NSMLayer

FALSE_ALARM = 1e-9


def hoeffding(n: int) -> float:
    """How far the mean of n numbers in [−1, 1] may be from its expectation."""
    return math.sqrt(2 * math.log(2 / FALSE_ALARM) / n)


def learns(losses: Sequence[float]) -> None:
    """The loss is finite, and its last tenth lies clearly below its first."""
    if not all(math.isfinite(loss) for loss in losses):
        raise Wrong(f"Expected a finite loss, but got {next(x for x in losses if not math.isfinite(x))}")
    some = max(1, len(losses) // 10)
    first, last = sum(losses[:some]) / some, sum(losses[-some:]) / some
    if not last < 0.95 * first:
        raise Wrong(f"Expected the loss to fall, but it went from {first:.3f} to {last:.3f}")


def moved(model: nn.Module, before: Mapping[str, Tensor]) -> None:
    """No parameter is what it was before; a loss may fall though gradients do not reach the first layers."""
    for name, parameter in model.named_parameters():
        if torch.equal(parameter, before[name]):
            raise Wrong(f"Expected every parameter to learn, but {name} is what it was")


def close(got: Tensor, expected: Tensor, tolerance: float, what: str, *, mean: bool = False) -> None:
    """Two results of the same arithmetic agree, relative to the largest of them; everywhere, or in the ``mean``."""
    got, expected = got.detach().float(), expected.detach().float()
    if got.shape != expected.shape:
        raise Wrong(f"Expected {what} of shape {tuple(expected.shape)}, but got {tuple(got.shape)}")
    apart = (got - expected).abs()
    difference = float((apart.mean() if mean else apart.max()) / expected.abs().max().clamp(min=1e-30))
    if not difference <= tolerance:
        raise Wrong(f"Expected {what} within {tolerance:g} of the reference, but they differ by {difference:.2g}")


@torch.no_grad()
def follows_the_law(layer: NSMLayer, z: Tensor, draws: int = 10, slack: float = 5e-3) -> None:
    """Sampled states have the probability that the law says, leaning to the side that it says.

    The mean over everything of sgn(2P − 1)(z' − (2P − 1)) is 0; Hoeffding bounds how far a sample of it may be. With
    noise at neurons the units of one input are not independent, so then its inputs are counted alone.

    Args:
        layer: The layer.
        z: Its inputs.
        draws: How often the inputs are drawn.
        slack: For the rounding of half precision and, at neurons, for the central limit.
    """
    lean = 2 * layer.firing_probability(z).double() - 1
    many = z.repeat(draws, *(1 for _ in z.shape[1:]))
    states = layer(many).double().unflatten(0, (draws, len(z)))
    if not bool((states.abs() == 1).all()):
        raise Wrong("Expected states of −1 and +1, but got others")
    shift = float((lean.sign() * (states - lean)).mean())
    independent = resolve_draw(layer.site, layer.draw, math.prod(layer.weight.shape[1:])) == "moments"
    count = states.numel() if independent else draws * len(z)
    bound = hoeffding(count) + slack
    if not abs(shift) <= bound:
        raise Wrong(f"Expected sampled rates within {bound:.3g} of the firing probability, but got {shift:+.3g}")


def same_chance(got: Tensor, expected: Tensor, samples: tuple[int, int], labels: Tensor, slack: float = 1e-2) -> None:
    """Two Monte-Carlo averages of one law give the labels the same mean probability, up to Hoeffding's bound.

    Args:
        got: (B, C) probabilities, averaged over the first number of samples.
        expected: The same of the reference, averaged over the second.
        samples: How many samples each is the mean of.
        labels: (B,) whose probabilities are compared.
        slack: For the rounding of half precision.
    """
    a, b = (p.double().gather(1, labels[:, None]).mean() for p in (got, expected))
    n = len(labels)
    bound = math.sqrt(math.log(2 / FALSE_ALARM) / 2 * (1 / (n * samples[0]) + 1 / (n * samples[1]))) + slack
    if not (total := float((got.sum(1) - 1).abs().max())) < 1e-2:
        raise Wrong(f"Expected probabilities that add up to 1, but they miss it by {total:.2g}")
    if not abs(float(a - b)) <= bound:
        raise Wrong(f"Expected the mean chance of labels within {bound:.3g} of {float(b):.4f}, but got {float(a):.4f}")


def random_chances(one: Tensor, other: Tensor) -> None:
    """Two averages over samples are probabilities, and not the same ones."""
    for p in (one, other):
        close(p.sum(1), torch.ones_like(p[:, 0]), 1e-3, "the sum of probabilities")
    if torch.equal(one, other):
        raise Wrong("Expected two draws to differ, but they are equal")


@torch.no_grad()
def same_moments(u: Tensor, mean: Tensor, variance: Tensor, what: str) -> None:
    """Sums of many independent terms have this mean and variance, within 6.1 standard errors."""
    score = (u.double() - mean.double()) / variance.double().sqrt()
    n = score.numel()
    for name, value, error in (
        ("mean", float(score.mean()), 1 / math.sqrt(n)),
        ("variance", float(score.square().mean() - 1), math.sqrt(2 / n)),
    ):
        if not abs(value) <= 6.1 * error:
            raise Wrong(f"Expected the {name} of {what} to be that of the law, but it is off by {value:+.2g}")


def a_layer(model: nn.Module) -> tuple[NSMLayer, Tensor]:
    """The last layer of noise in a network, and random states for it to see."""
    layer = [module for module in model.modules() if isinstance(module, NSMLayer)][-1]
    weight = layer.weight
    shape = (1000, weight.shape[1]) if weight.dim() == 2 else (1000, weight.shape[1] * layer.wiring.groups, 4, 4)  # type: ignore[union-attr]
    bits = torch.randint(2, shape, generator=torch.Generator().manual_seed(0))
    return layer, (2 * bits - 1).to(weight)
