"""The event readers against tonic on the real recordings, and against files written here from the formats."""

import io
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.real import real
from nsm.data import DataError, read_aedat, read_events, read_gestures, read_npy_events


def pack(x, y, t, p):
    """One 5-byte event, from the format's definition."""
    return bytes([x, y, p << 7 | t >> 16, t >> 8 & 255, t & 255])


def test_events_equal_tonic_on_every_real_recording():
    tonic_io = pytest.importorskip("tonic.io")
    dtype = np.dtype([("x", int), ("y", int), ("t", int), ("p", int)])
    paths = sorted(real("nmnist").glob("T*/*/*.bin"))
    assert len(paths) >= 1100
    for path in paths:
        ours, theirs = (
            read_events(path.read_bytes(), name=path.name),
            tonic_io.read_mnist_file(str(path), dtype),
        )
        assert len(ours) == len(theirs) > 100
        for field in "xytp":
            np.testing.assert_array_equal(ours[field], theirs[field])


def test_overflow_equals_tonic(tmp_path):
    tonic_io = pytest.importorskip("tonic.io")
    rng = np.random.default_rng(0)
    data = b"".join(
        pack(
            int(rng.integers(34)),
            240 if rng.random() < 0.1 else int(rng.integers(34)),
            int(rng.integers(2**23)),
            int(p),
        )
        for p in rng.integers(2, size=500)
    )
    (tmp_path / "a.bin").write_bytes(data)
    theirs = tonic_io.read_mnist_file(str(tmp_path / "a.bin"), np.dtype([(f, int) for f in "xytp"]))
    ours = read_events(data)
    assert 400 < len(ours) < 480
    for field in "xytp":
        np.testing.assert_array_equal(ours[field], theirs[field])


def test_overflow_adds_to_later_times_and_is_no_event():
    data = pack(1, 2, 100, 1) + pack(0, 240, 0, 0) + pack(3, 4, 5, 0) + pack(0, 240, 0, 0) + pack(5, 6, 7, 1)
    assert read_events(data).tolist() == [(1, 2, 100, True), (3, 4, 8192 + 5, False), (5, 6, 16384 + 7, True)]


@given(st.lists(st.tuples(st.integers(0, 33), st.integers(0, 33), st.integers(0, 2**23 - 1), st.booleans())))
def test_events_round_trip(events):
    assert read_events(b"".join(pack(*event) for event in events)).tolist() == events


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"1234", "4 bytes"),
        (pack(34, 0, 0, 0), "x 34, y 0"),
        (pack(0, 34, 0, 0), "x 0, y 34"),
        (pack(0, 0, 0, 0) + pack(255, 255, 0, 0), "x 255, y 255"),
    ],
)
def test_broken_events(data, said):
    with pytest.raises(DataError, match=rf"Expected a\.bin .* but got .*{said}"):
        read_events(data, name="a.bin")


def test_bs2_recordings_have_the_gestures_sensor():
    for path in real("dvsgesture").glob("*.bs2"):
        events = read_events(path.read_bytes(), sensor=(128, 128), name=path.name)
        assert 90 < events["x"].max() < 128
        assert 1.3e6 < events["t"].max() < 1.6e6
        assert (np.diff(events["t"]) >= 0).all()


def packet(events, overflow=0, kind=1, size=8, capacity=None, number=None, valid=None):
    """An AEDAT 3.1 packet of (x, y, t, polarity, valid), from the format's definition."""
    n = len(events)
    header = struct.pack(
        "<hhiiiiii", kind, 1, size, 4, overflow, n if capacity is None else capacity,
        n if number is None else number, sum(e[4] for e in events) if valid is None else valid,
    )  # fmt: skip
    return header + b"".join(struct.pack("<Ii", v | p << 1 | y << 2 | x << 17, t) for x, y, t, p, v in events)


HEADER = b"#!AER-DAT3.1\r\n#Format: RAW\r\n#Source 1: DVS128\r\n#Start-Time: 2016-09-01\r\n#!END-HEADER\r\n"


