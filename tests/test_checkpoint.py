"""A run's folder: whole or not at all, verified, held by one process."""

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

import nsm
from kills import kill_and_resume
from nsm import checkpoint, cli
from nsm.checkpoint import CheckpointError
from nsm.recipes import MNIST_CNN, PI_MNIST
from nsm.steps import Step
from test_training import TINY, assert_equal_runs, fit, net, tiny

TENSORS = {"model/w": torch.arange(6.0).reshape(2, 3), "random/order": torch.tensor([1, 2], dtype=torch.uint8)}
PROGRESS = {"epoch": 1, "batch": 0, "step": 4, "samples": 37, "history": [{"epoch": 1, "loss": 0.1 + 0.2}]}


@pytest.fixture
def folder(tmp_path):
    checkpoint.begin(tmp_path, TINY, "Net()")
    checkpoint.save(tmp_path, TENSORS, PROGRESS)
    return tmp_path


def test_what_is_saved_is_what_is_read(folder):
    state = checkpoint.read(folder)
    assert state.recipe == TINY == checkpoint.read_recipe(folder)
    assert state.architecture == "Net()"
    assert state.progress == PROGRESS
    assert {name: value.dtype for name, value in state.tensors.items()} == {n: v.dtype for n, v in TENSORS.items()}
    assert all(torch.equal(value, TENSORS[name]) for name, value in state.tensors.items())
    assert list(state.weights) == ["w"]
    assert (folder / "metrics.jsonl").read_text() == '{"epoch": 1, "loss": 0.30000000000000004}\n'


def test_only_the_last_state_is_kept_and_nothing_half_written(folder):
    (folder / ".state-0123.safetensors.tmp").write_bytes(b"half")
    checkpoint.save(folder, {"model/w": torch.ones(1)}, PROGRESS)
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".json", ".jsonl", ".safetensors"]
    assert checkpoint.read(folder).tensors["model/w"].tolist() == [1.0]


def test_no_pickle(folder):
    """What is read is text and safetensors: the word of a pickle would be found in its bytes."""
    data = next(folder.glob("state-*")).read_bytes()
    header = int.from_bytes(data[:8], "little")
    assert set(json.loads(data[8 : 8 + header])) == set(TENSORS)


@pytest.mark.parametrize("name", ["run.json", "checkpoint.json", "state"])
def test_any_changed_byte_is_noticed(folder, name):
    path = next(folder.glob(f"{name}*"))
    whole = path.read_bytes()
    for position in range(len(whole)):
        changed = bytearray(whole)
        changed[position] ^= 1 << position % 8
        path.write_bytes(changed)
        if name == "checkpoint.json" and _same_json(changed, whole):
            continue  # a blank for a blank
        with pytest.raises(CheckpointError, match=r"^Expected .* but got "):
            checkpoint.read(folder)
    for length in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            checkpoint.read(folder)
    path.write_bytes(whole)
    assert checkpoint.read(folder).progress == PROGRESS


def _same_json(one, other):
    try:
        return json.loads(bytes(one)) == json.loads(other)
    except ValueError:
        return False


def test_missing_files(folder):
    next(folder.glob("state-*")).unlink()
    with pytest.raises(CheckpointError, match="beside the checkpoint, but got no such file"):
        checkpoint.read(folder)
    (folder / "checkpoint.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"to hold a run, but got no checkpoint\.json"):
        checkpoint.read(folder)


def test_a_recipe_of_another_version_is_not_called_damaged(folder):
    about = json.loads((folder / "run.json").read_text())
    about["recipe"]["distill"] = 0.5
    (folder / "run.json").write_text(json.dumps(about))
    with pytest.raises(CheckpointError, match=r"of this version of nsm, but got: .*'distill'"):
        checkpoint.read_recipe(folder)
    (folder / "run.json").write_text("{}")
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.read_recipe(folder)


def test_another_version(folder):
    body = json.loads((folder / "checkpoint.json").read_text())
    body.pop("seal")
    body["format"] = 2
    (folder / "checkpoint.json").write_text(json.dumps({**body, "seal": checkpoint._seal(body)}))
    with pytest.raises(CheckpointError, match="to have format 1, but got 2"):
        checkpoint.read(folder)


# ------------------------------------------------------------------------- load


def trained(folder, recipe, model):
    checkpoint.begin(folder, recipe, repr(model))
    tensors = {f"model/{name}": value for name, value in model.state_dict().items()}
    checkpoint.save(folder, tensors, PROGRESS)


def test_load_builds_the_network_of_the_recipe(tmp_path):
    model = nsm.networks.build(PI_MNIST)
    trained(tmp_path, PI_MNIST, model)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    loaded = nsm.load(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)
    assert not loaded.training
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))


