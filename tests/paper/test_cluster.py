"""Runs on a Ray cluster of this machine: two workers, of which one is killed."""

import json
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import nsm
from nsm import checkpoint
from nsm.paper import cluster, runs
from nsm.paper.queue import Job
from nsm.paper.runs import finished, part_folder, train_part
from paper.test_runs import RUN, SMALL

ray = pytest.importorskip("ray", reason="Ray is not installed (extra [cluster])")
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
)


@pytest.fixture
def two_workers(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(nsm.__file__).parent.parent))
    ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False, configure_logging=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as many as a worker has, for the same bits
    yield
    torch.set_num_threads(threads)
    ray.shutdown()


def kill_one(folder: Path, killed: list[int]) -> None:
    """End the worker that trains in a folder, once it has saved something; its lock names it."""
    until = time.monotonic() + 100
    while time.monotonic() < until:
        if (folder / checkpoint.CHECKPOINT).exists() and checkpoint.read(folder).progress["step"] >= 10:
            killed.append(int((folder / checkpoint.LOCK).read_text().split()[0]))
            os.kill(killed[0], signal.SIGKILL)
            return
        time.sleep(0.01)


@pytest.mark.slow
def test_a_worker_that_dies_loses_nothing(two_workers, tmp_path):
    """Its part is resumed by another, and every part ends as it does without a cluster; a start waits for its run."""
    run = replace(RUN, recipe=replace(SMALL, epochs=60, save_every=2))
    first = replace(RUN, name="first", recipe=replace(SMALL, unit="dCNN", epochs=1))
    later = replace(RUN, name="later", start="first", recipe=replace(SMALL, epochs=1))
    work, results, killed, said = tmp_path / "work", tmp_path / "results", list[int](), list[str]()
    thread = threading.Thread(target=kill_one, args=(part_folder(run, 0, 1, work), killed))
    thread.start()
    jobs = [Job(run, 0, 1), Job(run, 1, 1), Job(later, 0, 1), Job(first, 0, 1)]
    left = cluster.work_through(jobs, work=work, results=results, say=said.append)
    thread.join()
    assert killed
    assert left == []
    assert len(said) == 4
    parts = finished(run, results)
    assert [part["seeds"] for part in parts] == [[0], [1]]
    for seed, part in enumerate(parts):
        alone = json.loads(train_part(run, seed, 1, tmp_path / "alone").read_text())
        assert (part["errors"], part["losses"]) == (alone["errors"], alone["losses"])
    assert len(finished(later, results)) == 1


def test_a_part_that_fails_is_told(two_workers, tmp_path):
    said: list[str] = []
    bad = replace(RUN, sizes=(1, 1))
    assert cluster.work_through([Job(bad, 0, 1)], work=tmp_path, results=tmp_path, say=said.append) == ["small seed 0"]
    assert "Expected mnist to have 1 + 1 inputs" in said[0]
    assert not (part_folder(bad, 0, 1, tmp_path) / runs.PART).exists()
