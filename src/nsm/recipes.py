"""How a network is trained: one flat, frozen dataclass, and the paper's settings as named constants.

A recipe says everything that decides the outcome of a run but the data themselves; the folder of a run keeps it, and
every field of it is an option of ``nsm train``. `RECIPES` lists the constants under the names of the command line.
"""

import difflib
import math
import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

Network = Literal["pi-mnist-mlp", "mnist-cnn", "cifar-cnn", "cifar-cnn-plain", "dvs-cnn"]
Unit = Literal[
    "bNSM", "gNSM", "bNSM (STE)", "bNSM (BinConcrete)", "dCNN", "sigmoid", "BD", "wBD", "SN", "BN", "StNN",
    "additive", "batch norm",
]  # fmt: skip


def _least(least: float, default: Any, below: float | None = None) -> Any:
    return field(default=default, metadata={"least": least, "below": below})


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides how a run goes.

    Args:
        data: Name of the data set; `nsm data list` shows them.
        train_split: What is learned from: train, or train+validation for a final run.
        validation_split: What the error of every epoch is measured on; None for nothing.
        network: One of the paper's architectures; cifar-cnn-plain has no batch norm.
        unit: What its hidden units are: the NSM's or a baseline's.
        site: Where the noise of NSM units sits: neuron or synapse.
        draw: How the noise of a synapse is drawn: auto, exact or moments.
        bias: Whether every layer has a bias. Without one the law of an NSM unit does not change when its weights alone
            are scaled. The StNN never has one.
        epochs: Passes through the training data.
        batch_size: Inputs in one step, all processes together.
        lr: Adam's learning rate at the start.
        muon_lr: That of Muon, which changes the weights of all layers but the last one in its place: by so much, in the
            root mean square, in a step. It falls with ``lr``; 0 leaves all to Adam.
        schedule: constant, halving (by one half every `schedule_epochs`), or linear (constant for `schedule_epochs`,
            then down to 0 at the end with Adam's first moment 0.5 in place of 0.9), or cosine (constant for
            `schedule_epochs`, then down to 0 like half a wave).
        schedule_epochs: Epochs between two halvings, or before the fall.
        weight_decay: Share of the weights, those of batch norms among them, that every step takes away, times the
            learning rate.
        beta_decay: The same for β, so that noise cannot be learned away.
        train_beta: Whether β is learned; otherwise it stays as it started.
        label_smoothing: Share of every label that is spread over all classes.
        loss_samples: Samples of every input whose mean softmax the loss is taken of.
        average_epochs: Memory, in epochs, of a running average of the weights, which is measured and kept as the
            network; 1 for the weights themselves.
        augmentation: none, shift (by up to 2 pixels) or crop-flip (by up to 4 pixels, and mirrored).
        input_level: How far from ½ the level may be at which the grey pixels of a training input become ±1, drawn anew
            whenever it is learned from; 0 to leave that to the network, which cuts at ½.
        input_dropout: Share of the pixels of every training input that is wiped out, to the value of an empty pixel.
            Inputs to infer from are whole.
        input_cutout: Side, in pixels, of a square in every training input that is wiped out likewise; its middle is any
            pixel.
        input_swap: Share of the pixels of every training input that come from another one of its batch, likewise.
        input_flip: Chance of a pixel of ±1 to be flipped, if that raises the loss, in a copy of every training input
            that is learned from beside it; 0 for no copies.
        initialize: Whether β and b of NSM units are set from 100 inputs before the first step.
        init_from: Folder of a run whose trained deterministic network is converted into this one's start; of several
            networks, each takes that of its own seed, as far as there are such.
        imitate: Inputs on which every layer is then fitted to what that network computes there, in place of
            ``initialize``; 0 to begin with its weights as they are.
        num_samples: Monte-Carlo samples for the validation error.
        measure_last: Last epochs in which that error is measured; None for all.
        seed: Seed of weights, order, augmentation and noise.
        seeds: How many networks, each with its own start, order and noise, are trained together.
        accelerator: auto, cpu or cuda.
        devices: Devices, with one process each, on every machine.
        num_nodes: Machines.
        strategy: What several processes do: ddp (each has the whole network) or fsdp (each keeps a share of the
            weights, gradients and moments).
        precision: 32-true, or bf16-mixed for products in bfloat16.
        compile: Compile the network with torch.compile.
        cuda_graph: Capture the whole step in a CUDA graph.
        num_workers: Processes that load a data set which is not one of nsm's.
        save_every: Steps between checkpoints, and one at the end; None for one at the end of every epoch.
        tensorboard: Write TensorBoard events too.

    Example:
        >>> replace(MNIST_CNN, lr=1e-3, epochs=40).lr
        0.001
        >>> replace(MNIST_CNN, epochs=0)
        Traceback (most recent call last):
        ValueError: Expected argument `epochs` to be an int of at least 1, but got 0
    """

    data: str = "mnist"
    train_split: str = "train"
    validation_split: str | None = "validation"
    network: Network = "mnist-cnn"
    unit: Unit = "bNSM"
    site: Literal["neuron", "synapse"] = "neuron"
    draw: Literal["auto", "exact", "moments"] = "auto"
    bias: bool = True
    epochs: int = _least(1, 200)
    batch_size: int = _least(1, 100)
    lr: float = 3e-4
    muon_lr: float = _least(0, 0.0)
    schedule: Literal["constant", "halving", "linear", "cosine"] = "halving"
    schedule_epochs: int = _least(1, 50)
    weight_decay: float = _least(0, 0.0)
    beta_decay: float = _least(0, 0.0)
    train_beta: bool = True
    label_smoothing: float = _least(0, 0.0, below=1)
    loss_samples: int = _least(1, 1)
    average_epochs: int = _least(1, 1)
    augmentation: Literal["none", "shift", "crop-flip"] = "none"
    input_level: float = _least(0, 0.0, below=0.5)
    input_dropout: float = _least(0, 0.0, below=1)
    input_cutout: int = _least(0, 0)
    input_swap: float = _least(0, 0.0, below=1)
    input_flip: float = _least(0, 0.0, below=1)
    initialize: bool = True
    init_from: str | None = None
    imitate: int = _least(0, 0)
    num_samples: int = _least(1, 10)
    measure_last: int | None = _least(1, None)
    seed: int = _least(0, 0)
    seeds: int = _least(1, 1)
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    devices: int = _least(1, 1)
    num_nodes: int = _least(1, 1)
    strategy: Literal["ddp", "fsdp"] = "ddp"
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    compile: bool = False
    cuda_graph: bool = False
    num_workers: int = _least(0, 0)
    save_every: int | None = _least(1, None)
    tensorboard: bool = False

    def __post_init__(self) -> None:
        """Refuse the first field that is not what it should be."""
        hints = get_type_hints(Recipe)
        for each in fields(self):
            _check(each.name, getattr(self, each.name), hints[each.name], **each.metadata)
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ValueError(f"Expected argument `lr` to be positive and finite, but got {self.lr}")
        if self.unit not in DRAWN and (self.site, self.draw) != ("neuron", "auto"):
            raise ValueError(
                f"Expected argument `site` to be 'neuron' and `draw` 'auto' for {self.unit}, whose noise they do not "
                f"concern, but got {self.site!r} and {self.draw!r}"
            )
        if self.site == "neuron" and self.draw != "auto":
            raise ValueError(f"Expected argument `draw` to be 'auto' for site='neuron', but got {self.draw!r}")
        if self.schedule in ("linear", "cosine") and self.schedule_epochs >= self.epochs:
            raise ValueError(
                f"Expected argument `schedule_epochs` to be below epochs={self.epochs} for the rate to fall, "
                f"but got {self.schedule_epochs}"
            )
        if self.beta_decay and not (self.train_beta and self.unit in NOISY):
            learned = "train_beta=False" if self.unit in NOISY else f"{self.unit}, which has no β"
            raise ValueError(f"Expected argument `beta_decay` to be 0 with {learned}, but got {self.beta_decay}")
        for name in ("muon_lr", "weight_decay"):
            if getattr(self, name) and self.unit == "wBD":
                raise ValueError(
                    f"Expected argument `{name}` to be 0 for wBD, whose weights are computed from others, "
                    f"but got {getattr(self, name)}"
                )
        if self.muon_lr and self.strategy == "fsdp":
            raise ValueError(f"Expected argument `muon_lr` to be 0 with strategy='fsdp', but got {self.muon_lr}")
        if self.cuda_graph and (self.world_size > 1 or self.strategy == "fsdp"):
            beside = f"{self.world_size} processes" if self.world_size > 1 else "strategy='fsdp'"
            raise ValueError(f"Expected argument `cuda_graph` to be False with {beside}, but got True")

    @property
    def world_size(self) -> int:
        """How many processes train together."""
        return self.devices * self.num_nodes

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Recipe":
        """The recipe with these fields; an unknown one is refused, with the nearest known one in the message.

        >>> Recipe.from_dict({"batchsize": 10})
        Traceback (most recent call last):
        ValueError: Expected a field of a recipe, but got 'batchsize'; did you mean 'batch_size'?
        """
        known = [each.name for each in fields(cls)]
        for name in values:
            if name not in known:
                raise ValueError(f"Expected a field of a recipe, but got {name!r}{nearest(name, known)}")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """All fields, as plain values."""
        return asdict(self)


DRAWN = ("bNSM", "gNSM", "bNSM (STE)", "bNSM (BinConcrete)")  # units whose noise is drawn at a site
NOISY = (*DRAWN, "BN")  # units made of NSM layers


def _check(name: str, value: Any, hint: Any, least: Any = None, below: Any = None) -> None:
    """Raise unless ``value`` is of the annotated type, at least ``least`` and below ``below``."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if value is None and type(None) in options:
        return
    kind = options[0]
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            near = nearest(value, get_args(kind))
            raise ValueError(f"Expected argument `{name}` to be one of {list(get_args(kind))}, but got {value!r}{near}")
        return
    right = isinstance(value, int | float if kind is float else kind) and (kind is bool or not isinstance(value, bool))
    high: Any = math.inf if below is None else below
    if not right or (least is not None and not least <= value < high):
        article = "an" if kind is int else "a"
        bound = "" if least is None else f" of at least {least}" + (f" and below {below}" if below else "")
        raise ValueError(f"Expected argument `{name}` to be {article} {kind.__name__}{bound}, but got {value!r}")


