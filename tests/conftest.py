"""Keeps the promise of tests/law.py: a bounded number of statistical comparisons in one run of the suite.

Without a GPU, Triton's kernels run in its interpreter, which must be asked for before Triton is first imported.
"""

import os
from importlib.util import find_spec

import torch

import law

if find_spec("triton") and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    import triton  # noqa: F401

MOST_COMPARISONS = 1000


def pytest_sessionfinish(session, exitstatus) -> None:
    if law.comparisons > MOST_COMPARISONS:
        session.exitstatus = 1


def pytest_terminal_summary(terminalreporter) -> None:
    word = "too many" if law.comparisons > MOST_COMPARISONS else "at most"
    if law.comparisons:
        terminalreporter.write_line(
            f"{law.comparisons} statistical comparisons at {law.FALSE_ALARM:g}, {word} {MOST_COMPARISONS} allowed"
        )
