"""What lies on disk: where to look, which files make a data set, their checksums, and how to fetch them."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nsm.data.archive import extract
from nsm.data.catalogue import MNIST_SHA256, Entry, find
from nsm.data.download import Progress, download, hash_file
from nsm.data.errors import DataError

MAX_FILE = 2**30  # no published file that is read whole comes near
Parts = dict[str, list[Path]]  # "train" and "test", each in its fixed order
TEST_SUBJECTS = range(24, 30)  # the official lists of trials; 1 to 23 train
VALIDATION_SUBJECTS = range(20, 24)  # of these, ours


def data_root(root: str | Path | None = None) -> Path:
    """The folder data lies in: ``root``, else NSM_DATA, else the platform's cache folder."""
    if root is None and not (root := os.environ.get("NSM_DATA")):
        from platformdirs import user_cache_path

        root = user_cache_path("nsm", appauthor=False)
    return Path(root).expanduser()


def find_files(entry: Entry, root: Path) -> Parts:
    """The files of a data set, in the first folder that has any; a part that is not there has no key."""
    look = {
        "idx": _idx_files,
        "cifar": _cifar_files,
        "nmnist": _nmnist_files,
        "dvsgesture": _dvsgesture_files,
    }
    for folder in entry.folders:
        if parts := look[entry.kind](entry, root / folder):
            return parts
    return {}


def _idx_files(entry: Entry, folder: Path) -> Parts:
    test = "test" if entry.prefix else "t10k"
    parts: Parts = {}
    for part, stem in (("train", "train"), ("test", test)):
        names = [f"{entry.prefix}{stem}-{what}-ubyte" for what in ("images-idx3", "labels-idx1")]
        paths = [next((p for p in (folder / f"{n}.gz", folder / n) if p.is_file()), None) for n in names]
        if None not in paths:
            parts[part] = [path for path in paths if path]
    return parts


def _cifar_files(entry: Entry, folder: Path) -> Parts:
    if len(entry.classes) == 10:
        layouts = {"cifar-10-batches-bin": ".bin", "cifar-10-batches-py": ""}
        stems = {"train": [f"data_batch_{k}" for k in range(1, 6)], "test": ["test_batch"]}
    else:
        layouts = {"cifar-100-binary": ".bin", "cifar-100-python": ""}
        stems = {"train": ["train"], "test": ["test"]}
    for layout, suffix in layouts.items():
        parts = {part: [folder / layout / (s + suffix) for s in names] for part, names in stems.items()}
        if parts := {part: paths for part, paths in parts.items() if all(p.is_file() for p in paths)}:
            return parts
    return {}


def _nmnist_files(entry: Entry, folder: Path) -> Parts:
    parts = {
        part: sorted((folder / part.title()).glob("[0-9]/*.bin"), key=lambda p: (p.name, p.parent.name))
        for part in ("train", "test")
    }
    return {part: paths for part, paths in parts.items() if paths}


def _dvsgesture_files(entry: Entry, folder: Path) -> Parts:
    """AEDAT recordings by the trial lists beside them, else by subject; tonic's folders; single ``.bs2``."""
    parts: Parts = {"train": [], "test": []}
    recordings = sorted(folder.glob("*.aedat"), key=_by_subject)
    lists = {part: folder / f"trials_to_{part}.txt" for part in parts}
    if all(path.is_file() for path in lists.values()):
        for part, path in lists.items():
            trials = set(read_file(path).decode(errors="replace").split())
            parts[part] = [recording for recording in recordings if recording.name in trials]
    else:
        for recording in recordings:
            parts["test" if subject(recording) in TEST_SUBJECTS else "train"].append(recording)
    if not recordings:
        for part in parts:
            found = (folder / f"ibmGesture{part.title()}").glob("user*/*.npy")
            parts[part] = sorted((p for p in found if p.stem.isdecimal()), key=_by_subject)
    if not any(parts.values()):
        parts["train"] = sorted(folder.glob("[0-9][0-9]_*.bs2"))  # of nobody known: never a test set
    return {part: paths for part, paths in parts.items() if paths}


def subject(path: Path) -> int | None:
    """Whose gestures a recording shows, from ``user07_…`` in its name or its folder's."""
    found = re.match(r"user(\d{1,4})", path.name) or re.match(r"user(\d{1,4})", path.parent.name)
    return int(found[1]) if found else None


