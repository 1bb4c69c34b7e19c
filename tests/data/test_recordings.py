"""Events as data sets: layouts, splits by subject, the cache, and several processes."""

import os
import struct
import subprocess
import sys

import numpy as np
import pytest

from data import samples
from data.real import real
from nsm.data import DataError, check, load, recordings


def test_nmnist_frames_labels_and_splits(tmp_path):
    samples.write_nmnist(tmp_path / "nmnist")
    train, held_out, test = (load("nmnist", s, tmp_path) for s in ("train", "validation", "test"))
    assert [len(d) for d in (train, held_out, test)] == [22, 2, 6]
    assert train.shape == (10, 34, 34)
    for k, (frames, label) in enumerate([*train.__getitems__(range(22)), *held_out.__getitems__(range(2))]):
        expected = -np.ones((10, 34, 34), np.float32)
        expected[range(10), range(10), k] = 1
        np.testing.assert_array_equal(frames.numpy(), expected)
        assert label == k % 10


def test_the_cache_is_used_and_knows_when_files_change(tmp_path, monkeypatch):
    samples.write_nmnist(tmp_path / "nmnist")
    load("nmnist", "test", tmp_path)
    monkeypatch.setattr(recordings, "windows", lambda *a: pytest.fail("read again"))
    first = load("nmnist", "test", tmp_path)
    monkeypatch.undo()
    path = tmp_path / "nmnist" / "Test" / "0" / "00001.bin"
    path.write_bytes(path.read_bytes() + samples.event(20, 20, 10_000))
    assert load("nmnist", "test", tmp_path).stored.ne(first.stored).any()


def test_a_broken_cache_is_refused(tmp_path):
    samples.write_nmnist(tmp_path / "nmnist")
    load("nmnist", "test", tmp_path)
    (folder,) = (tmp_path / "frames").iterdir()
    data = (folder / "frames.bin").read_bytes()
    (folder / "frames.bin").write_bytes(data[:-1])
    with pytest.raises(DataError, match="whole cached frames"):
        load("nmnist", "test", tmp_path)


@pytest.mark.parametrize("lists", [None, {"train": (1, 19, 20, 23), "test": (24, 29)}])
def test_aedat_is_split_by_subject_and_tiled(tmp_path, lists):
    samples.write_aedat(tmp_path / "DvsGesture", lists=lists)
    sets = {split: load("dvsgesture", split, tmp_path) for split in ("train", "validation", "test")}
    rows = {split: {row for row in range(64) if (one.inputs[:, :, row] > 0).any()} for split, one in sets.items()}
    # subjects draw in the row of their own number, halved by the down-sampling
    assert rows == {"train": {0, 9}, "validation": {10, 11}, "test": {12, 14}}
    for one in sets.values():
        assert one.shape == (6, 64, 64)
        assert one.labels.tolist() == [0, 0, 10, 0, 0, 10]  # 2 windows of the first gesture, 1 of the other
        assert one.recordings is not None
        assert one.recordings.unique_consecutive(return_counts=True)[1].tolist() == [2, 1, 2, 1]
        for frames in one.inputs:  # frame f has one event, in column f
            assert (frames > 0).nonzero()[:, [0, 2]].tolist() == [[f, f] for f in range(6)]


def test_trial_lists_decide(tmp_path):
    samples.write_aedat(tmp_path / "dvsgesture", (1, 2, 24), lists={"train": (24,), "test": (1,)})
    assert len(load("dvsgesture", "train", tmp_path)) == len(load("dvsgesture", "test", tmp_path)) == 3


def test_tonic_layout(tmp_path):
    samples.write_tonic(tmp_path / "DVSGesture")
    for split, who in (("train", 3), ("validation", 21), ("test", 25)):
        one = load("dvsgesture", split, tmp_path)
        assert one.labels.tolist() == [0, 10]
        assert (one.inputs > 0).nonzero().tolist() == [[k, f, who, f] for k in (0, 1) for f in range(6)]


def test_real_gestures():
    one = load("dvsgesture", "train", real("dvsgesture").parent)
    assert len(one) == 150
    assert one.labels.unique().tolist() == list(range(10))
    with pytest.raises(FileNotFoundError, match="test part"):
        load("dvsgesture", "test", real("dvsgesture").parent)
    with pytest.raises(DataError, match="samples for validation, but got none"):
        load("dvsgesture", "validation", real("dvsgesture").parent)


def test_real_nmnist_by_hand():
    """The first test digit, its frames counted event by event as METHOD says them."""
    folder = real("nmnist")
    one = load("nmnist", "test", folder.parent)
    path = next(folder.glob("Test/*/00001.bin"))
    raw = np.frombuffer(path.read_bytes(), np.uint8).reshape(-1, 5).astype(int)
    t = (raw[:, 2] & 127) << 16 | raw[:, 3] << 8 | raw[:, 4]
    expected = -np.ones((10, 34, 34), np.float32)
    for (x, y, p, *_), time in zip(raw, t, strict=True):
        if p & 128:
            expected[min(int(time / (t.max() / 10)), 9), y, x] = 1
    np.testing.assert_array_equal(one.inputs[0].numpy(), expected)
    assert int(one.labels[0]) == int(path.parent.name) == 7


