"""Processes: what one of them does for all, and how signals end a run. Two real ones train in test_training."""

import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nsm.processes import Diverged, Interrupted, agree, gather, is_first_process, on_first, processes, reduce, signals
from test_training import TINY


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


def test_signals_are_noted_and_the_second_acts(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    with signals(tmp_path) as came:
        signal.raise_signal(signal.SIGINT)
        assert came == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


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
