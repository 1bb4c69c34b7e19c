"""Every data set, in every layout it is published in, from tiny copies and from the real files."""

import ast
import gzip
import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import nsm
from data import samples
from data.real import real
from nsm.data import DataError, check, load
from nsm.data.catalogue import ENTRIES


def expect(dataset, images, labels):
    np.testing.assert_array_equal(dataset.stored.numpy(), images)
    np.testing.assert_array_equal(dataset.labels.numpy(), labels)
    np.testing.assert_allclose(dataset.inputs.numpy(), images / np.float32(255))


def test_digits_of_the_package_need_no_folder(monkeypatch):
    """Nor what finds one, which a bare machine may lack."""
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    monkeypatch.delenv("NSM_DATA", raising=False)
    assert len(load("mnist", "validation")) == 5000
    with pytest.raises(ImportError):
        load("cifar10", "validation")


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("folder", ["fashion-mnist", "FashionMNIST/raw"])
def test_idx_as_it_lies(tmp_path, zipped, folder):
    truth = samples.write_idx(tmp_path / folder, zipped=zipped)
    images, labels = truth["train"]
    expect(load("fashion-mnist", "train", tmp_path), images[:22, None], labels[:22])
    expect(load("fashion-mnist", "validation", tmp_path), images[22:, None], labels[22:])
    expect(load("fashion-mnist", "train+validation", tmp_path), images[:, None], labels)
    expect(
        load("fashion-mnist", "validation+train", tmp_path),
        np.roll(images, 2, 0)[:, None],
        np.roll(labels, 2),
    )
    expect(load("fashion-mnist", "test", tmp_path), truth["test"][0][:, None], truth["test"][1])


def test_official_letters_are_transposed_and_count_from_one(tmp_path):
    truth = samples.write_idx(tmp_path / "emnist" / "gzip", "emnist-letters-", first=1, classes=26, stem="test")
    images, labels = truth["test"]
    expect(load("emnist-letters", "test", tmp_path), images.transpose(0, 2, 1)[:, None], labels - 1)
    assert len(load("emnist-letters", "validation", tmp_path)) == 4  # a sixth of 24
    with pytest.raises(FileNotFoundError, match="emnist-letters-unofficial in"):
        load("emnist-letters-unofficial", "test", tmp_path)


def test_unofficial_letters_are_upright(tmp_path):
    truth = samples.write_idx(tmp_path / "emnist", "emnist-letters-unofficial-", first=1, classes=26, stem="test")
    expect(load("emnist-letters-unofficial", "test", tmp_path), truth["test"][0][:, None], truth["test"][1] - 1)


@pytest.mark.parametrize("classes", [10, 100])
@pytest.mark.parametrize("python", [False, True])
@pytest.mark.parametrize("inside", ["", "own"])
def test_cifar_as_it_lies(tmp_path, classes, python, inside):
    name = f"cifar{classes}"
    truth = samples.write_cifar(tmp_path / name if inside else tmp_path, classes, python)
    images, labels = truth["train"]
    cut = len(images) - len(images) // 10
    expect(load(name, "train", tmp_path), images[:cut], labels[:cut])
    expect(load(name, "test", tmp_path), *truth["test"])
    assert load(name, "test", tmp_path).classes == ENTRIES[name].classes


def test_root_from_the_environment(tmp_path, monkeypatch):
    samples.write_cifar(tmp_path)
    monkeypatch.setenv("NSM_DATA", str(tmp_path))
    assert len(load("cifar10", "test")) == 4


def break_gzip(folder):
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-5])


def break_count(folder):
    samples.write(folder / "train-labels-idx1-ubyte.gz", gzip.compress(samples.idx(np.zeros(23, np.uint8))))


def break_label(folder):
    samples.write(folder / "train-labels-idx1-ubyte.gz", gzip.compress(samples.idx(np.full(24, 10, np.uint8))))


def break_shape(folder):
    images = np.zeros((24, 28, 27), np.uint8)
    samples.write(folder / "train-images-idx3-ubyte.gz", gzip.compress(samples.idx(images)))


