import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nsm.data import DataError, Dataset
from nsm.data.dataset import join


def packed(n=7, shape=(2, 3, 11), seed=0):
    bits = np.random.default_rng(seed).integers(2, size=(n, *shape), dtype=np.uint8)
    stored = torch.from_numpy(np.packbits(bits, axis=-1))
    return bits, Dataset("bits", stored, torch.arange(n) % 3, ("a", "b", "c"), shape[2])


@given(st.integers(1, 9), st.tuples(*[st.integers(1, 20)] * 3), st.integers(0, 9))
def test_packed_bits_become_plus_minus_one(n, shape, seed):
    bits, dataset = packed(n, shape, seed)
    assert dataset.shape == shape
    assert dataset.inputs.dtype == torch.float32
    np.testing.assert_array_equal(dataset.inputs.numpy(), bits.astype(np.float32) * 2 - 1)


def test_bytes_become_zero_to_one():
    stored = torch.arange(256, dtype=torch.uint8).reshape(4, 1, 8, 8)
    dataset = Dataset("grey", stored, torch.zeros(4, dtype=torch.long), ("a",))
    assert dataset.inputs.flatten().tolist() == pytest.approx([k / 255 for k in range(256)])
    assert dataset.inputs.max() == 1.0
    assert stored.max() == 255  # what is stored is left alone
    assert (dataset.background, packed()[1].background) == (0.0, -1.0)


def test_batches_items_and_loaders_agree():
    _, dataset = packed()
    chosen = [4, 0, 6, 6]
    for indices in (chosen, torch.tensor(chosen)):
        inputs, labels = dataset.batch(indices)
        assert inputs.equal(dataset.inputs[chosen])
        assert labels.tolist() == [1, 0, 0, 0]
    assert dataset.batch(slice(2, 4))[0].equal(dataset.inputs[2:4])
    assert dataset[3][0].equal(dataset.inputs[3])
    assert dataset[-1][0].equal(dataset.inputs[6])
    assert len(dataset) == 7
    loader = torch.utils.data.DataLoader(dataset, batch_size=3)
    batches = list(loader)
    assert torch.cat([inputs for inputs, _ in batches]).equal(dataset.inputs)
    assert torch.cat([labels for _, labels in batches]).equal(dataset.labels)
    with pytest.raises(IndexError, match="below 7 for bits, but got 7"):
        dataset[7]


def test_to_moves_everything_still_packed():
    _, dataset = packed()
    moved = dataset.to("meta")
    assert (moved.stored.device.type, moved.labels.device.type) == ("meta", "meta")
    assert moved.stored.dtype == torch.uint8
    assert moved.stored.shape == dataset.stored.shape


def test_join():
    _, one = packed(3)
    _, two = packed(4, seed=1)
    both = join(one, two, name="both")
    assert both.inputs.equal(torch.cat([one.inputs, two.inputs]))
    assert both.labels.equal(torch.cat([one.labels, two.labels]))
    with pytest.raises(DataError, match="of one kind"):
        join(one, packed(4, (2, 3, 12))[1], name="both")


@pytest.mark.parametrize(
    ("stored", "labels", "said"),
    [
        (torch.zeros(2, 1, 4, 4), [0, 0], "uint8"),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), [0, 0], r"\(N, C, H, W\)"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), [0], "2 labels, but got 1"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), [0, 3], "0 to 2, but got 0 to 3"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), [0, -1], "0 to 2, but got -1 to 0"),
    ],
)
def test_inputs_and_labels_that_do_not_belong_together(stored, labels, said):
    with pytest.raises(DataError, match=said):
        Dataset("bad", stored, torch.tensor(labels), ("a", "b", "c"))


@pytest.mark.gpu
def test_decoding_on_the_device_equals_the_cpu():
    for dataset in (
        packed()[1],
        Dataset("grey", packed()[1].stored, torch.zeros(7, dtype=torch.long), ("a",)),
    ):
        moved = dataset.to("cuda")
        assert moved.inputs.is_cuda
        torch.testing.assert_close(moved.inputs.cpu(), dataset.inputs, rtol=1e-6, atol=0)  # a division may round
        assert dataset.width is None or moved.inputs.cpu().equal(dataset.inputs)
        chosen = torch.tensor([3, 1, 1])
        for indices in (chosen, chosen.cuda()):
            inputs, labels = moved.batch(indices)
            torch.testing.assert_close(inputs.cpu(), dataset.inputs[chosen], rtol=1e-6, atol=0)
            assert labels.is_cuda
