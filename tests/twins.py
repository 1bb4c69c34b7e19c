"""What the kernels compute, in torch: a product and the sum after it rounded once."""

import torch

from nsm import functional


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
