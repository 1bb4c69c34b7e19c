"""The paper's four architectures, and the units that fill them: the NSM's and all its baselines'.

An architecture is written once, with plain ``nn.Linear`` and ``nn.Conv2d`` layers; a *unit* turns such a layer
into a hidden layer of its kind, ``unit(layer) -> module``:

    mnist_cnn()                      the NSM with blank-out noise (bNSM)
    mnist_cnn(gnsm)                  with Gaussian noise (gNSM)
    mnist_cnn(relu)                  the deterministic network (dCNN)
    pi_mnist_mlp(stnn, bias=False)   the stochastic sigmoid network (StNN)

`UNITS` lists them under the paper's names. Inputs are ±1 but for `cifar_cnn`, which reads RGB.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Unpack, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from nsm.data.catalogue import find
from nsm.estimators import Deterministic, StraightThrough, pass_gradient, sgn
from nsm.layers import Law, Stochastic, counterpart
from nsm.noise import Bernoulli, Gaussian, Noise, standard_normal, uniform
from nsm.recipes import NOISY, Recipe
from nsm.sequential import Sequential
from nsm.signs import Binarize, Sign

Layer = nn.Linear | nn.Conv2d
Unit = Callable[[Layer], nn.Module]


# ------------------------------------------------------------------------- units


def bnsm(layer: Layer, **law: Unpack[Law]) -> nn.Module:
    """bNSM: blank-out noise, kept with p = 0.25 in convolutions and 0.5 in linear layers; more of the law by name."""
    noise: Noise = Bernoulli(0.25 if isinstance(layer, nn.Conv2d) else 0.5)
    return counterpart(layer, **{"noise": noise, **law})


def gnsm(layer: Layer, **law: Unpack[Law]) -> nn.Module:
    """gNSM: Gaussian noise with σ = 1 (which drops out of the law)."""
    return counterpart(layer, **{"noise": Gaussian(1.0), **law})


#: bNSM (STE): sampled like bNSM, trained with the straight-through estimator.
bnsm_ste = partial(bnsm, estimator="straight_through")

#: bNSM (BinConcrete): trained with relaxed states.
bnsm_concrete = partial(bnsm, estimator="concrete")

#: BN: the NSM's mean without its noise, sgn(E[u]) forward and the gradient of erf(t) backward.
bn = partial(bnsm, estimator=Deterministic())


def relu(layer: Layer) -> nn.Module:
    """dCNN: the deterministic network with rectifiers."""
    return nn.Sequential(layer, nn.ReLU())


def sigmoid(layer: Layer) -> nn.Module:
    """The deterministic network with sigmoids, of the weight statistics."""
    return nn.Sequential(layer, nn.Sigmoid())


def bd(layer: Layer) -> nn.Module:
    """BD: a binary deterministic network, sign forward and identity backward."""
    return nn.Sequential(layer, Sign(StraightThrough()))


def wbd(layer: Layer) -> nn.Module:
    """wBD: BD with weight normalisation."""
    return nn.Sequential(weight_norm(layer), Sign(StraightThrough()))


def sn(layer: Layer) -> nn.Module:
    """SN: the stochastic network with noisy rectifiers."""
    return nn.Sequential(layer, NoisyRectifier())


def stnn(layer: Layer) -> nn.Module:
    """StNN: ±1 states with P(+1) = sigmoid(w·z)."""
    return nn.Sequential(layer, StochasticSigmoid())


def additive(layer: Layer) -> nn.Module:
    """The unit with additive noise: ±1 states with P(+1) = ½(1 + erf((w·z + b)/√2)), which nothing normalises."""
    return nn.Sequential(layer, AdditiveNoise())


def batch_norm(layer: Layer) -> nn.Module:
    """Batch normalisation and a sign with erf's gradient: the unit of `bn`, normalised by data in place of weights.

    Running statistics span about 100 inputs when these come one at a time, as a batch of the paper does.
    """
    norm = nn.BatchNorm2d if isinstance(layer, nn.Conv2d) else OnlineBatchNorm1d
    return nn.Sequential(layer, norm(len(layer.weight), momentum=0.01), Sign(Deterministic()))


UNITS: dict[str, Unit] = {
    "bNSM": bnsm,
    "gNSM": gnsm,
    "bNSM (STE)": bnsm_ste,
    "bNSM (BinConcrete)": bnsm_concrete,
    "dCNN": relu,
    "sigmoid": sigmoid,
    "BD": bd,
    "wBD": wbd,
    "SN": sn,
    "BN": bn,
    "StNN": stnn,
    "additive": additive,
    "batch norm": batch_norm,
}


class StochasticSigmoid(Stochastic):
    """States ±1 with P(+1) = sigmoid(x), differentiated as 2P − 1 = tanh(x/2)."""

    def forward(self, x: Tensor) -> Tensor:
        """States −1 or +1, freshly drawn."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        chance = 0.5 if self.deterministic else uniform(wide.shape, None, x.device, wide.dtype)
        states = sgn(torch.sigmoid(wide.detach()) - chance)
        return (states + pass_gradient(torch.tanh(wide / 2))).to(x.dtype)


