"""Many parts of runs, on this machine: some processes at a time, a limit on the time, and nothing lost at its end."""

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nsm.paper.runs import Run, collect, make_way, missing, part_folder, trained


@dataclass(frozen=True)
class Job:
    """A part of a run that is to be trained: ``seeds`` networks from ``seed`` on."""

    run: Run
    seed: int
    seeds: int

    @property
    def name(self) -> str:
        """What to call it while it runs."""
        return f"{self.run.name} seed {self.seed}" + (f"–{self.seed + self.seeds - 1}" if self.seeds > 1 else "")


def jobs(
    runs: Sequence[Run],
    *,
    work: Path,
    results: Path,
    seeds: int,
    together: int,
    known: Mapping[str, Run] | None = None,
) -> list[Job]:
    """The parts that results lack, at most ``together`` seeds in each, and those that they start from.

    A run whose result is there, but whose networks are not, is trained again where another starts from them.

    Args:
        runs: What is wanted.
        work: Folder of the parts; what other recipes left there is set aside.
        results: Folder of the results.
        seeds: Networks of each run.
        together: Seeds in one part.
        known: Runs that others may start from, by name, if ``runs`` are not all of them.
    """
    known = {run.name: run for run in runs} if known is None else known
    found: list[Job] = []
    for run in sorted(runs, key=lambda run: run.start is not None):  # those that others start from come first
        make_way(run, work)
        collect(run, work, results)  # what a process finished whose parent did not live to see it
        lacking, longest = missing(run, results, seeds), together
        if lacking and run.start is not None:
            make_way(known[run.start], work)
            if not trained(run.start, work) and run.start not in {job.run.name for job in found}:
                found += _cut(known[run.start], lacking, together)
            homes = {*trained(run.start, work).values()}
            homes |= {part_folder(job.run, job.seed, job.seeds, work) for job in found if job.run.name == run.start}
            longest = together if len(homes) == 1 else 1  # each from the folder that has its seed
        found += _cut(run, lacking, longest)
    return found


def _cut(run: Run, seeds: list[int], longest: int) -> list[Job]:
    return [Job(run, some[0], len(some)) for some in _stretches(seeds, longest)]


def _stretches(seeds: list[int], longest: int) -> list[list[int]]:
    """Cut into stretches of neighbours.

    >>> _stretches([0, 1, 2, 4], 2)
    [[0, 1], [2], [4]]
    """
    found: list[list[int]] = []
    for seed in seeds:
        if found and len(found[-1]) < longest and found[-1][-1] == seed - 1:
            found[-1].append(seed)
        else:
            found.append([seed])
    return found


def work_through(
    waiting: Sequence[Job],
    *,
    work: Path,
    results: Path,
    root: Path | None = None,
    processes: int = 1,
    minutes: float | None = None,
    say: Callable[[str], None] = lambda text: print(text, flush=True),
) -> list[str]:
    """Train parts in their order, ``processes`` at a time; returns the names of those that were not finished.

    When the time is up, processes are asked to end, which they do after saving; the same call goes on with them. A
    part that starts from another run waits for that.
    """
    began, queue, going = time.monotonic(), list(waiting), dict[Job, tuple[subprocess.Popen, Path]]()
    unfinished: list[str] = []

    def over() -> bool:
        return minutes is not None and time.monotonic() - began > 60 * minutes

    with _children(going):
        while queue or going:
            busy = {job.run.name for job in (*queue, *going)}
            for job in [job for job in queue if job.run.start not in busy]:
                if len(going) < processes and not over():
                    queue.remove(job)
                    going[job] = _start(job, work, root)
                    say(f"{time.monotonic() - began:6.0f} s  {job.name}: begins")
            for job, (process, log) in list(going.items()):
                if process.poll() is None:
                    continue
                del going[job]
                if process.returncode == 0:
                    collect(job.run, work, results)
                    words = log.read_text().strip().splitlines()[-1]
                else:
                    unfinished.append(job.name)
                    words = f"{job.name}: status {process.returncode}: " + " ".join(log.read_text().splitlines()[-1:])
                say(f"{time.monotonic() - began:6.0f} s  {words}")
            if over():
                unfinished += [job.name for job in queue]
                queue.clear()
                _end(going, seconds=60)
            time.sleep(0.2)
    return unfinished


def _start(job: Job, work: Path, root: Path | None) -> tuple[subprocess.Popen, Path]:
    log = part_folder(job.run, job.seed, job.seeds, work).with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "nsm.paper.runs", job.run.to_json(), "--work", str(work)]
    words += ["--seed", str(job.seed), "--seeds", str(job.seeds), *(["--root", str(root)] if root else [])]
    with open(log, "w", encoding="utf-8") as file:  # a session of its own: only `_end` ends it, and only once
        return subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, start_new_session=True), log


@contextlib.contextmanager
def _children(going: dict[Job, tuple[subprocess.Popen, Path]]) -> Iterator[None]:
    """However this process ends, but by SIGKILL, those that it started end with it, after saving."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number)) if main else None
    try:
        yield
    finally:
        _end(going, seconds=60)
        if main:
            signal.signal(signal.SIGTERM, before)


def _end(going: dict[Job, tuple[subprocess.Popen, Path]], seconds: float) -> None:
    """Ask processes to end, and wait for them to save."""
    for process, _ in going.values():
        process.terminate()
    until = time.monotonic() + seconds
    for process, _ in going.values():
        try:
            process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
