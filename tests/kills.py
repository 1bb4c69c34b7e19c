"""A run that is killed with SIGKILL again and again, at random moments, and resumed each time.

python tests/kills.py 100        writes results/kill-resume.json
"""

import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from nsm import checkpoint, record
from nsm.training import fit
from test_training import TINY, assert_equal_runs, net, tiny

RECIPE = replace(TINY, epochs=40, save_every=1, augmentation="shift")  # 160 steps, each of them saved


def life(folder: Path, begun: Any = None) -> None:
    if begun is not None:
        begun.set()
    fit(net(), tiny(), RECIPE, validation=tiny(9), run_dir=folder, resume=(folder / checkpoint.RUN).exists())


def kill_and_resume(kills: int, work: Path, seed: int = 0) -> dict[str, int]:
    """Kill runs ``kills`` times in all, and let each come to its end; raises if anything was lost."""
    whole, moments = work / "whole", random.Random(seed)
    # Forked from a process that has loaded torch but not used it: a copy of OpenMP's threads would hang.
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["nsm.training"])
    life(whole)
    counts = {"kills": 0, "in the middle of a write": 0, "before the first checkpoint": 0, "runs": 0, "steps": 0}
    while counts["kills"] < kills:
        folder = work / "run"
        shutil.rmtree(folder, ignore_errors=True)
        ended, step = False, 0
        while not ended:
            begun = server.Event()
            process = server.Process(target=life, args=(folder, begun))
            process.start()
            begun.wait(60)
            if counts["kills"] < kills:
                process.join(moments.uniform(0, 1.2))
            else:
                process.join()
            if process.is_alive():
                os.kill(process.pid or 0, signal.SIGKILL)
                process.join()
            ended = process.exitcode == 0  # it may have come to its end just before the kill
            counts["kills"] += not ended
            if not ended and process.exitcode != -signal.SIGKILL:
                raise RuntimeError(f"Expected a run that is killed or ends, but got exit status {process.exitcode}")
            counts["in the middle of a write"] += any(folder.glob(".*.tmp"))
            if (folder / checkpoint.CHECKPOINT).exists():
                reached = checkpoint.read(folder).progress["step"]  # raises if a byte is not what was written
                if reached < step:
                    raise RuntimeError(f"Expected the run to stand at step {step} at least, but got {reached}")
                step = reached
            else:
                counts["before the first checkpoint"] += 1
        assert_equal_runs(whole, folder)
        counts["runs"] += 1
        counts["steps"] += step
    return counts


if __name__ == "__main__":
    from kills import kill_and_resume  # under its own name, so that a process can find it

    with tempfile.TemporaryDirectory() as work:
        begin = time.perf_counter()
        counts = kill_and_resume(int(sys.argv[1]), Path(work))
        report = {**counts, "unreadable checkpoints": 0, "runs that differ": 0, "seconds": time.perf_counter() - begin}
    record.write(Path(__file__).parent.parent / "results" / "kill-resume.json", report)
    print(report)
