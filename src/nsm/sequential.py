"""Layers in a row, of which kernels do several things at once."""

from torch import Tensor, nn

from nsm.kernels import operations
from nsm.layers import NSMConv2d, NSMLayer, only_runs


class Sequential(nn.Sequential):
    """``nn.Sequential`` of which kernels do more at once, where they apply.

    The keys of all layers' noise are one draw, and a convolution of units and the 2×2 max-pool after it one step, in
    law and gradient what ``max_pool2d`` makes of the states.
    """

    def forward(self, input: Tensor) -> Tensor:
        """The layers, one after the other."""
        layers: list[nn.Module | None] = [*self, None]
        keys: list[Tensor] = []
        at = 0
        while (layer := layers[at]) is not None:
            pooled = False
            if isinstance(layer, NSMLayer) and layer.fires(input):
                many = sum(isinstance(one, NSMLayer) for one in layers[at:])
                keys = keys or list(operations.new_keys(many, input.device).unbind())
                pooled = isinstance(layer, NSMConv2d) and window(layers[at + 1]) == (2, 2) and layer.can_pool(input)
                input = layer.fire(input, keys.pop(0), pooled)  # in order, so that what comes after changes nothing
            else:
                input = layer(input)
            at += 1 + pooled
        return input


def window(pool: nn.Module | None) -> tuple[int, int] | None:
    """The window of a max-pool that cuts a picture in windows, each unit in one of them; None for any other module."""
    if not isinstance(pool, nn.MaxPool2d) or not only_runs(pool, nn.MaxPool2d.forward):
        return None
    size, stride, padding, dilation = (
        (v, v) if isinstance(v, int) else tuple(v) for v in (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
    )
    plain = size == stride and padding == (0, 0) and dilation == (1, 1)
    return (size[0], size[1]) if plain and not pool.ceil_mode and not pool.return_indices else None
