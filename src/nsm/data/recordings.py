"""Event recordings → windows of packed frames: built once, in several processes, cached memory-mapped."""

import hashlib
import json
import math
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nsm.data.catalogue import Entry
from nsm.data.download import Progress
from nsm.data.errors import DataError
from nsm.data.events import read_aedat, read_events, read_gestures, read_npy_events
from nsm.data.framing import frames
from nsm.data.store import beside, read_file, subject

_VERSION = 1  # of the cached form: another number, another folder
_MEMORY = 750 * 2**20  # for all processes together
_PER_BYTE = 9  # of the largest file, to read and frame it, even where it is one single gesture
_SERIAL = 2_000  # fewer small files than this are read sooner than a process has started
_DVS_SENSOR, _DVS_WINDOW, _DVS_FRAMES = (128, 128), 16_000, 6  # pixels, µs, frames as channels
_DVS_CLASSES = 11


@dataclass(frozen=True)
class Recording:
    """One labelled stretch of events, cut into windows."""

    windows: int
    label: int
    subject: int | None


@dataclass(frozen=True)
class FrameSet:
    """The windows of all recordings of a part, with what is known of each recording."""

    stored: np.ndarray  # (windows, C, H, ceil(W / 8)) uint8, packed bits
    recordings: list[Recording]


def windows(path: Path, kind: str) -> list[tuple[np.ndarray, Recording]]:
    """Read one file: for each recording in it, its packed windows (n, C, H, ceil(W / 8)) and what it is.

    Raises:
        DataError: A file its reader refuses, a label that is none.
    """
    data, name = read_file(path), str(path)
    if kind == "nmnist":
        out = frames(read_events(data, name=name), sensor=(34, 34), count=10)
        return [(np.packbits(out.reshape(1, 10, 34, 34), axis=-1), Recording(1, int(path.parent.name), None))]
    if path.suffix == ".aedat":
        events = read_aedat(data, name=name)
        del data  # half as large as its events
        (table,) = beside(path)
        found = []
        for label, start, end in read_gestures(read_file(table), name=str(table)).tolist():
            inside = events[(events["t"] >= start) & (events["t"] < end)]
            found.append(_gesture(inside, start, end, label, path))
        return found
    if path.suffix == ".npy":
        events, label = read_npy_events(data, name=name), int(path.stem)
    else:
        events, label = read_events(data, sensor=_DVS_SENSOR, name=name), int(path.name[:2]) - 1
    first, last = (int(events["t"].min()), int(events["t"].max())) if len(events) else (0, 1)
    return [_gesture(events, first, last + 1, label, path)]


