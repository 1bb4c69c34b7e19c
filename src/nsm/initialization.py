"""Where a network starts: β and b from a batch of data, or the weights of a trained deterministic network."""

import copy
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor, fx, nn

from nsm import functional
from nsm.functional import Inputs
from nsm.layers import Law, NSMConv2d, NSMLayer, NSMLinear, counterpart
from nsm.signs import Binarize, Sign

# ------------------------------------------------------------------------- from data


@torch.no_grad()
def initialize(model: nn.Module, batch: Tensor) -> nn.Module:
    """Set β and b of every NSM layer so that its t has mean 0 and variance 1 over ``batch``, feature by feature.

    The batch runs through the model once, noise and all; each layer is set just before it draws, from the states
    that reach it. A feature that does not vary over the batch is left as it is; without a bias only the variance
    is set. A layer used twice is set at its first use.

    Args:
        model: any module with NSM layers in it, at any depth; changed in place.
        batch: one batch of training inputs; the paper uses 100.

    Returns:
        The model.

    >>> layer = NSMLinear(20, 5)
    >>> z = torch.randn(100, 20).sign()
    >>> t = initialize(layer, z).erf_argument(z)
    >>> torch.allclose(t.mean(0), torch.zeros(5), atol=1e-4), torch.allclose(t.var(0, correction=0), torch.ones(5))
    (True, True)
    """
    return before_first_use(model, batch, set_from)


