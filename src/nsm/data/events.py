"""Event-camera recordings: bytes in, events out.

Events are a structured array with fields ``x``, ``y`` (pixel), ``t`` (µs) and ``p`` (True: ON, brighter), the
fields tonic uses as well.
"""

import re
import struct
from collections.abc import Iterator

import numpy as np

from nsm.data.errors import DataError

EVENT = np.dtype(  # 16 bytes with every field aligned: numpy is several times slower on the packed 13
    {
        "names": ["x", "y", "t", "p"],
        "formats": [np.int16, np.int16, np.int64, np.bool_],
        "offsets": [8, 10, 0, 12],
        "itemsize": 16,
    }
)

_OVERFLOW_ROW, _OVERFLOW_TIME = 240, 2**13  # a row no sensor has: the clock went round
_AEDAT_EVENT = np.dtype([("data", "<u4"), ("time", "<i4")])
_AEDAT_PACKET = struct.Struct("<hhiiiiii")  # type, source, event size, time offset, overflow, capacity, number, valid


def read_events(data: bytes, *, sensor: tuple[int, int] = (34, 34), name: str = "file") -> np.ndarray:
    """Read 5-byte events (N-MNIST ``.bin``, DVS ``.bs2``): x, y, polarity and 23 bits of time.

    An event in row 240 says that the clock overflowed: 2¹³ µs are added to every later time.

    Args:
        data: The file's bytes.
        sensor: (height, width) in pixels.
        name: What to call the file in an error message.

    Raises:
        DataError: Not a multiple of 5 bytes, or a pixel outside the sensor.

    Example:
        >>> print(read_events(bytes([3, 4, 0x80, 1, 0])))
        [(3, 4, 256,  True)]
    """
    if len(data) % 5:
        raise DataError(f"Expected {name} to be events of 5 bytes, but got {len(data)} bytes")
    x, y, high, middle, low = np.frombuffer(data, np.uint8).reshape(-1, 5).T.copy()
    time = (high & 127).astype(np.int32) << 16 | middle.astype(np.int32) << 8 | low
    polarity = high > 127
    overflow = y == _OVERFLOW_ROW
    if overflow.any():
        keep = ~overflow
        time = (time + _OVERFLOW_TIME * np.cumsum(overflow))[keep]
        x, y, polarity = x[keep], y[keep], polarity[keep]
    return _events(x, y, time, polarity, sensor, name)


def read_aedat(data: bytes, *, sensor: tuple[int, int] = (128, 128), name: str = "file") -> np.ndarray:
    """Read the valid polarity events of an AEDAT 3.1 file; packets of other kinds are passed over.

    Args:
        data: The file's bytes.
        sensor: (height, width) in pixels.
        name: What to call the file in an error message.

    Raises:
        DataError: Another version, a header without end, a packet that is short or lies, a pixel outside.
    """
    header = re.match(rb"#!AER-DAT3\.1\r?\n(?:#[^\n]*\n)*?#!END-HEADER\r?\n", data[: 2**16])
    if header is None:
        raise DataError(f"Expected {name} to start with an AEDAT 3.1 header, but got {data[:14]!r}")
    packets = list(_packets(data, header.end(), name))
    events = np.empty(sum(number for _, number, _ in packets), EVENT)  # one array: pieces would need it twice
    filled = 0
    for body, number, overflow in packets:
        found = _polarity(np.frombuffer(data, _AEDAT_EVENT, number, body), overflow, sensor, name)
        events[filled : filled + len(found)] = found
        filled += len(found)
    return events[:filled]


def _packets(data: bytes, position: int, name: str) -> Iterator[tuple[int, int, int]]:
    """Where each polarity packet's events begin, how many they are, and how often the clock overflowed."""
    while position < len(data):
        packet, body = data[position : position + _AEDAT_PACKET.size], position + _AEDAT_PACKET.size
        if len(packet) < _AEDAT_PACKET.size:
            got = f"{len(packet)} bytes"
            raise DataError(f"Expected {name} to have a packet header at byte {position}, but got {got}")
        kind, _, size, offset, overflow, capacity, number, valid = _AEDAT_PACKET.unpack(packet)
        if kind < 0 or size < 1 or overflow < 0 or not 0 <= valid <= number <= capacity:
            got = packet.hex(" ")
            raise DataError(f"Expected {name} to have a sound packet at byte {position}, but got {got}")
        if size * capacity > len(data) - body:
            got = f"{len(data) - body} of {size * capacity} bytes"
            raise DataError(f"Expected {name} to hold the packet at byte {position}, but got {got}")
        if kind == 1 and number:
            if (size, offset) != (_AEDAT_EVENT.itemsize, 4):
                raise DataError(f"Expected {name} to have polarity events of 8 bytes, but got {size} bytes")
            yield body, number, overflow
        position = body + size * capacity


