"""The works of inference: a hundred samples, and the memory that more of them take."""

import copy
import functools
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from unittest import mock

import torch
from torch import Tensor, nn

from nsm.bench import checks
from nsm.bench.peers import deterministic_passes, dropout_network, looped, textbook
from nsm.bench.timing import Contender, Race, race
from nsm.data import Dataset, load
from nsm.kernels import bits
from nsm.networks import bnsm, mnist_cnn, relu
from nsm.recipes import MNIST_CNN
from nsm.sampling import Prediction, predict
from nsm.training import fit

SAMPLES = 100
SEED = 0


@dataclass(frozen=True)
class Setting:
    """How much is done.

    Attributes:
        device: cuda or cpu.
        images: Test digits.
        rounds: Timed in turn so often.
        passes: Of the 100 passes of peers that are no side of a ratio, so many are run.
        train: Digits the network has learned from.
        batches: The sizes of batch that the dCNN may choose from.
        ways: How it may run.
    """

    device: str
    images: int
    rounds: int
    passes: int
    train: int = 5000
    batches: tuple[int, ...] = (1000,)
    ways: tuple[str, ...] = ("eager", "compiled", "frozen")


@functools.cache
def network(site: Literal["neuron", "synapse"], device: str, train: int) -> nn.Sequential:
    """The MNIST CNN after one epoch on so many digits: probabilities worth comparing."""
    torch.manual_seed(SEED)
    net = mnist_cnn(functools.partial(bnsm, site=site, draw="moments" if site == "synapse" else "auto"))
    digits = load("mnist", "train")
    digits = replace(digits, stored=digits.stored[:train], labels=digits.labels[:train])
    fit(net, digits, replace(MNIST_CNN, epochs=1, lr=2e-3, accelerator=device))  # type: ignore[arg-type]
    return net.eval()


def mc_race(setting: Setting) -> tuple[Race, Race]:
    """MC 100 of the NSM against 100 passes of the dCNN; and, apart, the other peers.

    Checked: the mean chance of the labels is that of the textbook's NSM; compiled passes give the eager logits.
    """
    torch._dynamo.reset()
    test = load("mnist", "test")
    test = replace(test, stored=test.stored[: setting.images], labels=test.labels[: setting.images]).to(setting.device)
    x, cuda = test.inputs, setting.device == "cuda"
    torch.manual_seed(SEED)
    dcnn = mnist_cnn(relu).to(setting.device).eval()
    single = torch.float32 if not cuda else torch.bfloat16
    few = SAMPLES if cuda else 5
    passes = functools.partial(deterministic_passes, dcnn, x, passes=SAMPLES, count=few, ways=setting.ways)
    sides = {"synapse": _ours("synapse", test, setting)}
    tolerance = _logits(5e-2 if cuda else 2e-3)
    sides["dCNN"] = list(passes(dtype=single, batches=setting.batches, check=tolerance))
    if not cuda:
        sides["neuron"] = _ours("neuron", test, setting)
        half = passes(dtype=torch.bfloat16, batches=setting.batches[:1], check=_logits(5e-2))
        sides["dCNN, bf16"] = list(half)
    found = race(sides, setting.rounds, warm=1)
    beside = {f"beside: {c.name}": [c] for c in _beside(dcnn, test, setting)}
    return found, race(beside, 0, warm=1)  # three rounds of each are enough to look at