def test_aedat_events_validity_overflow_and_other_packets():
    data = (
        HEADER
        + packet([(1, 2, 3, 1, 1), (4, 5, 6, 0, 0), (127, 0, 2**31 - 1, 0, 1)])
        + packet([(0, 0, 0, 0, 1)] * 2, kind=0)  # special events: not ours
        + packet([])
        + packet([(7, 127, 9, 1, 1)], overflow=2)
    )
    assert read_aedat(data).tolist() == [
        (1, 2, 3, True),
        (127, 0, 2**31 - 1, False),
        (7, 127, 2 * 2**31 + 9, True),
    ]
    assert len(read_aedat(HEADER)) == 0


SOUND = packet([(1, 2, 3, 1, 1)])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "header"),
        (HEADER.replace(b"3.1", b"2.0") + SOUND, "header"),
        (HEADER[:-16] + SOUND, "header"),
        (HEADER + SOUND[:20], "20 bytes"),
        (HEADER + SOUND + SOUND[:-1], "7 of 8 bytes"),
        (HEADER + packet([(1, 2, 3, 1, 1)], capacity=2**31 - 1), "of 17179869176 bytes"),
        (HEADER + packet([(1, 2, 3, 1, 1)], number=2), "sound packet"),
        (HEADER + packet([(1, 2, 3, 1, 1)], number=-1), "sound packet"),
        (HEADER + packet([(1, 2, 3, 1, 1)], size=0), "sound packet"),
        (HEADER + packet([(1, 2, 3, 1, 1)], kind=-32767), "sound packet"),
        (HEADER + packet([(1, 2, 3, 1, 1)], size=4), "4 bytes"),
        (HEADER + packet([(1, 2, -3, 1, 1)]), "-3"),
        (HEADER + packet([(128, 2, 3, 1, 1)]), "x 128, y 2"),
        (HEADER + packet([(1, 2**15 - 1, 3, 1, 1)]), "y 32767"),
    ],
)
def test_broken_aedat(data, said):
    with pytest.raises(DataError, match=rf"Expected a\.aedat .*{said}"):
        read_aedat(data, name="a.aedat")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "start with class"),
        (b"class,start,end\n1,2,3\n", "start with class"),
        (b"class,startTime_usec,endTime_usec\n1,2\n", "three numbers"),
        (b"class,startTime_usec,endTime_usec\n1,2,x\n", "three numbers"),
        (b"class,startTime_usec,endTime_usec\n0,2,3\n", "0,2,3"),
        (b"class,startTime_usec,endTime_usec\n12,2,3\n", "12,2,3"),
        (b"class,startTime_usec,endTime_usec\n1,3,3\n", "1,3,3"),
        (b"class,startTime_usec,endTime_usec\n1,3," + b"9" * 19 + b"\n", "three numbers"),
    ],
)
def test_broken_gestures(data, said):
    with pytest.raises(DataError, match=said):
        read_gestures(data)


def npy(table, **kwargs):
    file = io.BytesIO()
    np.save(file, table, **kwargs)
    return file.getvalue()


@pytest.mark.parametrize("dtype", [np.int64, np.float64, np.int16, np.float32])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_events(dtype, order):
    table = np.array([[1, 2, 0, 3], [127, 126, 1, 40]], dtype=dtype, order=order)
    assert read_npy_events(npy(table)).tolist() == [(1, 2, 3000, False), (127, 126, 40000, True)]
    assert len(read_npy_events(npy(table[:0]))) == 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        npy(np.zeros((2, 3))),
        npy(np.zeros(4)),
        npy(np.zeros((2, 4), complex)),
        npy(np.array([{}], object), allow_pickle=True),
        npy(np.zeros((2, 4)))[:-1],
        npy(np.zeros((2, 4))) + b"0",
        npy(np.zeros((2, 4))).replace(b"(2, 4)", b"(9, 4)"),
        npy(np.array([[128, 0, 0, 0]])),
        npy(np.array([[0, 128, 0, 0]])),
        npy(np.array([[0, 0, 2, 0]])),
        npy(np.array([[0, 0, 0, -1]])),
        npy(np.array([[0, 0, 0, np.nan]])),
        npy(np.array([[0, 0, 0, np.inf]])),
    ],
)
def test_broken_npy(data):
    with pytest.raises(DataError, match=r"Expected a\.npy"):
        read_npy_events(data, name="a.npy")
