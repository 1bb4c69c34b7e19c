"""C, compiled at first use with the machine's own compiler and called by ctypes (see docs/decisions/0004)."""

import ctypes
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

#: `nsm.functional.erf`: erf(t)/t as a polynomial in 2(t/REACH)² − 1.
REACH = 3.25
ERF = (
    0.4346407949924469, -0.2144598662853241, 0.15324345231056213, -0.11417563259601593, 0.08258988708257675,
    -0.056849829852581024, 0.0344330333173275, -0.0168057419359684, 0.010104565881192684, -0.008045508526265621,
    0.0030164355412125587,
)  # fmt: skip

#: No product is rounded together with the sum after it unless the source says so; no sum in another order.
FLAGS = "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC"


@cache
def library(name: str, *needs: str) -> Any:
    """The source ``name``.c of this folder, compiled; None without a compiler or the processor's features it needs.

    It shares the threads of torch's OpenMP.
    """
    source = Path(__file__).with_name(f"{name}.c")
    constants = f"-DERF={','.join(map(repr, ERF))}", f"-DREACH={REACH!r}", f"-DSCALE={2 / REACH**2!r}"
    compiler = [os.environ.get("CC", "cc"), *FLAGS, *constants]
    try:
        processor = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
        if not set(needs) <= set(processor.split()):
            return None
        sources = (path.read_text() for path in sorted(source.parent.glob("*.c")))  # one may include another
        text = "\n".join([*sources, *compiler, processor, sys.platform])
        path = _cache_folder() / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.so"
        if not path.exists():
            _compile(compiler, source, path)
        return ctypes.CDLL(str(path))
    except (OSError, RuntimeError, StopIteration, subprocess.SubprocessError):
        return None


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(root) / "nsm" / "kernels"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else, whose code is not to be run")
    return folder


def _compile(compiler: Sequence[str], source: Path, path: Path) -> None:
    """Compile to ``path`` by way of a temporary folder: another process may do the same at the same time."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        target, shared = str(Path(folder, "a.o")), str(Path(folder, "a.so"))
        quiet = {"check": True, "capture_output": True, "timeout": 120}
        subprocess.run([*compiler, "-c", str(source), "-o", target], **quiet)
        # Without -fopenmp here: its symbols are then those of the OpenMP that torch has loaded, and threads are shared.
        subprocess.run([compiler[0], "-shared", target, "-o", shared], **quiet)
        os.replace(shared, path)
