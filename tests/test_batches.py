"""Batches: every input once, in the order that was given, shared among processes; data that are none are refused."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from nsm.batches import Batches, derive
from nsm.data import DataError
from nsm.state import State
from nsm.training import fit
from test_training import TINY, Foreign, net, tiny

CPU = torch.device("cpu")
RAW = TensorDataset(torch.arange(23.0)[:, None, None, None].expand(23, 1, 8, 8), torch.arange(23))


def epoch(batches, number, order, first, generator):
    """Inputs, labels and the size of every batch, read as a step reads them."""
    for what, size in batches.epoch(number, order, first):
        yield *batches.read(*what, generator=generator), size


def labels_of(batches, order, first=0):
    return [labels for _, labels, _ in epoch(batches, 0, order, first, torch.Generator().manual_seed(0))]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_is_its_order(workers):
    batches = Batches(RAW, replace(TINY, num_workers=workers), CPU)
    order = batches.order(torch.Generator().manual_seed(0))
    assert order.shape == (1, 23)
    assert torch.equal(torch.cat(labels_of(batches, order)), order[0])
    assert [len(labels) for labels in labels_of(batches, order)] == [10, 10, 3]
    assert len(batches) == 3
    assert torch.equal(torch.cat(labels_of(batches, order, first=1)), order[0, 10:])
    assert labels_of(batches, order, first=3) == []


@pytest.mark.parametrize("many", [3, 5])
def test_processes_share_each_batch(many):
    """Also a last one with fewer inputs than processes."""
    order = Batches(RAW, TINY, CPU).order(torch.Generator().manual_seed(0))
    parts = [labels_of(Batches(RAW, TINY, CPU, rank, many), order) for rank in range(many)]
    for k, together in enumerate(zip(*parts, strict=True)):
        assert sorted(torch.cat(together).tolist()) == sorted(order[0, 10 * k : 10 * k + 10].tolist())
    sizes = [size for _, _, size in epoch(Batches(RAW, TINY, CPU, 0, many), 0, order, 0, torch.Generator())]
    assert sizes == [10, 10, 3]
    seen = torch.cat([labels for rank in range(many) for _, labels in Batches(RAW, TINY, CPU, rank, many).all()])
    assert sorted(seen.tolist()) == list(range(23))


def test_each_seed_has_an_order_of_its_own():
    batches = Batches(RAW, replace(TINY, seeds=3), CPU)
    order = batches.order(torch.Generator().manual_seed(0))
    assert order.shape == (3, 23)
    assert len(order.unique(dim=0)) == 3
    inputs, labels, _ = next(epoch(batches, 0, order, 0, torch.Generator()))
    assert inputs.shape == (3, 10, 1, 8, 8)
    assert torch.equal(labels, order[:, :10])
    assert torch.equal(inputs[:, :, 0, 0, 0], labels.float())


def test_own_data_sets_and_foreign_ones_give_the_same():
    own = tiny(23)
    foreign = TensorDataset(own.inputs, own.labels)
    order = Batches(own, TINY, CPU).order(torch.Generator().manual_seed(0))
    for one, other in zip(
        epoch(Batches(own, TINY, CPU), 0, order, 0, torch.Generator()),
        epoch(Batches(foreign, TINY, CPU), 0, order, 0, torch.Generator()),
        strict=True,
    ):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


def test_augmentation_fills_with_the_background_and_follows_its_generator():
    batches = Batches(tiny(23), replace(TINY, augmentation="crop-flip"), CPU)
    order = torch.arange(23)[None]
    one, again, other = (next(epoch(batches, 0, order, 0, torch.Generator().manual_seed(s)))[0] for s in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert one.unique().tolist() == [-1.0, 1.0]


@pytest.mark.parametrize("option", [{"augmentation": "shift"}, {"input_cutout": 2}, {"input_dropout": 0.3}])
def test_states_of_foreign_data_sets_stay_states(option):
    own = tiny(50)
    for inputs, empty in ((own.inputs, -1.0), (own.inputs / 2, 0.0)):
        batches = Batches(TensorDataset(inputs, own.labels), replace(TINY, **option), CPU)
        one = next(epoch(batches, 0, torch.arange(50)[None], 0, torch.Generator().manual_seed(0)))[0]
        assert set(one.unique().tolist()) == {*inputs.unique().tolist(), empty}


class Draws(Dataset):
    """Every input is a random number from one of the three sources that transforms use."""

    def __init__(self, source):
        self.source = source

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.tensor([float(self.source())]), 0


@pytest.mark.parametrize("source", [lambda: torch.rand(()), random.random, np.random.random])
def test_transforms_depend_on_seed_epoch_and_input_alone(source):
    def drawn(number, **changes):
        batches = Batches(Draws(source), replace(TINY, **changes), CPU)
        rest = epoch(batches, number, torch.arange(20)[None], changes.get("batch_size", 10) == 5, torch.Generator())
        return torch.cat([inputs for inputs, _, _ in rest])[-10:]

    base = drawn(0)
    assert len(base.unique()) == 10
    for same in (drawn(0), drawn(0, num_workers=2), drawn(0, batch_size=5)):
        assert torch.equal(base, same)
    for other in (drawn(1), drawn(0, seed=1)):
        assert not (base == other).any()


def test_loading_draws_nothing_from_the_noise():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    batches = Batches(Foreign(), TINY, CPU)
    list(epoch(batches, 0, torch.arange(23)[None], 0, torch.Generator()))
    assert torch.equal(torch.get_rng_state(), before)


def test_what_has_no_length_is_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            yield torch.zeros(1), 0

    with pytest.raises(TypeError, match="with a length and indices, but got Stream"):
        Batches(Stream(), TINY, CPU)


def test_derived_seeds_differ():
    seeds = {derive(seed, purpose, k) for seed in range(10) for purpose in ("noise", "order") for k in range(10)}
    assert len({seed % 2**32 for seed in seeds}) == 200


def test_bad_data():
    x, y = torch.randn(20, 1, 4, 8), torch.arange(20) % 2
    bad = x.clone()
    bad[3] = float("nan")
    for data, message in (
        (
            TensorDataset(bad, y),
            "inputs of `train` to be finite floating-point numbers, but got 32 that are not",
        ),
        (TensorDataset(x > 0, y), "inputs of `train` to be finite floating-point numbers, but got torch.bool"),
        (TensorDataset(x.long(), y), "floating-point numbers, but got torch.int64"),
        (
            TensorDataset(x, y + 1),
            "labels of `train` to be in 0 to 1, as the model has outputs, but got 1 to 2",
        ),
        (TensorDataset(x, y.float()), "Expected labels of `train` to be integers"),
        (TensorDataset(x[:0], y[:0]), "Expected argument `train` to hold at least one input, but got an empty"),
        (tiny(0), "at least one input"),
        (42, "Expected argument `train` to be a data set with a length and indices, but got int"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            fit(net(), data, TINY)
    for changes, resume in (({}, True), ({"tensorboard": True}, False)):
        with pytest.raises(ValueError, match=r"`run_dir` to be a folder beside \w+=True, but got None"):
            fit(net(), tiny(), replace(TINY, **changes), resume=resume)
    with pytest.raises(FileNotFoundError, match=r"Expected .*nowhere to hold a run, but got no run\.json there"):
        fit(net(), tiny(), TINY, run_dir="nowhere", resume=True)
    with pytest.raises(ValueError, match="`cuda_graph` to be False on the CPU"):
        fit(net(), tiny(), replace(TINY, cuda_graph=True))
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="`accelerator` to be 'cpu' or 'auto' without a CUDA device"):
            fit(net(), tiny(), replace(TINY, accelerator="cuda"))


def test_labels_are_looked_at_all_over_the_data():
    """In a data set of nsm every one; in one that is read input by input, a hundred, whatever its order."""
    x, y = torch.randn(300, 1, 4, 8), torch.zeros(300, dtype=torch.int64)
    y[200:] = 2
    with pytest.raises(DataError, match="labels of `train` to be in 0 to 1, as the model has outputs, but got 0 to 2"):
        fit(net(), TensorDataset(x, y), TINY)
    own = replace(tiny(300), classes=tuple("rlabcdef"))  # more than the network has outputs
    own.labels[123] = 7
    with pytest.raises(DataError, match="labels of `train` to be in 0 to 1, as the model has outputs, but got 0 to 7"):
        fit(net(), own, TINY)


def test_bad_validation_data_are_noticed_before_the_first_step(monkeypatch):
    """Labels of shape (N, 1) would be compared with every prediction."""
    x, y = torch.randn(20, 1, 4, 8), torch.arange(20) % 2
    monkeypatch.setattr(State, "begin", None)  # so that nothing can be learned
    for data, message in (
        (TensorDataset(x, y[:, None]), r"labels of `validation` to be integers, .* torch.int64 of shape \(20, 1\)"),
        (TensorDataset(x, y + 1), "labels of `validation` to be in 0 to 1"),
        (TensorDataset(x[:0], y[:0]), "argument `validation` to hold at least one input"),
        (42, "argument `validation` to be a data set"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            fit(net(), tiny(), replace(TINY, measure_last=1), validation=data)