def nearest(name: Any, known: Any) -> str:
    """The known name most like ``name``, as the end of a message; empty if none is like it."""
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


#: Table 1: permutation-invariant MNIST with 784-300-300-300-10.
PI_MNIST = Recipe(network="pi-mnist-mlp")

#: Table 1: the same network with stochastic sigmoid units, without biases.
PI_MNIST_STNN = replace(PI_MNIST, unit="StNN")

#: The same network with pixels wiped out while it learns, and its weights averaged.
PI_MNIST_TUNED = replace(PI_MNIST, input_dropout=0.3, average_epochs=20)

#: With inputs that are thinner or thicker whenever they are learned from, and copies of them whose pixels are flipped
#: against the network: the best of results/search/pi-mnist.
PI_MNIST_HARDER = replace(PI_MNIST, data="mnist-grey", input_level=0.3, input_flip=0.05, average_epochs=20)

#: The same without biases, so that scaling the weights alone changes nothing.
PI_MNIST_HARDER_UNBIASED = replace(PI_MNIST_HARDER, bias=False)

#: Table 2: the convolutional network on MNIST; every baseline of the table is ``unit=…``.
MNIST_CNN = Recipe(network="mnist-cnn")

#: The same network on digits that are shifted while it learns, at a larger rate and with its weights averaged: the best
#: of results/search/mnist-cnn.
MNIST_CNN_TUNED = replace(MNIST_CNN, augmentation="shift", lr=1e-3, average_epochs=20)

