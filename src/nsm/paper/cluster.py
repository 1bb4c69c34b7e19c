"""Parts of runs as tasks of a Ray cluster: one GPU each where there are GPUs, gone on with if a worker dies.

``RAY_ADDRESS`` names the cluster; without it Ray starts one on this machine. For a part to be resumed by another
machine, the folder of the runs must be one that all machines share; else it begins anew there.
"""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nsm.paper.queue import Job
from nsm.paper.runs import PART, Run, collect, part_folder, train_part

RETRIES = 3  # of a part whose worker died


def work_through(
    waiting: Sequence[Job],
    *,
    work: Path,
    results: Path,
    root: Path | None = None,
    say: Callable[[str], None] = print,
) -> list[str]:
    """Train parts on the cluster; returns the names of those that were not finished.

    A part that starts from another run is given that run's parts to wait for.
    """
    ray = _ray()
    started = not ray.is_initialized()
    if started:
        ray.init(log_to_driver=False, include_dashboard=False, configure_logging=False)
    try:
        gpus = 1 if ray.cluster_resources().get("GPU") else 0
        task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(_task)
        place = (str(work.resolve()), None if root is None else str(root.resolve()))
        names = {job.run.name for job in waiting}
        sent: dict[Any, Job] = {}
        for job in sorted(waiting, key=lambda job: job.run.start in names):  # those that others wait for come first
            after = [ref for ref, other in sent.items() if other.run.name == job.run.start]
            sent[task.remote(job.run.to_json(), job.seed, job.seeds, *place, *after)] = job
        return _receive(ray, sent, work, results, say)
    finally:
        if started:
            ray.shutdown()


def _receive(ray: Any, sent: dict[Any, Job], work: Path, results: Path, say: Callable[[str], None]) -> list[str]:
    """Write down each part as it comes."""
    unfinished, pending = [], list(sent)
    while pending:
        (ref,), pending = ray.wait(pending, num_returns=1)
        job = sent[ref]
        try:
            text = ray.get(ref)
        except ray.exceptions.RayError as error:
            unfinished.append(job.name)
            say(f"{job.name}: {str(error).strip().splitlines()[-1]}")
            continue
        path = part_folder(job.run, job.seed, job.seeds, work) / PART
        if not path.exists():  # made on another machine
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        collect(job.run, work, results)
        say(f"{job.name}: finished")
    return unfinished


def _task(run: str, seed: int, seeds: int, work: str, root: str | None, *after: str) -> str:
    """Train one part on a worker; returns its file."""
    return train_part(Run.from_json(run), seed, seeds, Path(work), None if root is None else Path(root)).read_text()


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise ValueError(
            "Expected Ray to be installed for `ray=True` (pip install 'neural-sampling-machines[cluster]'), "
            "but got no such package"
        ) from None
