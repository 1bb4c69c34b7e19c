"""A network as stages, each one draw: a layer of units, the flattening before it and the pool after it.

With synaptic noise and ``draw="moments"`` the units of a layer are independent given the states below, so that the
largest state of a pool's window is itself one unit, whose 2P − 1 follows from those of the window
(`functional.pooled`): P is pooled first, and one state is drawn in place of four. The law is that of the modules; the
noise is another draw of it. Inside a stage the units are the last axis, (rows, height, width, units), as the products
of channels-last convolutions come and as their noise is numbered.

Noise at neurons is shared by the units of a layer: a `Crossed` stage draws it, takes a product of it and one of the
states, and pools the states that come out.

`Stage` and `Crossed` are the definition; `nsm.chain` is the same for stages that follow each other on the CPU, with
states as bits.
"""

import math
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nsm import firing, functional, philox
from nsm.estimators import Probability, StraightThrough, sgn
from nsm.kernels import operations
from nsm.layers import NSMConv2d, NSMLayer, NSMLinear, only_runs
from nsm.noise import Bernoulli, Gaussian, Noise
from nsm.sequential import window
from nsm.wiring import Convolution, Dense

_ROWS = {"cpu": 200, "cuda": 100_000}  # inputs × samples in one pass: what a cache holds, what keeps a GPU busy
_NUMBERS = 2**29  # in the widest picture of a pass: as much as keeps a GPU busy, and one or two GiB
_WIDER = 32  # how much wider than its input a picture in a module may be that is not ours
DIGITS = {torch.bfloat16: 1, torch.float32: 2}


class Opening(Protocol):
    """The first draw of a network, whose inputs are the same in all samples."""

    def share(self, z: Tensor) -> Any:
        """What all samples have in common."""
        ...

    def rows(self, shared: Any) -> int:
        """How many rows, inputs × samples, are best drawn in one pass."""
        ...

    def take(self, shared: Any, some: Tensor) -> Any:
        """The part of it that belongs to some inputs."""
        ...

    def draw(self, shared: Any, samples: int) -> Tensor:
        """States in ``samples`` samples, (samples · inputs, ...)."""
        ...