def _polarity(raw: np.ndarray, overflow: int, sensor: tuple[int, int], name: str) -> np.ndarray:
    raw = raw[(raw["data"] & 1).astype(bool)]  # bit 0: the event is valid
    if (raw["time"] < 0).any():
        raise DataError(f"Expected {name} to have times of at least 0, but got {raw['time'].min()}")
    time = raw["time"].astype(np.int64) | overflow << 31
    word = np.ascontiguousarray(raw["data"])
    return _events(word >> 17, word >> 2 & 0x7FFF, time, word >> 1 & 1, sensor, name)


def read_gestures(data: bytes, *, classes: int = 11, name: str = "file") -> np.ndarray:
    r"""Read the label CSV beside an AEDAT recording: rows (class from 0, start µs, end µs) of an int64 array.

    Raises:
        DataError: Another header, a row of anything but three numbers, a class or an end out of range.

    Example:
        >>> read_gestures(b"class,startTime_usec,endTime_usec\n1,10,20\n11,30,45\n")
        array([[ 0, 10, 20],
               [10, 30, 45]])
    """
    lines = data.split()
    if not lines or lines[0] != b"class,startTime_usec,endTime_usec":
        raise DataError(f"Expected {name} to start with class,startTime_usec,endTime_usec, but got {data[:40]!r}")
    for line in lines[1:]:
        if not re.fullmatch(rb"\d{1,3},\d{1,18},\d{1,18}", line):
            raise DataError(f"Expected {name} to have rows of three numbers, but got {line[:40]!r}")
    rows = np.array([line.split(b",") for line in lines[1:]], dtype="S18").reshape(-1, 3).astype(np.int64)
    for number, start, end in rows:
        if not 1 <= number <= classes or start >= end:
            got = f"{number},{start},{end}"
            raise DataError(f"Expected {name} to have classes 1 to {classes} and ends after starts, but got {got}")
    return rows - [1, 0, 0]


def read_npy_events(data: bytes, *, sensor: tuple[int, int] = (128, 128), name: str = "file") -> np.ndarray:
    """Read a gesture in tonic's layout: ``.npy`` of shape (N, 4) with columns x, y, polarity, time in ms.

    Raises:
        DataError: Not such an array, a length that differs from the header's, no pixel or no time.
    """
    header = re.match(
        rb"\x93NUMPY(?:\x01\0..|[\x02\x03]\0....)\{'descr': '[<|]([iuf][1248])', "
        rb"'fortran_order': (True|False), 'shape': \((\d{1,12}), 4\), \} *\n",
        data[:4096],
        re.DOTALL,
    )
    if header is None:
        raise DataError(f"Expected {name} to be an .npy array of numbers of shape (N, 4), but got {data[:80]!r}")
    try:
        dtype = np.dtype("<" + header[1].decode())
    except TypeError:
        raise DataError(f"Expected {name} to hold a known number type, but got {header[1]!r}") from None
    rows = int(header[3])
    if rows * 4 * dtype.itemsize != len(data) - header.end():
        raise DataError(f"Expected {name} to hold {rows} events, but got {len(data) - header.end()} bytes")
    table = np.frombuffer(data, dtype, offset=header.end())
    table = table.reshape((rows, 4), order="F" if header[2] == b"True" else "C")
    limits = np.array([sensor[1], sensor[0], 2, 2**40])  # 2⁴⁰ ms are 35 years
    bad = ~((table >= 0) & (table < limits)).all(axis=1)  # NaN is neither
    if bad.any():
        got = table[np.argmax(bad)].tolist()
        raise DataError(f"Expected {name} to have pixels inside {sensor} and times from 0, but got {got}")
    events = np.empty(rows, EVENT)
    events["x"], events["y"], events["p"] = table[:, 0], table[:, 1], table[:, 2]
    events["t"] = (table[:, 3] * np.float64(1000)).astype(np.int64)
    return events


def _events(
    x: np.ndarray, y: np.ndarray, time: np.ndarray, polarity: np.ndarray, sensor: tuple[int, int], name: str
) -> np.ndarray:
    """One array of events, once every pixel is known to be on the sensor."""
    height, width = sensor
    if len(x) and (x.max() >= width or y.max() >= height):
        where = np.argmax((x >= width) | (y >= height))
        raise DataError(f"Expected {name} to have pixels inside {height}×{width}, but got x {x[where]}, y {y[where]}")
    events = np.empty(len(x), EVENT)
    events["x"], events["y"], events["t"], events["p"] = x, y, time, polarity
    return events
