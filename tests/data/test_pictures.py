import contextlib

import numpy as np
import pytest
from PIL import Image

from nsm.data import DataError
from nsm.data.pictures import read_pictures

GREY, RGB = (1, 28, 28), (3, 32, 32)


def picture(path, size=(28, 28), mode="L", seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (*size[::-1], len(mode)), dtype=np.uint8)
    Image.fromarray(pixels[..., 0] if mode == "L" else pixels, mode if mode != "L" else None).save(path)
    return pixels


def test_pictures_become_inputs(tmp_path):
    pixels = picture(tmp_path / "a.png")
    inputs, names = read_pictures([tmp_path / "a.png"], GREY, binary=False)
    assert inputs.shape == (1, 1, 28, 28)
    assert inputs.dtype == np.float32
    np.testing.assert_allclose(inputs[0, 0], pixels[..., 0] / 255, atol=1e-6)
    assert names == [str(tmp_path / "a.png")]
    states, _ = read_pictures([tmp_path / "a.png"], GREY, binary=True)
    assert np.array_equal(states[0, 0], np.where(pixels[..., 0] >= 128, 1, -1))
    turned, _ = read_pictures([tmp_path / "a.png"], GREY, binary=True, invert=True)
    assert np.array_equal(turned, -states)


def test_other_sizes_and_colours_are_brought_to_the_networks(tmp_path):
    picture(tmp_path / "large.png", (56, 84), "RGB")
    assert read_pictures([tmp_path / "large.png"], GREY, binary=True)[0].shape == (1, 1, 28, 28)
    pixels = picture(tmp_path / "exact.png", (32, 32), "RGB")
    inputs, _ = read_pictures([tmp_path / "exact.png"], RGB, binary=False)
    np.testing.assert_allclose(inputs[0], pixels.transpose(2, 0, 1) / 255, atol=1e-6)


def test_folders_are_read_in_order(tmp_path):
    for name in ("b.png", "a.PNG", "c.jpg"):
        picture(tmp_path / name)
    (tmp_path / "notes.txt").write_text("not a picture")
    inputs, names = read_pictures([tmp_path], GREY, binary=True)
    assert len(inputs) == 3
    assert [name.rsplit("/", 1)[1] for name in names] == ["a.PNG", "b.png", "c.jpg"]


@pytest.mark.parametrize("shape", [(28, 28), (1, 28, 28), (5, 28, 28), (5, 1, 28, 28)], ids=str)
def test_arrays(tmp_path, shape):
    values = np.random.default_rng(0).random(shape)
    np.save(tmp_path / "x.npy", values)
    np.savez(tmp_path / "x.npz", inputs=(values * 255).astype(np.uint8), labels=np.arange(3))
    for file in ("x.npy", "x.npz"):
        inputs, names = read_pictures([tmp_path / file], GREY, binary=False)
        assert inputs.shape == (5 if shape[0] == 5 else 1, 1, 28, 28)
        assert len(names) == len(inputs)
        np.testing.assert_allclose(inputs.ravel(), values.ravel(), atol=1 / 255)
    states = np.where(values >= 0.5, 1.0, -1.0)
    np.save(tmp_path / "states.npy", states)
    assert np.array_equal(read_pictures([tmp_path / "states.npy"], GREY, binary=True)[0].ravel(), states.ravel())


def test_bits_are_states(tmp_path):
    """Bytes of 0 and 1, as `nsm.data.frames` gives them, are not nearly black pictures to a binary network."""
    shape = (10, 34, 34)
    bits = np.random.default_rng(0).random((10, 1, 34, 34)) < 0.1
    for found in (bits, bits.astype(np.uint8), bits[:, 0], bits[None], bits[None, :, 0]):
        np.save(tmp_path / "frames.npy", found)
        inputs, _ = read_pictures([tmp_path / "frames.npy"], shape, binary=True)
        assert np.array_equal(inputs, np.where(bits[None, :, 0], 1, -1))
    np.save(tmp_path / "dark.npy", bits[:, 0].astype(np.uint8))
    grey, _ = read_pictures([tmp_path / "dark.npy"], shape, binary=False)
    assert grey.max() == np.float32(1 / 255)


@pytest.mark.parametrize("ink", [0, 255])
def test_behind_ink_is_its_contrary(tmp_path, ink):
    alpha = np.zeros((28, 28), np.uint8)
    alpha[5:20, 9:12] = 255
    pixels = np.stack([np.full_like(alpha, ink)] * 3 + [alpha], -1)
    Image.fromarray(pixels).save(tmp_path / "ink.png")
    inputs, _ = read_pictures([tmp_path / "ink.png"], GREY, binary=True, invert=ink == 0)
    assert np.array_equal(inputs[0, 0] > 0, alpha > 0)


