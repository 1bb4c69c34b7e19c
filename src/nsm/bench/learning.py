"""The works of learning: one step, 200 epochs, five seeds at once."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from nsm.batches import Batches
from nsm.bench import checks
from nsm.bench.peers import PlainStep, Textbook
from nsm.bench.timing import Contender, Race, Timing, Wrong, race
from nsm.data import Dataset, load
from nsm.networks import build
from nsm.processes import processes
from nsm.recipes import CIFAR10_CNN, MNIST_CNN, Recipe
from nsm.sampling import predict
from nsm.state import State
from nsm.steps import Step
from nsm.training import fit, set_rates

WARM_STEPS = {"cpu": 40, "cuda": 600}
LAW_PASSES = {"cpu": 40, "cuda": 100}


@dataclass
class Learner:
    """A network about to learn by the engine's own step from one batch."""

    state: State
    step: Step
    batch: tuple[Any, ...]  # as the step takes it
    inputs: Tensor
    labels: Tensor

    def __call__(self) -> Tensor:
        """One step; returns its loss."""
        return self.step(*self.batch)

    def check(self) -> None:
        """All of it learns, and gives what the textbook's NSM, or the eager dCNN, gives; its noise follows the law."""
        network, recipe = self.state.network, self.state.recipe
        before = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
        checks.learns([float(self().mean()) for _ in range(WARM_STEPS[self.inputs.device.type])])
        checks.moved(network, before)
        passes = LAW_PASSES[self.inputs.device.type] if recipe.unit != "dCNN" else 1
        scale = 1 / len(self.labels)
        found = self._chances(lambda x: self.step.objective(x, self.labels, scale)[2], passes)
        if recipe.unit == "dCNN":
            expected = self._chances(lambda x: self.step.plain_objective(x, self.labels, scale)[2], passes)
            checks.close(found, expected, 1e-2, "probabilities", mean=True)  # bf16 turns a few signs of RGB over
        else:
            checks.same_chance(
                found, self._chances(Textbook(cast(Any, network)), passes), (passes, passes), self.labels
            )
            checks.follows_the_law(*checks.a_layer(network))

    def _chances(self, logits: Callable[[Tensor], Tensor], passes: int) -> Tensor:
        """Probabilities, averaged over passes, with gradients recorded as in training (else it compiles again)."""
        with self.state.fabric.autocast():
            total = sum(logits(self.inputs).float().softmax(-1).detach() for _ in range(passes))
        return total / passes  # type: ignore[return-value]


@contextlib.contextmanager
def learner(recipe: Recipe, dataset: Dataset, channels_last: bool = False) -> Iterator[Learner]:
    """A `Learner`, made as `nsm.training.fit` makes its own."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    with processes(recipe) as fabric:
        batches = Batches(dataset, recipe, fabric.device)
        torch.manual_seed(recipe.seed)
        state = State(build(recipe).to(memory_format=layout), batches, recipe, fabric)  # type: ignore[call-overload]
        state.begin(None)
        set_rates(state.optimizer, recipe, 0)
        order = torch.arange(len(dataset))[None]
        batch = next(batches.epoch(0, order, 0))
        yield Learner(state, state.stepper(), batch, *batches.dataset.batch(slice(recipe.batch_size)))


def recipe_for(network: str, device: str, side: str, compile: bool) -> Recipe:
    """The recipe of one side of a comparison: dCNN, neuron or synapse."""
    base = MNIST_CNN if network == "mnist" else replace(CIFAR10_CNN, augmentation="none")
    law: dict[str, Any] = {"unit": "dCNN", "initialize": False}
    if side != "dCNN":
        law = {"site": side, "draw": "moments" if side == "synapse" else "auto"}
    precision = "bf16-mixed" if device == "cuda" else "32-true"
    fast = {"compile": compile, "cuda_graph": device == "cuda", "precision": precision, "accelerator": device}
    return replace(base, lr=1e-3, **law, **fast)


def images(network: str, count: int) -> Dataset:
    """Digits; for the CIFAR network one of ten patterns under as much noise, which cost what photographs cost."""
    if network == "mnist":
        digits = load("mnist", "train")
        return replace(digits, stored=digits.stored[:count], labels=digits.labels[:count])
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (count,), generator=random)
    patterns = torch.randint(128, (10, 3, 32, 32), generator=random, dtype=torch.uint8)
    stored = patterns[labels] + torch.randint(128, (count, 3, 32, 32), generator=random, dtype=torch.uint8)
    return Dataset("patterns", stored, labels, tuple(map(str, range(10))))


def step_race(network: str, device: str, *, rounds: int, calls: int, quick: bool = False, batch: int = 100) -> Race:
    """A step of the NSM with noise at neurons, at synapses, and of the dCNN, each in its fastest way.

    On the CPU eager and compiled, in both layouts; on CUDA compiled and in a graph, in the layout of the engine, with
    the eager dCNN beside. The dCNN also learns by a step in plain PyTorch, so that what is slow in the engine does not
    count for the NSM; and so does, beside, the NSM as the equations say it. ``quick`` leaves out on the CPU what must
    be compiled.
    """
    torch._dynamo.reset()
    dataset = images(network, max(2 * batch, 100))
    cpu = device == "cpu"
    compiled = (False,) if cpu and quick else (False, True) if cpu else (True,)
    with contextlib.ExitStack() as stack:

        def ours(side: str, compile: bool, channels_last: bool) -> Contender:
            recipe = replace(recipe_for(network, device, side, compile), batch_size=batch)
            one = stack.enter_context(learner(recipe, dataset, channels_last))
            return Contender(_name(side, compile, channels_last, device), one, one.check)

        ways = list(itertools.product(compiled, (False, True) if cpu else (True,)))
        sides = {side: [ours(side, *way) for way in ways] for side in ("synapse", "neuron", "dCNN")}
        for compile, channels_last in itertools.product(compiled, (False, True)):
            sides["dCNN"].append(_plain(network, device, dataset, "dCNN", compile, channels_last, batch))
        for side in ("synapse", "neuron"):
            sides[f"textbook {side}"] = [_plain(network, device, dataset, side, False, False, batch)]
        if not cpu:
            sides["eager dCNN"] = [ours("dCNN", False, True)]
        return race(sides, rounds, calls=calls)


def _name(side: str, compile: bool, channels_last: bool, device: str) -> str:
    return ", ".join(
        [side, "compiled" if compile else "eager", "NHWC" if channels_last else "NCHW"]
        + (["CUDA graph"] if device == "cuda" else [])
    )


def _plain(
    network: str, device: str, dataset: Dataset, side: str, compile: bool, channels_last: bool, batch: int
) -> Contender:
    """A step in plain PyTorch: of the dCNN, or of the NSM as the textbook has it."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    torch.manual_seed(0)
    model: Any = build(recipe_for(network, device, side, compile)).to(device, memory_format=layout)  # type: ignore[call-overload]
    resident, indices = dataset.to(device), torch.arange(batch, device=device)
    model = model if side == "dCNN" else Textbook(model)
    step = PlainStep(model, lambda: resident.batch(indices), 1e-3, compile=compile)
    kind = "plain PyTorch" if side == "dCNN" else "textbook NSM,"
    name = f"{kind} {_name(side, compile, channels_last, device)}"
    return Contender(name, step, lambda: checks.learns([float(step()) for _ in range(WARM_STEPS[device])]))