def test_other_architectures_weights_are_refused(tmp_path):
    trained(tmp_path, replace(PI_MNIST, unit="gNSM"), nsm.networks.build(PI_MNIST))
    with pytest.raises(CheckpointError, match=r"the one trained in .*, with .*Bernoulli.*, but got .*Gaussian"):
        nsm.load(tmp_path)
    with pytest.raises(CheckpointError, match=r"with \(flatten\): Flatten.*, but got \(conv1\): NSMConv2d"):
        nsm.load(tmp_path, model=nsm.networks.build(MNIST_CNN))

    class Own(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(n))

    (tmp_path / "own").mkdir()
    trained(tmp_path / "own", TINY, Own(3))
    with pytest.raises(CheckpointError, match=r"with w \(3,\), but got w \(4,\)"):
        nsm.load(tmp_path / "own", model=Own(4))


def test_versions_of_torch_that_write_other_biases(tmp_path):
    """torch 2.13 names the bias of a batch norm, torch 2.11 does not."""
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    for k, norm in enumerate(("affine=True", "affine=True, bias=True")):
        folder = tmp_path / str(k)
        folder.mkdir()
        text = repr(model).replace("affine=True, bias=True", "affine=True").replace("affine=True", norm)
        checkpoint.begin(folder, TINY, text)
        checkpoint.save(folder, {f"model/{name}": value for name, value in model.state_dict().items()}, PROGRESS)
        nsm.load(folder, model=nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
        with pytest.raises(CheckpointError, match=r"with 0.bias \(3,\), but got 0.bias None"):
            nsm.load(folder, model=nn.Sequential(nn.Linear(2, 3, bias=False), nn.BatchNorm1d(3)))


def test_members(tmp_path):
    fit(net(), tiny(), replace(TINY, seeds=2, epochs=1), run_dir=tmp_path)
    one, other = (nsm.load(tmp_path, member=k, model=net()).get_submodule("1") for k in (0, 1))
    assert not torch.equal(one.get_parameter("weight"), other.get_parameter("weight"))
    with pytest.raises(ValueError, match="`member` to be below 2, but got 2"):
        nsm.load(tmp_path, member=2, model=net())


# ------------------------------------------------------------------------- folders in use, full, read-only


def test_a_folder_is_held_by_one_process(tmp_path):
    code = f"""
from nsm.checkpoint import locked
with locked({str(tmp_path)!r}):
    print("held", flush=True)
    input()
"""
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True) as other:
        assert other.stdout
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(BlockingIOError, match=f"to be free, but process {other.pid} on "),
            checkpoint.locked(tmp_path),
        ):
            pass
        other.kill()
    with checkpoint.locked(tmp_path):  # a process that died holds nothing
        assert (tmp_path / "lock").read_text().startswith(f"{os.getpid()} on ")


