"""Monte-Carlo inference: run the same network again and again, and see how far its answers agree.

Samples ride on the batch axis, ``chunk_size`` of them in one pass. The input does not change between samples, so
everything before the first draw, and the first stochastic layer's moments, are computed once. The noise of input i in
sample k is a function of (seed, k, i) alone (see `nsm.philox`), so an answer does not depend on how samples and inputs
are cut into passes, nor on which inputs have left early; but for the rounding of its sums, where the first layer has
noise at neurons and is given some inputs that are not −1 and +1, beside which none is then a bit (`nsm.chain`).
"""

import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nsm import stages
from nsm.chain import chain
from nsm.estimators import Concrete, Deterministic, Probability
from nsm.layers import NSMLayer, Stochastic, only_runs
from nsm.philox import Keyed, keyed
from nsm.sequential import Sequential
from nsm.stages import Crossed, Opening, Plain, Stage

Step = nn.Module | Stage | Crossed

_BLOCK = {"cpu": 512, "cuda": 10_000}  # inputs whose moments are kept
_CHUNK = 10
_TURN = threading.RLock()  # of a prediction: the source of noise and torch's generators are the whole process's


@dataclass(frozen=True)
class Prediction:
    """What a network says of B inputs and C classes, and how sure it is.

    Attributes:
        probabilities: (B, C) the softmax averaged over samples.
        votes: (B, C) how many samples had each class first.
        sample_entropy: (B,) the entropy of a single sample, averaged over samples, in nats.
        num_samples: (B,) how many samples were drawn.
        samples: (S, B, C) every sample's softmax, if asked for.
    """

    probabilities: Tensor
    votes: Tensor
    sample_entropy: Tensor
    num_samples: Tensor
    samples: Tensor | None = None

    @property
    def label(self) -> Tensor:
        """(B,) the most probable class."""
        return self.probabilities.argmax(-1)

    @property
    def confidence(self) -> Tensor:
        """(B,) its probability."""
        return self.probabilities.amax(-1)

    @property
    def entropy(self) -> Tensor:
        """(B,) all uncertainty: the entropy of the averaged probabilities, in nats."""
        return torch.special.entr(self.probabilities).sum(-1)

    @property
    def mutual_information(self) -> Tensor:
        """(B,) the part of it that is disagreement between samples, in nats."""
        return (self.entropy - self.sample_entropy).clamp(min=0)

    def __len__(self) -> int:
        return len(self.probabilities)


@dataclass(frozen=True)
class Confident:
    """Stop sampling an input once its leading class is settled.

    Each sample is a bet that its vote goes to the leader of the samples before. If no class had more than half of all
    votes, the bettor's wealth could reach 1/error with a probability of at most ``error``, at any time (Ville's
    inequality); when it does, the leader is taken to have that majority. Wealth is a mixture of bettors with fixed
    stakes, the boldest of which doubles with every win and is ruined by one loss. When the leader changes, a new bettor
    starts with a tenth of the start before, so that the chances of all reigns together stay below ``error``.

    >>> Confident(error=1e-3)
    Confident(error=0.001)
    """

    error: float = 1e-2

    def __post_init__(self) -> None:
        if not 0 < self.error < 1:
            raise ValueError(f"Expected argument `error` to be in (0, 1), but got {self.error}")

    def watch(self, batch: int, device: torch.device) -> "Watch":
        """Begin to watch the votes on a batch of inputs."""
        return Watch(self.error, batch, device)


class Watch:
    """The bets on one batch, sample after sample."""

    _WIN = 0.6, 0.75, 0.9, 1.0  # the chance of a win each bettor believes in
    _SHARE = 0.125, 0.125, 0.25, 0.5

    def __init__(self, error: float, batch: int, device: torch.device) -> None:
        self.goal = 1 / error
        self.win = torch.tensor(self._WIN, dtype=torch.float64, device=device)
        self.share = torch.tensor(self._SHARE, dtype=torch.float64, device=device)
        self.start = torch.full((batch,), 0.9, dtype=torch.float64, device=device)  # 0.9, 0.09, … sum to 1
        self.wealth = self.start[:, None] * self.share  # (batch, bettors)
        self.counts: Tensor | None = None

    def update(self, votes: Tensor, classes: int) -> Tensor:
        """Take one more vote of each input, (batch,), and say which inputs are settled."""
        if self.counts is None:
            self.counts = torch.zeros(len(votes), classes, device=votes.device)
            leader = votes  # nobody bets on the first sample
        else:
            leader = self.counts.argmax(-1)
            won = (votes == leader)[:, None]
            self.wealth = self.wealth * torch.where(won, 2 * self.win, 2 - 2 * self.win)
        self.counts.scatter_add_(1, votes[:, None], torch.ones_like(votes[:, None], dtype=self.counts.dtype))
        changed = self.counts.argmax(-1) != leader
        self.start = torch.where(changed, 0.1 * self.start, self.start)
        self.wealth = torch.where(changed[:, None], self.start[:, None] * self.share, self.wealth)
        return self.wealth.sum(-1) >= self.goal

    def keep(self, rows: Tensor) -> None:
        """Go on with these inputs alone."""
        self.wealth, self.start = self.wealth[rows], self.start[rows]
        self.counts = None if self.counts is None else self.counts[rows]


