"""Random crops, flips, shifts and holes in a whole batch at once, on the device it lives on.

Each image is changed on its own. Every function draws from ``generator`` alone where one is given, so that a seed
fixes the augmentation whatever else draws random numbers.
"""

import torch
from torch import Generator, Tensor
from torch.nn import functional

from nsm.data.errors import DataError


def random_crop(
    images: Tensor,
    padding: int,
    size: tuple[int, int] | None = None,
    *,
    fill: float = 0.0,
    generator: Generator | None = None,
) -> Tensor:
    """Pad every border, then cut a window at a random place, another one for each image.

    Args:
        images: (B, C, H, W).
        padding: Pixels added on every side.
        size: (height, width) of the window; that of the images if None.
        fill: Value of the padding: `Dataset.background` of the set the images came from.
        generator: Where the offsets are drawn; torch's default generator if None.

    Example:
        >>> images = torch.arange(9.0).reshape(1, 1, 3, 3)
        >>> random_crop(images, 0, (3, 3)).equal(images)
        True
    """
    _check(images)
    if padding < 0:
        raise DataError(f"Expected argument `padding` to be at least 0, but got {padding}")
    batch, channels, height, width = images.shape
    out_height, out_width = size or (height, width)
    room = (height + 2 * padding - out_height, width + 2 * padding - out_width)
    if min(room) < 0 or min(out_height, out_width) < 1:
        raise DataError(f"Expected argument `size` to fit in the padded image, but got {(out_height, out_width)}")
    top, left = (_draw(images, room[axis] + 1, generator) for axis in (0, 1))
    rows = top[:, None] + torch.arange(out_height, device=images.device)  # (B, out_height)
    columns = left[:, None] + torch.arange(out_width, device=images.device)
    padded = functional.pad(images, (padding,) * 4, value=fill)
    each = torch.arange(batch, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[None, :, None, None]
    return padded[each, channel, rows[:, None, :, None], columns[:, None, None, :]]


def random_shift(images: Tensor, distance: int, *, fill: float = 0.0, generator: Generator | None = None) -> Tensor:
    """Move each image by up to ``distance`` pixels down or up and right or left; ``fill`` comes in.

    Example:
        >>> moved = random_shift(torch.ones(4, 1, 5, 5), 1, fill=-1)
        >>> moved.shape, moved[:, :, 1:4, 1:4].unique().tolist()
        (torch.Size([4, 1, 5, 5]), [1.0])
    """
    return random_crop(images, distance, fill=fill, generator=generator)


def random_flip(images: Tensor, *, generator: Generator | None = None) -> Tensor:
    """Mirror each image, left to right, with probability one half.

    Example:
        >>> images = torch.tensor([1.0, 2.0]).expand(100, 1, 1, 2)
        >>> random_flip(images).unique(dim=0).flatten().tolist()
        [1.0, 2.0, 2.0, 1.0]
    """
    _check(images)
    mirrored = _draw(images, 2, generator).bool()[:, None, None, None]
    return torch.where(mirrored, images.flip(-1), images)


def random_cutout(images: Tensor, side: int, *, fill: float = 0.0, generator: Generator | None = None) -> Tensor:
    """Wipe out a square in each image, whose middle is any pixel: near a border, less of it is seen.

    Example:
        >>> holes = random_cutout(torch.ones(100, 3, 8, 8), 2).eq(0)
        >>> holes.any(1).equal(holes.all(1)), holes[:, 0].sum((1, 2)).unique().tolist()
        (True, [1, 2, 4])
    """
    _check(images)
    if side < 1:
        raise DataError(f"Expected argument `side` to be at least 1, but got {side}")
    within = []
    for size in images.shape[2:]:
        first = _draw(images, size, generator)[:, None] - side // 2
        at = torch.arange(size, device=images.device)
        within.append((at >= first) & (at < first + side))  # (B, size)
    return images.masked_fill((within[0][:, :, None] & within[1][:, None, :])[:, None], fill)


def _draw(images: Tensor, below: int, generator: Generator | None) -> Tensor:
    """One integer in [0, below) for each image."""
    device = images.device if generator is None else generator.device
    return torch.randint(below, (len(images),), generator=generator, device=device).to(images.device)


def _check(images: Tensor) -> None:
    if images.dim() != 4:
        raise DataError(f"Expected argument `images` to have shape (B, C, H, W), but got {tuple(images.shape)}")