#: Table 2: on the 26 letters of EMNIST.
EMNIST_CNN = replace(MNIST_CNN, data="emnist-letters")

#: Table 2: on ten frames of N-MNIST's ON events.
NMNIST_CNN = replace(MNIST_CNN, data="nmnist")

#: Table 3: the all-convolutional network on CIFAR-10 (the row with a star; ``init_from=…`` makes the other).
CIFAR10_CNN = Recipe(
    data="cifar10", network="cifar-cnn", schedule="linear", schedule_epochs=100, augmentation="crop-flip"
)

#: Table 3: on CIFAR-100.
CIFAR100_CNN = replace(CIFAR10_CNN, data="cifar100")

#: The network of the row with a star at a larger rate, with its weights averaged and, since they grow and so turn ever
#: more slowly, a share of them taken away: the best of results/search/cifar10-cnn.
CIFAR10_CNN_TUNED = replace(CIFAR10_CNN, lr=1e-3, weight_decay=0.015, average_epochs=20)

#: The network of the row without a star: the same, beginning by imitating a trained network (``init_from=…``). The
#: rest was chosen for networks that begin from nothing.
CIFAR10_CNN_IMITATING = replace(CIFAR10_CNN_TUNED, imitate=300)

#: The network of the row with a star, its hidden layers changed by Muon, in two fifths of the epochs and a twelfth of
#: the steps. Of the best few of results/search/cifar10-muon, which differ by less than their errors, it takes the least
#: time; the search was of 60 epochs, and the decay is that of 60, by its memory.
CIFAR10_CNN_MUON = replace(
    CIFAR10_CNN_TUNED,
    epochs=80,
    schedule_epochs=40,
    average_epochs=8,
    batch_size=500,
    lr=2e-3,
    muon_lr=4.5e-4,
    weight_decay=0.375,
)