def fitting(picture: Tensor, wider: int = _WIDER) -> int:
    """How many rows like that of ``picture`` fit into one pass, if they become ``wider`` times as wide."""
    return max(1, _NUMBERS // (wider * picture[0].numel()))


def fitting_draws(layer: NSMLayer, z: Tensor) -> int:
    """How many rows fit into one pass by the noise of a layer: exact draws at synapses have a ξ for every connection.

    And at every place, which are counted in z: it comes before the layer, and pictures shrink on their way.
    """
    draw = functional.resolve_draw(layer.site, layer.draw, fan_in=math.prod(layer.weight.shape[1:]))
    places = z.shape[1:-1] if isinstance(layer.wiring, Dense) else z.shape[2:]
    connections = layer.weight.numel() * math.prod(places) if layer.site == "synapse" and draw == "exact" else 1
    return max(1, _NUMBERS // connections)


def _rows(*pictures: Tensor, wider: int = 1) -> int:
    """How many rows are best drawn in one pass."""
    most = _ROWS.get(pictures[0].device.type, _ROWS["cuda"])
    return min(most, *(fitting(each, wider) for each in pictures))


class Plain:
    """Any module that draws. Of a layer as it is ours all samples share the moments, of another module its input."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.layer = module if isinstance(module, NSMLayer) and only_runs(module, NSMLayer.forward) else None

    def share(self, z: Tensor) -> tuple[Tensor, ...]:
        """The input, and the moments of a layer."""
        return (z,) if self.layer is None else (z, *self.layer.moments(z))

    def rows(self, shared: tuple[Tensor, ...]) -> int:
        """How many rows are best drawn in one pass."""
        return _rows(*shared[:2], wider=_WIDER if len(shared) == 1 else 1)

    def take(self, shared: tuple[Tensor, ...], some: Tensor) -> tuple[Tensor, ...]:
        """The part of it that belongs to some inputs."""
        if len(shared) == 1:
            return (shared[0][some],)
        z, mean, variance = shared  # a variance without a batch axis belongs to all
        own = variance.dim() == mean.dim() and len(variance) == len(z)
        return z[some], mean[some], variance[some] if own else variance

    def draw(self, shared: tuple[Tensor, ...], samples: int) -> Tensor:
        """States in ``samples`` samples, (samples · inputs, ...)."""
        layer, z = self.layer, shared[0]
        several = z.expand(samples, *z.shape)
        if layer is None:
            return self.module(several.flatten(0, 1))
        mean, variance = shared[1:]
        shape = torch.Size((samples, *mean.shape))
        draw = functional.resolve_draw(layer.site, layer.draw, fan_in=math.prod(layer.weight.shape[1:]))

        def u() -> Tensor:
            return mean + functional.fluctuation(
                several,
                layer.weight,
                variance,
                shape,
                noise=layer.noise,
                site=layer.site,
                draw=draw,
                wiring=layer.wiring,
            )

        states = layer.estimator(functional.erf_argument(mean, variance).expand(shape), u)
        return states.flatten(0, 1).to(functional.product_dtype(z))


class Layered:
    """One layer of units with its pool, ready to draw; ``flatten`` says that pictures come in."""

    def __init__(self, layer: NSMLayer, pool: tuple[int, int] = (1, 1), *, flatten: bool = False) -> None:
        self.layer, self.pool, self.flatten = layer, pool, flatten
        self._made_for: Any = None

    def product(self, z: Tensor) -> Tensor:
        """w·z with the units last; t itself for a layer of real inputs."""
        layer, real = self.layer, self.layer.inputs == "real"
        if not real:
            self._make(z)
        if isinstance(layer.wiring, Convolution):
            x = layer.erf_argument(z) if real else firing.product(z, self.weight, layer.wiring)
            if any(side < window for side, window in zip(x.shape[-2:], self.pool, strict=True)):
                raise ValueError(f"Expected pictures of at least {self.pool} for their pool, but got {x.shape[-2:]}")
            return x.movedim(-3, -1)
        if real:
            return layer.erf_argument(z.flatten(1) if self.flatten else z)
        if self.flatten:
            z = (z.movedim(1, -1) if z.dim() == 4 else z).flatten(1)
        return F.linear(z, self.weight)

    def line(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Slope and offset of t in the product, with the units last."""
        if self.layer.inputs == "real":
            return torch.ones((), device=z.device), torch.zeros((), device=z.device)
        self._make(z)
        return self.slope, self.offset

    def _make(self, z: Tensor) -> None:
        """Find what depends on the parameters and on the shape and type of z alone, once."""
        key = z.shape[1:], functional.product_dtype(z)
        if self._made_for == key:
            return
        layer = self.layer
        layer._check_input(z.flatten(1) if self.flatten else z)
        k, c = functional.line(z, layer.weight, layer.bias, layer.beta, noise=layer.noise, wiring=layer.wiring)
        weight = layer.weight.detach().to(key[1])
        if isinstance(layer.wiring, Convolution):
            weight = weight.contiguous(memory_format=torch.channels_last)
        elif self.flatten and z.dim() == 4:  # the states come with the channels last
            weight = weight.unflatten(1, z.shape[1:]).movedim(1, -1).flatten(1)
        self.slope, self.offset, self.weight = k.contiguous(), c.contiguous(), weight
        self._made_for = key

    def _shaped(self, states: Tensor) -> Tensor:
        """The axes as modules have them."""
        if isinstance(self.layer.wiring, Dense):
            return states.flatten(1) if states.dim() == 4 and states.shape[1:3] == (1, 1) else states
        return states.movedim(-1, -3)


class Stage(Layered):
    """A layer whose units draw by themselves."""

    def __call__(self, z: Tensor) -> Tensor:
        """States −1 or +1, in the shape of the last module of the stage."""
        dtype, source = functional.product_dtype(z), philox.source
        if source is not None and source.fits(z.shape[:1]) and (kernel := self._kernel(z)):
            states = kernel.fire(*self._picture(z), self.pool, kernel.Rows(*source.counters, source.next()), dtype)
        else:
            states = sgn(functional.toss(self.chance(z))).to(dtype)
        return self._shaped(states)

    def share(self, z: Tensor) -> tuple[Tensor, torch.dtype, Any]:
        """What all samples have in common, if this is the first stage: 2P − 1."""
        kernel = self._kernel(z)
        e = kernel.chances(*self._picture(z), self.pool) if kernel else self.chance(z)
        if kernel and bool(e.isnan().any()):  # which a threshold cannot tell
            kernel = None
        return e, functional.product_dtype(z), kernel

    def rows(self, shared: tuple[Tensor, torch.dtype, Any]) -> int:
        """How many rows are best drawn in one pass."""
        return _rows(shared[0])

    def take(self, shared: tuple[Tensor, torch.dtype, Any], some: Tensor) -> tuple[Tensor, torch.dtype, Any]:
        """The part of it that belongs to some inputs."""
        e, dtype, kernel = shared
        return e[some], dtype, kernel

    def draw(self, shared: tuple[Tensor, torch.dtype, Any], samples: int) -> Tensor:
        """States in ``samples`` samples, (samples · inputs, ...)."""
        e, dtype, kernel = shared
        if kernel and (source := philox.source) is not None:
            states = kernel.draw(e, samples, kernel.Rows(*source.counters, source.next()), dtype)
        else:
            states = sgn(functional.toss(e.expand(samples, *e.shape))).to(dtype)
        return self._shaped(states.flatten(0, 1))

    def chance(self, z: Tensor) -> Tensor:
        """2P − 1 of every unit behind the pool, (rows, height, width, units); (rows, ..., units) of a dense layer."""
        k, c = self.line(z)
        e = functional.erf(self.product(z).to(k.dtype) * k + c)
        return e if self.pool == (1, 1) else functional.pooled(e.movedim(-1, 1), self.pool).movedim(1, -1).contiguous()

    def _kernel(self, z: Tensor) -> Any:
        """`nsm.kernels.toss` where it can do this stage, else None."""
        dense = isinstance(self.layer.wiring, Dense)
        fit = z.dim() == 2 or (z.dim() == 4 and (self.flatten or not dense))
        if not (z.is_cuda and fit and self.layer.inputs == "binary" and functional.product_dtype(z) in DIGITS):
            return None
        return _toss_kernels()

    def _picture(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The product as (rows, height, width, units), slope and offset."""
        x = self.product(z)
        x = x[:, None, None] if isinstance(self.layer.wiring, Dense) else x
        return x.contiguous(), self.slope, self.offset


class Crossed(Layered):
    """A layer with noise at neurons, u = √2 s β (w·z) + b + w·((ξ − m) z), and its pool."""

    def __call__(self, z: Tensor) -> Tensor:
        """States −1 or +1, in the shape of the last module of the stage."""
        return self.draw(self.share(z), 1)

    def share(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """What all samples have in common: z and w·z."""
        return z, self.product(z).contiguous()

    def rows(self, shared: tuple[Tensor, Tensor]) -> int:
        """How many rows are best drawn in one pass."""
        return _rows(*shared)

    def take(self, shared: tuple[Tensor, Tensor], some: Tensor) -> tuple[Tensor, Tensor]:
        """The part of it that belongs to some inputs."""
        z, x = shared
        return z[some], x[some]

    def draw(self, shared: tuple[Tensor, Tensor], samples: int) -> Tensor:
        """States in ``samples`` samples, (samples · inputs, ...)."""
        z, x = shared
        y = self.product(self._noisy(z, samples)).contiguous()
        if kernel := self._kernel(y):
            return self._shaped(self._crossed(x, y, kernel))
        states = [self._states(x, each) for each in y.unflatten(0, (samples, len(z)))]
        return self._shaped(states[0] if samples == 1 else torch.cat(states))

    def _kernel(self, y: Tensor) -> Any:
        """`nsm.kernels.toss` where it can do this stage, else None."""
        return _toss_kernels() if y.is_cuda and y.dtype != torch.float64 and y.numel() else None

    def _crossed(self, x: Tensor, y: Tensor, kernel: Any) -> Tensor:
        """sgn(α x + b + y) behind the pool, of all samples of the inputs of x, by a kernel."""
        line = (v.float().flatten() for v in self.mean)
        picture = 3 if isinstance(self.layer.wiring, Convolution) else 1  # axes
        shape = (1,) * (3 - picture)
        found = kernel.cross(*(v.view(-1, *shape, *v.shape[-picture:]) for v in (x, y)), *line, self.pool)
        return found.view(*y.shape[:-picture], *found.shape[-picture:])

    def _noisy(self, z: Tensor, samples: int) -> Tensor:
        """(ξ − m) z in ``samples`` samples, (samples · inputs, ...); noise is numbered with the channels last."""
        noise, dtype = self.layer.noise, functional.product_dtype(z)
        pictures = z.dim() == 4 and (self.flatten or isinstance(self.layer.wiring, Convolution))
        z = z.movedim(1, -1) if pictures else z
        noisy = _noisy_rows(z.flatten(1), samples, noise, dtype)
        if noisy is None:
            exact = dtype if isinstance(noise, Bernoulli) else torch.promote_types(dtype, torch.float32)
            xi = noise.sample((samples * len(z), *z.shape[1:]), device=z.device, dtype=exact)
            noisy = ((xi - noise.mean).unflatten(0, (samples, len(z))) * z).to(dtype)
        noisy = noisy.view(samples * len(z), *z.shape[1:])
        return noisy.movedim(-1, 1) if pictures else noisy

    def _states(self, x: Tensor, y: Tensor) -> Tensor:
        """sgn(α x + b + y) behind the pool, from x and y (rows, height, width, units) or (rows, ..., units)."""
        if not (firing.kernels_take(x) and self._whole(x)):
            alpha, b = self.mean
            u = alpha * x.to(alpha.dtype) + b + y
            return sgn(u if self.pool == (1, 1) else self._pooled(u)).to(x.dtype)
        alpha, b = (v.float().flatten() for v in self.mean)
        if self.pool == (1, 1):
            flat = x.reshape(-1, len(alpha)), y.reshape(-1, len(alpha))
            return operations.threshold(*flat, alpha, b, alpha, b).view(x.shape)
        rows, height, width, units = x.shape
        states, _ = operations.threshold_pool(x.flatten(0, 2), y.flatten(0, 2), alpha, b, alpha, b, height, width)
        return states.view(rows, height // 2, width // 2, units)

    def _whole(self, x: Tensor) -> bool:
        """Whether a kernel knows the pool: none, or windows of 2×2 that leave nothing over."""
        return self.pool == (1, 1) or (self.pool == (2, 2) and x.shape[1] % 2 == x.shape[2] % 2 == 0)

    def _pooled(self, u: Tensor) -> Tensor:
        return F.max_pool2d(u.movedim(-1, 1), self.pool).movedim(1, -1).contiguous()

    @cached_property
    def mean(self) -> tuple[Tensor, Tensor]:
        """Slope and offset of E[u] in w·z, with the units last, in at least 32 bits."""
        layer, wide = self.layer, torch.promote_types(self.layer.weight.dtype, torch.float32)
        bias = layer.beta.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias
        of = (math.sqrt(2 * layer.noise.variance) * layer.beta, bias)
        alpha, b = (layer.wiring.units_last(layer.wiring.per_unit(v.detach().to(wide))) for v in of)
        return alpha.contiguous(), b.expand_as(alpha).contiguous()


def _noisy_rows(z: Tensor, samples: int, noise: Noise, dtype: torch.dtype) -> Tensor | None:
    """(ξ − m) z in every sample, (samples · rows, ...); None where no kernel draws noise for these rows."""
    source = philox.source
    if source is None or not source.fits((samples * len(z),)) or not source.kernel or z.dtype == torch.float64:
        return None
    if type(noise) is Bernoulli:
        return source.kernel.blank(*source.counters, source.next(), z.contiguous(), noise.p, noise.bound, dtype)
    if type(noise) is Gaussian:
        return source.kernel.jitter(*source.counters, source.next(), z.contiguous(), noise.sigma, dtype)
    return None


@cache
def _toss_kernels() -> Any:
    """The Triton kernels, if there is a Triton."""
    try:
        from nsm.kernels import toss
    except ImportError:
        return None
    return toss


def fuse(steps: Iterable[nn.Module]) -> Iterator[nn.Module | Stage | Crossed]:
    """The same steps with a stage in place of every layer that can be one, and of its neighbors."""
    waiting = list(steps)
    while waiting:
        step = waiting.pop(0)
        flatten = isinstance(step, nn.Flatten) and only_runs(step, nn.Flatten.forward)
        flatten = flatten and (step.start_dim, step.end_dim) == (1, -1)
        layer = waiting[0] if flatten and waiting else step
        if not isinstance(layer, NSMLinear if flatten else NSMLayer) or (kind := _kind(layer)) is None:
            yield step
            continue
        if flatten:
            waiting.pop(0)
        pool = window(waiting[0]) if waiting and isinstance(layer, NSMConv2d) else None
        if pool:
            waiting.pop(0)
        yield kind(layer, pool or (1, 1), flatten=flatten)


def _kind(layer: NSMLayer) -> type[Stage | Crossed] | None:
    """The stage of a layer that draws hard states and that nothing watches; None for another."""
    hard = type(layer.estimator) in (Probability, StraightThrough) and not layer.deterministic
    if not isinstance(layer, NSMLinear | NSMConv2d) or not hard or not only_runs(layer, NSMLayer.forward):
        return None
    if layer.site == "neuron":
        return Crossed if layer.inputs == "binary" else None
    draw = functional.resolve_draw(layer.site, layer.draw, fan_in=math.prod(layer.weight.shape[1:]))
    return Stage if draw == "moments" else None