def _gesture(events: np.ndarray, start: int, end: int, label: int, path: Path) -> tuple[np.ndarray, Recording]:
    """Whole windows only, side by side from the start; one at least."""
    if not 0 <= label < _DVS_CLASSES:
        raise DataError(f"Expected {path} to be named after a gesture, but got number {label}")
    n = max(1, (end - start) // (_DVS_WINDOW * _DVS_FRAMES))
    out = frames(events, sensor=_DVS_SENSOR, count=n * _DVS_FRAMES, window=_DVS_WINDOW, start=start, downsample=2)
    return np.packbits(out.reshape(n, _DVS_FRAMES, 64, 64), axis=-1), Recording(n, label, subject(path))


def frame_set(entry: Entry, part: str, paths: list[Path], root: Path, progress: Progress | None = None) -> FrameSet:
    """The windows of all ``paths``, from the cache if these files were read before."""
    shape = (*entry.shape[:2], -(-entry.shape[2] // 8))
    home = _cache_folder(root)
    folder = home / f"{entry.name}-{part}-{_key(paths)}"
    if not folder.is_dir():
        temporary = Path(tempfile.mkdtemp(prefix=".building-", dir=home))
        try:
            recordings = _build(entry.kind, paths, temporary, progress)
            (temporary / "recordings.json").write_text(json.dumps([list(asdict(r).values()) for r in recordings]))
            temporary.chmod(0o755)
            try:
                temporary.rename(folder)
            except OSError:
                if not folder.is_dir():  # another process may have been first; its frames are the same
                    raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return open_cache(folder, shape)


def open_cache(folder: Path, shape: tuple[int, ...]) -> FrameSet:
    """The cached frames of a folder, memory-mapped."""
    try:
        rows = json.loads((folder / "recordings.json").read_bytes())
        recordings = [Recording(*row) for row in rows]
    except (ValueError, TypeError, RecursionError):
        recordings = []
    sound = all(
        type(r.windows) is type(r.label) is int and r.windows > 0 <= r.label and type(r.subject) in (int, type(None))
        for r in recordings
    )
    path, n = folder / "frames.bin", sum(r.windows for r in recordings) if sound else 0
    if not n or path.stat().st_size != n * math.prod(shape):
        raise DataError(f"Expected {folder} to hold whole cached frames, but got broken ones: remove it")
    # mode c: pages come from the file as they are touched, and torch may have the array without a warning
    return FrameSet(np.memmap(path, np.uint8, "c", shape=(n, *shape)), recordings)


def _key(paths: list[Path]) -> str:
    """Names, sizes and times of the files: a change of any builds anew."""
    digest = hashlib.sha256(str(_VERSION).encode())
    for file in (one for path in paths for one in (path, *beside(path))):
        status = file.stat()
        digest.update(f"{file}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _cache_folder(root: Path) -> Path:
    """``root/frames``; in the platform's cache folder where ``root`` may only be read."""
    folder = root / "frames"
    try:
        folder.mkdir(exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        from platformdirs import user_cache_path

        folder = user_cache_path("nsm", appauthor=False) / "frames"
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def _build(kind: str, paths: list[Path], folder: Path, progress: Progress | None) -> list[Recording]:
    """Write ``frames.bin`` in ``folder``."""
    largest = max(path.stat().st_size for path in paths)
    workers = max(1, min(os.cpu_count() or 1, 16, _MEMORY // (_PER_BYTE * largest + 2**26), len(paths)))
    if workers == 1 or (len(paths) < _SERIAL and sum(path.stat().st_size for path in paths) < 2**26):
        recordings: list[Recording] = []
        for done, found in enumerate(_write(kind, paths, folder / "frames.bin"), start=1):
            recordings += found
            if progress:
                progress(done, len(paths))
        return recordings
    return _build_parallel(kind, paths, folder, workers, progress)


def _write(kind: str, paths: list[Path], target: Path) -> Iterator[list[Recording]]:
    """Append every file's windows to ``target``; yield what each file held."""
    with target.open("wb") as out:
        for path in paths:
            found = windows(path, kind)
            for packed, _ in found:
                out.write(packed.tobytes())
            yield [recording for _, recording in found]


def _build_parallel(
    kind: str, paths: list[Path], folder: Path, workers: int, progress: Progress | None
) -> list[Recording]:
    """Give each worker a stretch of the files; it writes a piece of its own and prints a line a file.

    Plain subprocesses rather than a pool: a pool either forks a process that has torch's threads, or imports
    the caller's script again.
    """
    bounds = [len(paths) * k // workers for k in range(workers + 1)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    command = [sys.executable, "-c", "from nsm.data.recordings import work; work()"]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True, "env": environment}
    running = []
    try:
        for k in range(workers):
            job = {"kind": kind, "paths": [str(path) for path in paths[bounds[k] : bounds[k + 1]]]}
            (folder / f"{k}.job").write_text(json.dumps({**job, "target": str(folder / f"{k}.bin")}))
            with (folder / f"{k}.job").open() as job_file:
                # In a session of its own: Ctrl-C reaches the parent alone, which ends its workers.
                worker = subprocess.Popen(command, stdin=job_file, start_new_session=True, **options)
            running.append(worker)
        results = _collect(running, len(paths), progress)
    finally:
        for process in running:
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()
    with (folder / "frames.bin").open("wb") as out:
        for k in range(workers):
            with (folder / f"{k}.bin").open("rb") as piece:
                shutil.copyfileobj(piece, out)
            (folder / f"{k}.bin").unlink()
            (folder / f"{k}.job").unlink()
    return [Recording(*row) for rows in results for row in rows]


def _collect(running: list[Any], total: int, progress: Progress | None) -> list[list[Any]]:
    """Every worker's lines in the order of the files; the first error a worker reports is raised here."""
    lines: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()

    def listen(k: int) -> None:
        for line in running[k].stdout:
            lines.put((k, line))
        lines.put((k, ""))

    for k in range(len(running)):
        threading.Thread(target=listen, args=(k,), daemon=True).start()
    found: list[list[list[Any]]] = [[] for _ in running]
    done, listening = 0, len(running)
    while listening:
        k, line = lines.get()
        if not line:
            listening -= 1
            continue
        message = json.loads(line)
        if "error" in message:
            raise DataError(message["error"]) if message["data"] else OSError(message["error"])
        found[k].append(message["recordings"])
        done += 1
        if progress:
            progress(done, total)
    if done != total:
        raise OSError(f"Expected {total} recordings to be read, but got {done}: a worker process was ended")
    return [rows for worker in found for rows in worker]


def work() -> None:
    """One worker: read a job from standard input, print a JSON line for each file."""
    job = json.load(sys.stdin)
    try:
        for found in _write(job["kind"], [Path(p) for p in job["paths"]], Path(job["target"])):
            print(json.dumps({"recordings": [list(asdict(r).values()) for r in found]}), flush=True)
    except (DataError, OSError) as error:
        print(json.dumps({"error": str(error), "data": isinstance(error, DataError)}), flush=True)