def _ours(
    site: Literal["neuron", "synapse"], test: Dataset, setting: Setting, samples: int | None = None
) -> list[Contender]:
    """`nsm.predict` in bfloat16, of all or some samples: weights converted, or products alone by autocast."""
    samples = samples or SAMPLES
    net, x, labels = network(site, setting.device, setting.train), test.inputs, test.labels
    some = slice(min(len(x), 1000 if setting.device == "cpu" else len(x)))
    passes = SAMPLES if setting.device == "cuda" else 10
    expected = textbook(net, x[some], passes)

    def contender(name: str, sampled: Callable[[Tensor], Tensor]) -> Contender:
        def check() -> None:
            found = sampled(x)
            checks.same_chance(found[some], expected, (samples, passes), labels[some])
            if setting.device == "cpu":
                first = x[:100]
                slow = by_definition(lambda: sampled(first))
                most = 1.5e-2 / samples**0.5  # a rounded sum turns a state now and then, in a sample of its own
                checks.close(found[: len(first)], slow, most, "probabilities from the same noise", mean=True)

        return Contender(f"NSM, {site}, {name}", functools.partial(sampled, x), check, SAMPLES / samples)

    half = copy.deepcopy(net).to(torch.bfloat16)
    return [
        contender("bf16", lambda x: predict(half, x, samples, seed=SEED).probabilities),
        contender("bf16 autocast", lambda x: _autocast(net, x, samples, setting.device)),
    ]


def by_definition(predicted: Callable[[], Tensor]) -> Tensor:
    """A prediction on the CPU without states as bits: of the same noise and, but for rounding, the same sums."""
    with mock.patch.object(bits, "library", return_value=None):
        return predicted()


def _autocast(net: nn.Module, x: Tensor, samples: int, device: str) -> Tensor:
    with torch.autocast(device, torch.bfloat16):
        return predict(net, x, samples, seed=SEED).probabilities


def _logits(tolerance: float) -> Callable[[Tensor, Tensor], None]:
    return lambda got, expected: checks.close(got, expected, tolerance, "logits")


def _beside(dcnn: nn.Module, test: Dataset, setting: Setting) -> Iterator[Contender]:
    """What is shown beside the goals: on CUDA noise at neurons; the dCNN eager, MC dropout, the textbook's NSM."""
    x, few = test.inputs, setting.passes
    if setting.device == "cuda":
        yield from _ours("neuron", test, setting, few)[1:]
    dropout = dropout_network().to(setting.device)

    @torch.no_grad()
    def eager() -> Tensor:
        return [dcnn(x) for _ in range(few)][-1]

    def known() -> None:
        with torch.no_grad():
            checks.close(eager(), dcnn(x), 1e-6, "logits")

    yield Contender("dCNN, fp32, eager", eager, known, SAMPLES / few)
    drop = functools.partial(looped, dropout, x, few, 1000)
    yield Contender("MC dropout, fp32, eager", drop, lambda: checks.random_chances(drop(), drop()), SAMPLES / few)
    for site in ("neuron", "synapse"):
        net = network(site, setting.device, setting.train)
        by_hand = functools.partial(textbook, net, x, few, 1000)

        def same(net: nn.Module = net, by_hand: Callable[[], Tensor] = by_hand) -> None:
            checks.same_chance(by_hand(), predict(net, x, few, seed=SEED).probabilities, (few, few), test.labels)

        yield Contender(f"textbook NSM, {site}, fp32, eager", by_hand, same, SAMPLES / few)


# ------------------------------------------------------------------------- memory


def peak(device: str, num_samples: int, images: int, chunk_size: int = 10) -> int:
    """The most memory in bytes that a prediction has at one time, above that of its network and its images."""
    torch.manual_seed(SEED)
    net = mnist_cnn(functools.partial(bnsm, site="synapse", draw="moments")).to(device)
    x = load("mnist", "test").inputs[:images].to(device)
    predict(net, x[:chunk_size], 1, seed=0, chunk_size=chunk_size)
    found: list[Prediction] = []
    most = peak_bytes(lambda: found.append(predict(net, x, num_samples, seed=0, chunk_size=chunk_size)), device)
    checks.close(found[0].num_samples.float(), torch.full((len(x),), float(num_samples)).to(device), 0, "samples")
    return most


def peak_bytes(run: Callable[[], object], device: str) -> int:
    """The most that torch allocates at one time while ``run`` runs, above what was there before."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            run()
        profile.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    changes = [(event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]"]
    most = now = 0
    for _, change in sorted(changes, key=lambda pair: pair[0]):
        now += change
        most = max(most, now)
    return most
