import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.real import real
from nsm.data import DataError, frames, read_events
from nsm.data.events import EVENT


def make(rows):
    return np.array(rows, EVENT)


def slow(events, sensor, count, length, start, polarity, binary, downsample):
    """Event by event, as one would say it: the oracle."""
    height, width = -(-sensor[0] // downsample), -(-sensor[1] // downsample)
    out = np.zeros((count, 2 if polarity == "both" else 1, height, width), int)
    for x, y, t, p in events.tolist():
        if t < start or (polarity != "both" and p != (polarity == "on")):
            continue
        frame = length(t - start)
        if frame < count:
            plane = int(p) if polarity == "both" else 0
            out[frame, plane, y // downsample, x // downsample] += 1
    return np.minimum(out, 1) if binary else out


EVENTS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 4), st.integers(0, 1000), st.booleans()),
    min_size=1,
    max_size=60,
).map(make)
OPTIONS = {
    "polarity": st.sampled_from(["on", "off", "both"]),
    "binary": st.booleans(),
    "downsample": st.integers(1, 3),
    "start": st.integers(0, 50),
}


@given(EVENTS, st.integers(1, 12), st.fixed_dictionaries(OPTIONS))
def test_by_count(events, count, options):
    last = max(int(events["t"].max()) - options["start"], 1)

    def index(t):
        return min(t * count // last, count - 1)

    expected = slow(events, (5, 7), count, index, **options)
    np.testing.assert_array_equal(frames(events, sensor=(5, 7), count=count, **options), expected)


@given(EVENTS, st.integers(1, 300), st.none() | st.integers(1, 12), st.fixed_dictionaries(OPTIONS))
def test_by_window(events, window, count, options):
    got = frames(events, sensor=(5, 7), window=window, count=count, **options)
    if count is None:  # enough for every event after the start
        count = max(int(events["t"].max()) - options["start"], 1) // window + 1
    expected = slow(events, (5, 7), count, lambda t: t // window, **options)
    np.testing.assert_array_equal(got, expected)


def test_the_last_event_is_in_the_last_frame_and_length_counts_both_polarities():
    events = make([(0, 0, 0, True), (1, 0, 999, True), (2, 0, 1000, False)])
    got = frames(events, sensor=(1, 3), count=10)[:, 0, 0]
    assert got[0].tolist() == [1, 0, 0]
    assert got[9].tolist() == [0, 1, 0]
    assert got.sum() == 2


def test_tonic_events_and_frames():
    functional = pytest.importorskip("tonic.functional")
    for path in sorted(real("nmnist").glob("Test/*/*.bin"))[:30]:
        events = read_events(path.read_bytes())
        theirs = functional.to_frame_numpy(events.copy(), (34, 34, 2), n_time_bins=10)
        first, last = int(events["t"][0]), int(events["t"][-1])
        window = (last - first) // 10
        ours = frames(events, sensor=(34, 34), count=10, window=window, start=first, polarity="both", binary=False)
        np.testing.assert_array_equal(ours, theirs)


def test_no_events():
    assert frames(make([]), sensor=(34, 34), count=10).sum() == 0
    assert frames(make([]), sensor=(34, 34), count=10).shape == (10, 1, 34, 34)
    assert frames(make([]), sensor=(34, 34), window=100, binary=False).shape == (1, 1, 34, 34)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "`count` or `window`"),
        ({"count": 0}, "`count` to be at least 1, but got 0"),
        ({"window": -5}, "`window` to be at least 1, but got -5"),
        ({"count": 1, "downsample": 0}, "`downsample`"),
        ({"count": 1, "polarity": "ON"}, "`polarity`"),
        ({"count": 10**9}, "at most"),
        ({"window": 1}, "at most"),
    ],
)
def test_bad_arguments(options, said):
    with pytest.raises(DataError, match=said):
        frames(make([(0, 0, 2**40, True)]), sensor=(34, 34), **options)


@pytest.mark.parametrize(
    ("events", "sensor", "said"),
    [
        (np.zeros((5, 4)), (34, 34), "Expected events to have fields x, y, t and p, but got float64"),
        (make([(0, 0, 1, True)]), 34, r"`sensor` to be \(height, width\), but got 34"),
        (make([(0, 0, 1, True)]), (1, 34, 34), r"`sensor` to be \(height, width\)"),
    ],
)
def test_what_are_no_events_or_no_sensor(events, sensor, said):
    with pytest.raises(DataError, match=said):
        frames(events, sensor=sensor, count=1)


def test_events_outside_the_sensor():
    for pixel in ((34, 0), (0, 34), (-1, 0), (0, -1)):
        with pytest.raises(DataError, match="inside"):
            frames(make([(*pixel, 5, True)]), sensor=(34, 34), count=2)
    with pytest.raises(DataError, match="end before"):
        frames(make([(0, 0, 2**62, True)]), sensor=(34, 34), count=2)
