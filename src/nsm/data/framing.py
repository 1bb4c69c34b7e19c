"""Events → frames."""

from typing import Literal

import numpy as np

from nsm.data.errors import DataError

MAX_PIXELS = 2**26  # at most 64 MB of binary frames: a time stamp that lies must not become memory


def frames(
    events: np.ndarray,
    *,
    sensor: tuple[int, int],
    count: int | None = None,
    window: int | None = None,
    start: int = 0,
    polarity: Literal["on", "off", "both"] = "on",
    binary: bool = True,
    downsample: int = 1,
) -> np.ndarray:
    """Collect events into frames, by their number or by the time each spans.

    ========================  ====================================================================
    ``count``                 that many frames, each (last time − start) / count long
    ``window``                frames of ``window`` µs until the last event
    ``count`` and ``window``  exactly that many frames of that length; later events are left out
    ========================  ====================================================================

    Args:
        events: Structured array with fields x, y, t and p (of this package or of tonic).
        sensor: (height, width) in pixels.
        count: Number of frames.
        window: Length of a frame in µs.
        start: Time in µs at which the first frame begins; earlier events are left out.
        polarity: ON events, OFF events, or both (two planes, OFF first).
        binary: 1 where any event fell (uint8); otherwise the number of events (int32).
        downsample: Each ``downsample`` × ``downsample`` pixels become one.

    Returns:
        Array (frames, 1 or 2 planes, height, width).

    Raises:
        DataError: A bad argument, an event outside the sensor, or more frames than memory should hold.

    Example:
        >>> from nsm.data.events import EVENT
        >>> events = np.array([(0, 0, 5, True), (1, 0, 10, True)], EVENT)
        >>> frames(events, sensor=(1, 2), count=2)[:, 0].tolist()
        [[[0, 0]], [[1, 1]]]
        >>> frames(events, sensor=(1, 2), window=5).shape
        (3, 1, 1, 2)
    """
    for name, value in (("count", count), ("window", window), ("downsample", downsample)):
        if value is not None and value < 1:
            raise DataError(f"Expected argument `{name}` to be at least 1, but got {value}")
    if len(np.shape(sensor)) != 1 or len(sensor) != 2:
        raise DataError(f"Expected argument `sensor` to be (height, width), but got {sensor!r}")
    if not {"x", "y", "t", "p"} <= {*(events.dtype.names or ())}:
        raise DataError(f"Expected events to have fields x, y, t and p, but got {events.dtype}")
    if count is None and window is None:
        raise DataError("Expected argument `count` or `window` to be given, but got neither")
    if polarity not in ("on", "off", "both"):
        raise DataError(f"Expected argument `polarity` to be 'on', 'off' or 'both', but got {polarity!r}")
    x, y, on = (np.ascontiguousarray(events[field]) for field in "xyp")  # strided fields are slow to work on
    on = on.astype(bool, copy=False)
    if len(x) and not (x.min() >= 0 <= y.min() and x.max() < sensor[1] and y.max() < sensor[0]):
        raise DataError(f"Expected events inside {sensor}, but got x up to {x.max()}, y up to {y.max()}")
    t = events["t"].astype(np.int64, copy=False) - start
    last = max(int(t.max()), 1) if len(t) else 1  # of all events: the length is the recording's, not a polarity's
    if count is None:
        count = last // (window or 1) + 1
    planes = 2 if polarity == "both" else 1
    height, width = (-(-side // downsample) for side in sensor)
    shape = (count, planes, height, width)
    if (pixels := count * planes * height * width) > MAX_PIXELS:
        raise DataError(f"Expected frames of at most {MAX_PIXELS} pixels, but got {shape}")

    # `index` is worked on in place: of each event the frame, then the plane, the row, the pixel.
    if window is not None:
        index = t // window
    elif last < 2**62 // count:
        index = t * count
        index //= last
        np.minimum(index, count - 1, out=index)  # the last event closes the last frame
    else:
        raise DataError(f"Expected events to end before {2**62 // count} µs, but got {last}")
    keep = (t >= 0) & (index < count)
    if planes == 2:
        index *= 2
        index += on
    else:
        keep &= on if polarity == "on" else ~on
    index *= height
    index += y // downsample if downsample > 1 else y
    index *= width
    index += x // downsample if downsample > 1 else x
    index = index.compress(keep)
    out = np.zeros(pixels, np.uint8 if binary else np.int32)
    if binary:
        out[index] = 1
    else:
        np.add.at(out, index, np.int32(1))
    return out.reshape(shape)