def before_first_use(model: nn.Module, batch: Tensor, begin: Callable[[NSMLayer, Tensor], None]) -> nn.Module:
    """Run a batch through a model; ``begin`` gets each NSM layer, and the states that reach it, before it draws."""
    _check_batch(batch)
    layers = [module for module in model.modules() if isinstance(module, NSMLayer)]
    if not layers:
        raise ValueError(f"Expected argument `model` to contain NSM layers, but got {type(model).__name__} without any")
    done: set[NSMLayer] = set()

    def begin_once(layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        if isinstance(layer, NSMLayer) and layer not in done:
            begin(layer, arguments[0])
            done.add(layer)

    hooks = [layer.register_forward_pre_hook(begin_once) for layer in layers]
    try:
        model(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return model


def set_from(layer: NSMLayer, z: Tensor, mean: Tensor | float = 0.0, spread: float = 1.0) -> None:
    """Give a layer's t on states z a mean, one for each feature, and a standard deviation.

    For t = β x + b y: r = mean(x)/mean(y), β ← spread/std(x − r y) and b ← mean/mean(y) − β r. x = w·z/‖w‖ and
    y = 1/(√2 s ‖w‖), with the norm of the taps inside the image: without padding y is constant and this is, for mean 0
    and spread 1, the paper's β ← 1/σ, b ← −μ ‖w‖ √2 s/σ.
    """
    unit = torch.ones_like(layer.beta)
    sums, variance = functional.moments(
        z, layer.weight, None, unit, noise=layer.noise, inputs=layer.inputs, wiring=layer.wiring
    )
    x = functional.erf_argument(sums, variance)
    y = torch.rsqrt(2 * variance).expand(x.shape)
    feature = -3 if isinstance(layer, NSMConv2d) else -1
    x, y = (v.double().movedim(feature, 0).flatten(1) for v in (x, y))  # (features, batch · positions)
    r = torch.zeros_like(x[:, 0]) if layer.bias is None else x.mean(1) / y.mean(1)
    centred = x - r[:, None] * y
    std = centred.std(1, correction=0)
    alive = std > 1e-6 * (1 + x.abs().mean(1))  # also False for NaN: a feature without variance
    beta = spread / std
    own = beta.to(layer.beta.dtype)[alive]
    layer.beta[alive] = own.reshape(-1, *[1] * (layer.beta.dim() - 1)).expand_as(layer.beta[alive])
    if layer.bias is not None:
        layer.bias[alive] = (mean / y.mean(1) - beta * r).to(layer.bias.dtype)[alive]


def _check_batch(batch: Tensor) -> None:
    if not isinstance(batch, Tensor) or not batch.is_floating_point():
        kind = batch.dtype if isinstance(batch, Tensor) else type(batch).__name__
        raise TypeError(f"Expected argument `batch` to be a floating-point tensor, but got {kind}")
    if batch.numel() == 0 or not batch.isfinite().all():
        raise ValueError(f"Expected argument `batch` to be finite and not empty, but got {_describe(batch)}")


def _describe(batch: Tensor) -> str:
    if batch.numel() == 0:
        return f"shape {tuple(batch.shape)}"
    return f"{int((~batch.isfinite()).sum())} values that are not finite"


# ------------------------------------------------------------------------- from a trained deterministic network

FRESH = 1 / math.sqrt(3)  # of n weights that are uniform in ±1/√n, the length
_ACTIVATIONS = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus,
    nn.Softsign, nn.Sigmoid, nn.Hardsigmoid, nn.Tanh, nn.Hardtanh, nn.Hardswish, nn.LogSigmoid, nn.Threshold,
)  # fmt: skip
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
_KEEPS_STATES = (nn.MaxPool2d, nn.AdaptiveMaxPool2d, nn.Flatten, nn.Unflatten, nn.Identity)
_KEEPS_STATES_BY_NAME = {
    "flatten", "reshape", "view", "unsqueeze", "squeeze", "contiguous", "max_pool2d", "boolean_dispatch", "float",
}  # fmt: skip
_HIDDEN_BY_NAME = {
    "relu", "relu_", "relu6", "leaky_relu", "prelu", "elu", "selu", "celu", "gelu", "silu", "mish", "softplus",
    "softsign", "sigmoid", "hardsigmoid", "tanh", "hardtanh", "hardswish", "logsigmoid", "threshold", "clamp",
    "clamp_min", "dropout", "dropout1d", "dropout2d", "alpha_dropout", "feature_dropout", "batch_norm",
}  # fmt: skip


def convert(model: nn.Module, **law: Unpack[Law]) -> nn.Module:
    """A trained network of modules as its NSM: a copy in which every layer that feeds an activation is stochastic.

    A ``Linear`` or ``Conv2d``, the ``BatchNorm`` after it and the activation become one NSM layer whose weights v
    point where the (normalised) weights w of the trained layer point, and whose t on ±1 states is the trained
    pre-activation: β = ‖w‖, b = √2 s ‖v‖ × bias. Their length is free, but sets the pace of learning; weights of a
    trained network have grown, so ‖v‖ = 1/√3, which a fresh layer's have on average. Dropout goes, since the noise
    takes its place; weight normalisation is resolved; a layer without an activation, like the classifier, stays.
    The scale of the activations changes all the same, so `initialize`, or `nsm.imitation.imitate`, and some training
    usually follow.

    Args:
        model: a trained module, traceable by ``torch.fx``, with its activations as modules.
        law: ``noise``, ``site``, ``draw``, ``estimator`` and ``inputs``, as for `NSMLinear`; ``inputs`` says what the
            model itself reads, and for deeper layers follows from the model.

    Returns:
        A new module; ``model`` is not changed.

    >>> net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Dropout(), nn.Linear(3, 2))
    >>> convert(net)
    Sequential(
      (0): NSMLinear(4, 3, bias=True, noise=Bernoulli(p=0.5), site='neuron', estimator=Probability())
      (1): Identity()
      (2): Identity()
      (3): Identity()
      (4): Linear(in_features=3, out_features=2, bias=True)
    )
    """
    model = _copy(model)
    graph = _trace(model)
    modules = dict(model.named_modules())
    _refuse_hidden_functions(graph)
    new: dict[str, nn.Module] = {}
    hidden: set[fx.Node] = set()
    for node, layer, norms, activation in _hidden_layers(graph, modules):
        hidden |= {node, activation}
        kind = _kind_of_input(node, modules, hidden, outside=law.get("inputs", "binary"))
        machine = counterpart(layer, **(law | {"inputs": kind}))
        _copy_pre_activation(machine, layer, [m for norm in norms if isinstance(m := _module(norm, modules), _NORMS)])
        new[str(node.target)] = machine
        new |= {str(absorbed.target): nn.Identity() for absorbed in (*norms, activation)}
    for node in graph.nodes:
        module, name = _module(node, modules), str(node.target)
        if isinstance(module, _DROPOUTS):
            new[name] = nn.Identity()
        elif isinstance(module, _ACTIVATIONS) and node not in hidden:
            raise _misplaced(name)
        elif isinstance(module, nn.Linear | nn.Conv2d) and name in new and node not in hidden:
            raise _misplaced(name)  # replaced because of one of its uses, but also used without an activation
    if not hidden:
        raise ValueError(
            "Expected argument `model` to have a Linear or Conv2d followed by an activation module, "
            f"but got {type(model).__name__} without any"
        )
    for name, module in new.items():
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, module)
    return model


