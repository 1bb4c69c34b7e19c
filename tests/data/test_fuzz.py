"""Every reader against mutated files, in a process of its own: its memory is limited and measured."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).with_name("fuzz.py")


def run(inputs, seed):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, FUZZ, str(inputs), str(seed)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout)
    assert result["inputs"] == sum(sum(count.values()) for count in result["readers"].values())
    for name, count in result["readers"].items():
        # Both outcomes occur: the mutations are neither too wild nor too mild for any reader.
        assert min(count.values()) > 0, name
    assert result["peak_rss_mb"] < 1024


def test_ten_thousand_inputs():
    run(10_000, seed=0)


@pytest.mark.slow
def test_a_million_inputs():
    run(1_000_000, seed=1)