class AdditiveNoise(Stochastic):
    """sgn(x + N(0, std²)), differentiated as 2P − 1 = erf(x/(√2 std))."""

    def __init__(self, std: float = 1.0) -> None:
        super().__init__()
        self.std = _check_std(std)

    def forward(self, x: Tensor) -> Tensor:
        """States −1 or +1, freshly drawn."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        noise = 0.0 if self.deterministic else self.std * standard_normal(x.shape, None, x.device, wide.dtype)
        return (sgn(wide.detach() + noise) + pass_gradient(torch.erf(wide / (math.sqrt(2) * self.std)))).to(x.dtype)

    def extra_repr(self) -> str:
        """The noise's standard deviation."""
        return f"std={self.std}"


class NoisyRectifier(Stochastic):
    """max(0, x + N(0, std²)), with the gradient of x."""

    def __init__(self, std: float = 0.1) -> None:
        super().__init__()
        self.std = _check_std(std)

    def forward(self, x: Tensor) -> Tensor:
        """Rectified activity, freshly drawn."""
        noise = 0.0 if self.deterministic else self.std * standard_normal(x.shape, None, x.device, x.dtype)
        return (x.detach() + noise).clamp(min=0) + pass_gradient(x)

    def extra_repr(self) -> str:
        """The noise's standard deviation."""
        return f"std={self.std}"


def _check_std(std: float) -> float:
    if not (math.isfinite(std) and std > 0):
        raise ValueError(f"Expected argument `std` to be positive and finite, but got {std}")
    return std


class OnlineBatchNorm1d(nn.BatchNorm1d):
    """Batch normalisation that also learns from a single input, which has no variance of its own.

    The running statistics, with this input already in them, stand in for those of the batch.
    """

    def forward(self, input: Tensor) -> Tensor:
        """The normalised input."""
        if not self.training or len(input) != 1 or self.running_mean is None or self.running_var is None:
            return super().forward(input)
        with torch.no_grad():
            rate, away = self.momentum or 0.1, input[0].float() - self.running_mean
            self.running_mean += rate * away
            self.running_var += rate * ((1 - rate) * away.square() - self.running_var)
        mean, var = self.running_mean.clone(), self.running_var.clone()  # what the gradient is of, whoever goes on
        return functional.batch_norm(input, mean, var, self.weight, self.bias, eps=self.eps)


# ------------------------------------------------------------------------- architectures


