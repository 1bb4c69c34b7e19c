"""Peak memory while the frames of a large event set are built: results/framing-memory.json.

    python benchmarks/framing_memory.py

Writes six AEDAT recordings of three million events each, loads them, and adds up the resident memory of the process and
its workers twenty times a second.
"""

import struct
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
EVENTS, RECORDINGS, SUBJECTS = 3_000_000, 6, (1, 2, 3, 4, 5, 20)


def write_recording(folder: Path, subject: int) -> int:
    """One AEDAT 3.1 file of random events over a hundred seconds, in packets of 10,000, with one gesture throughout."""
    generator = np.random.default_rng(subject)
    x, y, on = (generator.integers(0, high, EVENTS, dtype=np.uint32) for high in (128, 128, 2))
    times = np.sort(generator.integers(0, 100_000_000, EVENTS)).astype(np.int32)
    words = np.stack([1 | on << 1 | y << 2 | x << 17, times.view(np.uint32)], 1).astype("<u4")
    path = folder / f"user{subject:02d}_led.aedat"
    with path.open("wb") as file:
        file.write(b"#!AER-DAT3.1\r\n#!END-HEADER\r\n")
        for packet in np.split(words, EVENTS // 10_000):
            n = len(packet)
            file.write(struct.pack("<hhiiiiii", 1, 0, 8, 4, 0, n, n, n) + packet.tobytes())
    label = f"class,startTime_usec,endTime_usec\n1,{times[0]},{times[-1]}\n"
    path.with_name(f"user{subject:02d}_led_labels.csv").write_text(label)
    return path.stat().st_size


def resident() -> int:
    """Bytes of this process and of all that it started."""
    parents, sizes = {}, {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:
            continue  # it has ended
        parents[int(fields["Pid"])] = int(fields["PPid"])
        sizes[int(fields["Pid"])] = int(fields.get("VmRSS", "0 kB").split()[0]) * 1024
    own = {int(Path("/proc/self").resolve().name)}
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    return sum(sizes.get(pid, 0) for pid in own)


def main() -> None:
    """Write, frame, watch, record."""
    from nsm import data, record

    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "dvsgesture"
        folder.mkdir()
        size = sum(write_recording(folder, subject) for subject in SUBJECTS)
        peak, ended = [resident()], threading.Event()
        before = peak[0]

        def watch() -> None:
            while not ended.wait(0.05):
                peak[0] = max(peak[0], resident())

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        begin = time.perf_counter()
        dataset = data.load("dvsgesture", "train+validation", root)
        seconds = time.perf_counter() - begin
        ended.set()
        watcher.join()
    found = {
        "recordings": RECORDINGS,
        "events": EVENTS * RECORDINGS,
        "file_bytes": size,
        "windows": len(dataset),
        "seconds": seconds,
        "resident_mb_before": before / 2**20,
        "peak_resident_mb": peak[0] / 2**20,
        "goal_mb": 1024,
        "met": peak[0] < 2**30,
    }
    record.write(ROOT / "results" / "framing-memory.json", found)
    print(found)


if __name__ == "__main__":
    main()
