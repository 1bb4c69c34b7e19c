"""train, resume and recipes as a user meets them: a process, its output, its exit status."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

import nsm as library
from nsm import checkpoint, cli
from nsm.commands import learning
from nsm.recipes import RECIPES
from test_cli import ENVIRONMENT, fails, nsm
from test_training import assert_equal_runs

ONE_CORE = {"OMP_NUM_THREADS": "1"}
#: A run of seconds: the smallest split there is, in large batches.
QUICK = ["train", "pi-mnist", "--train-split", "validation", "--validation-split", "None", "--epochs", "8",
         "--batch-size", "1000", "--accelerator", "cpu"]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    done = nsm(*QUICK, "--run", str(folder), "--json", **ONE_CORE)
    assert (done.returncode, done.stderr) == (0, "")
    return folder, json.loads(done.stdout)


@pytest.fixture
def here(capsys):
    """The program inside this process, for what needs no process of its own: status, stdout, stderr."""

    def main(*arguments):
        status = cli.main(list(map(str, arguments)))
        said = capsys.readouterr()
        assert said.err.count("\n") == (1 if status else 0)
        return status, said.out, said.err

    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the processes it is compared with: sums depend on how they are divided
    yield main
    torch.set_num_threads(before)


def start(*arguments):
    command = [sys.executable, "-m", "nsm", *map(str, arguments)]
    return subprocess.Popen(
        command, env={**ENVIRONMENT, **ONE_CORE}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(path, process, seconds=60):
    """Until the file is there; a process that ended instead has something to say."""
    for _ in range(int(seconds / 0.01)):
        if path.exists():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    raise TimeoutError(path)


def test_train(run):
    folder, said = run
    assert said["run"] == str(folder)
    assert [row["epoch"] for row in said["history"]] == list(range(1, 9))
    assert said["history"][-1]["loss"] < 0.5 * said["history"][0]["loss"]
    assert Path(said["picture"]).read_bytes().startswith(b"\x89PNG")
    recipe = checkpoint.read(folder).recipe
    assert (recipe.batch_size, recipe.train_split, recipe.validation_split) == (1000, "validation", None)
    inputs, labels = library.data.load("mnist", "test").batch(torch.arange(500))
    assert (library.predict(library.load(folder), inputs, 20, seed=0).label != labels).float().mean() < 0.4


def test_ctrl_c_saves_and_says_how_to_go_on_and_a_second_run_is_refused(run, here, tmp_path):
    folder = tmp_path / "cut"
    process = start(*QUICK, "--run", folder)
    wait_for(folder / "metrics.jsonl", process)
    held = [here(*QUICK, "--run", folder), here("resume", folder)]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err == f"nsm: stopped and saved; to go on: nsm resume {folder}\n"
    for status, _, said in held:
        assert status == 4
        assert f"Expected {folder} to be free, but process {process.pid} on " in said
    assert 0 < checkpoint.read(folder).progress["step"] < 40
    epoch = checkpoint.read(folder).progress["epoch"]
    worth = nsm("evaluate", str(folder), "--num-samples", "1", "--json", **ONE_CORE)
    told = json.loads(worth.stdout)
    assert (worth.returncode, told["epoch"], told["epochs"]) == (0, epoch, 8)
    assert worth.stderr == f"{folder} stands in epoch {epoch + 1} of 8; to go on: nsm resume {folder}\n"
    done = nsm(*err.split("to go on: nsm ")[1].split(), **ONE_CORE)
    assert done.returncode == 0
    assert done.stdout.startswith(f"{folder}: 8 epochs, training loss ")
    assert done.stdout.count("\n") == 1
    assert_equal_runs(run[0], folder)


def test_sigterm(tmp_path):
    process = start(*QUICK, "--run", tmp_path)
    wait_for(tmp_path / "metrics.jsonl", process)
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert f"nsm resume {tmp_path}" in err


def test_a_finished_run_resumes_to_what_it_was(run, here):
    folder, said = run
    status, out, _ = here("resume", folder, "--json")
    assert (status, json.loads(out)) == (0, said)


def test_a_folder_with_a_run_is_refused(run, here):
    status, _, said = here(*QUICK, "--run", run[0])
    assert status == 4
    assert f"to hold no run, but got one; `nsm resume {run[0]}`" in said


@pytest.mark.parametrize("name", ["checkpoint.json", "run.json", "state"])
def test_damaged_checkpoints(run, here, tmp_path, name):
    shutil.copytree(run[0], tmp_path / "run")
    path = next((tmp_path / "run").glob(f"{name}*"))
    whole = path.read_bytes()
    middle = len(whole) // 2
    flips = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in (middle, len(whole) // 10)]
    if name == "run.json":  # what can be read, but no recipe has
        flips.append(whole.replace(b'"32-true"', b'"32-tsue"'))
    for data in (whole[:middle], *flips, b""):
        assert data != whole
        path.write_bytes(data)
        status, out, said = here("resume", tmp_path / "run")
        assert (status, out) == (3, "")
        assert str(path) in said
    path.unlink()
    status, _, _ = here("resume", tmp_path / "run")
    assert status == {"state": 3, "run.json": 4, "checkpoint.json": 0}[name]
    if not status:  # without a checkpoint there is nothing to lose: the run begins again
        assert_equal_runs(run[0], tmp_path / "run")


def test_no_run_there(here, tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        status, _, said = here("resume", folder)
        assert status == 4
        assert "to hold a run, but got no run.json there" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "mnist-cn"], "but got mnist-cn; did you mean mnist-cnn?"),
        (["train", "mnist-cnn", "--batchsize", "3"], "--batchsize, 3; did you mean --batch-size?"),
        (["train", "mnist-cnn", "--lr", "fast"], "--lr"),
        (["train", "mnist-cnn", "--lr", "-1"], "Expected argument `lr` to be positive and finite, but got -1.0"),
        (["train", "mnist-cnn", "--epochs", "0"], "`epochs` to be an int of at least 1, but got 0"),
        (["train", "mnist-cnn", "--unit", "gnsm"], "invalid choice 'gnsm' for argument '--unit'"),
        (["train", "mnist-cnn", "--data", "mnst"], "but got 'mnst'; did you mean mnist?"),
        (["train", "mnist-cnn", "--draw", "moments"], "`draw` to be 'auto' for site='neuron'"),
        (["recipes", "mnist-cn"], "did you mean 'mnist-cnn'?"),
        (["resume"], "RUN"),
    ],
)
def test_wrong_words(arguments, said):
    assert said in fails(2, *arguments)


def test_what_cannot_be_trained(here, tmp_path):
    for status, arguments, said in (
        (2, ["mnist-cnn", "--cuda-graph", "--accelerator", "cpu"], "`cuda_graph` to be False on the CPU"),
        (2, ["mnist-cnn", "--network", "cifar-cnn"], "`data` to be RGB for cifar-cnn, but got mnist"),
        (2, ["mnist-cnn", "--train-split", "tran"], "Expected --train-split to be of train, validation, test, joined"),
        (2, ["mnist-cnn", "--validation-split", "test+test"], "Expected --validation-split to be of train"),
        (4, ["cifar10-cnn", "--root", tmp_path], "nsm data get cifar10"),
        (4, ["mnist-cnn", "--init-from", tmp_path / "nowhere", "--accelerator", "cpu"], "to hold a run"),
    ):
        got, out, err = here("train", *arguments, "--run", tmp_path / "run")
        assert (got, out) == (status, "")
        assert said in err
    assert not (tmp_path / "run" / "run.json").exists()  # nothing has begun


def test_a_loss_that_is_not_finite(here, tmp_path):
    status, _, said = here(*QUICK, "--unit", "dCNN", "--lr", "1e30", "--run", tmp_path)
    assert status == 5
    assert f"finite, but got others at step 2; the last good state is in {tmp_path}" in said
    assert all(value.isfinite().all() for value in checkpoint.read(tmp_path).weights.values())


def test_recipes(here):
    assert all(name in here("recipes")[1] for name in RECIPES)
    shown = json.loads(nsm("recipes", "--json").stdout)
    assert {name: {**recipe.to_dict(), "about": about} for name, (about, recipe) in RECIPES.items()} == shown
    narrow = nsm("recipes", COLUMNS="40").stdout
    assert all(name[:14] in narrow for name in RECIPES)
    assert "…" not in narrow
    assert "0.0003" in narrow
    shown = " ".join(here("recipes", "cifar10-cnn")[1].split())
    assert all(part in shown for part in ("--schedule-epochs 100", "--no-initialize not given", "--compile not given"))


def test_help_is_quick_and_has_the_recipe_in_it():
    code = "import sys, nsm.cli; nsm.cli.main(sys.argv[1:]); assert not {'torch', 'rich'} & set(sys.modules)"
    for arguments in (["train", "--help"], ["recipes", "--json"]):
        done = subprocess.run([sys.executable, "-c", code, *arguments], env=ENVIRONMENT, capture_output=True)
        assert done.returncode == 0
    assert "nsm train mnist-cnn" in nsm("--help").stdout
    text = nsm("train", "cifar10-cnn", "--help").stdout
    assert "--batch-size INT" in text
    assert "(default: crop-flip)" in " ".join(text.replace("│", " ").split())


def test_runs_have_folders_of_their_own(here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("pi-mnist", "pi-mnist-2"):
        assert here(*QUICK, "--epochs", "1")[1].startswith(f"runs/{name}: 1 epochs")
    assert sorted(os.listdir(tmp_path / "runs")) == ["pi-mnist", "pi-mnist-2"]


def test_a_start_from_a_trained_deterministic_network(here, tmp_path):
    trained, still = tmp_path / "dcnn", ["--lr", "1e-12", "--epochs", "1"]
    assert here(*QUICK, "--unit", "dCNN", "--epochs", "5", "--run", trained)[0] == 0
    assert here(*QUICK, *still, "--init-from", trained, "--run", tmp_path / "nsm")[0] == 0
    source, model = library.load(trained), library.load(tmp_path / "nsm")
    for name in ("fc1", "fc2", "fc3"):
        before, after = source.get_parameter(f"{name}.0.weight"), model.get_parameter(f"{name}.weight")
        assert torch.allclose(normalize(before), normalize(after), atol=1e-6)
    digits = library.data.load("mnist", "validation").batch(torch.arange(100))[0].flatten(1)
    t = model.get_submodule("fc1").erf_argument(digits).detach()  # pyright: ignore[reportCallIssue]
    assert float(t.std(0).median()) == pytest.approx(1, abs=0.2)  # and β and b were set from data
    status, _, said = here(*QUICK, *still, "--init-from", tmp_path / "nsm", "--run", tmp_path / "again")
    assert status == 2
    assert "Expected argument `model` to have a Linear or Conv2d followed by an activation" in said


def test_two_processes_speak_with_one_voice(tmp_path):
    arguments = [*QUICK, "--epochs", "1", "--devices", "2", "--run-dir", str(tmp_path / "run")]
    done = nsm(*arguments, **ONE_CORE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    assert len(checkpoint.read(tmp_path / "run").tensors["random/noise"]) == 2
    assert "to hold no run, but got one" in fails(4, *arguments, **ONE_CORE)


def test_the_examples_of_the_help_are_recipes():
    for name, (_, recipe) in RECIPES.items():
        (example,) = re.findall(rf"nsm train {name} (.*) --run runs/{name}\n", learning.trainer(name).__doc__ or "")
        words = example.split()
        pairs = zip(words[::2], words[1::2], strict=True)
        changes = {option.removeprefix("--").replace("-", "_"): json.loads(value) for option, value in pairs}
        assert replace(recipe, **changes).epochs == 20