@pytest.mark.parametrize("where", ["Train/3/00004.bin", "Train/0/00021.bin"])
@pytest.mark.parametrize("serial", [2000, 1])
def test_a_broken_recording_names_itself_and_leaves_nothing(tmp_path, monkeypatch, where, serial):
    monkeypatch.setattr(recordings, "_SERIAL", serial)
    samples.write_nmnist(tmp_path / "nmnist")
    path = tmp_path / "nmnist" / where
    path.write_bytes(path.read_bytes() + samples.event(99, 0, 1))
    with pytest.raises(DataError, match=rf"{where} to have pixels inside 34×34, but got x 99"):
        load("nmnist", "train", tmp_path)
    assert list((tmp_path / "frames").iterdir()) == []


def test_several_processes_build_the_same(tmp_path, monkeypatch):
    samples.write_nmnist(tmp_path / "nmnist")
    samples.write_aedat(tmp_path / "dvsgesture")
    one = {name: load(name, "train+validation", tmp_path) for name in ("nmnist", "dvsgesture")}
    for folder in (tmp_path / "frames").iterdir():
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    monkeypatch.setattr(recordings, "_SERIAL", 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    started = []
    popen = subprocess.Popen

    def start(*arguments, **options):
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    seen = []
    for name, serial in one.items():
        parallel = load(name, "train+validation", tmp_path, progress=lambda what: lambda *now: seen.append(now))
        assert parallel.stored.equal(serial.stored)
        assert parallel.labels.equal(serial.labels)
    assert len(started) == 6
    assert (24, 24) in seen


def test_a_worker_that_is_ended(tmp_path, monkeypatch):
    samples.write_nmnist(tmp_path / "nmnist")
    monkeypatch.setattr(recordings, "_SERIAL", 1)
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with pytest.raises(OSError, match="worker process was ended"):
        load("nmnist", "train", tmp_path)
    assert list((tmp_path / "frames").iterdir()) == []


def test_a_folder_that_may_only_be_read(tmp_path, monkeypatch):
    samples.write_nmnist(tmp_path / "data" / "nmnist")
    (tmp_path / "data" / "frames").write_text("a file where the folder should be")
    (tmp_path / "data" / "checksums").write_text("and another")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert len(load("nmnist", "test", tmp_path / "data")) == 6
    assert len(list((tmp_path / "cache" / "nsm" / "frames").iterdir())) == 1
    assert check("nmnist", tmp_path / "data")["recorded"] == 0


def test_memory_grows_no_faster_with_a_file_than_workers_are_counted_for(tmp_path):
    """In a process of its own: what reading and framing one large file adds to the peak."""
    if not os.path.exists("/proc/self/status"):
        pytest.skip("peak memory is read from /proc")
    n = 2_000_000
    rng = np.random.default_rng(0)
    rows = np.empty(n, [("data", "<u4"), ("time", "<i4")])
    rows["data"] = 1 | rng.integers(2, size=n) << 1 | rng.integers(128, size=n) << 2 | rng.integers(128, size=n) << 17
    rows["time"] = np.sort(rng.integers(30_000_000, size=n))
    path = tmp_path / "user01_lab.aedat"
    packets = (
        struct.pack("<hhiiiiii", 1, 1, 8, 4, 0, 5000, 5000, 5000) + rows[k : k + 5000].tobytes()
        for k in range(0, n, 5000)
    )
    samples.write(path, b"#!AER-DAT3.1\r\n#!END-HEADER\r\n" + b"".join(packets))
    samples.write(
        tmp_path / "user01_lab_labels.csv",
        b"class,startTime_usec,endTime_usec\n1,0,30000000\n",
    )
    code = (
        "import re, sys; from pathlib import Path; from nsm.data import recordings as r\n"
        "status = Path('/proc/self/status')\n"
        "peak = lambda: int(re.search(r'VmHWM:\\s*(\\d+)', status.read_text())[1]) * 1024\n"
        "before = peak(); found = r.windows(Path(sys.argv[1]), 'dvsgesture')\n"
        "assert [one.windows for _, one in found] == [312]\n"
        "print((peak() - before) / Path(sys.argv[1]).stat().st_size, r._PER_BYTE)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    measured, assumed = map(float, done.stdout.split())
    assert 1 < measured < assumed


def test_labels_beside_a_recording_belong_to_it(tmp_path):
    samples.write_aedat(tmp_path / "dvsgesture", (1,))
    assert check("dvsgesture", tmp_path)["files"] == 2
    labels = tmp_path / "dvsgesture" / "user01_fluorescent_labels.csv"
    labels.write_text(labels.read_text().replace("\n11,", "\n10,"))
    assert load("dvsgesture", "train", tmp_path).labels.tolist() == [0, 0, 9]
    with pytest.raises(DataError, match=r"labels\.csv to have SHA-256"):
        check("dvsgesture", tmp_path)
    labels.unlink()
    with pytest.raises(FileNotFoundError):
        load("dvsgesture", "train", tmp_path)


@pytest.mark.parametrize("name", ["12_unknown.bs2", "00_none.bs2"])
def test_a_file_named_after_no_gesture(tmp_path, name):
    samples.write(tmp_path / "dvsgesture" / name, samples.event(1, 1, 1))
    with pytest.raises(DataError, match=f"{name} to be named after a gesture"):
        load("dvsgesture", "train", tmp_path)
    assert list((tmp_path / "frames").iterdir()) == []


def test_a_gesture_that_claims_to_last_for_ever(tmp_path):
    samples.write_aedat(tmp_path / "dvsgesture", (1,))
    labels = tmp_path / "dvsgesture" / "user01_fluorescent_labels.csv"
    labels.write_text("class,startTime_usec,endTime_usec\n1,0,999999999999999999\n")
    with pytest.raises(DataError, match="Expected frames of at most"):
        load("dvsgesture", "train", tmp_path)