@torch.no_grad()
def predict(
    model: nn.Module,
    x: Any,
    num_samples: int = 100,
    *,
    seed: int | None = None,
    chunk_size: int | None = None,
    stop: Confident | None = None,
    keep_samples: bool = False,
) -> Prediction:
    """Sample a network on each input and average what it says.

    The model runs in ``eval()`` mode, which its noise does not heed but batch norms do, and is left as it was. Layers
    trained with `Concrete` sample hard states. Predictions of several threads take turns; no other thread may draw
    noise meanwhile.

    A module that draws noise of its own from torch is seeded too, but its noise then depends on ``chunk_size``, as does
    that of layers behind a module that cuts the batch anew. Before the first stochastic layer it is drawn once for all
    samples, and without such a layer there is one sample. What derives from `nsm.layers.Stochastic` is a stochastic
    layer, and drawn anew in every sample.

    Args:
        model: any module from inputs to logits (B, C). The part of an ``nn.Sequential`` before its first stochastic
            layer is computed once.
        x: a tensor or array of inputs; or an iterable of batches, such as a ``DataLoader``, each an array or a tuple
            that begins with one.
        num_samples: samples of each input, at most.
        seed: the same seed draws the same noise; None takes one from torch's default generator.
        chunk_size: samples in one pass, which sets the memory; if None 10, or as many as keep the device busy.
        stop: when to stop early, for example `Confident`.
        keep_samples: whether to return every sample's softmax (not with ``stop``).

    Returns:
        A `Prediction`, on the device of the model.

    >>> import nsm
    >>> net = nn.Sequential(nsm.NSMLinear(8, 16), nn.Linear(16, 3))
    >>> prediction = predict(net, torch.ones(2, 8), num_samples=50, seed=0)
    >>> prediction.probabilities.shape, prediction.num_samples.tolist()
    (torch.Size([2, 3]), [50, 50])
    """
    for name, value in (("num_samples", num_samples), ("chunk_size", _CHUNK if chunk_size is None else chunk_size)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"Expected argument `{name}` to be a positive int, but got {value!r}")
    if keep_samples and stop is not None:
        raise ValueError(f"Expected argument `keep_samples` to be False beside `stop`, but got {stop} and True")
    if stop is not None and not callable(getattr(stop, "watch", None)):
        raise TypeError(f"Expected argument `stop` to say when to stop, like nsm.Confident(), but got {stop!r}")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63):
        raise ValueError(f"Expected argument `seed` to be an int of at least 0 and below 2**63, but got {seed!r}")
    tensors = [*model.parameters(), *model.buffers()]
    device = tensors[0].device if tensors else torch.device("cpu")
    dtype = next((t.dtype for t in tensors if t.is_floating_point()), torch.get_default_dtype())
    block = _BLOCK.get(device.type, _BLOCK["cuda"])
    parts: list[Prediction] = []
    count = 0
    with _TURN, _inference(model), _seeded(seed, device) as seed:
        for batch in _batches(x):
            inputs = _as_inputs(batch, device, dtype)
            for some in inputs.split(min(block, stages.fitting(inputs))):
                parts.append(_predict(model, some, count, num_samples, seed, chunk_size, stop, keep_samples))
                count += len(some)
    if not parts:
        raise ValueError("Expected argument `x` to hold at least one input, but got none")
    return _join(parts)