def build(recipe: Recipe) -> nn.Sequential:
    """The network of a recipe, with fresh weights, for the shape and classes of its data set.

    Data that are not ±1 pass a `Binarize` first, but for the CIFAR networks, which read RGB.

    >>> from nsm.recipes import EMNIST_CNN
    >>> network = build(EMNIST_CNN)
    >>> network[0], network.out
    (Binarize(threshold=0.5), Linear(in_features=512, out_features=26, bias=True))
    """
    entry, unit = find(recipe.data), cast(Callable[..., nn.Module], UNITS[recipe.unit])
    if recipe.unit in NOISY:
        unit = partial(unit, site=recipe.site, draw=recipe.draw)
    channels, size = entry.shape[0], entry.shape[-1]
    common: Any = {"bias": recipe.bias and recipe.unit != "StNN", "classes": len(entry.classes)}
    match recipe.network:
        case "pi-mnist-mlp":
            network = pi_mnist_mlp(unit, in_features=math.prod(entry.shape), **common)
        case "mnist-cnn":
            network = mnist_cnn(unit, in_channels=channels, size=size, **common)
        case "cifar-cnn" | "cifar-cnn-plain":
            if channels != 3:
                raise ValueError(f"Expected argument `data` to be RGB for {recipe.network}, but got {recipe.data}")
            return cifar_cnn(unit, batch_norm=recipe.network == "cifar-cnn", **common)
        case "dvs-cnn":
            network = dvs_cnn(unit, in_channels=channels, **common)
    first = {} if entry.binary else {"binarize": Binarize()}
    return Sequential(OrderedDict(**first, **dict(network.named_children())))


def pi_mnist_mlp(unit: Unit = bnsm, *, bias: bool = True, in_features: int = 784, classes: int = 10) -> nn.Sequential:
    """The network for permutation-invariant MNIST (Table 1): 784-300-300-300-10.

    | layer   | units | parameters of the NSM |
    |---------|-------|-----------------------|
    | input   | 784   |                       |
    | fc1     | 300   | 235,200 + 300 + 300   |
    | fc2     | 300   |  90,000 + 300 + 300   |
    | fc3     | 300   |  90,000 + 300 + 300   |
    | softmax | 10    |   3,000 + 10          |

    Parameters: 420,010 (weights, biases and β). The StNN, ``pi_mnist_mlp(stnn, bias=False)``, has weights alone.
    """
    return Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            fc1=unit(nn.Linear(in_features, 300, bias)),
            fc2=unit(nn.Linear(300, 300, bias)),
            fc3=unit(nn.Linear(300, 300, bias)),
            out=nn.Linear(300, classes, bias),
        )
    )


