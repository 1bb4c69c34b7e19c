"""``load``: from a name to tensors; ``check``: every byte of them."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from nsm.data.catalogue import Entry, find
from nsm.data.cifar import read_cifar, read_cifar_pickle
from nsm.data.dataset import Dataset, join
from nsm.data.download import Progress, hash_file
from nsm.data.embedded import COUNTS, read_embedded
from nsm.data.errors import DataError
from nsm.data.idx import read_idx
from nsm.data.recordings import frame_set
from nsm.data.store import (
    VALIDATION_SUBJECTS,
    Checksums,
    beside,
    data_root,
    find_files,
    missing,
    read_file,
)

SPLITS = ("train", "validation", "test")


def load(
    name: str,
    split: str = "train",
    root: str | Path | None = None,
    *,
    progress: Callable[[str], Progress] | None = None,
) -> Dataset:
    """Load one split of a data set from inside the package or from disk; the network is never asked.

    Args:
        name: One of `names()`; ``"mnist"`` is inside the package and needs no file.
        split: ``"train"``, ``"validation"`` or ``"test"``, or several joined: ``"train+validation"``.
        root: Folder for data; NSM_DATA or the platform's cache folder if None.
        progress: Given what is being done, returns what to call with the amount done and the total.

    Returns:
        The data set, on the CPU: ±1 for binary sets and events, [0, 1] for grey and RGB images.

    Raises:
        DataError: An unknown name or split, or a file that is not what it should be.
        FileNotFoundError: The data set is not there; the message says how to get it.

    Example:
        >>> import nsm
        >>> [len(nsm.data.load("mnist", split)) for split in ("train", "validation", "train+validation")]
        [55000, 5000, 60000]
    """
    entry, wanted = find(name), split.split("+")
    if not set(wanted) <= set(SPLITS) or len(set(wanted)) != len(wanted):
        raise DataError(f"Expected argument `split` to be of {', '.join(SPLITS)}, joined by +, but got {split!r}")
    wholes: dict[str, tuple[Dataset, int]] = {}
    pieces = []
    for one in wanted:
        part = "test" if one == "test" else "train"
        if part not in wholes:
            wholes[part] = _part(entry, part, root, progress)
        whole, boundary = wholes[part]
        span = {"train": slice(boundary), "validation": slice(boundary, None), "test": slice(None)}[one]
        pieces.append(_slice(whole, span, f"{name} {one}"))
        if not len(pieces[-1]):
            raise DataError(f"Expected {name} to have samples for {one}, but got none")
    joined = pieces[0]
    for piece in pieces[1:]:
        joined = join(joined, piece, name=f"{name} {split}")
    return joined


def _slice(whole: Dataset, span: slice, name: str) -> Dataset:
    recordings = None if whole.recordings is None else whole.recordings[span]
    return replace(whole, name=name, stored=whole.stored[span], labels=whole.labels[span], recordings=recordings)


def _part(
    entry: Entry, part: str, root: str | Path | None, progress: Callable[[str], Progress] | None = None
) -> tuple[Dataset, int]:
    """All of the published training or test part, and where in it validation begins."""
    if entry.kind == "embedded":
        rows, labels = read_embedded()
        span = slice(COUNTS["train"]) if part == "train" else slice(COUNTS["train"], None)
        return _bounded(_dataset(entry, part, rows[span][:, None], labels[span], width=28), entry)
    place = data_root(root)
    parts = find_files(entry, place)
    if part not in parts:
        raise missing(entry, place, part)
    return read_part(entry, part, parts[part], place, progress)


def read_part(
    entry: Entry, part: str, paths: list[Path], root: Path, progress: Callable[[str], Progress] | None = None
) -> tuple[Dataset, int]:
    """Like `_part`, from these files."""
    if entry.kind in ("nmnist", "dvsgesture"):
        bar = progress(f"framing {entry.name} {part}") if progress else None
        return _event_part(entry, part, paths, root, bar)
    sums = Checksums(entry, root)
    blocks = [_verified(path, sums) for path in paths]
    if entry.kind == "idx":
        images, labels = (read_idx(data, name=str(path)) for data, path in zip(blocks, paths, strict=True))
        if images.ndim != 3 or images.shape[1:] != entry.shape[1:]:
            raise DataError(f"Expected {paths[0]} to hold images of {entry.shape[1:]}, but got {images.shape}")
        if labels.shape != images.shape[:1]:
            raise DataError(f"Expected {paths[1]} to have {len(images)} labels, but got {labels.shape}")
        if entry.prefix and labels.size and labels.min() < 1:
            raise DataError(f"Expected {paths[1]} to have labels from 1, but got 0")
        images = images.transpose(0, 2, 1) if entry.transposed else images
        return _bounded(_dataset(entry, part, images[:, None], labels - bool(entry.prefix)), entry)
    classes = len(entry.classes)
    batches = [
        read_cifar(data, classes=classes, label_bytes=1 if classes == 10 else 2, name=str(path))
        if path.suffix == ".bin"
        else read_cifar_pickle(data, classes=classes, name=str(path))
        for data, path in zip(blocks, paths, strict=True)
    ]
    images, labels = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    return _bounded(_dataset(entry, part, images, labels), entry)


def _event_part(
    entry: Entry, part: str, paths: list[Path], root: Path, progress: Progress | None
) -> tuple[Dataset, int]:
    found = frame_set(entry, part, paths, root, progress)
    each = found.recordings
    counts = np.array([recording.windows for recording in each])
    labels = np.repeat([recording.label for recording in each], counts)
    dataset = _dataset(entry, part, found.stored, labels, width=entry.shape[2])
    if entry.kind == "nmnist":
        return _bounded(dataset, entry)
    dataset = replace(dataset, recordings=torch.from_numpy(np.repeat(np.arange(len(each)), counts)))
    # `find_files` sorts the subjects held out for validation to the end.
    held_out = sum(recording.windows for recording in each if recording.subject in VALIDATION_SUBJECTS)
    return dataset, len(dataset) - held_out


def _bounded(dataset: Dataset, entry: Entry) -> tuple[Dataset, int]:
    return dataset, len(dataset) - len(dataset) // entry.held_out


def _dataset(entry: Entry, part: str, stored: np.ndarray, labels: np.ndarray, width: int | None = None) -> Dataset:
    stored = stored if stored.flags.writeable else stored.copy()  # torch has no read-only tensors
    return Dataset(
        f"{entry.name} {part}",
        torch.from_numpy(np.ascontiguousarray(stored)),
        torch.from_numpy(labels.astype(np.int64)),
        entry.classes,
        width,
    )


def _verified(path: Path, sums: Checksums) -> bytes:
    data = read_file(path)
    sums.verify(path, hashlib.sha256(data).hexdigest())
    return data


def check(
    name: str, root: str | Path | None = None, *, progress: Callable[[str], Progress] | None = None
) -> dict[str, int]:
    """Verify every byte of a data set: its checksums, and that its readers accept it.

    A file seen for the first time has its checksum recorded, where the folder can be written.

    Args:
        name: One of `names()`.
        root: Folder for data; NSM_DATA or the platform's cache folder if None.
        progress: Given what is being done, returns what to call with the amount done and the total.

    Returns:
        How many files and bytes were read, how many files had a known checksum, how many are now recorded,
        and the number of samples of each part.

    Raises:
        DataError: A file is not what it was, or not what it should be.
        FileNotFoundError: The data set is not there.

    Example:
        >>> check("mnist")
        {'files': 1, 'bytes': 1350468, 'known': 1, 'recorded': 0, 'train': 60000, 'test': 10000}
    """
    entry, place = find(name), data_root(root)
    if entry.kind == "embedded":
        size = (Path(__file__).parent / "mnist.xz").stat().st_size
        samples = {part: len(_part(entry, part, place)[0]) for part in ("train", "test")}
        return {"files": 1, "bytes": size, "known": 1, "recorded": 0} | samples
    parts, sums, new = find_files(entry, place), Checksums(entry, place), {}
    if not parts:
        raise missing(entry, place, "train")
    paths = [one for part in parts.values() for path in part for one in (path, *beside(path))]
    bar = progress(f"checking {entry.name}") if progress else None
    for done, path in enumerate(paths, start=1):
        found = hash_file(path)
        if not sums.verify(path, found):
            new[path.relative_to(place).as_posix()] = found
        if bar:
            bar(done, len(paths))
    samples = {part: len(read_part(entry, part, files, place, progress)[0]) for part, files in parts.items()}
    known, size = len(paths) - len(new), sum(path.stat().st_size for path in paths)
    if new:
        try:
            sums.record(new)
        except OSError:
            new = {}  # a folder that only may be read is checked all the same
    return {"files": len(paths), "bytes": size, "known": known, "recorded": len(new)} | samples