def _predict(
    model: nn.Module,
    x: Tensor,
    offset: int,
    num_samples: int,
    seed: int,
    chunk_size: int | None,
    stop: Confident | None,
    keep_samples: bool,
) -> Prediction:
    """The prediction for one block of inputs, of which the first has number ``offset``."""
    before, rest = _split(model)
    z = _run(before, x)
    if not rest:  # nothing is drawn: one pass says all
        p = _softmax(z)
        tally = _Tally(len(p), p.shape[-1], p)
        tally.add(torch.arange(len(p), device=p.device), p[None], torch.ones_like(p[None, :, 0], dtype=torch.bool))
        return tally.prediction([p[None]] if keep_samples else None)
    if len(z) != len(x):  # noise is numbered by inputs
        z, rest = x, [model]
    passes = _passes(rest, z, offset, num_samples, seed, chunk_size, stop)
    opening = next(passes)
    tally = _Tally(len(x), opening[1].shape[-1], opening[1])
    kept = []
    for rows, p, counted in itertools.chain([opening], passes):
        tally.add(rows, p, counted)
        if keep_samples:
            kept.append(p)
    return tally.prediction(kept if keep_samples else None)


def _passes(
    steps: Sequence[Step],
    z: Tensor,
    offset: int,
    num_samples: int,
    seed: int,
    chunk_size: int | None,
    stop: Confident | None,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """For each chunk: the inputs in it, their softmax (S, inputs, C), and which of these samples count (S, inputs)."""
    first, after = _open(steps, z)
    shared = first.share(z)
    modules = (module for step in steps if isinstance(step, nn.Module) for module in step.modules())
    layers = (module for module in modules if isinstance(module, NSMLayer))
    rows = min([first.rows(shared), *(stages.fitting_draws(layer, z) for layer in layers)])
    if chunk_size is None:  # of few inputs more samples, unless each may be the last
        chunk_size = _CHUNK if stop else max(_CHUNK, rows // len(z))
    together = max(1, rows // min(chunk_size, num_samples))
    active = torch.arange(len(z), device=z.device)
    pieces = [(some, first.take(shared, some)) for some in active.split(together)]
    watch = stop.watch(len(z), z.device) if stop else None
    for begin in range(0, num_samples, chunk_size):
        samples = torch.arange(begin, min(begin + chunk_size, num_samples), device=z.device)
        parts = []
        for some, its in pieces:
            drawn = samples[:, None].expand(-1, len(some)).flatten(), (offset + some).repeat(len(samples))
            with keyed(Keyed(seed, *drawn)):
                states = first.draw(its, len(samples))
                parts.append(_softmax(_run(after, states)).unflatten(0, (len(samples), len(some))))
        p = torch.cat(parts, dim=1)
        counted = torch.ones(p.shape[:2], dtype=torch.bool, device=z.device)
        if watch is None:
            yield active, p, counted
            continue
        going = counted[0]
        for k, votes in enumerate(p.argmax(-1)):  # one that is settled in the middle has no further samples
            counted[k] = going
            going = going & ~watch.update(votes, p.shape[-1])
        yield active, p, counted
        if bool(going.all()):
            continue
        active = active[going]
        watch.keep(going)
        if not len(active):
            return
        pieces = [(some, first.take(shared, some)) for some in active.split(together)]


class _Tally:
    """Sums over samples, input by input."""

    def __init__(self, batch: int, classes: int, like: Tensor) -> None:
        self.dtype = like.dtype
        self.total = torch.zeros(batch, classes, dtype=torch.float64, device=like.device)
        self.votes = torch.zeros(batch, classes, dtype=torch.int64, device=like.device)
        self.entropy = torch.zeros(batch, dtype=torch.float64, device=like.device)
        self.used = torch.zeros(batch, dtype=torch.int64, device=like.device)

    def add(self, rows: Tensor, p: Tensor, counted: Tensor) -> None:
        """Add the samples that count, p (S, inputs, C), to the inputs of these numbers."""
        self.total[rows] += (p * counted[..., None]).sum(0, dtype=torch.float64)
        first = torch.zeros_like(p).scatter_(-1, p.argmax(-1, keepdim=True), counted[..., None].to(p.dtype))
        self.votes[rows] += first.sum(0).long()
        self.entropy[rows] += (torch.special.entr(p).sum(-1) * counted).sum(0, dtype=torch.float64)
        self.used[rows] += counted.sum(0)

    def prediction(self, kept: list[Tensor] | None) -> Prediction:
        """The averages."""
        return Prediction(
            probabilities=(self.total / self.used[:, None]).to(self.dtype),
            votes=self.votes,
            sample_entropy=(self.entropy / self.used).to(self.dtype),
            num_samples=self.used,
            samples=None if kept is None else torch.cat(kept),
        )


def _split(model: nn.Module) -> tuple[list[Step], list[Step]]:
    """What runs before the first draw, and the rest."""
    steps = list(stages.fuse(_steps(model)))
    drawing = (isinstance(step, Stage | Crossed) or any(_draws(module) for module in step.modules()) for step in steps)
    k = next((k for k, draws in enumerate(drawing) if draws), len(steps))
    return steps[:k], steps[k:]


def _open(steps: Sequence[Step], z: Tensor) -> tuple[Opening, Sequence[Step]]:
    """The first draw, and the steps that are left after it."""
    if (found := chain(steps, z)) is not None:
        return found[0], steps[found[1] :]
    first, *after = steps
    return first if isinstance(first, Stage | Crossed) else Plain(first), after


def _steps(model: nn.Module) -> Iterator[nn.Module]:
    """The modules of a Sequential in order, however nested; any other module, or one with hooks, is one step."""
    if isinstance(model, nn.Sequential) and only_runs(model, nn.Sequential.forward, Sequential.forward):
        for child in model:  # a module that stands twice is run twice, which `children` would not say
            yield from _steps(child)
    else:
        yield model


def _draws(module: nn.Module) -> bool:
    if not isinstance(module, Stochastic) or module.deterministic:
        return False
    return not (isinstance(module, NSMLayer) and isinstance(module.estimator, Deterministic))


def _run(steps: Iterable[Step], z: Tensor) -> Tensor:
    for step in steps:
        z = step(z)
    return z


def _softmax(logits: Tensor) -> Tensor:
    if logits.dim() != 2:
        raise ValueError(f"Expected argument `model` to give logits (batch, classes), but got {tuple(logits.shape)}")
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)


@contextmanager
def _inference(model: nn.Module) -> Iterator[None]:
    """``eval()``, and hard states where training relaxed them; put back afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    relaxed = [m for m in model.modules() if isinstance(m, NSMLayer) and isinstance(m.estimator, Concrete)]
    before = [module.estimator for module in relaxed]
    try:
        model.eval()
        for module in relaxed:
            module.estimator = Probability()
        yield
    finally:
        for module, estimator in zip(relaxed, before, strict=True):
            module.estimator = estimator
        for module, training in modes:
            module.training = training


@contextmanager
def _seeded(seed: int | None, device: torch.device) -> Iterator[int]:
    """The seed, with which torch's generators begin that a model on this device draws from; put back afterwards."""
    if seed is None:
        seed = int(torch.randint(2**62, ()))
    cuda = device.type == "cuda"
    with torch.random.fork_rng([device] if cuda else []):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed all other devices, for good
        if cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield seed


def _batches(x: Any) -> Iterator[Any]:
    if isinstance(x, Tensor | np.ndarray):
        yield x
    elif isinstance(x, Iterable) and not isinstance(x, str | bytes | dict):
        for batch in x:
            yield batch[0] if isinstance(batch, tuple | list) else batch
    else:
        hint = f", whose inputs are {type(x).__name__}.inputs" if hasattr(x, "inputs") else ""
        raise TypeError(
            f"Expected argument `x` to be a tensor, an array or batches of them, but got {type(x).__name__}{hint}"
        )


def _as_inputs(batch: Any, device: torch.device, dtype: torch.dtype) -> Tensor:
    inputs = torch.as_tensor(batch)
    if not inputs.is_floating_point():
        raise TypeError(f"Expected argument `x` to be floating-point (see nsm.binarize), but got {inputs.dtype}")
    if inputs.dim() < 2 or inputs.numel() == 0:
        raise ValueError(f"Expected argument `x` to be a batch of inputs, not empty, but got {tuple(inputs.shape)}")
    if not bool(inputs.isfinite().all()):
        bad = int((~inputs.isfinite()).sum())
        raise ValueError(f"Expected argument `x` to be finite, but got {bad} values that are not")
    return inputs.to(device, dtype)


def _join(parts: list[Prediction]) -> Prediction:
    if len(parts) == 1:
        return parts[0]
    joined = {}
    for field in fields(Prediction):
        values = [getattr(part, field.name) for part in parts]
        joined[field.name] = None if values[0] is None else torch.cat(values, dim=1 if field.name == "samples" else 0)
    return Prediction(**joined)
