"""Where real data lies, for the tests that want it; they skip, and say so, where it does not."""

import atexit
import os
import shutil
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import pytest

SHARED = Path(__file__).parents[3] / "shared" / "data"
ZIPS = {"nmnist": "nmnist-subset.zip", "dvsgesture": "dvsgesture-10.zip"}


@cache
def _unpacked(name: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="nsm-")) / name
    atexit.register(shutil.rmtree, folder.parent, ignore_errors=True)
    with zipfile.ZipFile(SHARED / ZIPS[name]) as archive:
        archive.extractall(folder)
    return folder


def real(name: str) -> Path:
    """The folder of a real data set, by its name under NSM_DATA or beside the repository."""
    if (given := os.environ.get("NSM_DATA")) and (Path(given) / name).exists():
        return Path(given) / name
    if (SHARED / name).exists():
        return SHARED / name
    if name in ZIPS and (SHARED / ZIPS[name]).exists():
        return _unpacked(name)
    pytest.skip(f"needs the real {name} under NSM_DATA")
