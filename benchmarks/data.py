"""How fast real data arrives. A time is printed only after its result was checked.

python benchmarks/data.py FOLDER_WITH_N-MNIST [RESULT.json]
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from nsm import record
from nsm.data import frames, load, read_events

REPEATS = 7


def timed(*functions) -> list[float]:
    """Median seconds of each function; they take turns, so that a busy machine is busy for all of them."""
    times = [[] for _ in functions]
    for _ in range(REPEATS):
        for function, its in zip(functions, times, strict=True):
            begin = time.perf_counter()
            function()
            its.append(time.perf_counter() - begin)
    return [statistics.median(its) for its in times]


def embedded() -> list[dict]:
    """The digits inside the package."""
    inputs = load("mnist", "train+validation").inputs
    ink = float((inputs > 0).float().mean())
    if inputs.shape != (60_000, 1, 28, 28) or set(inputs.unique().tolist()) != {-1.0, 1.0} or not 0.1 < ink < 0.15:
        raise SystemExit("the embedded digits are not what they should be")
    both, alone = timed(lambda: load("mnist", "train+validation").inputs, lambda: load("mnist", "train"))
    code = "import torch, nsm.data, time; t = time.perf_counter(); nsm.data.load('mnist'); "
    command = [sys.executable, "-c", code + "print(time.perf_counter() - t)"]
    cold = [float(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(REPEATS)]
    return [
        row("60,000 embedded digits as ±1 float32 tensors", both, goal=0.5),
        row("load('mnist'), packed, in a warm process", alone, goal=1.0),
        row("load('mnist'), first call of a new process that has torch", statistics.median(cold), goal=1.0),
    ]


def nmnist(folder: Path) -> list[dict]:
    """Recordings to frames, beside tonic's reader and ToFrame."""
    from tonic.io import read_mnist_file
    from tonic.transforms import ToFrame

    paths = sorted(folder.glob("T*/*/*.bin"))
    if not paths:
        raise SystemExit(f"no recordings in {folder}")
    dtype = np.dtype([(name, int) for name in "xytp"])
    to_frame = ToFrame(sensor_size=(34, 34, 2), n_time_bins=10)

    def theirs(path: Path) -> np.ndarray:
        return to_frame(read_mnist_file(str(path), dtype=dtype))

    def ours(path: Path) -> np.ndarray:
        events = read_events(path.read_bytes())
        first = int(events["t"][0])
        window = (int(events["t"][-1]) - first) // 10  # tonic's bins: ten of that length from the first event
        return frames(events, sensor=(34, 34), count=10, window=window, start=first, polarity="both", binary=False)

    def paper(path: Path) -> np.ndarray:
        return frames(read_events(path.read_bytes()), sensor=(34, 34), count=10)

    for path in paths:
        if not np.array_equal(ours(path), theirs(path)):
            raise SystemExit(f"{path}: frames differ from tonic's")

    def each(function):
        def run():
            for path in paths:
                function(path)

        return run

    times = timed(each(theirs), each(ours), each(paper))
    peer_time, equal_time, paper_time = (seconds / len(paths) for seconds in times)
    peer, n = "tonic 1.7.0: read_mnist_file + ToFrame(n_time_bins=10)", len(paths)
    return [
        row(f"N-MNIST file → tonic's frames, mean of {n}", equal_time, peer_time, peer, 3.0),
        row(f"N-MNIST file → the paper's frames, mean of {n}", paper_time, peer_time, peer, 3.0),
    ]


def row(work: str, seconds: float, peer_seconds: float = 0.0, peer: str = "", goal: float = 0.0) -> dict:
    """One measured line: a ratio where there is a peer, else seconds against a limit."""
    if peer:
        ratio = peer_seconds / seconds
        return {
            "work": work,
            "seconds": round(seconds, 7),
            "peer": peer,
            "peer_seconds": round(peer_seconds, 7),
            "ratio": round(ratio, 2),
            "goal": f"at least {goal:g} times faster",
            "met": ratio >= goal,
        }
    return {"work": work, "seconds": round(seconds, 4), "goal": f"under {goal:g} s", "met": seconds < goal}


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    rows = embedded() + nmnist(Path(sys.argv[1]))
    if len(sys.argv) > 2:
        record.write(sys.argv[2], {"repeats": REPEATS, "rows": rows})
    for one in rows:
        print(json.dumps(one, ensure_ascii=False))
