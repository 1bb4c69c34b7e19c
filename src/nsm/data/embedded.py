"""MNIST in the box: 70,000 binarised digits inside the package, and the program that put them there.

``mnist.xz`` is the xz of all images, 60,000 training before 10,000 test, each row of 28 pixels packed to 4
bytes (first pixel in the highest bit, set where the grey value is at least 128), then one byte a label.
``mnist.json`` holds its SHA-256 and those of the four idx files it was made from. To make both again:

    python -m nsm.data.embedded FOLDER_WITH_THE_FOUR_IDX_GZ_FILES
"""

import hashlib
import json
import lzma
import sys
from pathlib import Path

import numpy as np

from nsm.data.errors import DataError
from nsm.data.idx import gunzip, read_idx

COUNTS = {"train": 60_000, "test": 10_000}
FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_HERE = Path(__file__).parent
_TOTAL, _ROW_BYTES = sum(COUNTS.values()), 4
_IMAGE_BYTES = _TOTAL * 28 * _ROW_BYTES


def read_embedded(folder: Path = _HERE) -> tuple[np.ndarray, np.ndarray]:
    """All the embedded digits: packed rows (70000, 28, 4) and labels (70000,), both uint8.

    Example:
        >>> rows, labels = read_embedded()
        >>> print(np.unpackbits(rows[0, 7]), labels[0])
        [0 0 0 0 0 0 0 0 1 1 1 1 1 1 1 1 1 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0] 5
    """
    path = folder / "mnist.xz"
    packed = path.read_bytes()
    expected = json.loads((folder / "mnist.json").read_text())["sha256"]
    if (found := hashlib.sha256(packed).hexdigest()) != expected:
        raise DataError(f"Expected {path} to have SHA-256 {expected}, but got {found}")
    raw = np.frombuffer(bytearray(lzma.decompress(packed)), np.uint8)  # writable, as torch wants it
    return raw[:_IMAGE_BYTES].reshape(_TOTAL, 28, _ROW_BYTES), raw[_IMAGE_BYTES:]


def embed(source: Path, target: Path) -> None:
    """Make ``mnist.xz`` and ``mnist.json`` in ``target`` from the four ``.gz`` files in ``source``."""
    files = {name: (source / f"{name}.gz").read_bytes() for name in FILES}
    parts = [read_idx(data, name=name) for name, data in files.items()]
    images, labels = np.concatenate(parts[0::2]), np.concatenate(parts[1::2])
    if images.shape != (_TOTAL, 28, 28) or labels.shape != (_TOTAL,):
        raise DataError(f"Expected {source} to hold 70,000 digits of 28×28, but got {images.shape}")
    raw = np.packbits(images >= 128, axis=-1).tobytes() + labels.tobytes()
    # Rows are 4 bytes long: lp = 2 models the four columns apart. Fixed filters: the same bytes again.
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 0, "lp": 2, "pb": 2}]
    packed = lzma.compress(raw, check=lzma.CHECK_CRC64, filters=filters)
    sums = {f"{name}.gz": hashlib.sha256(data).hexdigest() for name, data in files.items()}
    sums |= {name: hashlib.sha256(gunzip(data)).hexdigest() for name, data in files.items()}
    record = {"sha256": hashlib.sha256(packed).hexdigest(), "threshold": 128, "made_from": sums}
    (target / "mnist.xz").write_bytes(packed)
    (target / "mnist.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    embed(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else _HERE)
