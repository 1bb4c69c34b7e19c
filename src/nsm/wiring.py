"""How inputs reach units: each wiring knows the sums over a unit's connections that `nsm.functional` is written in."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Dense:
    """Every unit sees every input: z (..., in), w (out, in), u (..., out)."""

    def product(self, z: Tensor, w: Tensor) -> Tensor:
        """Σ_j w_ij z_j."""
        return F.linear(z, w)

    def squared_norm(self, z: Tensor, w: Tensor) -> Tensor:
        """Σ_j w_ij² over the connections a unit has, (out,)."""
        return wide(w).square().sum(1)

    def terms(self, z: Tensor, w: Tensor) -> Tensor:
        """w_ij z_j, not yet summed, (..., out, in)."""
        return w * z.unsqueeze(-2)

    def gather(self, terms: Tensor) -> Tensor:
        """Sum the terms over the connections of each unit."""
        return terms.sum(-1)

    def per_unit(self, v: Tensor) -> Tensor:
        """A parameter as it broadcasts against u."""
        return v

    def units_last(self, u: Tensor) -> Tensor:
        """u with the units on the last axis, as it is."""
        return u

    def units_back(self, u: Tensor) -> Tensor:
        """What `units_last` undid."""
        return u


@dataclass(frozen=True)
class Convolution:
    """A unit sees one patch: z (..., C, H, W), w (out, C/groups, kh, kw), u (..., out, H', W'). Outside is z = 0."""

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] | Literal["same", "valid"] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    def __post_init__(self) -> None:
        if self.padding == "same" and self.stride != (1, 1):
            raise ValueError(f"Expected argument `stride` to be 1 with padding='same', but got {self.stride}")

    def product(self, z: Tensor, w: Tensor) -> Tensor:
        """Σ_j w_ij z_j."""
        batch = z.reshape(math.prod(z.shape[:-3]), *z.shape[-3:])
        u = F.conv2d(batch, w, None, self.stride, self.padding, self.dilation, self.groups)
        return u.reshape(*z.shape[:-3], *u.shape[1:])

    def is_plain(self, z: Tensor) -> bool:
        """Whether every unit sees a whole patch of neighbouring pixels."""
        plain = self.groups == 1 and self.stride == self.dilation == (1, 1) and self.padding in ((0, 0), "valid")
        return plain and z.dim() == 4

    def product_of_patches(self, z: Tensor, w: Tensor) -> Tensor:
        """`product`, if it `is_plain`, as one matrix product; the fan-in, of at most 32, is filled up with zeros."""
        seen = z.unfold(2, w.shape[2], 1).unfold(3, w.shape[3], 1)  # (B, C, H', W', kh, kw)
        seen = seen.permute(0, 2, 3, 1, 4, 5).flatten(3)  # (B, H', W', fan-in)
        fill = 0, 32 - seen.shape[-1]
        return F.linear(F.pad(seen, fill), F.pad(w.flatten(1), fill)).movedim(-1, 1)

    def squared_norm(self, z: Tensor, w: Tensor) -> Tensor:
        """Σ_j w_ij² over the taps that lie inside the image, (out, H', W'); (out, 1, 1) without padding."""
        taps = wide(w).square().sum(1)  # (out, kh, kw)
        if self.padding == "valid" or self.padding == (0, 0):
            return taps.sum((1, 2)).unsqueeze(-1).unsqueeze(-1)
        rows, columns = self._inside(z.shape[-2:], w.shape[-2:], taps)  # (H', kh) and (W', kw): 1 inside, 0 outside
        each_row = (taps[:, :, None] * columns).sum(-1)  # (out, kh, W')
        return (each_row[:, None] * rows[:, :, None]).sum(2)

    def terms(self, z: Tensor, w: Tensor) -> Tensor:
        """w_ij z_j, not yet summed, (..., out, C/groups·kh·kw, H', W')."""
        batch = z.reshape(math.prod(z.shape[:-3]), *z.shape[-3:])
        patches = self._patches(batch, w).unflatten(1, (self.groups, 1, -1))  # (B, groups, 1, fan-in, H', W')
        weights = w.flatten(1).unflatten(0, (self.groups, -1))[..., None, None]  # (groups, out/groups, fan-in, 1, 1)
        terms = (weights * patches).flatten(1, 2)
        return terms.reshape(*z.shape[:-3], *terms.shape[1:])

    def gather(self, terms: Tensor) -> Tensor:
        """Sum the terms over the connections of each unit."""
        return terms.sum(-3)

    def per_unit(self, v: Tensor) -> Tensor:
        """A parameter as it broadcasts against u: (out,) → (out, 1, 1); (out, H', W') as it is."""
        return v.unsqueeze(-1).unsqueeze(-1) if v.dim() == 1 else v

    def units_last(self, u: Tensor) -> Tensor:
        """(..., out, H', W') → (..., H', W', out), which is how channels-last memory lies."""
        return u.movedim(-3, -1)

    def units_back(self, u: Tensor) -> Tensor:
        """What `units_last` undid."""
        return u.movedim(-1, -3)

    def _patches(self, batch: Tensor, w: Tensor) -> Tensor:
        """(B, C, H, W) → (B, C·kh·kw, H', W'): what each output position sees."""
        (kh, kw), (sh, sw), (dh, dw) = w.shape[-2:], self.stride, self.dilation
        (top, bottom), (left, right) = self.margins((kh, kw))
        height, width = self.output_size(batch.shape[-2:], (kh, kw))
        padded = F.pad(batch, (left, right, top, bottom))
        shifted = [
            padded[..., i * dh : i * dh + sh * (height - 1) + 1 : sh, j * dw : j * dw + sw * (width - 1) + 1 : sw]
            for i in range(kh)
            for j in range(kw)
        ]
        return torch.stack(shifted, dim=2).flatten(1, 2)

    def _inside(self, size: Sequence[int], kernel_size: Sequence[int], like: Tensor) -> list[Tensor]:
        """For each of the two axes, which taps of which output lie inside the image: (outputs, taps)."""

        def axis(n: int, out: int, k: int, s: int, d: int, before: int) -> Tensor:
            at = s * torch.arange(out, device=like.device)[:, None] + d * torch.arange(k, device=like.device) - before
            return ((at >= 0) & (at < n)).to(like.dtype)

        starts = (before for before, _ in self.margins(kernel_size))
        sizes = zip(
            size, self.output_size(size, kernel_size), kernel_size, self.stride, self.dilation, starts, strict=True
        )
        return [axis(*numbers) for numbers in sizes]

    def output_size(self, size: Sequence[int], kernel_size: Sequence[int]) -> tuple[int, int]:
        """(H', W') for an image of (H, W)."""
        height, width = (
            (n + sum(margin) - d * (k - 1) - 1) // s + 1
            for n, margin, d, k, s in zip(
                size, self.margins(kernel_size), self.dilation, kernel_size, self.stride, strict=True
            )
        )
        return height, width

    def margins(self, kernel_size: Sequence[int]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Zeros before and after, for each of the two axes."""
        if self.padding == "valid":
            return (0, 0), (0, 0)
        if self.padding == "same":
            reach_h, reach_w = (d * (k - 1) for d, k in zip(self.dilation, kernel_size, strict=True))
            return (reach_h // 2, reach_h - reach_h // 2), (reach_w // 2, reach_w - reach_w // 2)
        height, width = self.padding
        return (height, height), (width, width)


Wiring = Dense | Convolution


def wide(x: Tensor) -> Tensor:
    """At least 32 bits."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
