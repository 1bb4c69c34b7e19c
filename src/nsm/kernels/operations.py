"""The operations of a training step: from a layer's product to its drawn states, and back, each in one pass.

A unit with the product x = w·z has the erf argument t = k x + c (`nsm.functional.line`). Here x is (rows, units): a row
for every input and, where k and c do not depend on it, every position.

    fire(x, k, c, key)             sgn(2¹⁵ erf(t) − (r + ½)) with 16 random bits r: `functional.toss`
    threshold(x, y, α, b, k, c)    sgn(α x + b + y) with a fluctuation y that another product has drawn
    blank(z, p, key)               (ξ − p) z with ξ ~ Bernoulli(p), 8 random bits each

Or x is (images · height · width, channels), both sizes even: if all four had an axis, torch.compile would lay them out
anew. The units of a window are those at (0, 0), (0, 1), (1, 0) and (1, 1); a line k, c belongs to each channel, or
to each position and channel. The largest of four states is that of the first unit that fires, and the gradient goes to
that unit (to the first of all, if none fires), as through ``max_pool2d``.

    fire_pool(x, k, c, key, h, w)           given x the units are independent: the first to fire is unit j with
                                            probability P_j Π_{i<j} (1 − P_i), and 16 random bits decide for all four
    threshold_pool(x, y, α, b, k, c, h, w)  the first with α x + b + y ≥ 0

Both return the states and, for the way back, which unit won. Going back, d = g (2/√π) exp(−t²) is computed from x, the
only large tensor that is kept; dx = d k, and dk = Σ d x and dc = Σ d are summed in a fixed order. Random bits are those
of Philox under a 64-bit key that the caller draws from torch's generator, so that calls, layers and replays of a graph
have streams of their own: every eight units of a row, eight channels of a window or sixteen elements of z have the next
counter, and take its 128 bits from the lowest on.

On the CPU a layer that sees pictures z through weights w, both channels last, has the product and its way back in it:
since only the unit that won has a gradient, that is a fourth of what a convolution does.

    fire_pictures(z, w, k, c, key)
    threshold_pictures(z, (ξ − m) z, w, α, b, k, c)

Under ``vmap`` the units by themselves of several networks have an axis in front, of all tensors, and on CUDA one kernel
does them at once; what else there is takes its turn.

On CUDA the kernels are Triton's (`nsm.kernels.fire`, `nsm.kernels.pool`), on the CPU they are C
(`nsm.kernels.fire_cpu`): the same states bit for bit. All tensors are contiguous, lines in float32, keys in int64.
Only on the CPU has `threshold` a kernel: on CUDA a compiler is as fast (`nsm.firing`).
"""

import math
from typing import Any

import torch
from torch import Tensor