def _copy(model: nn.Module) -> nn.Module:
    """A deep copy; weights that hooks compute from others (the older ``weight_norm``) are copied by value."""
    computed = [v for m in model.modules() for v in vars(m).values() if isinstance(v, Tensor) and not v.is_leaf]
    return copy.deepcopy(model, {id(v): v.detach().clone() for v in computed})


@torch.no_grad()
def start_from(model: nn.Module, trained: nn.Module) -> nn.Module:
    """Give ``model`` the weights of a trained deterministic network of the same architecture, in place.

    NSM layers get what `convert` makes of their trained counterparts, in the order they are used, and layers before the
    last of them what has their name. Those behind it, which read the states, stay as they are: the trained ones know
    rectified sums, of which they are far too sure.

    >>> trained = nn.Sequential(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), nn.Linear(3, 2))
    >>> model = start_from(nn.Sequential(NSMLinear(4, 3), nn.Linear(3, 2)), trained)
    >>> z = torch.tensor([1.0, -1.0, -1.0, 1.0])
    >>> torch.allclose(model[0].erf_argument(z), trained[0][0](z))
    True
    """
    source = convert(trained)
    old, new = ([m for m in network.modules() if isinstance(m, NSMLayer)] for network in (source, model))
    shapes = [[tuple(layer.weight.shape) for layer in layers] for layers in (old, new)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"Expected argument `trained` to have hidden layers {shapes[1]}, but got {shapes[0]}")
    if any(before.bias is not None and after.bias is None for before, after in zip(old, new, strict=True)):
        raise ValueError("Expected argument `model` to have biases as `trained` has, but got a layer without")
    done = {name for network in (source, model) for name, m in network.named_modules() if isinstance(m, NSMLayer)}
    first, behind = _around_the_states(source)
    values, wanted = source.state_dict(), model.state_dict()
    for name in [name for name in values if name not in wanted]:
        if any(name.startswith(f"{module}.") for module in first - done):
            raise ValueError(f"Expected argument `model` to have {name} as `trained` has, but got nothing")
    wanted = {name: value for name, value in wanted.items() if name.rpartition(".")[0] not in done | behind}
    for name, value in wanted.items():
        if name not in values or values[name].shape != value.shape:
            got = tuple(values[name].shape) if name in values else "nothing"
            raise ValueError(f"Expected argument `trained` to have {name} {tuple(value.shape)}, but got {got}")
    for before, after in zip(old, new, strict=True):
        after.weight.copy_(before.weight)
        after.beta.copy_(before.beta.reshape(-1, *[1] * (after.beta.dim() - 1)))
        if before.bias is not None and after.bias is not None:  # b goes with s, and the noises may differ
            after.bias.copy_(before.bias * (after.noise.variance / before.noise.variance) ** 0.5)
    for name, value in wanted.items():
        value.copy_(values[name])
    return model


@torch.no_grad()
def pre_activations(trained: nn.Module, batch: Tensor) -> list[Tensor]:
    """What the layers that `convert` makes stochastic give to their activations, norms and all, but before a pool.

    In the order of their modules, which is that of the NSM layers in `convert`'s copy; of a layer used twice its first.
    """
    _check_batch(batch)
    trained = _copy(trained).eval()  # whose hooks go with it
    modules = dict(trained.named_modules())
    found: dict[str, Tensor] = {}

    def keep(name: str, *passed: Any) -> None:  # the module, its inputs and its output
        if name not in found:
            found[name] = passed[-1].clone()  # an activation in place writes over it

    for node, _, norms, _ in _hidden_layers(_trace(trained), modules):
        modules[str([node, *norms][-1].target)].register_forward_hook(partial(keep, str(node.target)))
    trained(batch)
    return [found[name] for name in modules if name in found]


def _around_the_states(model: nn.Module) -> tuple[set[str], set[str]]:
    """Names of the modules that are used up to the last NSM layer, and of those behind it."""
    used = [str(node.target) for node in _trace(model).nodes if node.op == "call_module"]
    last = max(k for k, name in enumerate(used) if isinstance(model.get_submodule(name), NSMLayer))
    return set(used[: last + 1]), set(used[last + 1 :])


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, NSMLayer | Binarize | Sign) or super().is_leaf_module(m, module_qualified_name)


def _trace(model: nn.Module) -> fx.Graph:
    try:
        return _Tracer().trace(model)
    except Exception as error:  # fx raises many kinds; each means the same to the caller
        raise ValueError(f"Expected argument `model` to be traceable by torch.fx, but got: {error}") from error


