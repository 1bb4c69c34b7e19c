import pytest
import torch

from nsm.data import DataError, random_crop, random_cutout, random_flip, random_shift


def places(height, width):
    """An image whose every pixel says where it is, so that a crop tells its offset."""
    return torch.arange(1.0, height * width + 1).reshape(1, 1, height, width)


def test_every_crop_is_a_window_of_the_padded_image_and_all_offsets_occur():
    images = places(5, 6).expand(2000, 2, 5, 6)
    out = random_crop(images, 2, fill=-1, generator=torch.Generator().manual_seed(0))
    padded = torch.nn.functional.pad(images[:1], (2, 2, 2, 2), value=-1)
    windows = {(top, left): padded[0, :, top : top + 5, left : left + 6] for top in range(5) for left in range(5)}
    seen = dict.fromkeys(windows, 0)
    for image in out:
        (found,) = [offset for offset, window in windows.items() if window.equal(image)]
        seen[found] += 1
    # 25 equally likely offsets, 80 expected each; a uniform draw stays within ±60 but for odds under 1e-9
    assert min(seen.values()) > 20
    assert max(seen.values()) < 140


def test_crop_to_another_size():
    out = random_crop(places(5, 6).expand(50, 1, 5, 6), 1, (3, 8))
    assert out.shape == (50, 1, 3, 8)


def test_flip_is_each_image_or_its_mirror():
    images = torch.rand(4000, 1, 2, 3)
    out = random_flip(images, generator=torch.Generator().manual_seed(1))
    same = (out == images).flatten(1).all(1)
    mirrored = (out == images.flip(-1)).flatten(1).all(1)
    assert (same ^ mirrored).all()
    assert 1800 < int(mirrored.sum()) < 2200  # six standard deviations


def test_shift_keeps_what_stays_inside():
    images = places(6, 6).expand(500, 1, 6, 6)
    out = random_shift(images, 1, fill=-7.0, generator=torch.Generator().manual_seed(2))
    assert out.shape == images.shape
    centre = {int(v) for v in out[:, 0, 3, 3]}
    assert centre == {int(images[0, 0, 3 + dy, 3 + dx]) for dy in (-1, 0, 1) for dx in (-1, 0, 1)}
    assert (out == -7).any()


@pytest.mark.parametrize("side", [1, 2, 3])
def test_a_square_is_wiped_out_around_any_pixel(side):
    images = places(5, 6).expand(3000, 2, 5, 6)
    out = random_cutout(images, side, fill=-1, generator=torch.Generator().manual_seed(0))
    seen = torch.zeros(5, 6, dtype=torch.int64)
    holes = {}
    for y in range(5):
        for x in range(6):
            hole = images[0].clone()
            top, left = max(0, y - side // 2), max(0, x - side // 2)
            hole[:, top : y - side // 2 + side, left : x - side // 2 + side] = -1
            holes[y, x] = hole
    for image in out:
        (middle,) = [middle for middle, hole in holes.items() if hole.equal(image)]
        seen[middle] += 1
    # 30 equally likely pixels, 100 expected each; a uniform draw stays within ±70 but for odds under 1e-9
    assert int(seen.min()) > 30
    assert int(seen.max()) < 170


@pytest.mark.parametrize(
    "augment",
    [
        lambda x, g: random_crop(x, 2, generator=g),
        lambda x, g: random_cutout(x, 2, generator=g),
        lambda x, g: random_flip(x, generator=g),
    ],
)
def test_the_generator_alone_decides(augment):
    images = torch.rand(64, 3, 8, 8)
    one = augment(images, torch.Generator().manual_seed(3))
    torch.manual_seed(99)
    state = torch.get_rng_state()
    two = augment(images, torch.Generator().manual_seed(3))
    assert one.equal(two)
    assert torch.get_rng_state().equal(state)
    assert not one.equal(augment(images, torch.Generator().manual_seed(4)))


def test_an_empty_batch_stays_empty():
    assert random_crop(torch.zeros(0, 3, 8, 8), 2).shape == (0, 3, 8, 8)
    assert random_flip(torch.zeros(0, 3, 8, 8)).shape == (0, 3, 8, 8)
    assert random_cutout(torch.zeros(0, 3, 8, 8), 2).shape == (0, 3, 8, 8)


def test_bad_arguments():
    with pytest.raises(DataError, match="`images`"):
        random_flip(torch.zeros(3, 8, 8))
    with pytest.raises(DataError, match="`padding`"):
        random_crop(torch.zeros(1, 3, 8, 8), -1)
    with pytest.raises(DataError, match="`size`"):
        random_crop(torch.zeros(1, 3, 8, 8), 1, (11, 8))
    with pytest.raises(DataError, match="`side`"):
        random_cutout(torch.zeros(1, 3, 8, 8), 0)


@pytest.mark.gpu
def test_on_the_device():
    images = torch.rand(16, 3, 8, 8, device="cuda")
    seeded = [random_crop(images, 2, generator=torch.Generator("cuda").manual_seed(0)) for _ in range(2)]
    assert seeded[0].equal(seeded[1])
    assert seeded[0].is_cuda
    assert random_flip(images, generator=torch.Generator().manual_seed(0)).is_cuda
    assert random_cutout(images, 2, generator=torch.Generator("cuda").manual_seed(0)).eq(0).any()
