"""Mutated valid files against every reader: only DataError may come out, and memory stays bounded.

    python tests/data/fuzz.py INPUTS [SEED [RESULT.json]]

The address space is limited, so that a file that asks for too much memory fails here as a MemoryError.
"""

import gzip
import io
import json
import pickle
import random
import resource
import struct
import sys
import tarfile
import tempfile
import time
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np

from nsm.data.archive import extract
from nsm.data.catalogue import ENTRIES
from nsm.data.cifar import read_cifar, read_cifar_pickle
from nsm.data.errors import DataError
from nsm.data.events import read_aedat, read_events, read_gestures, read_npy_events
from nsm.data.framing import frames
from nsm.data.idx import read_idx
from nsm.data.recordings import open_cache
from nsm.data.store import Checksums

ADDRESS_SPACE = 3 * 2**29


def python2_batch(labels=(3, 9), key=b"labels"):
    """A batch as Python 2 pickled the published ones: protocol 2, every string a byte string."""

    def string(text):
        return b"T" + struct.pack("<i", len(text)) + text

    integers = b"".join(b"K" + bytes([label]) for label in labels)
    raw = b"".join(bytes([k]) * 3072 for k in range(len(labels)))
    dtype = b"cnumpy\ndtype\nq\x01U\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    state = b"(K\x01K" + bytes([len(labels)]) + b"M\x00\x0c\x86" + dtype + b"\x89" + string(raw) + b"tb"
    return b"\x80\x02}q\x00(" + string(b"data") + array + state + string(key) + b"](" + integers + b"eu."


def samples():
    """Small valid files of every format, by the reader they are for."""
    rng = np.random.default_rng(0)
    idx = bytes([0, 0, 8, 3]) + struct.pack(">3I", 3, 5, 4) + rng.bytes(60)
    labels = bytes([0, 0, 8, 1]) + struct.pack(">I", 6) + bytes(range(6))
    batch = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [3, 9], b"filenames": [b"a", b"b"]}
    events = b"".join(
        bytes([int(x), 240 if i == 7 else int(y), int(p) << 7, i, 9])
        for i, (x, y, p) in enumerate(zip(*rng.integers([[34], [34], [2]], size=(3, 40)), strict=True))
    )
    packets = b"#!AER-DAT3.1\r\n#Source 1: DVS128\r\n#!END-HEADER\r\n"
    for _ in range(3):
        packets += struct.pack("<hhiiiiii", 1, 0, 8, 4, 0, 5, 5, 5)
        packets += b"".join(struct.pack("<Ii", 3 | 9 << 2 | 17 << 17, 1000 * k) for k in range(5))
    table = io.BytesIO()
    np.save(table, np.array([[1, 2, 0, 3], [100, 120, 1, 40]]))
    csv = b"class,startTime_usec,endTime_usec\n" + b"".join(b"%d,%d,%d\n" % (k, 9 * k, 9 * k + 8) for k in range(1, 12))
    zipped, tarred = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("a.bin", "folder/b.bin"):
            archive.writestr(name, rng.bytes(50) + bytes(200))
    with tarfile.open(fileobj=tarred, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in ("a.bin", "f/" + "b" * 120):
            member = tarfile.TarInfo(name)
            member.size = 700
            archive.addfile(member, io.BytesIO(bytes(700)))
    return {
        "idx": [idx, labels],
        "idx.gz": [gzip.compress(idx, mtime=0), gzip.compress(labels, mtime=0)],
        "cifar": [bytes([7]) + rng.bytes(3072) + bytes([1]) + rng.bytes(3072)],
        "cifar pickle": [python2_batch(), *(pickle.dumps(batch, protocol=p) for p in (3, 4, 5))],
        "events": [events],
        "aedat": [packets],
        "gestures": [csv],
        "npy events": [table.getvalue()],
        "zip": [zipped.getvalue()],
        "tar": [tarred.getvalue(), gzip.compress(tarred.getvalue(), mtime=0)],
        "checksums": [json.dumps({"a/b.bin": "00" * 32}).encode()],
        "cached frames": [json.dumps([[1, 3, None], [2, 4, 7]]).encode()],
    }


def readers(folder):
    """Reader by name: bytes in, anything or a DataError out."""

    def archive(data):
        (folder / "archive").write_bytes(data)
        target = Path(tempfile.mkdtemp(dir=folder))
        try:
            extract(folder / "archive", target / "in", max_bytes=10**6, max_members=100)
        finally:
            left = [p for p in target.rglob(".unpacking-*")]
            outside = [p for p in folder.iterdir() if p.name not in ("archive", "checksums", "cache", target.name)]
            if left or outside:
                raise AssertionError(f"left behind: {left + outside}")
            import shutil

            shutil.rmtree(target)

    def checksums(data):
        (folder / "checksums").mkdir(exist_ok=True)
        (folder / "checksums" / "mnist-grey.json").write_bytes(data)
        Checksums(ENTRIES["mnist-grey"], folder).expected(folder / "a" / "b.bin")

    def cache(data):
        (folder / "cache").mkdir(exist_ok=True)
        (folder / "cache" / "recordings.json").write_bytes(data)
        (folder / "cache" / "frames.bin").write_bytes(bytes(3 * 8))
        open_cache(folder / "cache", (2, 2, 2))

    def framed(events, **options):
        frames(events, window=16_000, **options)
        frames(events, count=10, binary=False, **options)

    return {
        "idx": read_idx,
        "idx.gz": read_idx,
        "cifar": read_cifar,
        "cifar pickle": read_cifar_pickle,
        "events": lambda data: framed(read_events(data), sensor=(34, 34)),
        "aedat": lambda data: framed(read_aedat(data), sensor=(128, 128), downsample=2),
        "gestures": read_gestures,
        "npy events": lambda data: framed(read_npy_events(data), sensor=(128, 128)),
        "zip": archive,
        "tar": archive,
        "checksums": checksums,
        "cached frames": cache,
    }


def mutate(data, rng):
    """One to four random changes of the kinds that break parsers."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        # Most formats keep what matters at the front: half of the changes go there.
        size = len(out) if rng.random() < 0.5 else min(len(out), 64)
        at = rng.randrange(size) if size else 0
        kind = rng.randrange(8)
        if kind == 0 and out:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and out:
            out[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind == 2:
            del out[at:]
        elif kind == 3:
            del out[at : at + rng.randrange(1, 9)]
        elif kind == 4:
            out[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 5:
            out[at : at + 4] = rng.choice((b"\xff\xff\xff\x7f", b"\xff" * 4, bytes(4), b"\0\0\0\x80"))
        elif kind == 6:
            out[at:at] = out[at : at + rng.randrange(1, 65)]
        else:
            other = rng.randrange(len(out)) if out else 0
            out[at : at + 16] = out[other : other + 16]
    return bytes(out)


def main(inputs, seed):
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    rng, begin = random.Random(seed), time.perf_counter()
    counts = {}
    with tempfile.TemporaryDirectory() as temporary:
        table, valid = readers(Path(temporary)), samples()
        for name, files in valid.items():
            for data in files:
                table[name](data)  # the samples themselves are sound
        for i in range(inputs):
            name = list(valid)[i % len(valid)]
            data = mutate(rng.choice(valid[name]), rng)
            count = counts.setdefault(name, Counter(accepted=0, refused=0))
            try:
                table[name](data)
                count["accepted"] += 1
            except DataError as error:
                count["refused"] += 1
                if len(str(error)) > 2000 or not str(error).startswith("Expected "):
                    raise AssertionError(f"{name}: not a short message: {str(error)[:200]}") from None
            except BaseException:
                print(f"input {i} for {name}: {data[:4096].hex()}", file=sys.stderr)
                raise
    return {
        "inputs": inputs,
        "seed": seed,
        "readers": {name: dict(count) for name, count in counts.items()},
        "seconds": round(time.perf_counter() - begin, 1),
        # Not getrusage: that begins at the size of the process this one was started from.
        "peak_rss_mb": int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) // 1024,
        "address_space_mb": ADDRESS_SPACE // 2**20,
    }


if __name__ == "__main__":
    result = main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    if len(sys.argv) > 3:
        from nsm import record

        record.write(sys.argv[3], result)
    print(json.dumps(result))
