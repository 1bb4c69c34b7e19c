"""How long the small version of every table and figure takes on this machine: results/quick.json.

    python benchmarks/quick_tables.py [--root DATA]

Each is one `nsm reproduce … --quick`, run by itself in an empty folder. Run nothing beside it.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from nsm import record
from nsm.paper.reproduce import FIGURES, TABLES

ROOT = Path(__file__).resolve().parent.parent


def measure(what: str, root: Path | None) -> dict[str, Any]:
    """Seconds of one small version, its process's start included, and how many of its rows it could run."""
    data = ["--root", str(root.resolve())] if root and what in TABLES else []
    command = [sys.executable, "-m", "nsm.cli", "reproduce", what, "--quick", "--json", *data]
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
        seconds = round(time.perf_counter() - began, 1)
    rows = json.loads(done.stdout).get("rows")
    counts = {} if rows is None else {"rows": len(rows), "run": sum(row["mean"] is not None for row in rows)}
    return {"what": what, "seconds": seconds, **counts}


def main() -> None:
    """Measure, show, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=None, help="folder of the data")
    asked = parser.parse_args()
    found = []
    for what in TABLES + FIGURES:
        found.append(measure(what, asked.root))
        print(found[-1], flush=True)
    record.write(ROOT / "results" / "quick.json", {"quick": found})


if __name__ == "__main__":
    main()
