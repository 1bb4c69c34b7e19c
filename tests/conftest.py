"""What all tests share: a bounded number of statistical comparisons (tests/law.py), and the kernels there are.

Without a GPU, Triton's kernels run in its interpreter, which must be asked for before Triton is first imported.
"""

import math
import os
import signal
from collections.abc import Callable
from importlib.util import find_spec

import pytest
import torch

import law
from nsm.kernels import fire_cpu, operations

if find_spec("triton") and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    import triton  # noqa: F401

if "PYTEST_XDIST_WORKER" in os.environ:  # several processes beside each other, each with one thread
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell; Ctrl-C is tested too
    signal.signal(signal.SIGINT, signal.default_int_handler)

MOST_COMPARISONS = 1000


def pytest_sessionfinish(session, exitstatus) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["comparisons"] = law.comparisons
    elif law.comparisons > MOST_COMPARISONS:
        session.exitstatus = 1


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error) -> None:
    """One of several processes has ended."""
    law.comparisons += getattr(node, "workeroutput", {}).get("comparisons", 0)


def pytest_terminal_summary(terminalreporter) -> None:
    word = "too many" if law.comparisons > MOST_COMPARISONS else "at most"
    if law.comparisons:
        terminalreporter.write_line(
            f"{law.comparisons} statistical comparisons at {law.FALSE_ALARM:g}, {word} {MOST_COMPARISONS} allowed"
        )


# ------------------------------------------------------------------------- the kernels of a training step

GPU = pytest.mark.gpu
WAYS = [  # the kernels, and the type of what they read and write
    ("C", torch.float32),
    ("interpreter", torch.float32),
    ("interpreter", torch.bfloat16),
    pytest.param(("CUDA", torch.float32), marks=GPU),
    pytest.param(("CUDA", torch.bfloat16), marks=GPU),
]


@pytest.fixture
def use(monkeypatch) -> Callable[[str], str]:
    """Have the operations done by these kernels; returns the device."""

    def choose(kernels: str) -> str:
        if kernels == "C" and not fire_cpu.ready():
            pytest.skip("needs a C compiler, AVX2 and FMA")
        if kernels == "interpreter":
            pytest.importorskip("triton")
            from nsm.kernels import fire, pool

            monkeypatch.setattr(operations, "_kernels", lambda x: (fire, pool))
        return "cuda" if kernels == "CUDA" else "cpu"

    return choose


@pytest.fixture(params=WAYS, ids=str)
def way(request, use):
    """Device and type, of all kernels that there are."""
    kernels, dtype = request.param
    return use(kernels), dtype


@pytest.fixture(params=["C", "interpreter", pytest.param("CUDA", marks=GPU)])
def device(request, use):
    """The device of all kernels that there are, in float32."""
    return use(request.param)


@pytest.fixture(params=["C", pytest.param("CUDA", marks=GPU)])
def fast(request, use):
    """The device of the kernels that are no interpreter's."""
    return use(request.param)


@pytest.fixture
def poisoned(monkeypatch):
    """Fill new memory with NaN, or with a pattern of bits where there is none, so that what is not written shows."""

    def poison(new):
        return lambda *size, **options: (t := new(*size, **options)).fill_(math.nan if t.is_floating_point() else 0x5A)

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, poison(getattr(owner, name)))