#: The same in 60 epochs, as it was searched.
CIFAR10_CNN_MUON_SHORT = replace(CIFAR10_CNN_MUON, epochs=60, schedule_epochs=30, average_epochs=6, weight_decay=0.5)

#: Table 4: the all-convolutional network on DVS Gestures.
DVS_CNN = Recipe(data="dvsgesture", network="dvs-cnn")

#: Minutes on two CPU cores: a larger learning rate that falls quickly.
MNIST_QUICK = replace(MNIST_CNN, epochs=2, lr=1e-3, schedule="halving", schedule_epochs=1)

#: Online: every digit seen once, one at a time, by the network that also infers; the rate is the best of
#: results/online.json.
MNIST_ONLINE = replace(MNIST_CNN, epochs=1, batch_size=1, lr=1e-4, schedule="constant", save_every=5000)

#: The baseline of the online run: the same network with batch normalisation in place of the noise.
MNIST_ONLINE_BATCH_NORM = replace(MNIST_ONLINE, unit="batch norm", initialize=False)

RECIPES: dict[str, tuple[str, Recipe]] = {  # name: (what it is, recipe)
    "pi-mnist": ("Permutation-invariant MNIST, 784-300-300-300-10 (Table 1)", PI_MNIST),
    "pi-mnist-tuned": ("The same with wiped-out inputs and averaged weights", PI_MNIST_TUNED),
    "pi-mnist-harder": (
        "The same with inputs cut at random levels and flipped against the network, and averaged weights",
        PI_MNIST_HARDER,
    ),
    "pi-mnist-harder-unbiased": ("The same without biases", PI_MNIST_HARDER_UNBIASED),
    "pi-mnist-stnn": ("With stochastic sigmoid units (Table 1)", PI_MNIST_STNN),
    "mnist-cnn": ("Convolutional network on MNIST (Table 2)", MNIST_CNN),
    "mnist-cnn-tuned": ("The same with shifted inputs, a larger learning rate and averaged weights", MNIST_CNN_TUNED),
    "emnist-cnn": ("Convolutional network on EMNIST letters (Table 2)", EMNIST_CNN),
    "nmnist-cnn": ("Convolutional network on N-MNIST events (Table 2)", NMNIST_CNN),
    "cifar10-cnn": ("All-convolutional network on CIFAR-10 (Table 3)", CIFAR10_CNN),
    "cifar10-cnn-tuned": ("The same with a larger learning rate, weight decay and averaged weights", CIFAR10_CNN_TUNED),
    "cifar10-cnn-imitating": (
        "The same, beginning by imitating a trained network, which init_from names",
        CIFAR10_CNN_IMITATING,
    ),
    "cifar10-cnn-muon": (
        "cifar10-cnn-tuned with its hidden layers changed by Muon, in larger batches",
        CIFAR10_CNN_MUON,
    ),
    "cifar10-cnn-muon-short": ("The same in 60 epochs", CIFAR10_CNN_MUON_SHORT),
    "cifar100-cnn": ("All-convolutional network on CIFAR-100 (Table 3)", CIFAR100_CNN),
    "dvs-cnn": ("All-convolutional network on DVS Gestures (Table 4)", DVS_CNN),
    "mnist-quick": ("The network of mnist-cnn in two epochs", MNIST_QUICK),
    "mnist-online": ("MNIST digit by digit, each seen once", MNIST_ONLINE),
    "mnist-online-batch-norm": ("The same with batch normalisation", MNIST_ONLINE_BATCH_NORM),
}


def find(name: str) -> Recipe:
    """The recipe of that name; an unknown one raises with the nearest known.

    >>> find("mnist-cnn").batch_size
    100
    """
    if name not in RECIPES:
        known = ", ".join(RECIPES)
        raise ValueError(f"Expected a recipe: {known}, but got {name!r}{nearest(name, RECIPES)}")
    return RECIPES[name][1]