def test_photos_are_turned_as_their_camera_says(tmp_path):
    pixels = picture(tmp_path / "upright.png")
    turned, exif = Image.fromarray(np.rot90(pixels[..., 0]).copy()), Image.Exif()
    exif[0x0112] = 6  # turn it by a quarter, clockwise
    turned.save(tmp_path / "turned.png", exif=exif)
    one, other = (read_pictures([tmp_path / name], GREY, binary=False)[0] for name in ("upright.png", "turned.png"))
    assert np.array_equal(one, other)


def test_pictures_of_16_bits_are_scaled_and_those_of_floats_refused(tmp_path):
    pixels = picture(tmp_path / "8.png")[..., 0]
    Image.fromarray(pixels.astype(np.uint16) * 257).save(tmp_path / "16.png")
    one, other = (read_pictures([tmp_path / name], GREY, binary=False)[0] for name in ("8.png", "16.png"))
    assert np.array_equal(one, other)
    Image.fromarray(pixels.astype(np.float32) / 255).save(tmp_path / "float.tiff")
    with pytest.raises(DataError, match=r"Expected the pixels of .*float.tiff to be bytes, but got F; use an array"):
        read_pictures([tmp_path / "float.tiff"], GREY, binary=False)


def write_bad(folder):
    bad = {
        "html.png": b"<html>",
        "empty.png": b"",
        "cut.png": b"\x89PNG\r\n\x1a\n\x00\x00",
        "text.npy": b"hello",
        "empty.npy": b"",
        "cut.npz": b"PK\x03\x04",
    }
    for name, data in bad.items():
        (folder / name).write_bytes(data)
    picture(folder / "whole.png")
    (folder / "half.png").write_bytes((folder / "whole.png").read_bytes()[:200])
    np.save(folder / "pickle.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.save(folder / "shape.npy", np.zeros((3, 3)))
    np.save(folder / "range.npy", np.full((28, 28), 7.0))
    np.save(folder / "nan.npy", np.full((28, 28), np.nan))
    np.save(folder / "ints.npy", np.zeros((28, 28), np.int64))
    np.save(folder / "none.npy", np.zeros((0, 28, 28)))
    np.savez(folder / "two.npz", a=np.zeros((28, 28)), b=np.zeros((28, 28)))
    header = b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (99999999, 28, 28), }"
    (folder / "lies.npy").write_bytes(header.ljust(127) + b"\n" + bytes(64))


NAMES = [
    "html.png", "empty.png", "cut.png", "half.png", "text.npy", "empty.npy", "cut.npz", "pickle.npy", "shape.npy",
    "range.npy", "nan.npy", "ints.npy", "none.npy", "two.npz", "lies.npy",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_bad_files_are_one_line(tmp_path, name):
    write_bad(tmp_path)
    with pytest.raises(DataError, match="Expected") as caught:
        read_pictures([tmp_path / name], GREY, binary=True)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_read_at_all(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "hollow").mkdir()
    for path, message in (("notes.txt", "to be a folder or one of"), ("hollow", "to hold pictures")):
        with pytest.raises(DataError, match=message):
            read_pictures([tmp_path / path], GREY, binary=True)
    with pytest.raises(FileNotFoundError):
        read_pictures([tmp_path / "missing.png"], GREY, binary=True)
    with pytest.raises(DataError, match="at least one file"):
        read_pictures([], GREY, binary=True)
    picture(tmp_path / "a.png")
    with pytest.raises(DataError, match="an array of shape"):
        read_pictures([tmp_path / "a.png"], (10, 34, 34), binary=True)


def test_a_bomb_is_refused(tmp_path):
    Image.new("1", (20_000, 20_000)).save(tmp_path / "bomb.png")
    with pytest.raises(DataError, match=r"at most 67108864 pixels|decompression bomb"):
        read_pictures([tmp_path / "bomb.png"], GREY, binary=True)


def test_mutated_files_raise_nothing_else(tmp_path):
    generator = np.random.default_rng(0)
    picture(tmp_path / "seed.png")
    np.save(tmp_path / "seed.npy", np.zeros((2, 28, 28), np.uint8))
    np.savez(tmp_path / "seed.npz", np.zeros((2, 28, 28), np.uint8))
    for suffix in ("png", "npy", "npz"):
        whole = bytearray((tmp_path / f"seed.{suffix}").read_bytes())
        for _ in range(300):
            data = bytearray(whole[: generator.integers(1, len(whole) + 1)])
            for place in generator.integers(0, len(data), 4):
                data[place] = generator.integers(256)
            path = tmp_path / f"mutant.{suffix}"
            path.write_bytes(data)
            with contextlib.suppress(DataError):
                assert read_pictures([path], GREY, binary=True)[0].shape[1:] == GREY
