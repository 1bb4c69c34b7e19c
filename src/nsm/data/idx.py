"""The idx format of MNIST and its relatives: bytes in, array out, nothing trusted."""

import math
import struct
import zlib

import numpy as np

from nsm.data.errors import DataError

MAX_BYTES = 256 * 2**20  # the largest idx file read here is EMNIST's training letters: 98 MB


def gunzip(data: bytes, *, limit: int = MAX_BYTES, name: str = "file") -> bytes:
    """Decompress gzip ``data`` to at most ``limit`` bytes.

    Args:
        data: One or more gzip members.
        limit: More decompressed bytes than this are an error, found before they are allocated.
        name: What to call the data in an error message.

    Raises:
        DataError: Not gzip, truncated, corrupted, or larger than ``limit``.

    Example:
        >>> import gzip
        >>> gunzip(gzip.compress(b"seven"))
        b'seven'
    """
    out = bytearray()
    while data:
        member = zlib.decompressobj(wbits=31)  # 31: a gzip header and its CRC, checked by zlib
        try:
            out += member.decompress(data, limit - len(out) + 1)
        except zlib.error as error:
            raise DataError(f"Expected {name} to be a sound gzip file, but got {error}") from None
        if len(out) > limit:
            raise DataError(f"Expected {name} to hold at most {limit} bytes, but got more")
        if not member.eof:
            raise DataError(f"Expected {name} to be a whole gzip file, but got a truncated one")
        data = member.unused_data
    return bytes(out)


def read_idx(data: bytes, *, name: str = "file") -> np.ndarray:
    """Read an idx file of unsigned bytes, gzipped or not, as an array of the shape it declares.

    Args:
        data: The file's bytes.
        name: What to call the file in an error message.

    Raises:
        DataError: Wrong magic, or a length that is not the one the header promises.

    Example:
        >>> read_idx(bytes([0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 3, 7, 8, 9]))
        array([[7, 8, 9]], dtype=uint8)
    """
    if data[:2] == b"\x1f\x8b":
        data = gunzip(data, name=name)
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        got = data[:4].hex(" ") or "nothing"
        raise DataError(f"Expected {name} to start with an idx magic 00 00 08 nn, but got {got}")
    start = 4 + 4 * data[3]
    if not 1 <= data[3] <= 4 or len(data) < start:
        raise DataError(f"Expected {name} to declare 1 to 4 dimensions, but got {data[3]}")
    shape = struct.unpack_from(f">{data[3]}I", data, 4)
    if math.prod(shape) != len(data) - start:
        raise DataError(f"Expected {name} to hold {shape} bytes, but got {len(data) - start}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
