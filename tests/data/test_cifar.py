import os
import pickle
import tracemalloc

import numpy as np
import pytest

from data.fuzz import python2_batch
from data.real import real
from nsm.data import DataError, read_cifar, read_cifar_pickle


def test_binary_records():
    rng = np.random.default_rng(0)
    images, labels = (
        rng.integers(256, size=(5, 3, 32, 32), dtype=np.uint8),
        np.array([3, 9, 0, 1, 1], np.uint8),
    )
    rows = np.concatenate([labels[:, None], images.reshape(5, -1)], axis=1)
    got_images, got_labels = read_cifar(rows.tobytes())
    np.testing.assert_array_equal(got_images, images)
    np.testing.assert_array_equal(got_labels, labels)
    fine = np.array([99, 0, 5, 19, 20], np.uint8)
    rows = np.concatenate([labels[:, None], fine[:, None], images.reshape(5, -1)], axis=1)
    got_images, got_labels = read_cifar(rows.tobytes(), classes=100, label_bytes=2)
    np.testing.assert_array_equal(got_images, images)
    np.testing.assert_array_equal(got_labels, fine)


@pytest.mark.parametrize("data", [b"", bytes(3072), bytes(3074), bytes([10]) + bytes(3072)])
def test_broken_binary(data):
    with pytest.raises(DataError, match=r"Expected .*batch"):
        read_cifar(data, name="batch")


def test_python2_batch():
    images, labels = read_cifar_pickle(python2_batch((3, 9)))
    assert labels.tolist() == [3, 9]
    assert images.shape == (2, 3, 32, 32)
    assert images[0].max() == 0
    assert (images[1] == 1).all()
    with pytest.raises(DataError, match="labels of b in 0 to 9"):
        read_cifar_pickle(python2_batch((3, 10)), name="b")
    assert read_cifar_pickle(python2_batch((3, 99), key=b"fine_labels"), classes=100)[1].tolist() == [3, 99]
    # What Python itself makes of the sample: the sample is a true pickle.
    truth = pickle.loads(python2_batch((3, 9)), encoding="bytes")
    np.testing.assert_array_equal(truth[b"data"].reshape(2, 3, 32, 32), images)


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("order", ["C", "F"])
def test_python3_batch(protocol, order):
    rng = np.random.default_rng(1)
    data = np.asarray(rng.integers(256, size=(4, 3072), dtype=np.uint8), order=order)
    batch = {"data": data, "fine_labels": [1, 2, 3, 99], "coarse_labels": [0] * 4, "filenames": ["a"] * 4}
    images, labels = read_cifar_pickle(pickle.dumps(batch, protocol=protocol), classes=100)
    np.testing.assert_array_equal(images, data.reshape(4, 3, 32, 32))
    assert labels.tolist() == [1, 2, 3, 99]


class Evil:
    def __reduce__(self):
        return os.system, ("touch /tmp/nsm-was-here",)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (pickle.dumps(Evil(), protocol=4), "a reference to 'posix system'"),
        (pickle.dumps({"data": Evil()}, protocol=2), "posix system"),
        (b"cbuiltins\neval\n(S'1'\ntR.", "builtins eval"),
        (pickle.dumps({b"data": np.zeros((2, 3072)), b"labels": [1, 1]}), "other numbers than bytes"),
        (pickle.dumps({b"data": np.zeros((3, 3072), np.uint8), b"labels": [1, 1]}), "3 labels, but got 2"),
        (pickle.dumps({b"data": np.zeros((2, 3071), np.uint8), b"labels": [1, 1]}), "ValueError"),
        (pickle.dumps({b"labels": [1, 1]}), "KeyError"),
        (pickle.dumps([1, 2]), "AttributeError"),
        (pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": ["x"]}), "TypeError"),
        (pickle.dumps({b"data": [np.zeros((1, 3072), np.uint8)] * 2, b"labels": [1]}), "AttributeError"),
        (b"\x80\x04" + b")\x85" * 5 + b"}" + b".", "KeyError"),
        (b"\x80\x04}" + b")" + b"\x85" * 100_000 + b"K\x01s.", "not text"),  # a tuple too deep to hash
        (b"u.", "IndexError"),
        (b"", "ValueError"),
        (python2_batch()[:-1], "ValueError"),
        (python2_batch()[:-40], "ValueError"),
    ],
)
def test_hostile_pickles(data, said):
    with pytest.raises(DataError, match=f"Expected b(atch)? to .*{said}"):
        read_cifar_pickle(data, name="b")
    assert not os.path.exists("/tmp/nsm-was-here")


def test_pickles_cannot_ask_for_memory():
    """Each of these makes Python's own unpickler, or numpy, reserve gigabytes."""
    raw = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
    shape = b"J\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86"
    hostile = [
        b"\x80\x02}r\xff\xff\xff\x7f.",  # a memo of 2³¹ places
        raw + b"(K\x01" + shape + dtype + b"\x89U\x00tb.",  # an array of 2⁶² bytes
        raw + b"(K\x01K\x01\x85" + dtype + b"\x89J\xff\xff\xff\x7ftb.",  # bytes(2³¹ − 1)
        b"\x80\x02T\xff\xff\xff\x7fabc.",  # a string of 2³¹ bytes
    ]
    tracemalloc.start()
    for data in hostile:
        with pytest.raises(DataError):
            read_cifar_pickle(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20
    amplified = raw + b"(K\x01K\x01\x85" + dtype + b"\x89U\x01atb" + raw[2:]
    with pytest.raises(DataError, match="a second array"):
        read_cifar_pickle(amplified + b".")


def test_real_batches_are_balanced():
    path = real("cifar-10-batches-bin") / "test_batch.bin"
    images, labels = read_cifar(path.read_bytes(), name=str(path))
    assert np.bincount(labels).tolist() == [1000] * 10
    assert images.shape == (10000, 3, 32, 32)
