"""Processes: what one of them does for all, how signals end a run, and two that train, whoever starts them."""

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import nsm
from nsm import checkpoint
from nsm.evaluation import evaluate
from nsm.processes import Diverged, Interrupted, agree, gather, is_first_process, on_first, processes, reduce, signals
from nsm.steps import Step
from nsm.training import fit
from test_cli_training import wait_for
from test_options import CERTAIN
from test_training import TINY, Foreign, assert_equal_runs, net, smooth, tiny

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}


def test_one_process_is_a_group_of_one():
    with processes(TINY) as fabric:
        assert (fabric.world_size, fabric.global_rank, fabric.device.type) == (1, 0, "cpu")
        assert is_first_process()
        assert agree(fabric, []) == 0
        assert agree(fabric, [15, 2]) == 15
        assert torch.equal(gather(fabric, torch.arange(3)), torch.arange(3)[None])
        assert torch.equal(reduce(fabric, torch.arange(3)), torch.arange(3))


def test_the_generator_is_as_it_was_however_a_run_ends(tmp_path):
    torch.manual_seed(0)
    before = torch.get_rng_state()

    def end(error):
        with processes(TINY):
            torch.rand(3)
            raise error

    for error in (Diverged("x"), Interrupted(2, tmp_path), OSError("x")):
        with pytest.raises(type(error)):
            end(error)
        assert torch.equal(torch.get_rng_state(), before)


def test_what_fails_in_the_first_fails():
    done = []
    with processes(TINY) as fabric:
        on_first(fabric, lambda: done.append(1))
        assert done == [1]
        with pytest.raises(OSError, match="full"):
            on_first(fabric, Path("/nowhere/full").read_bytes)


