"""Imports point one way, `import nsm` is cheap, and the public names are there."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import nsm

SOURCE = Path(nsm.__file__).parent
ORDER = [  # a module may import those of earlier rows, and of its own row to the left
    ["record", "kernels", "philox"],
    ["noise", "estimators", "recipes", "data"],
    ["wiring", "functional", "firing"],
    ["signs", "layers", "sequential"],
    ["initialization", "networks", "imitation"],
    ["stages", "chain", "sampling", "metrics", "ensemble", "batches"],
    ["checkpoint"],
    ["optimizers", "sharding", "processes", "steps", "display", "state", "training"],
    ["evaluation", "paper", "hardware", "bench"],
    ["completion", "commands", "cli", "demo", "__main__"],
]
RANK = {name: (row, column) for row, names in enumerate(ORDER) for column, name in enumerate(names)}


def imported(path: Path) -> set[str]:
    """The modules of ours that a file names, at the top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "nsm":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("nsm.")}
    return found & set(RANK)


@pytest.mark.parametrize("path", sorted(set(SOURCE.rglob("*.py")) - {SOURCE / "__init__.py"}))
def test_imports_point_one_way(path):
    own = path.relative_to(SOURCE).with_suffix("").parts[0]
    assert own in RANK, f"{own} has no place in the order of the rooms"
    later = {name for name in imported(path) - {own} if RANK[name] > RANK[own]}
    assert not later, f"{own} imports {later}"
    if own == "functional":
        assert "kernels" not in imported(path)
    if own == "kernels":
        assert not imported(path) - {own}


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_the_package_itself_loads_nothing():
    assert json.loads(run("import sys, json, nsm; print(json.dumps('torch' in sys.modules))")) is False


def test_the_core_needs_torch_and_numpy_alone():
    code = """
import sys, torch, numpy
before = set(sys.modules)
import nsm
for name in nsm.__all__:
    if name not in ("data", "fit", "load", "History"):
        getattr(nsm, name)
print(sorted({m.split(".")[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names) - {"torch", "numpy"}))
"""
    assert ast.literal_eval(run(code).strip().splitlines()[-1]) == ["nsm"]


def test_the_core_loads_in_less_than_a_third_of_a_second_after_torch():
    code = """
import time, torch
start = time.perf_counter()
import nsm
nsm.NSMLinear, nsm.networks, nsm.convert, nsm.Bernoulli
print(time.perf_counter() - start)
"""
    assert min(float(run(code)) for _ in range(3)) < 0.3


def test_public_names():
    assert sorted(nsm.__all__) == nsm.__all__
    assert len(nsm.__all__) <= 35
    for name in nsm.__all__:
        assert getattr(nsm, name) is not None
        assert name in dir(nsm)
    with pytest.raises(AttributeError, match="module 'nsm' has no attribute 'NSMLiner'"):
        nsm.NSMLiner  # noqa: B018
