"""The rows of the paper at full length, the most important first, within a limit of time: results/paper/.

    python benchmarks/paper_runs.py --minutes 9 --processes 4 --seeds 5 --together 5 --root DATA

What the limit cuts is saved under --work, and the same command goes on with it. Needs no package that only the
command line needs, so that it runs on a bare machine with a GPU.
"""

import argparse
import sys
from pathlib import Path

from nsm.paper import summary, table1
from nsm.paper.queue import jobs, work_through
from nsm.paper.reproduce import with_data
from nsm.paper.runs import from_rows

ROOT = Path(__file__).resolve().parent.parent
ORDER = (  # what matters most; a run that is not here, or whose data are not at hand, must be named
    "pi-mnist-nsm-tuned", "pi-mnist-nsm", "pi-mnist-stnn", "mnist-bnsm", "mnist-gnsm", "mnist-dcnn",
    "pi-mnist-nsm-harder", "pi-mnist-nsm-harder-unbiased", "pi-mnist-relu-harder",
    "mnist-bnsm-tuned", "mnist-gnsm-tuned", "mnist-dcnn-tuned", "mnist-bnsm-binconcrete-tuned",
    "mnist-bnsm-ste", "mnist-bd", "mnist-wbd", "mnist-sn", "mnist-bn", "mnist-bnsm-binconcrete",
    "pi-mnist-nsm-convergence", "pi-mnist-stnn-convergence",
    "pi-mnist-relu", "pi-mnist-nsm-synapse", "pi-mnist-additive",
    "mnist-bnsm-synapse", "mnist-gnsm-synapse", "emnist-unofficial-dcnn", "emnist-unofficial-bnsm",
    "emnist-unofficial-gnsm", "nmnist-subset-dcnn", "nmnist-subset-bnsm", "nmnist-subset-gnsm",
    "cifar10-bnsm-scratch-muon", "cifar10-bnsm-scratch-muon-short", "cifar10-dcnn-muon",
    "cifar10-bnsm-scratch-tuned", "cifar10-bnsm-scratch", "cifar10-dcnn", "cifar10-gnsm-scratch",
    "cifar100-bnsm-scratch-muon", "cifar100-dcnn-muon",
    "cifar100-bnsm-scratch", "cifar100-dcnn", "cifar100-gnsm-scratch",
)  # fmt: skip


def main() -> int:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="runs; all of ORDER if none is named")
    parser.add_argument("--minutes", type=float, default=None)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--together", type=int, default=5, help="seeds trained together in one process")
    parser.add_argument("--root", type=Path, default=None, help="folder of the data")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "paper")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    asked = parser.parse_args()
    known = from_rows() | table1.runs()
    unknown = [name for name in asked.names if name not in known]
    if unknown:
        parser.error(f"Expected names of runs: {', '.join(known)}, but got {', '.join(unknown)}")
    runs = with_data([known[name] for name in asked.names or ORDER], asked.root, print)
    waiting = jobs(
        runs, work=asked.work, results=asked.results, seeds=asked.seeds, together=asked.together, known=known
    )
    left = work_through(
        waiting,
        work=asked.work,
        results=asked.results,
        root=asked.root,
        processes=asked.processes,
        minutes=asked.minutes,
    )
    summary.write(asked.results)
    table1.finish(asked.results, known)
    print(f"not finished: {', '.join(left) or 'none'}")
    return bool(left)


if __name__ == "__main__":
    sys.exit(main())
