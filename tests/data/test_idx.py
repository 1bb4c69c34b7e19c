import gzip
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nsm.data import DataError, read_idx
from nsm.data.idx import gunzip


def idx(array):
    """The format's definition: 0, 0, type 8, dimensions, sizes big-endian, bytes."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@given(hnp.arrays(np.uint8, hnp.array_shapes(max_dims=4, max_side=4)), st.booleans())
def test_round_trip(array, zipped):
    data = idx(array)
    np.testing.assert_array_equal(read_idx(gzip.compress(data) if zipped else data), array)


SOUND = idx(np.arange(12, dtype=np.uint8).reshape(3, 4))
ZIPPED = gzip.compress(SOUND, mtime=0)  # without the time, which would be part of the tests' names


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "magic 00 00 08 nn, but got nothing"),
        (b"\0\0\x08", "magic"),
        (b"\0\0\x0d\x01" + bytes(8), "00 00 0d 01"),
        (b"\0\0\x08\0", "1 to 4 dimensions, but got 0"),
        (b"\0\0\x08\xff" + bytes(2000), "1 to 4 dimensions, but got 255"),
        (SOUND[:9], "dimensions"),
        (SOUND[:-1], r"hold \(3, 4\) bytes, but got 11"),
        (SOUND + b"0", r"but got 13"),
        (b"\0\0\x08\x03" + b"\xff" * 12, r"4294967295, 4294967295\) bytes, but got 0"),
        (ZIPPED[:-1], "truncated"),
        (ZIPPED[:-6] + b"123456", "incorrect data check"),
        (ZIPPED + b"junk", "sound gzip"),
        (b"\x1f\x8b", "truncated"),
    ],
)
def test_broken(data, said):
    with pytest.raises(DataError, match=f"Expected digits .*{said}"):
        read_idx(data, name="digits")


def test_a_bomb_stops_at_the_limit():
    bomb = gzip.compress(bytes(50_000_000))
    assert len(bomb) < 60_000
    with pytest.raises(DataError, match="at most 1000 bytes"):
        gunzip(bomb, limit=1000)
    with pytest.raises(DataError, match="at most 1000 bytes"):
        gunzip(gzip.compress(bytes(600)) * 2, limit=1000)
    assert gunzip(gzip.compress(bytes(1000)), limit=1000) == bytes(1000)
    assert gunzip(gzip.compress(b"one ") + gzip.compress(b"two")) == b"one two"


def test_only_gzip_is_inflated():
    with pytest.raises(DataError):
        gunzip(zlib.compress(b"no gzip header"))
