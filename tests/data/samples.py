"""Tiny data sets in their published layouts, written from the formats' definitions."""

import gzip
import io
import pickle
import struct

import numpy as np


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def write_idx(folder, prefix="", train=24, test=6, zipped=True, first=0, classes=10, stem="t10k"):
    """An idx data set; returns {part: (images, labels)}."""
    rng, out = np.random.default_rng(0), {}
    for part, name, n in (("train", "train", train), ("test", stem, test)):
        images = rng.integers(256, size=(n, 28, 28), dtype=np.uint8)
        labels = (np.arange(n) % classes + first).astype(np.uint8)
        for what, array in (("images-idx3", images), ("labels-idx1", labels)):
            data, path = idx(array), folder / f"{prefix}{name}-{what}-ubyte"
            if zipped:
                path, data = path.with_name(path.name + ".gz"), gzip.compress(data)
            write(path, data)
        out[part] = images, labels
    return out


def write_cifar(folder, classes=10, python=False):
    """A CIFAR data set of 4 records a file; returns {part: (images, labels)}."""
    rng, out = np.random.default_rng(1), {}
    names = (
        {"train": [f"data_batch_{k}" for k in range(1, 6)], "test": ["test_batch"]}
        if classes == 10
        else {"train": ["train"], "test": ["test"]}
    )
    layout = {(10, False): "cifar-10-batches-bin", (10, True): "cifar-10-batches-py",
              (100, False): "cifar-100-binary", (100, True): "cifar-100-python"}[classes, python]  # fmt: skip
    for part, files in names.items():
        images = rng.integers(256, size=(4 * len(files), 3072), dtype=np.uint8)
        labels = rng.integers(classes, size=len(images), dtype=np.uint8)
        for k, name in enumerate(files):
            span = slice(4 * k, 4 * k + 4)
            if python:
                key = b"labels" if classes == 10 else b"fine_labels"
                data = pickle.dumps({b"data": images[span], key: labels[span].tolist()}, protocol=3)
                write(folder / layout / name, data)
            else:
                label = labels[span, None]
                columns = [label] if classes == 10 else [label // 5, label]
                rows = np.concatenate([*columns, images[span]], axis=1)
                write(folder / layout / f"{name}.bin", rows.tobytes())
        out[part] = images.reshape(-1, 3, 32, 32), labels
    return out


def event(x, y, t, p=1):
    """One 5-byte event."""
    return bytes([x, y, p << 7 | t >> 16, t >> 8 & 255, t & 255])


def write_nmnist(folder, train=24, test=6):
    """N-MNIST: file k has ON events at pixel (k mod 34, frame) in each of ten frames."""
    for part, n in (("Train", train), ("Test", test)):
        for k in range(n):
            data = b"".join(event(k % 34, frame, 1000 * frame + 500) for frame in range(10))
            write(folder / part / str(k % 10) / f"{k + 1:05}.bin", data + event(0, 33, 10_000, 0))


def aedat(events):
    """An AEDAT 3.1 file of (x, y, t, polarity), all valid, in one packet."""
    body = b"".join(struct.pack("<Ii", 1 | p << 1 | y << 2 | x << 17, t) for x, y, t, p in events)
    header = struct.pack("<hhiiiiii", 1, 1, 8, 4, 0, len(events), len(events), len(events))
    return b"#!AER-DAT3.1\r\n#Format: RAW\r\n#!END-HEADER\r\n" + header + body


def write_aedat(folder, subjects=(1, 19, 20, 23, 24, 29), lists=None):
    """DVS gestures: each subject makes gesture 1 for 2 windows, then gesture 11 for 1 window and a bit."""
    for who in subjects:
        name = f"user{who:02}_fluorescent"
        events = [(2 * (f % 6), who, 1000 + 16_000 * f, 1) for f in range(19)]
        write(folder / f"{name}.aedat", aedat(events))
        middle, end = 1000 + 16_000 * 12, 1000 + 16_000 * 19
        csv = f"class,startTime_usec,endTime_usec\n1,1000,{middle}\n11,{middle},{end}\n"
        write(folder / f"{name}_labels.csv", csv.encode())
    if lists:
        for part, chosen in lists.items():
            text = "".join(f"user{who:02}_fluorescent.aedat\n" for who in chosen)
            write(folder / f"trials_to_{part}.txt", text.encode())


def write_tonic(folder, recordings=(("Train", 3), ("Train", 21), ("Test", 25))):
    """DVS gestures in tonic's layout: each subject draws gestures 0 and 10 in a row of its own."""
    for part, who in recordings:
        for label in (0, 10):
            table = np.array([[2 * f, 2 * who, 1, 5 + 16 * f] for f in range(6)] + [[0, 0, 0, 5 + 97]])
            file = io.BytesIO()
            np.save(file, table)
            path = folder / f"ibmGesture{part}" / f"user{who:02}_lab" / f"{label}.npy"
            write(path, file.getvalue())
