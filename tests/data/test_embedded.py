import gzip
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

import nsm
from data.real import real
from nsm.data.embedded import FILES, embed, read_embedded

PACKAGE = Path(nsm.__file__).parent / "data"


def test_every_bit_and_label_equals_the_originals():
    folder = real("mnist")
    rows, labels = read_embedded()
    images = np.unpackbits(rows, axis=-1)[..., :28]
    assert not np.unpackbits(rows, axis=-1)[..., 28:].any()
    for part, span in (("train", slice(0, 60_000)), ("t10k", slice(60_000, None))):
        grey = gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes())[16:]
        digits = gzip.decompress((folder / f"{part}-labels-idx1-ubyte.gz").read_bytes())[8:]
        np.testing.assert_array_equal(images[span].reshape(-1), np.frombuffer(grey, np.uint8) >= 128)
        np.testing.assert_array_equal(labels[span], np.frombuffer(digits, np.uint8))


def test_the_program_makes_the_same_bytes_again(tmp_path):
    embed(real("mnist"), tmp_path)
    for name in ("mnist.xz", "mnist.json"):
        assert (tmp_path / name).read_bytes() == (PACKAGE / name).read_bytes()


def test_it_is_small_and_carries_its_licence():
    assert (PACKAGE / "mnist.xz").stat().st_size < 2_000_000
    assert "Attribution-ShareAlike 3.0" in (PACKAGE / "MNIST-LICENSE.txt").read_text()
    assert len(FILES) == 4


def test_splits_are_fixed_and_fast():
    begin = time.perf_counter()
    train, held_out, test = (nsm.data.load("mnist", split) for split in ("train", "validation", "test"))
    assert time.perf_counter() - begin < 3  # under 1 s each; the benchmark measures it
    assert [len(d) for d in (train, held_out, test)] == [55_000, 5_000, 10_000]
    whole = nsm.data.load("mnist", "train+validation")
    assert whole.stored[:55_000].equal(train.stored)
    assert whole.stored[55_000:].equal(held_out.stored)
    assert whole.labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert test.labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert test.inputs.shape == (10_000, 1, 28, 28)


def test_a_damaged_copy_is_refused(tmp_path):
    for name in ("mnist.xz", "mnist.json"):
        shutil.copy(PACKAGE / name, tmp_path)
    data = bytearray((tmp_path / "mnist.xz").read_bytes())
    data[1000] ^= 1
    (tmp_path / "mnist.xz").write_bytes(data)
    with pytest.raises(nsm.data.DataError, match="SHA-256"):
        read_embedded(tmp_path)
