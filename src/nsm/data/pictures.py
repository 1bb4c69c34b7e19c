"""Inputs of a person's own: arrays and pictures, brought into the shape that a network reads."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nsm.data.errors import DataError

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
ARRAYS = (".npy", ".npz")
_LARGEST_FILE = 2**30
_MOST_PIXELS = 2**26


def read_pictures(
    paths: Sequence[str | Path], shape: tuple[int, int, int], *, binary: bool, invert: bool = False
) -> tuple[np.ndarray, list[str]]:
    """Read files as inputs of one shape.

    A picture is turned as its camera says, becomes grey or RGB, as the shape asks, and is scaled to its size; behind
    transparent parts it is white under dark ink and black under light. An array of bytes is divided by 255, one of
    floats must be in [0, 1] already, or ±1 for a binary network, which also takes bits and bytes of 0 and 1.

    Args:
        paths: pictures, ``.npy`` or ``.npz`` files, or folders of pictures.
        shape: (C, H, W) of one input.
        binary: whether the network reads ±1; values are then cut at ½.
        invert: turn dark on light into light on dark first, for networks that learned the latter.

    Returns:
        Inputs (N, C, H, W) float32, and what to call each of them.

    Raises:
        DataError: A file is not what its name says, or does not fit the shape.
        OSError: A file cannot be read.
    """
    inputs, names = [], []
    for path in _files(paths):
        found = _read_array(path, shape, binary) if path.suffix.lower() in ARRAYS else _read_picture(path, shape)
        ready = invert is False and binary and bool((np.abs(found) == 1).all())
        if not ready:
            if found.size and not (found.min() >= 0 and found.max() <= 1):
                span = f"{found.min():.4g} to {found.max():.4g}"
                raise DataError(f"Expected the values of {path} to be in [0, 1], but got {span}")
            found = 1 - found if invert else found
            found = np.where(found >= 0.5, 1, -1) if binary else found
        inputs.append(found.astype(np.float32))
        names += [str(path)] if len(found) == 1 else [f"{path}[{k}]" for k in range(len(found))]
    return np.concatenate(inputs), names


def _files(paths: Sequence[str | Path]) -> list[Path]:
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.suffix.lower() in PICTURES)
            if not inside:
                raise DataError(f"Expected {path} to hold pictures ({', '.join(PICTURES)}), but got none")
            files += inside
        elif path.suffix.lower() not in (*PICTURES, *ARRAYS):
            raise DataError(f"Expected {path} to be a folder or one of {', '.join(ARRAYS + PICTURES)}")
        else:
            files.append(path)
    if not files:
        raise DataError("Expected at least one file, but got none")
    return files


def _read_bytes(path: Path) -> bytes:
    size = path.stat().st_size
    if size > _LARGEST_FILE:
        raise DataError(f"Expected {path} to have at most {_LARGEST_FILE} bytes, but got {size}")
    return path.read_bytes()


def _read_picture(path: Path, shape: tuple[int, int, int]) -> np.ndarray:
    from PIL import Image, ImageOps, UnidentifiedImageError

    channels, height, width = shape
    if channels not in (1, 3):
        raise DataError(f"Expected an array of shape {shape} for this network, but got the picture {path}")
    data = io.BytesIO(_read_bytes(path))
    try:
        with Image.open(data) as picture:
            if picture.width * picture.height > _MOST_PIXELS:
                size = f"{picture.width}×{picture.height}"
                raise DataError(f"Expected {path} to have at most {_MOST_PIXELS} pixels, but got {size}")
            if picture.mode in ("I", "F"):
                raise DataError(f"Expected the pixels of {path} to be bytes, but got {picture.mode}; use an array")
            picture = ImageOps.exif_transpose(picture)
            if picture.mode.startswith("I;16"):
                picture = Image.fromarray((np.asarray(picture) / 257).round().astype(np.uint8))
            if picture.has_transparency_data:
                picture = _opaque(picture.convert("RGBA"))
            picture = picture.convert("L" if channels == 1 else "RGB")
            if picture.size != (width, height):
                picture = picture.resize((width, height), Image.Resampling.BOX)
            pixels = np.asarray(picture, np.float32) / 255
    except DataError:
        raise
    except UnidentifiedImageError:  # whose words name no file
        raise DataError(f"Expected {path} to be a picture, but got something else") from None
    except Exception as error:  # so do Pillow's many decoders
        raise DataError(f"Expected {path} to be a picture, but got: {' '.join(str(error).split())}") from None
    return pixels.reshape(1, height, width, channels).transpose(0, 3, 1, 2)


def _opaque(picture: Any) -> Any:
    """An RGBA picture on white, or on black where what is seen of it is light."""
    from PIL import Image

    grey, alpha = (np.asarray(band, np.float64) for band in (picture.convert("L"), picture.getchannel("A")))
    light = (grey * alpha).sum() > 127.5 * alpha.sum()
    return Image.alpha_composite(Image.new("RGBA", picture.size, "black" if light else "white"), picture)


def _read_array(path: Path, shape: tuple[int, int, int], binary: bool) -> np.ndarray:
    data = io.BytesIO(_read_bytes(path))
    try:
        found = np.load(data, allow_pickle=False)
        if isinstance(found, np.lib.npyio.NpzFile):
            found = found[_only(path, found)]
    except DataError:
        raise
    except Exception as error:  # the parsers of headers and archives raise nearly every kind
        raise DataError(
            f"Expected {path} to be an array without pickled objects, but got: {' '.join(str(error).split())}"
        ) from None
    channels, height, width = shape
    fits = {(height, width): channels == 1, shape: True}.get(found.shape, False)
    if channels > 1 and found.shape[-4:] == (channels, 1, height, width):  # as `nsm.data.frames` gives them
        found = found.reshape(-1, *shape)
        fits = True
    fits = fits or (found.shape[1:] == (height, width) and channels == 1) or found.shape[1:] == shape
    if not fits or found.size == 0:
        raise DataError(f"Expected {path} to have shape (N, {channels}, {height}, {width}), but got {found.shape}")
    if binary and (found.dtype == bool or (found.dtype == np.uint8 and found.max() <= 1)):
        found = found.astype(np.float32)
    elif found.dtype == np.uint8:
        found = found.astype(np.float32) / 255
    if found.dtype.kind != "f":
        raise DataError(f"Expected {path} to hold bytes or finite floats, but got {found.dtype}")
    if not np.isfinite(found).all():
        raise DataError(f"Expected {path} to hold bytes or finite floats, but got NaN or infinity")
    return found.reshape(-1, *shape)


def _only(path: Path, archive: np.lib.npyio.NpzFile) -> str:
    for info in archive.zip.infolist() if archive.zip else []:
        if info.file_size > _LARGEST_FILE:
            raise DataError(f"Expected {path} to unpack to at most {_LARGEST_FILE} bytes, but got {info.file_size}")
    names = archive.files
    if "inputs" in names:
        return "inputs"
    if len(names) != 1:
        raise DataError(f"Expected {path} to hold one array, or one called inputs, but got {names}")
    return names[0]