def test_a_process_that_outlives_the_holder_does_not_hold_the_folder(tmp_path):
    with checkpoint.locked(tmp_path):
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        with pytest.raises(BlockingIOError), checkpoint.locked(tmp_path):  # the child's end of it is not ours
            pass
    try:
        with checkpoint.locked(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.fixture
def mount(tmp_path):
    """A file system of its own: ``mount(options)`` gives a small tmpfs."""
    places = []

    def do(options):
        place = tmp_path / f"mount{len(places)}"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError:
            pytest.skip("there is no mount command here")
        if done.returncode:
            pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")
        places.append(place)
        return place

    yield do
    for place in places:
        subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_destroys_nothing(mount, tmp_path, monkeypatch):
    disk = mount("size=256k")
    run = disk / "run"
    fit(net(), tiny(), TINY, run_dir=tmp_path / "whole")

    class Fills(Step):
        calls = 0

        def __call__(self, *arguments):
            Fills.calls += 1
            if Fills.calls == 6:
                free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize
                (disk / "filler").write_bytes(bytes(free))
            return super().__call__(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("nsm.state.Step", Fills)
        with pytest.raises(OSError, match="No space left on device") as full:
            fit(net(), tiny(), TINY, run_dir=run)
    assert full.value.errno == errno.ENOSPC
    assert checkpoint.read(run).progress["step"] == 4
    assert not list(run.glob(".*.tmp"))
    (disk / "filler").unlink()
    fit(net(), tiny(), TINY, run_dir=run, resume=True)
    assert_equal_runs(tmp_path / "whole", run)


def test_a_full_disk_from_the_command_line(mount, capsys):
    run = mount("size=8m") / "run"  # the start and the first epoch fit, the second beside the first does not
    arguments = ["pi-mnist", "--train-split", "validation", "--validation-split", "None", "--accelerator", "cpu"]
    assert cli.main(["train", *arguments, "--batch-size", "2500", "--epochs", "3", "--run", str(run)]) == 4
    assert f"nsm: No space left on device: {run}" in capsys.readouterr().err
    assert checkpoint.read(run).progress["epoch"] == 1
    nsm.load(run)


def test_a_read_only_folder(mount, tmp_path, capsys):
    disk = mount("size=16m")
    run = disk / "run"
    fit(net(), tiny(), TINY, run_dir=run)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    for place in (run, disk / "new"):
        with pytest.raises(OSError, match="Read-only file system"):
            fit(net(), tiny(), TINY, run_dir=place, resume=place is run)
    nsm.load(run, model=net())  # reading needs no lock
    assert cli.main(["train", "pi-mnist", "--accelerator", "cpu", "--run", str(disk / "new")]) == 4
    assert "nsm: Read-only file system" in capsys.readouterr().err


@pytest.mark.slow
def test_a_hundred_kills(tmp_path):
    counts = kill_and_resume(100, tmp_path)
    assert counts["kills"] == 100
    assert counts["runs"] >= 1


def test_a_few_kills(tmp_path):
    assert kill_and_resume(3, tmp_path, seed=1)["kills"] == 3


class Device(nsm.Noise):
    """A noise of one's own, which says no more than it must."""

    @property
    def mean(self) -> float:
        return 1.0

    @property
    def variance(self) -> float:
        return 0.25

    def sample(self, shape, *, generator=None, device=None, dtype=None):
        return nsm.Gaussian(0.5).sample(shape, generator=generator, device=device, dtype=dtype)


def test_networks_with_noise_of_ones_own_are_loaded_and_resumed(tmp_path):
    def made(noise):
        return net(unit=lambda i, o: nsm.NSMLinear(i, o, noise=noise))

    fit(made(Device()), tiny(), TINY, run_dir=tmp_path)
    fit(made(Device()), tiny(), TINY, run_dir=tmp_path, resume=True)
    assert nsm.load(tmp_path, model=made(Device()))(torch.ones(1, 1, 4, 8)).shape == (1, 2)
    with pytest.raises(CheckpointError, match=r"noise=Device\(mean=1, variance=0.25\).*but got .*Gaussian"):
        nsm.load(tmp_path, model=made(nsm.Gaussian(0.5)))