def beside(path: Path) -> list[Path]:
    """The files a recording is not complete without: the labels of an AEDAT one."""
    return [path.with_name(f"{path.stem}_labels.csv")] if path.suffix == ".aedat" else []


def _by_subject(path: Path) -> tuple[Any, ...]:
    """Validation's subjects last, so that every split is one stretch."""
    who = subject(path) or 0
    number = int(path.stem) if path.stem.isdecimal() else 0
    return who in VALIDATION_SUBJECTS, who, path.parent.name, number, path.name


class Checksums:
    """The SHA-256 of a data set's files as first seen, in one JSON beside the data."""

    def __init__(self, entry: Entry, root: Path):
        """Read what is recorded of ``entry`` under ``root``, if anything is."""
        self.path, self.root = root / "checksums" / f"{entry.name}.json", root
        self.known: dict[str, str] = {}
        if self.path.is_file():
            try:
                self.known = dict(json.loads(self.path.read_bytes()))
            except (ValueError, TypeError, RecursionError):
                raise DataError(f"Expected {self.path} to be JSON of checksums, but got other text") from None
        self.pinned = MNIST_SHA256 if entry.name == "mnist-grey" else {}

    def expected(self, path: Path) -> str | None:
        """What the file should have, from its publisher or from the first time it was seen, if known."""
        return self.pinned.get(path.name) or self.known.get(path.relative_to(self.root).as_posix())

    def verify(self, path: Path, found: str) -> bool:
        """Whether the checksum was known; one that is known and differs is an error."""
        expected = self.expected(path)
        if expected is not None and found != expected:
            raise DataError(f"Expected {path} to have SHA-256 {expected}, but got {found}")
        return expected is not None

    def record(self, sums: dict[str, str]) -> None:
        """Remember ``sums``, by path under the root, in one step."""
        self.known |= sums
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(dict(sorted(self.known.items())), indent=0) + "\n")
        temporary.replace(self.path)


def read_file(path: Path) -> bytes:
    """A file's bytes, if it is of a size a data set's file can have."""
    if (size := path.stat().st_size) > MAX_FILE:
        raise DataError(f"Expected {path} to have at most {MAX_FILE} bytes, but got {size}")
    return path.read_bytes()


def missing(entry: Entry, root: Path, part: str) -> FileNotFoundError:
    """The error that says where a data set was looked for, and how to get it."""
    way = f"run `nsm data get {entry.name}`" if entry.downloads else "it has no public address: put it there"
    places = " or ".join(str(root / folder) for folder in entry.folders)
    return FileNotFoundError(f"Expected the {part} part of {entry.name} in {places}, but it is not there; {way}")


def get(
    name: str, root: str | Path | None = None, *, progress: Callable[[str], Progress] | None = None
) -> dict[str, int]:
    """Fetch a data set into ``root``, every byte checked; what is already there stays as it is.

    Args:
        name: One of `names()`.
        root: Folder for data; NSM_DATA or the platform's cache folder if None.
        progress: Given what is being done, returns what to call with the amount done and the total.

    Returns:
        Number of files of each part.

    Raises:
        DataError: An unknown name, or a server that sends something else.
        OSError: No server answers, or the folder cannot be written.
    """
    entry, root = find(name), data_root(root)
    if entry.kind == "embedded":
        return {}
    for item in entry.downloads:
        parts = find_files(entry, root)
        if item.part in parts or {"train", "test"} <= parts.keys():
            continue
        target, sums = root / item.file, Checksums(entry, root)
        expected = item.sha256 or sums.known.get(item.file)
        if not (target.is_file() and item.md5 == hash_file(target, "md5")):
            bar = progress(f"fetching {target.name}") if progress else None
            sums.record({item.file: download(item.urls, target, md5=item.md5, sha256=expected, progress=bar)})
        if item.unpack is not None:
            bar = progress(f"unpacking {target.name}") if progress else None
            found = extract(target, root / item.unpack, under=item.under, progress=bar)
            sums.record({f"{item.unpack}/{path}": one for path, one in found.items()})
            target.unlink()
    parts = find_files(entry, root)
    if not parts:
        raise missing(entry, root, "training")
    return {part: len(paths) for part, paths in parts.items()}