def mnist_cnn(
    unit: Unit = bnsm, *, bias: bool = True, in_channels: int = 1, size: int = 28, classes: int = 10
) -> nn.Sequential:
    """The network for MNIST, EMNIST (``classes=26``) and N-MNIST (``in_channels=10, size=34``) (Table 2).

    | layer                        | channels | size | parameters of the NSM |
    |------------------------------|----------|------|-----------------------|
    | input                        | 1        | 28   |                       |
    | conv1, 5×5                   | 32       | 24   |     800 + 32 + 32     |
    | 2×2 max pooling (stride 2)   | 32       | 12   |                       |
    | conv2, 5×5                   | 64       | 8    |  51,200 + 64 + 64     |
    | 2×2 max pooling (stride 2)   | 64       | 4    |                       |
    | fc1, 1024×512                | 512      | 1    | 524,288 + 512 + 512   |
    | softmax                      | 10       | 1    |   5,120 + 10          |

    Parameters: 582,634 (weights, biases and β).
    """
    side = ((size - 4) // 2 - 4) // 2
    return Sequential(
        OrderedDict(
            conv1=unit(nn.Conv2d(in_channels, 32, 5, bias=bias)),
            pool1=nn.MaxPool2d(2),
            conv2=unit(nn.Conv2d(32, 64, 5, bias=bias)),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=unit(nn.Linear(64 * side * side, 512, bias)),
            out=nn.Linear(512, classes, bias),
        )
    )


def cifar_cnn(unit: Unit = bnsm, *, bias: bool = True, classes: int = 10, batch_norm: bool = True) -> nn.Sequential:
    """The network for CIFAR-10 and CIFAR-100 (Table 3), which reads RGB.

    The first convolution and a sign, passed by erf's gradient, turn RGB into ±1. The two batch norms, before that
    sign and before the classifier, are the one place where training and inference differ; ``batch_norm=False``
    is the network without them.

    | layer                        | channels | size |
    |------------------------------|----------|------|
    | input (RGB)                  | 3        | 32   |
    | 3×3 conv, sign               | 96       | 32   |
    | 3 × 3×3 conv                 | 96       | 32   |
    | 2×2 max pooling (stride 2)   | 96       | 16   |
    | 3 × 3×3 conv                 | 192      | 16   |
    | 2×2 max pooling (stride 2)   | 192      | 8    |
    | 3×3 conv                     | 192      | 8    |
    | 2 × 1×1 conv                 | 192      | 8    |
    | global average pool          | 192      | 1    |
    | softmax                      | 10       | 1    |

    Parameters: 1,491,850 (weights, biases, β and the batch norms').
    """
    norms = (nn.BatchNorm2d(96), nn.BatchNorm1d(192)) if batch_norm else (nn.Identity(), nn.Identity())
    return Sequential(
        OrderedDict(
            conv0=nn.Conv2d(3, 96, 3, padding=1, bias=bias),
            norm0=norms[0],
            sign0=Sign(Deterministic()),
            **_all_convolutional(unit, bias, 96, [[96] * 3, [192] * 3]),
            norm=norms[1],
            out=nn.Linear(192, classes, bias),
        )
    )


def dvs_cnn(unit: Unit = bnsm, *, bias: bool = True, in_channels: int = 6, classes: int = 11) -> nn.Sequential:
    """The all-convolutional network for DVS Gestures (Table 4): six frames of ON events.

    | layer                        | channels | size |
    |------------------------------|----------|------|
    | input (ON events)            | 6        | 64   |
    | 3 × 3×3 conv                 | 96       | 64   |
    | 2×2 max pooling (stride 2)   | 96       | 32   |
    | 3 × 3×3 conv                 | 192      | 32   |
    | 2×2 max pooling (stride 2)   | 192      | 16   |
    | 3 × 3×3 conv                 | 256      | 16   |
    | 2×2 max pooling (stride 2)   | 256      | 8    |
    | 3×3 conv                     | 256      | 8    |
    | 2 × 1×1 conv                 | 256      | 8    |
    | global average pool          | 256      | 1    |
    | softmax                      | 11       | 1    |

    Parameters: 3,351,051 (weights, biases and β).
    """
    return Sequential(
        OrderedDict(
            **_all_convolutional(unit, bias, in_channels, [[96] * 3, [192] * 3, [256] * 3]),
            out=nn.Linear(256, classes, bias),
        )
    )


def _all_convolutional(unit: Unit, bias: bool, channels: int, groups: list[list[int]]) -> dict[str, nn.Module]:
    """Groups of padded 3×3 convolutions with a pool after each; then one 3×3, two 1×1 and a global average."""

    def stack() -> Iterator[tuple[str, nn.Module]]:
        below, count = channels, 0

        def layer(width: int, side: int) -> nn.Module:
            return unit(nn.Conv2d(below, width, side, padding=side // 2, bias=bias))

        for k, group in enumerate(groups, 1):
            for width in group:
                count += 1
                yield f"conv{count}", layer(width, 3)
                below = width
            yield f"pool{k}", nn.MaxPool2d(2)
        for k, side in enumerate((3, 1, 1), 1):
            yield f"conv{count + k}", layer(below, side)
        yield "average", nn.AdaptiveAvgPool2d(1)
        yield "flatten", nn.Flatten()

    return dict(stack())