# ------------------------------------------------------------------------- whole runs of the engine


def run_recipe(epochs: int, seeds: int, device: str, network: str = "mnist-cnn", site: str = "synapse") -> Recipe:
    """A network for MNIST for so many epochs, as fast as the engine can."""
    recipe = recipe_for("mnist", device, site, compile=device == "cuda")
    whole = {"lr": MNIST_CNN.lr, "train_split": "train+validation"}
    return replace(recipe, network=network, epochs=epochs, seeds=seeds, **whole)


def fit_once(recipe: Recipe, dataset: Dataset) -> tuple[list[float], list[list[float]], torch.nn.Module]:
    """Train; returns the seconds of every epoch, the losses of every member, and the network."""
    torch.manual_seed(recipe.seed)
    model = build(recipe)
    history = fit(model, dataset, recipe)
    losses = zip(*(row.get("losses") or [row["loss"]] for row in history.rows), strict=True)
    return [row["seconds"] for row in history.rows], [list(each) for each in losses], model


def long_run(device: str, site: str, epochs: int = 200, limit: float = 0.015) -> dict[str, Any]:
    """Seconds of all epochs; what the first one takes longer than the median is compilation and is told apart.

    Checked: the loss fell, and the error on the test digits is below ``limit``.
    """
    torch._dynamo.reset()
    digits = load("mnist", "train+validation")
    seconds, losses, model = fit_once(run_recipe(epochs, 1, device, site=site), digits)
    checks.learns(losses[0])
    test = load("mnist", "test").to(device)
    wrong = float((predict(model, test.inputs, 20, seed=0).label != test.labels).float().mean())
    if wrong > limit:
        raise Wrong(f"Expected a test error of at most {limit:.1%}, but got {wrong:.2%}")
    rest = Timing(tuple(seconds[1:]) or tuple(seconds))
    first = max(0.0, seconds[0] - rest.seconds)
    return {"seconds": sum(seconds) - first, "compilation": first, "epoch": rest, "error": wrong, "epochs": epochs}


def seeds_race(
    device: str, network: str, *, seeds: int = 5, epochs: int = 3, rounds: int = 2, count: int = 60_000
) -> Race:
    """Epochs of the engine with one seed and with several, run after run in turn; the first epoch of each is left out.

    Checked: every member's loss fell.
    """
    torch._dynamo.reset()
    digits = load("mnist", "train+validation")
    digits = replace(digits, stored=digits.stored[:count], labels=digits.labels[:count])
    times: dict[int, list[float]] = {1: [], seeds: []}
    for number in range(rounds):
        for many in (1, seeds)[:: 1 if number % 2 == 0 else -1]:
            seconds, losses, _ = fit_once(run_recipe(epochs, many, device, network), digits)
            for each in losses:
                checks.learns(each)
            times[many] += seconds[1:]
    return Race({_seeds(many): (_seeds(many), Timing(tuple(found))) for many, found in times.items()}, [])


def _seeds(many: int) -> str:
    return "one seed" if many == 1 else f"{many} seeds"