def break_dimensions(folder):
    labels = np.zeros((24, 1), np.uint8)
    samples.write(folder / "train-labels-idx1-ubyte.gz", gzip.compress(samples.idx(labels)))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (break_gzip, "train-images-idx3-ubyte.gz .*truncated"),
        (break_count, "train-labels-idx1-ubyte.gz to have 24 labels, but got .23"),
        (break_label, "labels of fashion-mnist train in 0 to 9, but got 10 to 10"),
        (break_shape, r"images of \(28, 28\), but got \(24, 28, 27\)"),
        (break_dimensions, "24 labels"),
    ],
)
def test_broken_idx_sets(tmp_path, damage, said):
    samples.write_idx(tmp_path / "fashion-mnist")
    damage(tmp_path / "fashion-mnist")
    for act in (lambda: load("fashion-mnist", "train", tmp_path), lambda: check("fashion-mnist", tmp_path)):
        with pytest.raises(DataError, match=said):
            act()
    assert len(load("fashion-mnist", "test", tmp_path)) == 6


def test_letters_without_label_zero(tmp_path):
    samples.write_idx(tmp_path / "emnist", "emnist-letters-", first=0, classes=26, stem="test")
    with pytest.raises(DataError, match="labels from 1, but got 0"):
        load("emnist-letters", "test", tmp_path)


def test_unknown_names_and_splits(tmp_path):
    with pytest.raises(DataError, match=r"but got 'fashon-mnist'; did you mean fashion-mnist\?"):
        load("fashon-mnist")
    for split in ("tset", "", "train+", "train+train", "all"):
        with pytest.raises(DataError, match="Expected argument `split`"):
            load("mnist", split)
    with pytest.raises(FileNotFoundError, match=r"run `nsm data get cifar10`"):
        load("cifar10", root=tmp_path)


def test_first_seen_is_recorded_and_verified_ever_after(tmp_path):
    samples.write_cifar(tmp_path)
    assert check("cifar10", tmp_path) == {
        "files": 6, "bytes": 24 * 3073, "known": 0, "recorded": 6, "train": 20, "test": 4,
    }  # fmt: skip
    assert check("cifar10", tmp_path)["known"] == 6
    path = tmp_path / "cifar-10-batches-bin" / "test_batch.bin"
    recorded = json.loads((tmp_path / "checksums" / "cifar10.json").read_text())
    assert recorded["cifar-10-batches-bin/test_batch.bin"] == hashlib.sha256(path.read_bytes()).hexdigest()
    data = bytearray(path.read_bytes())
    data[5] ^= 1  # one bit of one pixel: no reader could tell
    path.write_bytes(data)
    for act in (lambda: load("cifar10", "test", tmp_path), lambda: check("cifar10", tmp_path)):
        with pytest.raises(DataError, match=r"test_batch\.bin to have SHA-256"):
            act()
    (tmp_path / "checksums" / "cifar10.json").write_text("[1, 2")
    with pytest.raises(DataError, match=r"cifar10\.json to be JSON"):
        load("cifar10", "test", tmp_path)


def test_mnist_has_published_checksums(tmp_path):
    samples.write_idx(tmp_path / "mnist")
    with pytest.raises(DataError, match="SHA-256 440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"):
        load("mnist-grey", "train", tmp_path)


def test_real_grey_digits_become_the_embedded_ones():
    root = real("mnist").parent
    grey, embedded = load("mnist-grey", "validation", root), load("mnist", "validation")
    assert ((grey.inputs >= 0.5).float() * 2 - 1).equal(embedded.inputs)
    assert grey.labels.equal(embedded.labels)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("emnist-letters-unofficial", (107_478, 9_770, 10_400)),
        ("cifar10", (45_000, 5_000, 10_000)),
        ("cifar100", (45_000, 5_000, 10_000)),
    ],
)
def test_real_sets(name, sizes):
    folder = {"cifar10": "cifar-10-batches-bin", "cifar100": "cifar-100-binary"}.get(name, "emnist")
    root = real(folder).parent
    sets = [load(name, split, root) for split in ("train", "validation", "test")]
    assert tuple(map(len, sets)) == sizes
    for one in sets:
        assert torch.unique(one.labels).tolist() == list(range(len(one.classes)))


def test_public_names_are_there_without_torch():
    import subprocess
    import sys

    code = "import sys, nsm.data as d; d.names(); d.read_idx; d.frames; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(filter(None, sys.path))})
    for name in nsm.data.__all__:
        assert getattr(nsm.data, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        nsm.data.nothing  # noqa: B018


def test_data_imports_nothing_else_of_ours():
    for path in Path(nsm.data.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            ours = [name for name in names if name.split(".")[0] == "nsm"]
            assert all(name.startswith("nsm.data") or name == "nsm.record" for name in ours), path.name