def test_signals_are_noted_and_the_second_ctrl_c_acts(tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with signals(tmp_path) as came:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert came == [signal.SIGTERM, signal.SIGTERM, signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_signal_to_every_process_is_the_parents_to_act_on(tmp_path, monkeypatch):
    """As SLURM and ``timeout`` send it; the processes that load go on until the step is saved."""
    steps = iter(range(1, 4))

    class Signalled(Step):
        def __call__(self, *arguments):
            if next(steps) == 1:  # read by the first of them; the other may still be starting
                return super().__call__(*arguments)
            workers = multiprocessing.active_children()
            assert len(workers) == 2
            for worker in workers:
                os.kill(worker.pid or 0, signal.SIGTERM)
            for worker in workers:
                worker.join(0.2)
                assert worker.is_alive()
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            return super().__call__(*arguments)

    monkeypatch.setattr("nsm.state.Step", Signalled)
    with pytest.raises(Interrupted) as cut:
        fit(net(), Foreign(), replace(TINY, num_workers=2), run_dir=tmp_path)
    assert cut.value.signal == signal.SIGTERM
    assert checkpoint.read(tmp_path).progress["step"] == 2


def test_signals_are_left_alone_without_a_folder_or_in_a_thread(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    with signals(None):
        assert signal.getsignal(signal.SIGINT) is before
    seen = []

    def inside():
        with signals(tmp_path) as came:
            seen.append(came)

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [[]]


def test_where_cuda_is_not():
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    refused = pytest.raises(ValueError, match="without a CUDA device, but got 'cuda'")
    with refused, processes(replace(TINY, accelerator="cuda")):
        pass


# ------------------------------------------------------------------------- two real ones


def start(*command, **environment):
    """A process; `end` waits for it."""
    words = [sys.executable, "-m", *map(str, command)]
    output = subprocess.PIPE
    return subprocess.Popen(words, env={**ENVIRONMENT, **environment}, stdout=output, stderr=output, text=True)


def end(*started, seconds=120):
    """Wait for processes, none of which stays; what each said. All must have ended well."""
    try:
        said = [process.communicate(timeout=seconds) for process in started]
    finally:
        for process in started:
            process.kill()
    if any(process.returncode for process in started):
        pytest.fail("\n".join(f"{process.returncode}: {err}" for process, (_, err) in zip(started, said, strict=True)))
    return said


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """What tests/two_processes.py left, with either strategy."""
    folders = {strategy: tmp_path_factory.mktemp(strategy) for strategy in ("ddp", "fsdp")}
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = Path(__file__).parent / "two_processes.py"
    end(*(start(*launcher, script, folder, strategy) for strategy, folder in folders.items()))
    return folders


@pytest.fixture(params=["ddp", "fsdp"])
def two(request, both):
    return both[request.param]


def test_two_learn_as_one_from_the_joined_batch(two):
    """Without noise; and so do the networks of several seeds. Each process ends with the whole network."""
    for name, seeds, flip in (("smooth", 1, 0), ("seeds", 3, 0), ("flipped", 1, CERTAIN)):
        alone = smooth()
        history = fit(alone, tiny(), replace(TINY, epochs=2, seeds=seeds, input_flip=flip))
        state = checkpoint.read(two / name)
        for key, value in alone.state_dict().items():
            trained = state.weights[key]
            assert torch.allclose(trained if seeds == 1 else trained[0], value, atol=1e-5), key
        assert [row["loss"] for row in state.progress["history"]] == pytest.approx(history.loss, abs=1e-5)
    for rank in (0, 1):
        own = torch.load(two / f"smooth-{rank}.pt", weights_only=True)
        assert all(torch.equal(own[key], value) for key, value in checkpoint.read(two / "smooth").weights.items())


def test_two_draw_noise_of_their_own(two):
    drawn = [torch.load(two / f"drawn-{rank}.pt", weights_only=True) for rank in (0, 1)]
    assert torch.equal(drawn[0][0], drawn[1][0])  # the data-dependent start is the same for both
    later = torch.cat([one[1:] for one in drawn])
    assert later.shape == (32, 1000)  # two passes in each of eight steps, in two processes
    assert len(later.unique()) > 31_800  # of 32,000 with 24 bits: nothing is drawn twice
    noise = checkpoint.read(two / "whole").tensors["random/noise"]
    assert len(noise) == 2
    assert not torch.equal(noise[0], noise[1])


def test_two_cut_by_a_signal_to_one_of_them_end_with_the_same_bits(two):
    assert_equal_runs(two / "whole", two / "cut")


def test_two_stop_where_one_of_them_is_not_finite(two):
    state = checkpoint.read(two / "poisoned")
    assert state.progress["step"] == 3
    assert all(value.isfinite().all() for value in state.tensors.values())
    assert all((two / f"diverged-{rank}").exists() for rank in (0, 1))


def test_two_share_their_buffers(two):
    """What a batch norm has seen is part of the network, of which there is one."""
    one, other = (torch.load(two / f"norm-{rank}.pt", weights_only=True) for rank in (0, 1))
    assert one["2.num_batches_tracked"] == 8
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_whole_networks_and_shares_learn_the_same(both):
    """To the bit: a sum of two gradients has no order."""
    for name in ("smooth", "whole", "seeds", "flipped"):
        assert_equal_runs(both["ddp"] / name, both["fsdp"] / name)


def test_two_part(two):
    """Every run ended in a barrier, and the process group is destroyed."""
    for rank in (0, 1):
        assert (two / f"done-{rank}").exists()
        assert (two / f"parted-{rank}").exists()


def test_two_keep_shares_or_the_whole(two):
    """Of weights, gradients and moments."""
    in_all, first = torch.load(two / "here-0.pt", weights_only=True)
    assert in_all == (32 * 16 + 16 + 16 * 8 + 8 + 8 * 2 + 2,) * 3
    assert first == (tuple(n // 2 for n in in_all) if two.name.startswith("fsdp") else in_all)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_one_process_may_keep_all_shares(device):
    """A process of its own, which keeps the process group to itself."""
    done = subprocess.run(
        [sys.executable, Path(__file__).parent / "one_process.py", device], env=ENVIRONMENT, timeout=120
    )
    assert done.returncode == 0


# ------------------------------------------------------------------------- whoever starts them

RUN = ["nsm.cli", "train", "pi-mnist", "--train-split", "validation", "--validation-split", "None", "--epochs", "2",
       "--batch-size", "1000", "--accelerator", "cpu", "--strategy", "fsdp", "--json"]  # fmt: skip


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A run whose second process is started by the first."""
    folder = tmp_path_factory.mktemp("launched") / "own"
    ((out, err),) = end(start(*RUN, "--devices", 2, "--run", folder))
    assert err == ""
    assert json.loads(out)["run"] == str(folder)
    return folder


def test_a_run_in_shares_is_like_any_other_to_one_process(own):
    model, state = nsm.load(own), checkpoint.read(own)
    assert all(torch.equal(value, state.weights[name]) for name, value in model.state_dict().items())
    assert all(value.shape == state.weights[name].shape for name, value in model.named_parameters())
    assert evaluate(own, split="validation", num_samples=1)["error"] < 0.5


def test_two_machines_started_by_torchrun(own, tmp_path):
    where = ["--nnodes", 2, "--nproc-per-node", 1, "--master-addr", "127.0.0.1", "--master-port", free_port()]
    run = ["-m", *RUN, "--num-nodes", 2, "--run-dir", tmp_path]  # torchrun takes --run for an option of its own
    first, second = end(*(start("torch.distributed.run", *where, "--node-rank", k, *run) for k in (0, 1)))
    assert json.loads(first[0])["run"] == str(tmp_path)
    assert second[0] == ""
    assert_equal_runs(own, tmp_path)


def test_two_machines_started_by_slurm(own, tmp_path):
    """With the variables that srun sets for each task."""
    job = {
        "SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "digits", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_NNODES": "2", "SLURM_NODELIST": "127.0.0.[1,2]", "SLURM_LOCALID": "0", "MASTER_PORT": free_port(),
    }  # fmt: skip
    tasks = [{"SLURM_PROCID": str(k), "SLURM_NODEID": str(k)} for k in (0, 1)]
    first, second = end(*(start(*RUN, "--num-nodes", 2, "--run", tmp_path, **job, **task) for task in tasks))
    assert json.loads(first[0])["run"] == str(tmp_path)
    assert second == ("", "")
    assert_equal_runs(own, tmp_path)


def test_a_process_that_is_lost_ends_the_run(tmp_path):
    """Nothing that was saved is lost with it."""
    first = start(*RUN, "--devices", 2, "--epochs", 1000, "--run", tmp_path)
    try:
        wait_for(tmp_path / "metrics.jsonl", first)
        (second,) = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
        os.kill(int(second), signal.SIGKILL)
        out, err = first.communicate(timeout=60)
    finally:
        first.kill()
    assert (first.returncode, out) == (4, "")
    assert err.startswith("nsm: Expected all 2 processes to go on, but lost another one")
    assert err.count("\n") == 1
    assert len(checkpoint.read(tmp_path).tensors["random/noise"]) == 2


TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
SRUN = {"SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "2"}


@pytest.mark.parametrize(
    ("environment", "changes", "said"),
    [
        (TORCHRUN, {}, r"to make the 4 processes that torchrun started, 2 on this machine, but got 1 and 1"),
        (TORCHRUN, {"devices": 4}, r"that torchrun started, 2 on this machine, but got 4 and 1"),
        (SRUN, {"devices": 2}, r"to make the 4 processes that srun started, 2 on this machine, but got 2 and 1"),
        ({"SLURM_NTASKS": "2"}, {"devices": 2}, r"Expected srun to be told --ntasks-per-node=2, but got no such"),
        ({}, {"devices": 10_000}, r"`devices` to be at most the \d+ CPU cores here, but got 10000"),
        ({}, {"num_nodes": 2}, r"`num_nodes` to be 1 without torchrun or srun, but got 2"),
        (SRUN | {"SLURM_JOB_NAME": "interactive"}, {"num_nodes": 2}, r"`num_nodes` to be 1 without torchrun or srun"),
    ],
)
def test_processes_that_would_wait_for_others_are_refused(monkeypatch, environment, changes, said):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=said), processes(replace(TINY, **changes)):
        pass


def test_srun_may_start_many_runs_of_one_process(monkeypatch):
    for name, value in SRUN.items():
        monkeypatch.setenv(name, value)
    with processes(TINY) as fabric:
        assert fabric.world_size == 1
