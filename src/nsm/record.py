"""What a measured number must carry: where, with what and from which code it was measured."""

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("torch", "numpy", "triton")


def provenance() -> dict[str, Any]:
    """Hardware, versions and commit of this process, as plain JSON values."""
    return {
        "hardware": hardware(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: found for name in _PACKAGES if (found := _version(name))},
        "commit": commit(),
    }


def hardware() -> str:
    """The device a run uses, in words: the GPU where one is visible, else the CPU and its cores."""
    torch = sys.modules.get("torch")  # a record of work that never needed torch does not load it
    if torch is not None and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} core{'s' * (cores > 1)}"


def commit() -> str | None:
    """The commit of the checkout this code runs from, with ``+changes`` if files differ.

    A copy with another history than its own, or none, is told by the variable NSM_COMMIT; without either it is None.
    """
    if told := os.environ.get("NSM_COMMIT"):
        return told
    here = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", here, *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def write(path: str | Path, record: dict[str, Any]) -> None:
    """Write ``record`` with its provenance as readable JSON, whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps({**provenance(), **record}, indent=1, ensure_ascii=False) + "\n")
    temporary.replace(path)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
