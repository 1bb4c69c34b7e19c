"""Every work by name: measured, its cases turned into rows beside their goals."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from nsm import record
from nsm.bench import inference, learning
from nsm.bench.blankout import Absent, blankout_race
from nsm.bench.goals import goals, works
from nsm.bench.kernels import kernel_race
from nsm.bench.timing import Race, Timing, Wrong

Cases = dict[str, dict[str, Any] | Exception]  # case → what was measured of it, or why nothing was
Found = tuple[Cases, list[dict[str, Any]]]  # and all that was tried on the way
FAILURES = (Wrong, Absent, RuntimeError, ImportError)  # of one work; the others are measured all the same


def run(only: Sequence[str] = (), *, quick: bool = False, say: Callable[[dict[str, Any]], object] = print) -> dict:
    """Do the works that concern this machine, or some of them; ``say`` gets every row as it comes.

    Raises:
        ValueError: A name is not that of a work for this machine.
    """
    device = device_here()
    known = works(device)
    for name in only:
        if name not in known:
            raise ValueError(f"Expected a work of {', '.join(known)} on this machine, but got {name!r}")
    rows, tried, commit = [], [], record.commit()
    with _all_cores() as threads:
        for work in only or known:
            for row in measure(device, work, quick, tried):
                rows.append({**row, "commit": commit, "torch": torch.__version__, "quick": quick})
                say(rows[-1])
    return {"device": device, "threads": threads, "quick": quick, "rows": rows, "peers": tried}


def device_here() -> str:
    """Where a network would run: cuda or cpu."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def measure(device: str, work: str, quick: bool, tried: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows of one work; what is wrong or absent has its reason in place of a time."""
    cases: Cases = {}
    failed: Exception | None = None
    try:
        cases, ways = WORKS[work](device, quick)
        tried += [{"work": work, **way} for way in ways]
    except FAILURES as found:
        failed = found
    for goal in goals(device, work):
        found = cases.get(goal.case, failed)
        yield goal.row(None, *_why(found)) if isinstance(found, Exception) else goal.row(found, None)


def _why(failed: Exception) -> tuple[str, bool]:
    """In words, and whether it is a wrong result."""
    if isinstance(failed, Wrong | Absent):
        return str(failed), isinstance(failed, Wrong)
    lines = [line.strip() for line in str(failed).splitlines() if line.strip()]
    return ": ".join([type(failed).__name__, *dict.fromkeys(lines[:1] + lines[-1:])]), True


def compared(found: Race, side: str, peer: str) -> dict[str, Any]:
    """What a race says of one side against another."""
    (way, timing), (other, reference) = found.best[side], found.best[peer]
    ratio, spread = timing.over(reference)
    return {
        "seconds": timing.seconds,
        "spread": timing.spread,
        "ratio": ratio,
        "ratio_spread": spread,
        "way": way,
        "peer": other,
        "peer_seconds": reference.seconds,
        "n": len(timing.times),
    }


def _steps(network: str) -> Callable[[str, bool], Found]:
    def work(device: str, quick: bool) -> Found:
        rounds, calls = (3 if quick else 15), (1 if device == "cpu" else 50)
        found = learning.step_race(network, device, rounds=rounds, calls=calls, quick=quick)
        return {site: compared(found, site, "dCNN") for site in ("synapse", "neuron")}, found.tried

    return work


def _epochs(device: str, quick: bool) -> Found:
    epochs, whole = (5 if quick else 200), 200
    cases = {}
    for site in ("synapse", "neuron"):
        found = learning.long_run(device, site, epochs, limit=0.05 if quick else 0.015)
        epoch: Timing = found.pop("epoch")
        cases[site] = {
            **found,
            "seconds": whole / epochs * found["seconds"],
            "spread": epoch.scaled(whole).spread,
            "epoch_seconds": epoch.seconds,
            "extrapolated": quick,
            "n": 1,
        }
    return cases, []


def _seeds(network: str) -> Callable[[str, bool], Found]:
    def work(device: str, quick: bool) -> Found:
        rounds, epochs = (1, 2) if quick else (2, 4)
        found = learning.seeds_race(device, network, rounds=rounds, epochs=epochs)
        return {network: compared(found, "5 seeds", "one seed")}, found.tried

    return work


def _mc(device: str, quick: bool) -> Found:
    rounds = 3 if quick else 15 if device == "cuda" else 7
    if device == "cuda":
        setting = inference.Setting("cuda", 10_000, rounds, 20, train=20_000, batches=(10_000,), ways=("compiled",))
    elif quick:
        setting = inference.Setting("cpu", 100, rounds, 2, train=3000, batches=(100,), ways=("eager",))
    else:
        setting = inference.Setting("cpu", 1000, rounds, 2, train=3000, batches=(100,))
    found, beside = inference.mc_race(setting)
    cases: Cases = {}
    for goal in goals(device, "mc"):
        case = compared(found, goal.case, "dCNN") | {"images": setting.images}
        if device == "cpu":
            same = compared(found, goal.case, "dCNN, bf16")
            case |= {"same_dtype_ratio": same["ratio"], "same_dtype_peer": same["peer"]}
        cases[goal.case] = case
    return cases, found.tried + beside.tried


def _memory(device: str, quick: bool) -> Found:
    images = 10_000 if device == "cuda" else 10 if quick else 2_000  # so many that samples that are kept would be seen
    few, many = (inference.peak(device, samples, images) for samples in (10, 1000))
    case = {"ratio": many / few, "bytes": many, "peer": f"MC 10, {few} bytes", "images": images, "n": 1}
    return {"peak": case}, []


def _blankout(device: str, quick: bool) -> Found:
    found, share = blankout_race(device, 3 if quick else 15)
    case = compared(found, "kernel", "masked product") | share
    case["compiled_ratio"] = compared(found, "kernel", "compiled")["ratio"]
    return {"linear": case}, found.tried


def _kernels(device: str, quick: bool) -> Found:
    cases: Cases = {}
    tried = []
    for goal in goals(device, "kernels"):
        try:
            found = kernel_race(device, goal.case, 3 if quick else 15)
        except FAILURES as failed:
            cases[goal.case] = failed
        else:
            cases[goal.case] = compared(found, "kernel", "compiled")
            tried += found.tried
    return cases, tried


WORKS: dict[str, Callable[[str, bool], Found]] = {
    "mnist-step": _steps("mnist"),
    "cifar-step": _steps("cifar"),
    "epochs": _epochs,
    "seeds": _seeds("pi-mnist-mlp"),
    "seeds-cnn": _seeds("mnist-cnn"),
    "mc": _mc,
    "blankout": _blankout,
    "memory": _memory,
    "kernels": _kernels,
}


@contextmanager
def _all_cores() -> Iterator[int]:
    """As many threads as cores, and room for every compiled network of a work; put back afterwards."""
    import torch._dynamo

    before, limit = torch.get_num_threads(), torch._dynamo.config.recompile_limit
    threads = len(os.sched_getaffinity(0))
    try:
        torch.set_num_threads(threads)
        torch._dynamo.config.recompile_limit = 64
        yield threads
    finally:
        torch.set_num_threads(before)
        torch._dynamo.config.recompile_limit = limit
