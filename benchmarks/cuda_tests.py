"""The tests that need a CUDA device, run and counted: results/cuda-tests.json.

    python benchmarks/cuda_tests.py [--processes 3] [tests/kernels …]

A failure is counted and makes the exit status that of pytest.
"""

import argparse
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import torch  # noqa: F401  the record names its device

from nsm import record

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Run them, and write how many there were and how they ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", default=["tests"], help="files or folders of tests; all if none is named")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", f"--junitxml={report}", *asked.paths]
        words += ["-n", str(asked.processes)] if asked.processes > 1 else []
        status = subprocess.run(words, cwd=ROOT, check=False).returncode
        if not report.exists():
            return status
        suite = ElementTree.parse(report).getroot()[0].attrib
    counts = {name: int(suite[name]) for name in ("tests", "failures", "errors", "skipped")}
    about = {"suite": "pytest -m gpu", "paths": asked.paths, **counts, "seconds": float(suite["time"])}
    record.write(asked.results / "cuda-tests.json", about)
    return status


if __name__ == "__main__":
    sys.exit(main())