def _refuse_hidden_functions(graph: fx.Graph) -> None:
    for node in graph.nodes:
        name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
        if node.op in ("call_function", "call_method") and name in _HIDDEN_BY_NAME:
            raise ValueError(
                "Expected argument `model` to have its activations, dropout and normalisation as modules, "
                f"but got the function `{name}`: it cannot be replaced"
            )


def _module(node: fx.Node, modules: dict[str, nn.Module]) -> nn.Module | None:
    return modules[str(node.target)] if node.op == "call_module" else None


def _hidden_layers(
    graph: fx.Graph, modules: dict[str, nn.Module]
) -> Iterator[tuple[fx.Node, nn.Linear | nn.Conv2d, list[fx.Node], fx.Node]]:
    """Every use of a layer that feeds an activation, with the batch norms between them, in the order of use."""
    for node in graph.nodes:
        if isinstance(layer := _module(node, modules), nn.Linear | nn.Conv2d):
            norms, activation = _find_activation(node, modules)
            if activation is not None:
                yield node, layer, norms, activation


def _find_activation(node: fx.Node, modules: dict[str, nn.Module]) -> tuple[list[fx.Node], fx.Node | None]:
    """The batch norms right after a layer, and the activation its output reaches alone (None if it does not)."""
    norms: list[fx.Node] = []
    pooled = False
    while len(node.users) == 1:
        node = next(iter(node.users))
        module = _module(node, modules)
        if isinstance(module, _ACTIVATIONS):
            return norms, node
        if isinstance(module, _NORMS) and not pooled:
            norms.append(node)
        elif isinstance(module, nn.MaxPool2d):
            pooled = True  # the maximum commutes with a rising activation, not with a norm that may flip the sign
        elif not isinstance(module, (*_DROPOUTS, nn.Identity)):
            break
    return [], None


def _kind_of_input(node: fx.Node, modules: dict[str, nn.Module], hidden: set[fx.Node], *, outside: Inputs) -> Inputs:
    """Whether ±1 states reach this layer: only pooling by maximum, reshaping and dropout leave them as they are."""
    while node.all_input_nodes:
        node = node.all_input_nodes[0]
        module = _module(node, modules)
        if node in hidden or isinstance(module, NSMLayer | Binarize | Sign):
            return "binary"
        if node.op == "placeholder":
            return outside
        name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
        if not (isinstance(module, (*_KEEPS_STATES, *_DROPOUTS)) or (module is None and name in _KEEPS_STATES_BY_NAME)):
            break
    return "real"


def _misplaced(name: str) -> ValueError:
    return ValueError(
        "Expected argument `model` to have each activation directly after one Linear or Conv2d "
        f"(BatchNorm, dropout and max-pooling may stand between), but got `{name}` elsewhere"
    )


@torch.no_grad()
def _copy_pre_activation(
    new: NSMLinear | NSMConv2d, layer: nn.Linear | nn.Conv2d, norms: list[nn.BatchNorm1d | nn.BatchNorm2d]
) -> None:
    """Give ``new`` the weights of layer and norms together, and the β and b that make t their output."""
    weight, bias = _plain_weight(layer), layer.bias
    for norm in norms:
        if norm.running_mean is None or norm.running_var is None:
            raise ValueError(f"Expected every BatchNorm to track running statistics, but got {norm}")
        scale = torch.rsqrt(norm.running_var + norm.eps)
        if norm.weight is not None:
            scale = scale * norm.weight
        weight = weight * scale.reshape(-1, *[1] * (weight.dim() - 1))
        bias = scale * ((0 if bias is None else bias) - norm.running_mean) + (0 if norm.bias is None else norm.bias)
    length = weight.flatten(1).norm(dim=1)
    scale = torch.where(length > 0, FRESH / length, 1)
    new.weight.copy_(weight * scale.reshape(-1, *[1] * (weight.dim() - 1)))
    new.beta.copy_(length)
    if bias is not None:
        if new.bias is None:  # the norm brought one
            new.bias = nn.Parameter(torch.empty_like(length))
        new.bias.copy_((2 * new.noise.variance) ** 0.5 * FRESH * bias)


def _plain_weight(layer: nn.Linear | nn.Conv2d) -> Tensor:
    """The weight as it acts; the hook-based ``weight_norm`` refreshes ``layer.weight`` only in a forward pass."""
    for hook in layer._forward_pre_hooks.values():
        compute: Callable[[nn.Module], Tensor] | None = getattr(hook, "compute_weight", None)
        if compute is not None:
            return compute(layer)
    return layer.weight
