"""What the kernels compute, in torch: a product and the sum after it rounded once, and the random bits of a key."""

import math

import torch

from nsm import functional, philox


def fma(a, b, c):
    """a b + c, rounded once (but for the second rounding of the few double results that lie between two floats)."""
    a, b, c = (v.cpu().double() for v in (a, b, c))  # all of them: beside tensors with axes one without has no say
    return (a * b + c).float()


def erf(t):
    """`functional.erf` in the order of the kernels."""
    t = t.clamp(-3.25, 3.25)
    s = fma(t * t, torch.tensor(2 / 3.25**2), torch.tensor(-1.0))
    p = torch.tensor(functional.ERF[-1])
    for coefficient in reversed(functional.ERF[:-1]):
        p = fma(p, s, torch.tensor(coefficient))
    return t * p


def words(key, shape):
    """Philox of the counters 0, 1, … in the given shape, four words each."""
    counter, zero = torch.arange(math.prod(shape)).view(shape), torch.zeros(shape, dtype=torch.int64)
    return philox.philox((counter, zero, zero, zero), (int(key) & 0xFFFFFFFF, int(key) >> 32 & 0xFFFFFFFF))


def pieces(key, rows, units, bits):
    """The random integers of one call, with their sign: (rows, units). 128 bits of a row share a counter."""
    half = 1 << (bits - 1)
    blocks = torch.stack(words(key, (rows, -(-units * bits // 128))), -1)  # (rows, blocks, four words)
    cut = blocks[..., None] >> torch.arange(0, 32, bits) & (2 * half - 1)
    return ((cut ^ half) - half).flatten(1)[:, :units]


def problem(rows, units, dtype, device, seed=0):
    """x, k, c and a key, with units that are certain and one that does not exist."""
    generator = torch.Generator().manual_seed(seed)
    x = (2 * torch.randn(rows, units, generator=generator)).to(dtype)
    k, c = torch.randn(units, generator=generator), torch.randn(units, generator=generator)
    if units > 3:
        k[1], c[1], k[2], c[2] = 0, math.inf, 0, -math.inf
        x[0, 3] = math.nan
    key = torch.randint(-(2**63), 2**63 - 1, (1,), generator=generator)
    return x.to(device), k.to(device), c.to(device), key.to(device)


def equal(one, other):
    """Whether all is the same, NaN too."""
    return torch.equal(one.cpu().float().nan_to_num(7), other.cpu().float().nan_to_num(7))
