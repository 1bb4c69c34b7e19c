"""What is asked of the speed, and how close a measurement came."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Goal:
    """One line of the list of goals.

    Attributes:
        device: Where it is asked: cuda or cpu.
        work: The work that measures it, a name for ``--only``.
        case: Which of the work's cases.
        what: The line itself.
        most: The most that each measured figure may be: "seconds", "ratio"; nothing where none is asked.
    """

    device: str
    work: str
    case: str
    what: str
    most: Mapping[str, float] = field(default_factory=dict)

    def met(self, row: Mapping[str, Any]) -> bool | None:
        """Whether every figure is within its limit; None where there is no limit, or one was not measured."""
        figures = [row.get(name) for name in self.most]
        if not figures or any(figure is None for figure in figures):
            return None
        return all(row[name] <= limit for name, limit in self.most.items())

    def row(
        self, found: Mapping[str, Any] | None, reason: str | None = "not measured", wrong: bool = False
    ) -> dict[str, Any]:
        """What was found, beside the goal; where nothing was, the ``reason``, and whether that is a wrong result."""
        blank = dict.fromkeys(("seconds", "spread", "ratio", "peer"))
        row = {"work": self.what, "name": self.work, **blank, **(found or {}), "goal": dict(self.most)}
        if found is None:
            return {**row, "met": False if wrong else None, "reason": reason}
        return self.judge(row)

    def judge(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A measured row, perhaps of an older record, beside this goal."""
        return {**row, "goal": dict(self.most), "met": self.met(row)}


def _step(device: str, network: str, site: str, limit: float) -> Goal:
    precision = ", bf16" if device == "cuda" else ", fp32, best of eager and compiled, both layouts, for each"
    peer = "compiled dCNN" if device == "cuda" else "dCNN"
    name = "MNIST CNN" if network == "mnist" else "CIFAR net"
    what = f"{name}, batch 100{precision}, train step, {site} ÷ {peer}"
    return Goal(device, f"{network}-step", site, what, {"ratio": limit})


def _epochs(site: str) -> Goal:
    what = f"MNIST CNN, {site}, 200 epochs of training, one seed, without evaluation and compilation"
    return Goal("cuda", "epochs", site, what, {"seconds": 20})


def _samples(site: str) -> Goal:
    what = f"MC 100 of 1,000 MNIST images, {site}, bf16 ÷ 100 passes of the fastest fp32 dCNN"
    return Goal("cpu", "mc", site, what, {"ratio": 0.5})


def _kernel(device: str, case: str, what: str) -> Goal:
    """A kernel exists only where it beats the compiled reference by 1.2."""
    return Goal(device, "kernels", case, f"kernel ÷ compiled reference: {what}", {"ratio": 1 / 1.2})


_THERE_AND_BACK = {
    "fire": "states of four layers and back, synapse",
    "fire_pool": "states behind a 2×2 pool and back, synapse",
    "threshold_pool": "states behind a 2×2 pool and back, neuron",
    "blank": "blank-out of states",
}
_KERNELS = {
    "cuda": {
        **_THERE_AND_BACK,
        "counters": "keyed random numbers",
        "toss": "keyed states behind a 2×2 pool",
        "cross": "states behind a 2×2 pool in ten samples, neuron",
        "keyed blank": "keyed blank-out of states",
        "jitter": "keyed Gaussian noise of states",
        "blankout 1/2": "exact blank-out of synapses, p = 1/2",
        "blankout 1/4": "exact blank-out of synapses, p = 1/4",
        "blankout 0.1": "exact blank-out of synapses, p = 0.1",
    },
    "cpu": {
        **_THERE_AND_BACK,
        "threshold": "states of four layers and back, neuron",
        "synapse": "pictures to pooled states and back, synapse",
        "neuron": "pictures to pooled states and back, neuron",
        "bits": "MC 20 of 100 images, synapse, fp32",
        "bits, neuron": "MC 20 of 100 images, neuron, fp32",
    },
}

#: "synapse" is site="synapse", draw="moments". A speed-up of 20 is a ratio of 0.05.
GOALS = (
    _step("cuda", "mnist", "synapse", 0.9),
    _step("cuda", "mnist", "neuron", 1.0),
    _step("cuda", "cifar", "synapse", 1.15),
    _step("cuda", "cifar", "neuron", 1.35),
    _epochs("synapse"),
    _epochs("neuron"),
    Goal("cuda", "seeds", "pi-mnist-mlp", "PI-MNIST MLP, five seeds trained together ÷ one seed", {"ratio": 1.6}),
    Goal("cuda", "seeds-cnn", "mnist-cnn", "MNIST CNN, five seeds trained together ÷ one seed"),
    Goal(
        "cuda",
        "mc",
        "synapse",
        "MC 100 of 10,000 MNIST images ÷ 100 passes of the compiled dCNN",
        {"seconds": 0.035, "ratio": 0.3},
    ),
    Goal(
        "cuda",
        "blankout",
        "linear",
        "Exact synaptic blank-out, linear 1024→512, batch 1,000 ÷ the masked product",
        {"ratio": 0.05},
    ),
    Goal("cuda", "memory", "peak", "Peak memory, MC 1,000 ÷ MC 10 at one chunk size", {"ratio": 1.05}),
    _step("cpu", "mnist", "synapse", 1.2),
    _step("cpu", "mnist", "neuron", 1.2),
    _samples("synapse"),
    _samples("neuron"),
    Goal("cpu", "memory", "peak", "Peak memory, MC 1,000 ÷ MC 10 at one chunk size", {"ratio": 1.05}),
    *(_kernel(device, case, what) for device, each in _KERNELS.items() for case, what in each.items()),
)


def goals(device: str, work: str | None = None) -> list[Goal]:
    """The goals for a device, of one work or of all."""
    return [goal for goal in GOALS if goal.device == device and work in (None, goal.work)]


def works(device: str) -> list[str]:
    """The works that concern a device, in order."""
    return list(dict.fromkeys(goal.work for goal in goals(device)))
