"""The drivers for a machine with a GPU, on tiny settings: what they run, and that they need no more than they say."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import nsm
from nsm.paper.runs import from_rows
from nsm.paper.table1 import runs as runs_of_table1

ROOT = Path(nsm.__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks").is_dir(), reason="not a checkout")
BARE = """
import runpy, sys
for name in ("tyro", "rich", "PIL", "platformdirs"):
    sys.modules[name] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(driver: str, *words: str, data: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        "PYTHONPATH": str(ROOT / "src"),
        "PATH": "/usr/bin:/bin",
        "NSM_DATA": str(data),
        "OMP_NUM_THREADS": "1",
    }
    script = str(ROOT / "benchmarks" / driver)
    return subprocess.run([sys.executable, "-c", BARE, script, *words], env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_a_search_measures_variants_on_the_validation_split(tmp_path):
    words = ["pi-mnist", "--only", "plain", "drop mean", "--epochs", "1", "--last", "1", "--inputs", "200", "20"]
    words += ["--seeds", "1", "--work", str(tmp_path / "work"), "--results", str(tmp_path / "found")]
    done = run("search_recipes.py", *words, data=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found" / "pi-mnist.json").read_text())
    assert {row["variant"] for row in found["rows"]} == {"plain", "drop mean"}
    assert [row["mean"] for row in found["rows"]] == sorted(row["mean"] for row in found["rows"])
    (part,) = json.loads((tmp_path / "found/paper/pi-mnist-drop-mean.json").read_text())["parts"]
    assert (part["recipe"]["train_split"], part["recipe"]["validation_split"]) == ("train", "validation")
    assert part["recipe"]["input_dropout"] == 0.2
    assert "not finished: none" in done.stdout


def test_the_rows_in_order_within_a_limit(tmp_path):
    words = ["--minutes", "0", "--work", str(tmp_path / "work"), "--results", str(tmp_path / "results")]
    done = run("paper_runs.py", *words, data=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "cifar10-dcnn: left out, since cifar10 is not in" in done.stdout
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith("not finished: pi-mnist-nsm-tuned seed 0–4, pi-mnist-nsm seed 0–4")
    assert len(json.loads((tmp_path / "results" / "paper.json").read_text())["rows"]) > 40
    known = from_rows() | runs_of_table1()
    named = {name.strip().split(" ")[0] for name in last.removeprefix("not finished: ").split(",")}
    assert named <= set(known)
    wrong = run("paper_runs.py", "nonsense", data=tmp_path)
    assert wrong.returncode == 2
    assert "but got nonsense" in wrong.stderr


def test_the_tests_of_a_card_are_counted(tmp_path):
    tests = tmp_path / "test_some.py"
    some = "import pytest\n@pytest.mark.gpu\n@pytest.mark.parametrize('k', [1, 2, 3])\ndef test(k): assert k < 3\n"
    tests.write_text(some)
    done = run("cuda_tests.py", str(tests), "--results", str(tmp_path), data=tmp_path)
    assert done.returncode == 1, done.stderr
    found = json.loads((tmp_path / "cuda-tests.json").read_text())
    assert [found[name] for name in ("tests", "failures", "errors", "skipped")] == [3, 1, 0, 0]
    assert found["hardware"]