def new_keys(count: int, device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    """A row for each key: 64 random bits, and as many that are not used but keep the keys aligned."""
    given: Any = {} if generator is None else {"generator": generator}  # told of None, torch compiles not all shapes
    return torch.randint(-(2**63), 2**63 - 1, (count, 2), device=device, **given)


def new_key(device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    """One key."""
    return new_keys(1, device, generator)[0]


def operation(name: str) -> Any:
    """Make a function that launches a kernel one of torch's operations, which compiled code calls as it is."""
    return torch.library.custom_op(f"nsm::{name}", mutates_args=())


def side_by_side(op: Any, at_once: bool = False) -> None:
    """Tell ``vmap`` what to do with an operation, all of whose outputs are tensors.

    Args:
        op: The operation.
        at_once: Whether its kernels for CUDA take members along a first axis; its last tensor has one axis without.
    """

    def rule(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> tuple[Any, Any]:
        parts = [
            value if not isinstance(value, Tensor)
            else value.expand(info.batch_size, *value.shape) if dim is None
            else value.movedim(dim, 0)
            for value, dim in zip(given, in_dims, strict=True)
        ]  # fmt: skip
        tensors = [part for part in parts if isinstance(part, Tensor)]
        if at_once and _kernels(tensors[0])[0].MEMBERS and tensors[-1].dim() == 2:
            found = op(*map(_packed, parts))
            return found, 0 if isinstance(found, Tensor) else (0,) * len(found)
        turns = [
            op(*(_packed(part[k]) if isinstance(part, Tensor) else part for part in parts))
            for k in range(info.batch_size)
        ]
        if isinstance(turns[0], Tensor):
            return torch.stack(turns), 0
        return tuple(map(torch.stack, zip(*turns, strict=True))), (0,) * len(turns[0])

    op.register_vmap(rule)


def _packed(value: Any) -> Any:
    """Contiguous, if it is a tensor other than keys, of which one is read."""
    return value.contiguous() if isinstance(value, Tensor) and value.dtype != torch.int64 else value


def _kernels(x: Tensor) -> tuple[Any, Any]:
    """The kernels of a tensor's device, without and with the pool."""
    if x.is_cuda:  # imported here, since Triton takes a while to import, and not everybody has it
        from nsm.kernels import fire, pool

        return fire, pool
    from nsm.kernels import fire_cpu

    return fire_cpu, fire_cpu


# ------------------------------------------------------------------------- units by themselves


@operation("fire")
def fire(x: Tensor, k: Tensor, c: Tensor, key: Tensor) -> Tensor:
    """States (rows, units), of the type of ``x``, +1 with probability ½(1 + erf(k x + c)).

    Args:
        x: (rows, units), or (members, rows, units).
        k: (units,), or (members, units).
        c: Likewise; ±∞ for a unit that is certain.
        key: int64, of which the first is used; or a row for each member.
    """
    z = torch.empty_like(x)
    _kernels(x)[0].fire(x, k, c, key, z)
    return z


@operation("threshold")
def threshold(x: Tensor, y: Tensor, alpha: Tensor, bias: Tensor, k: Tensor, c: Tensor) -> Tensor:
    """States sgn(α x + b + y), whose gradient is that of erf(k x + c); ``alpha`` and ``bias`` are constants to it.

    On the CPU.
    """
    z = torch.empty_like(x)
    _kernels(x)[0].threshold(x, y, alpha, bias, z)
    return z


@operation("fire_back")
def fire_back(g: Tensor, x: Tensor, k: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """dx, and the parts whose sums over the axis before the last are dk and dc, ([members,] 2, parts, units)."""
    dx, sums = _gradients(x)
    _kernels(x)[0].fire_back(g, x, k, c, dx, sums)
    return dx, sums


def _gradients(x: Tensor) -> tuple[Tensor, Tensor]:
    shape = *x.shape[:-2], 2, _kernels(x)[0].parts(x), x.shape[-1]
    return torch.empty_like(x), x.new_empty(shape, dtype=torch.float32)


@operation("blank")
def blank(z: Tensor, p: float, key: Tensor) -> Tensor:
    """(ξ − p) z with ξ = 1 with probability ``p``, a multiple of 1/256, else 0; z may lie in memory as it likes."""
    out = torch.empty_like(z)
    if out.stride() != z.stride():  # it has gaps, or elements that are shared
        z = torch.empty_like(out).copy_(z)
    _kernels(z)[0].blank(z, p, key, out)
    return out


fire.register_fake(lambda x, k, c, key: torch.empty_like(x))
threshold.register_fake(lambda x, y, alpha, bias, k, c: torch.empty_like(x))
fire_back.register_fake(lambda g, x, k, c: _gradients(x))
blank.register_fake(lambda z, p, key: torch.empty_like(z))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], *(inputs[1:3] if len(inputs) == 4 else inputs[4:6]))  # x, k, c


def erf_back(g: Tensor, x: Tensor, k: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """dx, dk and dc of erf(k x + c)."""
    dx, parts = fire_back(g.contiguous(), x, k, c)
    dk, dc = (parts.squeeze(-2) if parts.shape[-2] == 1 else parts.sum(-2)).unbind(-2)
    return dx, dk, dc


def _fire_backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    return *erf_back(g, *ctx.saved_tensors), None


def _threshold_backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    dx, dk, dc = erf_back(g, *ctx.saved_tensors)
    return dx, None, None, None, dk, dc


fire.register_autograd(_fire_backward, setup_context=_keep)
threshold.register_autograd(_threshold_backward, setup_context=_keep)
for each in (fire, fire_back, blank):
    side_by_side(each, at_once=True)
side_by_side(threshold)


# ------------------------------------------------------------------------- the largest state in windows of 2×2


def _windows(x: Tensor) -> tuple[Tensor, Tensor]:
    """For states and winners, (images · height/2 · width/2, channels)."""
    shape = len(x) // 4, x.shape[1]
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.uint8)


@operation("fire_pool")
def fire_pool(x: Tensor, k: Tensor, c: Tensor, key: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """States of the windows of x; and who won."""
    z, won = _windows(x)
    _kernels(x)[1].fire_pool(x, k, c, key, z, won, height, width)
    return z, won


@operation("threshold_pool")
def threshold_pool(
    x: Tensor, y: Tensor, alpha: Tensor, bias: Tensor, k: Tensor, c: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor]:
    """As `fire_pool`, with a fluctuation ``y`` that was drawn by another product."""
    z, won = _windows(x)
    _kernels(x)[1].threshold_pool(x, y, alpha, bias, z, won, height, width)
    return z, won


@operation("pool_back")
def pool_back(
    g: Tensor, won: Tensor, x: Tensor, k: Tensor, c: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor]:
    """dx, and parts of dk and dc, to be summed over axis 2: (2, 4, parts, units), one for each unit of a window.

    With one line for all positions the axis of the four may already be summed.
    """
    dx, sums = _pool_gradients(x, k)
    _kernels(x)[1].pool_back(g, won, x, k, c, dx, sums, height, width)
    return dx, sums


def _pool_gradients(x: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Units are channels; with a line for every position, those of all windows of an image."""
    units = len(k) if len(k) == x.shape[1] else len(k) // 4
    return torch.empty_like(x), x.new_empty(2, *_kernels(x)[1].pool_parts(x, k), units, dtype=torch.float32)


fire_pool.register_fake(lambda x, k, c, key, height, width: _windows(x))
threshold_pool.register_fake(lambda x, y, alpha, bias, k, c, height, width: _windows(x))
pool_back.register_fake(lambda g, won, x, k, c, height, width: _pool_gradients(x, k))


def _keep_pooled(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    lines = inputs[1:3] if len(inputs) == 6 else inputs[4:6]
    ctx.save_for_backward(output[1], inputs[0], *lines)  # won, x, k, c
    ctx.size = inputs[-2:]
    ctx.mark_non_differentiable(output[1])


def _fire_pool_backward(ctx: Any, g: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    won, x, k, c = ctx.saved_tensors
    height, width = ctx.size
    dx, parts = pool_back(g.contiguous(), won, x, k, c, height, width)
    sums = parts.sum(2)  # (2, 4, units)
    if len(k) == x.shape[1]:
        dk, dc = sums.sum(1)
    else:  # unit j of the window at (row, column) stands at (2 row + j // 2, 2 column + j % 2)
        dk, dc = sums.view(2, 2, 2, height // 2, width // 2, -1).permute(0, 3, 1, 4, 2, 5).flatten(1)
    return dx, dk, dc, None, None, None


def _threshold_pool_backward(ctx: Any, g: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    dx, dk, dc = _fire_pool_backward(ctx, g)[:3]
    return dx, None, None, None, dk, dc, None, None


fire_pool.register_autograd(_fire_pool_backward, setup_context=_keep_pooled)
threshold_pool.register_autograd(_threshold_pool_backward, setup_context=_keep_pooled)
for each in (fire_pool, threshold_pool, pool_back):
    side_by_side(each)


# ------------------------------------------------------------------------- the same, from pictures, on the CPU


def fill_vectors(weight: Tensor, down: bool) -> bool:
    """Whether the kernels have these weights in whole vectors; ``down``: and give z a gradient."""
    units, *patch = weight.shape
    few = math.prod(patch) <= 32 and units % 16 == 0 and units <= 512
    return _in_runs(weight) or (few and not down)


def _in_runs(weight: Tensor) -> bool:
    """Whether what a unit sees of a row fills vectors; if not, units do, and the product is made within the kernel."""
    return weight.shape[1] * weight.shape[3] % 16 == 0


def _pictures(z: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For states and winners, (windows, units), and for the product: of all units, (…, units), or of the winners."""
    height, width = (n - taps + 1 for n, taps in zip(z.shape[2:], weight.shape[2:], strict=True))
    shape = len(z) * (height // 2) * (width // 2), len(weight)
    x = z.new_empty(len(z) * height * width if _in_runs(weight) else shape[0], len(weight))
    return z.new_empty(shape), z.new_empty(shape, dtype=torch.uint8), x


def _product(z: Tensor, weight: Tensor) -> tuple[Tensor, int, int]:
    """(images · height · width, units), and the sizes."""
    x = torch.conv2d(z, weight).movedim(1, -1).contiguous()
    return x.flatten(0, 2), x.shape[1], x.shape[2]


@operation("fire_pictures")
def fire_pictures(z: Tensor, weight: Tensor, k: Tensor, c: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """States of the windows, who won, and what the way back needs of the product.

    Args:
        z: (images, depth, height, width), in memory channels last.
        weight: (units, depth, high, wide), in memory channels last, such as `fill_vectors`.
        k: (units,).
        c: (units,).
        key: int64, of which the first is used.
    """
    if _in_runs(weight):
        x, height, width = _product(z, weight)
        return *fire_pool(x, k, c, key, height, width), x
    states, won, x = _pictures(z, weight)
    _kernels(z)[1].fire_patches(z, weight, k, c, key, states, won, x)
    return states, won, x


@operation("threshold_pictures")
def threshold_pictures(
    z: Tensor, noisy: Tensor, weight: Tensor, alpha: Tensor, bias: Tensor, k: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """As `fire_pictures`, with a fluctuation that is the product with ``noisy``."""
    if _in_runs(weight):
        x, height, width = _product(z, weight)
        y, *_ = _product(noisy, weight)
        return *threshold_pool(x, y, alpha, bias, k, c, height, width), x
    states, won, x = _pictures(z, weight)
    _kernels(z)[1].threshold_patches(z, noisy, weight, alpha, bias, states, won, x)
    return states, won, x


@operation("pictures_back")
def pictures_back(
    g: Tensor, won: Tensor, x: Tensor, z: Tensor, weight: Tensor, k: Tensor, c: Tensor, down: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of z, if ``down``, and of the weights, and the parts whose sums over axis 1 are dk and dc."""
    dz, dw, sums = _picture_gradients(z, weight, down)
    if _in_runs(weight):
        _kernels(z)[1].runs_back(g, won, x, z, weight, k, c, dz if down else None, dw, sums)
    else:
        _kernels(z)[1].patches_back(g, won, x, z, k, c, dw, sums)
    return dz, dw, sums


def _picture_gradients(z: Tensor, weight: Tensor, down: bool) -> tuple[Tensor, Tensor, Tensor]:
    sums = z.new_empty(2, _kernels(z)[1].parts(z), len(weight))
    return torch.empty_like(z) if down else z.new_empty(0), torch.empty_like(weight), sums


fire_pictures.register_fake(lambda z, weight, k, c, key: _pictures(z, weight))
threshold_pictures.register_fake(lambda z, noisy, weight, alpha, bias, k, c: _pictures(z, weight))
pictures_back.register_fake(lambda g, won, x, z, weight, k, c, down: _picture_gradients(z, weight, down))


def _keep_pictures(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    seen = inputs[:4] if len(inputs) == 5 else (inputs[0], inputs[2], *inputs[5:])
    ctx.save_for_backward(*output[1:], *seen)  # won, x; z, weight, k, c
    ctx.mark_non_differentiable(*output[1:])


def _fire_pictures_backward(ctx: Any, g: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    down = ctx.needs_input_grad[0]
    dz, dw, sums = pictures_back(g.contiguous(), *ctx.saved_tensors, down)
    dk, dc = sums.sum(1)
    return dz if down else None, dw, dk, dc, None


def _threshold_pictures_backward(ctx: Any, g: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    dz, dw, dk, dc = _fire_pictures_backward(ctx, g)[:4]
    return dz, None, dw, None, None, dk, dc


fire_pictures.register_autograd(_fire_pictures_backward, setup_context=_keep_pictures)
threshold_pictures.register_autograd(_threshold_pictures_backward, setup_context=_keep_pictures)
for each in (fire_pictures, threshold_pictures, pictures_back):
    side_by_side(each)
