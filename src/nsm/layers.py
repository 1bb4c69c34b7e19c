"""Modules that hold the parameters of `nsm.functional` and check what comes in.

`NSMLinear` and `NSMConv2d` take the arguments of their ``nn`` namesakes in the same order and stand for the
layer *and* the activation after it. They are the same in ``train()`` and ``eval()``: the noise is always on.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypedDict, Unpack, get_args

import torch
from torch import Tensor, nn

from nsm import firing, functional
from nsm.estimators import Deterministic, Estimator, get_estimator
from nsm.functional import Draw, Inputs, Site
from nsm.noise import Bernoulli, Noise, check_noise
from nsm.wiring import Convolution, Dense, Wiring


class Stochastic(nn.Module):
    """A module that draws noise in every forward pass, unless inside `deterministic`."""

    deterministic: bool = False


def only_runs(module: nn.Module, *forwards: Callable[..., Any]) -> bool:
    """Whether a call of a module is one of these functions: no hook watches it, no forward of its own is in its place.

    >>> only_runs(NSMLinear(3, 2), NSMLayer.forward), only_runs(nn.Sequential(), NSMLayer.forward)
    (True, False)
    """
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    return not any(hooks) and type(module).forward in forwards and "forward" not in vars(module)


class NSMLayer(Stochastic):
    """What the two layers share: the law's parameters and one call down to it."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    beta: nn.Parameter
    site: Site
    draw: Draw
    inputs: Inputs
    vmapped: bool = False  # whether vmap, and no other transform of torch.func, is all that it may be called under

    def __init__(
        self,
        weight_shape: tuple[int, ...],
        beta_shape: tuple[int, ...],
        bias: bool,
        wiring: Wiring,
        *,
        noise: Noise,
        site: Site,
        draw: Draw,
        inputs: Inputs,
        estimator: str | Estimator,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        _check_choice("site", site, get_args(Site))
        _check_choice("draw", draw, get_args(Draw))
        _check_choice("inputs", inputs, get_args(Inputs))
        functional.resolve_draw(site, draw, fan_in=math.prod(weight_shape[1:]))
        self.noise, self.site, self.draw, self.inputs = check_noise(noise), site, draw, inputs
        self.estimator = get_estimator(estimator)
        self.wiring = wiring
        self.weight = nn.Parameter(torch.empty(weight_shape, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(weight_shape[0], device=device, dtype=dtype)) if bias else None
        self.beta = nn.Parameter(torch.empty(beta_shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights uniform in ±1/√fan-in as in ``nn.Linear`` and ``nn.Conv2d``; β = 1, b = 0."""
        bound = 1 / math.sqrt(math.prod(self.weight.shape[1:]))
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.ones_(self.beta)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @property
    def a(self) -> Tensor:
        """The deterministic part of every synapse, a = √2 s β − m."""
        return functional.a_from_beta(self.beta, self.noise)

    def moments(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """E[u] and Var[u] given the states z."""
        self._check_input(z)
        return functional.moments(
            z, self.weight, self.bias, self.beta, noise=self.noise, inputs=self.inputs, wiring=self.wiring
        )

    def erf_argument(self, z: Tensor) -> Tensor:
        """t, of which the firing probability is ½(1 + erf t)."""
        return functional.erf_argument(*self.moments(z))

    def firing_probability(self, z: Tensor) -> Tensor:
        """P(+1 | z) = ½(1 + erf t), in at least 32 bits.

        Sampled rates equal it for Gaussian ξ and for ``draw="moments"``; for other exact draws it is the central
        limit of the true probability.
        """
        return functional.firing_probability(self.erf_argument(z))

    def forward(self, z: Tensor, *, xi: Tensor | None = None, generator: torch.Generator | None = None) -> Tensor:
        """States −1 or +1, freshly drawn for every element of the batch.

        Args:
            z: the states below.
            xi: noise to use instead of a draw, in the shape that `functional.fluctuation` describes.
            generator: where the draws come from; torch's default generator if None.
        """
        self._check_input(z)
        estimator = Deterministic() if self.deterministic else self.estimator
        if xi is None and self._can_fire(z, estimator):
            return self._fire(z, generator=generator)
        return functional.sample(
            z,
            self.weight,
            self.bias,
            self.beta,
            noise=self.noise,
            site=self.site,
            draw=self.draw,
            inputs=self.inputs,
            estimator=estimator,
            wiring=self.wiring,
            xi=xi,
            generator=generator,
        )

    def fires(self, z: Tensor) -> bool:
        """Whether `fire` is what a call of this module would do."""
        return not self.deterministic and only_runs(self, NSMLayer.forward) and self._can_fire(z, self.estimator)

    def fire(self, z: Tensor, key: Tensor, pooled: bool = False) -> Tensor:
        """`forward`, or its largest states in windows of 2×2, with the noise of ``key``: 64 random bits."""
        self._check_input(z)
        return self._fire(z, key=key, pooled=pooled)

    def _can_fire(self, z: Tensor, estimator: Estimator) -> bool:
        law = {"noise": self.noise, "site": self.site, "draw": self.draw, "inputs": self.inputs}
        return firing.can(z, self.weight, wiring=self.wiring, estimator=estimator, vmapped=self.vmapped, **law)

    def _fire(self, z: Tensor, **how: Any) -> Tensor:
        law = {"noise": self.noise, "site": self.site, "draw": self.draw, "wiring": self.wiring}
        return firing.sample(z, self.weight, self.bias, self.beta, vmapped=self.vmapped, **law, **how)

    def extra_repr(self) -> str:
        """The arguments that made this layer."""
        parts = [
            self._geometry_repr(),
            f"bias={self.bias is not None}",
            f"noise={self.noise!r}",
            f"site={self.site!r}",
        ]
        if self.site == "synapse":
            parts.append(f"draw={self.draw!r}")
        if self.inputs != "binary":
            parts.append(f"inputs={self.inputs!r}")
        parts.append(f"estimator={self.estimator!r}")
        return ", ".join(parts)

    @abstractmethod
    def _geometry_repr(self) -> str: ...

    @abstractmethod
    def _check_input(self, z: Tensor) -> None: ...

    def _check_dtype(self, z: Tensor) -> None:
        if not isinstance(z, Tensor):
            raise TypeError(f"Expected input `z` to be a tensor, but got {type(z).__name__}")
        if not z.is_floating_point():
            raise TypeError(f"Expected input `z` to be floating-point states (see nsm.binarize), but got {z.dtype}")
        if z.dtype != self.weight.dtype and not torch.is_autocast_enabled(z.device.type):
            raise TypeError(f"Expected input `z` to have the weights' dtype {self.weight.dtype}, but got {z.dtype}")


class NSMLinear(NSMLayer):
    """A dense layer of stochastic threshold units: ``nn.Linear`` and its activation in one.

    Args:
        in_features: size of the last axis of the input.
        out_features: number of units.
        bias: whether units have a bias.
        noise: the distribution of ξ.
        site: "neuron" (one ξ per input, shared by all units) or "synapse" (one per connection).
        draw: for synapses, "exact", "moments", or "auto": moments from a fan-in of 64 upwards.
        inputs: "binary" (±1 by contract) or "real".
        estimator: "probability", "straight_through", "concrete", or an `Estimator`.
        device: where the parameters live.
        dtype: their type.

    >>> layer = NSMLinear(784, 300, noise=Bernoulli(0.5))
    >>> z = layer(torch.ones(2, 784))
    >>> z.shape, z.abs().unique().tolist()
    (torch.Size([2, 300]), [1.0])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        noise: Noise = Bernoulli(0.5),
        site: Site = "neuron",
        draw: Draw = "auto",
        inputs: Inputs = "binary",
        estimator: str | Estimator = "probability",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            (_positive("out_features", out_features), _positive("in_features", in_features)),
            (out_features,),
            bias,
            Dense(),
            noise=noise,
            site=site,
            draw=draw,
            inputs=inputs,
            estimator=estimator,
            device=device,
            dtype=dtype,
        )
        self.in_features, self.out_features = in_features, out_features

    def _geometry_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}"

    def _check_input(self, z: Tensor) -> None:
        self._check_dtype(z)
        if z.dim() == 0 or z.shape[-1] != self.in_features:
            raise ValueError(f"Expected input `z` to have shape (..., {self.in_features}), but got {tuple(z.shape)}")


class NSMConv2d(NSMLayer):
    """A convolution of stochastic threshold units: ``nn.Conv2d`` and its activation in one.

    Padding is with zeros, and the border keeps the true, smaller variance it then has.

    Args:
        in_channels: channels of the input.
        out_channels: channels of units.
        kernel_size: an int or (height, width); likewise ``stride``, ``padding`` and ``dilation``.
        stride: step of the kernel.
        padding: zeros at each side, or "same" or "valid".
        dilation: distance of the kernel's taps.
        groups: number of blocks of channels that do not see each other.
        bias: whether channels have a bias.
        padding_mode: "zeros"; a state cannot be reflected without sharing its noise, so no other mode.
        noise: the distribution of ξ.
        site: "neuron" (one ξ per input state) or "synapse" (one per connection and position).
        draw: for synapses, "exact", "moments", or "auto": moments from a fan-in of 64 upwards.
        inputs: "binary" (±1 by contract) or "real".
        estimator: "probability", "straight_through", "concrete", or an `Estimator`.
        beta_shape: (height, width) of the output to learn a β for every position, as in the paper; one per
            channel if None.
        device: where the parameters live.
        dtype: their type.

    >>> layer = NSMConv2d(1, 32, 5, noise=Bernoulli(0.25))
    >>> layer(torch.ones(2, 1, 28, 28)).shape
    torch.Size([2, 32, 24, 24])
    """

    wiring: Convolution

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | Literal["same", "valid"] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        noise: Noise = Bernoulli(0.5),
        site: Site = "neuron",
        draw: Draw = "auto",
        inputs: Inputs = "binary",
        estimator: str | Estimator = "probability",
        beta_shape: tuple[int, int] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        _positive("in_channels", in_channels)
        _positive("out_channels", out_channels)
        kernel_size = _pair("kernel_size", kernel_size, least=1)
        _check_choice("padding_mode", padding_mode, ("zeros",))
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(
                f"Expected argument `groups` to divide in_channels={in_channels} and out_channels={out_channels}, "
                f"but got {groups}"
            )
        if isinstance(padding, str):
            _check_choice("padding", padding, ("same", "valid"))
        wiring = Convolution(
            stride=_pair("stride", stride, least=1),
            padding=padding if isinstance(padding, str) else _pair("padding", padding, least=0),
            dilation=_pair("dilation", dilation, least=1),
            groups=groups,
        )
        positions = () if beta_shape is None else _pair("beta_shape", beta_shape, least=1)
        super().__init__(
            (out_channels, in_channels // groups, *kernel_size),
            (out_channels, *positions),
            bias,
            wiring,
            noise=noise,
            site=site,
            draw=draw,
            inputs=inputs,
            estimator=estimator,
            device=device,
            dtype=dtype,
        )
        self.in_channels, self.out_channels, self.kernel_size = in_channels, out_channels, kernel_size

    def can_pool(self, z: Tensor) -> bool:
        """Whether windows of 2×2 fill the output."""
        size = self.wiring.output_size(z.shape[-2:], self.kernel_size)
        return z.dim() == 4 and size[0] % 2 == size[1] % 2 == 0

    def _geometry_repr(self) -> str:
        parts = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"]
        plain = Convolution()
        for name in ("stride", "padding", "dilation", "groups"):
            if (value := getattr(self.wiring, name)) != getattr(plain, name):
                parts.append(f"{name}={value}")
        if self.beta.dim() == 3:
            parts.append(f"beta_shape={tuple(self.beta.shape[1:])}")
        return ", ".join(parts)

    def _check_input(self, z: Tensor) -> None:
        self._check_dtype(z)
        if z.dim() < 3 or z.shape[-3] != self.in_channels:
            raise ValueError(
                f"Expected input `z` to have shape (..., {self.in_channels}, height, width), but got {tuple(z.shape)}"
            )
        size = self.wiring.output_size(z.shape[-2:], self.kernel_size)
        if min(size) < 1:
            raise ValueError(
                f"Expected input `z` to be at least as large as the kernel {self.kernel_size} with "
                f"padding={self.wiring.padding}, dilation={self.wiring.dilation}, but got {tuple(z.shape)}"
            )
        if self.beta.dim() == 3 and self.beta.shape[1:] != size:
            raise ValueError(
                f"Expected input `z` to give an output of beta_shape={tuple(self.beta.shape[1:])}, "
                f"but got {tuple(size)} from {tuple(z.shape)}"
            )


class Law(TypedDict, total=False):
    """The arguments that the two layers share, as keywords; what is left out has the layers' default."""

    noise: Noise
    site: Site
    draw: Draw
    inputs: Inputs
    estimator: str | Estimator


def counterpart(layer: nn.Linear | nn.Conv2d, **law: Unpack[Law]) -> NSMLinear | NSMConv2d:
    """The NSM layer of the same shape and weights, with β = 1 and b = 0.

    >>> counterpart(nn.Linear(3, 2), noise=Bernoulli(0.25))
    NSMLinear(3, 2, bias=True, noise=Bernoulli(p=0.25), site='neuron', estimator=Probability())
    """
    bias, like = layer.bias is not None, {"device": layer.weight.device, "dtype": layer.weight.dtype}
    if isinstance(layer, nn.Linear):
        new = NSMLinear(layer.in_features, layer.out_features, bias, **like, **law)
    else:
        conv: Any = layer  # nn.Conv2d types its pairs as tuples of any length
        shape = (conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups)
        new = NSMConv2d(conv.in_channels, conv.out_channels, *shape, bias, conv.padding_mode, **like, **law)
    with torch.no_grad():
        new.weight.copy_(layer.weight)
    return new.train(layer.training)


@contextmanager
def deterministic(model: nn.Module) -> Iterator[nn.Module]:
    """Within this context every unit of ``model`` gives sgn(E[u]): the network without its noise.

    >>> layer = NSMLinear(8, 4)
    >>> with deterministic(layer):
    ...     bool((layer(torch.ones(8)) == layer(torch.ones(8))).all())
    True
    """
    modules = [module for module in model.modules() if isinstance(module, Stochastic)]
    before = [module.deterministic for module in modules]
    try:
        for module in modules:
            module.deterministic = True
        yield model
    finally:
        for module, value in zip(modules, before, strict=True):
            module.deterministic = value


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"Expected argument `{name}` to be one of {list(choices)}, but got {value!r}")


def _positive(name: str, value: int) -> int:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"Expected argument `{name}` to be a positive int, but got {value!r}")
    return value


def _pair(name: str, value: int | tuple[int, ...], *, least: int) -> tuple[int, int]:
    pair = (value, value) if isinstance(value, int) else tuple(value)
    if len(pair) != 2 or not all(isinstance(x, int) and x >= least for x in pair):
        raise ValueError(f"Expected argument `{name}` to be one or two ints of at least {least}, but got {value!r}")
    return pair
