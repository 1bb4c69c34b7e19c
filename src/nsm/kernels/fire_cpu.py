"""The kernels of `nsm.kernels.operations` on the CPU, in float32: C, compiled at first use (`nsm.kernels.native`)."""

from ctypes import Structure, byref, c_float, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from nsm.kernels import native

_PARTS = 32  # of the sums for dk and dc, whatever the number of threads
MEMBERS = False  # one network at a time


def ready() -> bool:
    """Whether there is a compiler, and a processor with vectors and products that are rounded with their sums."""
    return _library() is not None


# as by torch.compiler.assume_constant_result, which would import the whole compiler
ready._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _library() -> Any:
    return native.library("pictures", "avx2", "fma")


def _run(name: str, *arguments: Any) -> None:
    """Call a function of fire.c or pictures.c with torch's number of threads."""
    getattr(_library(), f"nsm_{name}")(*map(_for_c, arguments), torch.get_num_threads())


def _for_c(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return c_void_p(argument.data_ptr())
    if isinstance(argument, Structure):
        return byref(argument)
    if argument is None:
        return None
    return c_float(argument) if isinstance(argument, float) else c_int64(argument)


def fire(x: Tensor, k: Tensor, c: Tensor, key: Tensor, z: Tensor) -> None:
    """States z."""
    _run("fire", x, k, c, key, z, *x.shape)


def threshold(x: Tensor, y: Tensor, alpha: Tensor, bias: Tensor, z: Tensor) -> None:
    """States z = sgn(α x + b + y)."""
    _run("threshold", x, y, alpha, bias, z, *x.shape)


def parts(x: Tensor) -> int:
    """How many parts of dk and dc there are."""
    return _PARTS


def fire_back(g: Tensor, x: Tensor, k: Tensor, c: Tensor, dx: Tensor, sums: Tensor) -> None:
    """Gradient dx, and sums for dk and dc."""
    _run("fire_back", g, x, k, c, dx, sums, *x.shape, _PARTS)


def blank(z: Tensor, p: float, key: Tensor, out: Tensor) -> None:
    """(ξ − p) z, in the order of memory."""
    _run("blank", z, key, out, p, round(256 * p) - 128, z.numel())


# ------------------------------------------------------------------------- the largest state in windows of 2×2


def fire_pool(x: Tensor, k: Tensor, c: Tensor, key: Tensor, z: Tensor, won: Tensor, height: int, width: int) -> None:
    """States z of the windows, and who won."""
    _run("fire_pool", x, k, c, key, z, won, *z.shape, height, width, len(k))


def threshold_pool(
    x: Tensor, y: Tensor, alpha: Tensor, bias: Tensor, z: Tensor, won: Tensor, height: int, width: int
) -> None:
    """The same with a fluctuation y."""
    _run("threshold_pool", x, y, alpha, bias, z, won, *z.shape, height, width, len(alpha))


def pool_parts(x: Tensor, k: Tensor) -> tuple[int, int]:
    """For how many units of a window there are sums, and how many parts of each."""
    return (1 if len(k) == x.shape[1] else 4), _PARTS


def pool_back(
    g: Tensor, won: Tensor, x: Tensor, k: Tensor, c: Tensor, dx: Tensor, sums: Tensor, height: int, width: int
) -> None:
    """Gradient dx, and sums for dk and dc."""
    _run("pool_back", g, won, x, k, c, dx, sums, *won.shape, height, width, len(k), _PARTS)


# ------------------------------------------------------------------------- the same, from pictures


class _Pictures(Structure):
    _fields_ = [(name, c_int64) for name in ("images", "channels", "depth", "height", "width", "high", "wide")]


def _pictures(z: Tensor, weight: Tensor) -> _Pictures:
    return _Pictures(len(z), len(weight), *z.shape[1:], *weight.shape[2:])


def _by_tap(weight: Tensor) -> Tensor:
    return weight.flatten(1).t().contiguous()


def fire_patches(
    z: Tensor, weight: Tensor, k: Tensor, c: Tensor, key: Tensor, states: Tensor, won: Tensor, x: Tensor
) -> None:
    """States of the windows, who won, and its product."""
    _run("fire_patches", _pictures(z, weight), z.contiguous(), _by_tap(weight), k, c, key, states, won, x)


def threshold_patches(
    z: Tensor, noisy: Tensor, weight: Tensor, alpha: Tensor, bias: Tensor, states: Tensor, won: Tensor, x: Tensor
) -> None:
    """The same with a fluctuation that is the product with ``noisy``."""
    both = z.contiguous(), noisy.contiguous()
    _run("threshold_patches", _pictures(z, weight), *both, _by_tap(weight), alpha, bias, states, won, x)


def patches_back(g: Tensor, won: Tensor, x: Tensor, z: Tensor, k: Tensor, c: Tensor, dw: Tensor, sums: Tensor) -> None:
    """Gradient of the weights, and sums for dk and dc."""
    shares = z.new_empty(_PARTS, dw[0].numel(), len(dw))  # of it, by tap
    _run("patches_back", _pictures(z, dw), g, won, x, z.contiguous(), k, c, shares, sums, _PARTS)
    dw.copy_(shares.sum(0).t().view(dw.shape))


def runs_back(
    g: Tensor,
    won: Tensor,
    x: Tensor,
    z: Tensor,
    weight: Tensor,
    k: Tensor,
    c: Tensor,
    dz: Tensor | None,
    dw: Tensor,
    sums: Tensor,
) -> None:
    """Gradients of z, if there is memory for it, and of the weights, and sums for dk and dc."""
    d = torch.empty_like(g)
    _run("runs_back", _pictures(z, weight), g, won, x, z, weight, k, c, d, dz, dw, sums, _PARTS)
