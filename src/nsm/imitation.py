"""A start that does what a trained deterministic network does, as far as states −1 and +1 can."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nsm.initialization import FRESH, before_first_use, pre_activations, set_from, start_from
from nsm.layers import NSMLayer
from nsm.wiring import Convolution

SPREAD = 2.0  # standard deviation of t: with less the noise hides what is imitated, with more little can be learned
RAREST = 0.1  # share of the states of the rarer sign: units that never fire have something to say too
RIDGE = 0.01  # variance of a state that says nothing
CHUNK = 2**26  # numbers at a time


@torch.no_grad()
def imitate(model: nn.Module, trained: nn.Module, batch: Tensor) -> nn.Module:
    """`start_from` a trained network, then fit every NSM layer to what its trained counterpart computes on a batch.

    Weights that read rectified sums mean little to a layer that reads noisy signs, and less with every layer. So layer
    by layer the weights become those by which the states that reach a unit predict, by least squares, the trained
    pre-activation; t gets a standard deviation of `SPREAD`, and, by its bias if it has one, a mean with which the unit
    fires as often as the trained one is above 0, but neither sign less often than `RAREST`. With a normal t of mean m
    and standard deviation σ that is P(z = +1) = ½(1 + erf(m/√(1 + 2σ²))).

    Args:
        model: the network that begins, changed in place.
        trained: a deterministic network of the same architecture, as for `start_from`.
        batch: inputs; some hundreds, and more of them than a dense layer has connections.

    Returns:
        The model.

    >>> from nsm import NSMLinear
    >>> trained = nn.Sequential(nn.Sequential(nn.Linear(8, 30), nn.ReLU()), nn.Linear(30, 2))
    >>> z = torch.randn(500, 8).sign()
    >>> model = imitate(nn.Sequential(NSMLinear(8, 30), nn.Linear(30, 2)), trained, z)
    >>> fires = model[0].firing_probability(z).mean(0)
    >>> bool(((fires - (trained[0](z) > 0).float().mean(0).clamp(0.1, 0.9)).abs() < 0.1).all())
    True
    """
    start_from(model, trained)
    layers = [module for module in model.modules() if isinstance(module, NSMLayer)]
    wanted = dict(zip(layers, pre_activations(trained, batch), strict=True))
    return before_first_use(model, batch, lambda layer, z: _fit(layer, z, wanted[layer]))


def _fit(layer: NSMLayer, z: Tensor, h: Tensor) -> None:
    """Weights, β and b of a layer that reads z, to predict h."""
    weight = _least_squares(layer, z, h)
    length = weight.flatten(1).norm(dim=1)
    known = length > 0  # else h does not vary with z
    shape = -1, *[1] * (weight.dim() - 1)
    layer.weight[known] = (FRESH * weight / length.reshape(shape)).to(layer.weight.dtype)[known]
    fires = (layer.wiring.units_last(h) > 0).double().flatten(0, -2).mean(0).clamp(RAREST, 1 - RAREST)
    set_from(layer, z, (1 + 2 * SPREAD**2) ** 0.5 * torch.erfinv(2 * fires - 1), SPREAD)


def _least_squares(layer: NSMLayer, z: Tensor, h: Tensor) -> Tensor:
    """The weights by which what a unit sees of z, beside a constant, predicts h best."""
    wiring, fan_in = layer.wiring, layer.weight[0].numel()
    groups, axes = (wiring.groups, 3) if isinstance(wiring, Convolution) else (1, 1)
    see = torch.ones_like(layer.weight[:groups])  # one unit of each group, that sees
    pairs = torch.zeros(groups, fan_in + 1, fan_in + 1, dtype=torch.double, device=z.device)
    wanted = torch.zeros(groups, fan_in + 1, len(h[0]) // groups, dtype=torch.double, device=z.device)
    inputs = max(1, CHUNK // (groups * fan_in * h[0, 0].numel()))
    for states, out in zip(z.split(inputs), h.split(inputs), strict=True):
        seen = wiring.units_last(wiring.terms(states, see)).movedim(-axes - 1, 0).flatten(1, -2)
        seen = F.pad(seen, (0, 1), value=1.0)  # (groups, inputs · positions, fan-in + 1)
        out = wiring.units_last(out).flatten(0, -2).unflatten(1, (groups, -1)).movedim(1, 0).to(seen.dtype)
        pairs += (seen.mT @ seen).double()
        wanted += (seen.mT @ out).double()
    ridge = torch.full_like(pairs[0, 0], RIDGE * float(pairs[0, -1, -1]))
    ridge[-1] = 0
    found = torch.linalg.solve(pairs + ridge.diag(), wanted)[:, :-1]  # (groups, fan-in, out/groups)
    return found.mT.reshape(layer.weight.shape)
