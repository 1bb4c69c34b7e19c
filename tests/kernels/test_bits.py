"""The C kernel against its definition: integer products by torch, and `nsm.functional` from there on, bit for bit."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import nsm
from nsm import functional, philox
from nsm.kernels import bits

LIBRARY: Any = bits.library()
needs_library = pytest.mark.skipif(LIBRARY is None, reason="needs a C compiler and AVX-512")
KEY = 0x12345678_9ABCDEF0


def slots(rows: int) -> Tensor:
    """(groups, 32): rows in order, −1 behind the last."""
    row = torch.arange(-(-rows // bits.SLOTS) * bits.SLOTS)
    return torch.where(row < rows, row, -1).view(-1, bits.SLOTS)


def rows_of(source: philox.Keyed) -> bits.Rows:
    row = slots(len(source.inputs))
    of_inputs, of_samples = (v.to(torch.int32)[row.clamp(min=0)] for v in (source.inputs, source.samples))
    return bits.Rows(row, of_inputs, of_samples, source.key)


def source_of(rows: int) -> philox.Keyed:
    generator = torch.Generator().manual_seed(rows)
    samples, inputs = torch.randint(2**32, (2, rows), generator=generator)
    return philox.Keyed(KEY, samples, inputs)


def toss(e: Tensor, source: philox.Keyed) -> Tensor:
    """States of e (rows, elements), by `functional.toss`."""
    with philox.keyed(source):
        return torch.where(functional.toss(e) >= 0, 1.0, -1.0)


def pack(states: Tensor) -> Tensor:
    """±1 (rows, elements) → words (groups, elements); slots that are left over hold rubbish."""
    row = slots(len(states))
    up = (states[row] > 0).long()  # (groups, 32, elements); −1 takes the last row
    words = (up << torch.arange(bits.SLOTS)[:, None]).sum(1)
    return (words - (words >> 31 << 32)).to(torch.int32)


# ------------------------------------------------------------------------- digits


@pytest.mark.parametrize("shape", [(3, 7, 1, 1), (5, 32, 5, 5), (2, 1, 3, 2), (4, 1024, 1, 1)], ids=str)
@pytest.mark.parametrize("count", [1, 2])
def test_digits_are_weights_whose_sums_fit_in_16_bits(shape, count):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    weight[0] = 0
    q, step = bits.digits(weight, count)
    assert torch.equal(q, q.round())
    error = (weight.double() - (q * step[..., None, None, None]).sum(0)).abs().amax((1, 2, 3))
    assert (error <= step[-1] / 2 * (1 + 1e-6)).all()
    assert (q[:, 0] == 0).all()
    sums = q.abs().permute(0, 1, 3, 4, 2)
    sums = F.pad(sums, (0, -shape[1] % 5)).flatten(2)
    sums = F.pad(sums, (0, -sums.shape[-1] % 100)).unflatten(-1, (-1, 100)).sum(-1)
    assert sums.max() <= 2**15 - 1
    assert sums[0].max() > 0.49 * 2**15  # and no bit is wasted, though steps are powers of two
    assert torch.equal(step.log2(), step.log2().round())


def test_one_digit_is_finer_than_bfloat16_and_two_are_as_fine_as_float32():
    weight = torch.randn(200, 32, 5, 5, generator=torch.Generator().manual_seed(0))
    norm = weight.double().square().sum((1, 2, 3)).sqrt()

    def error(rounded: Tensor) -> float:
        """The standard deviation of a product's error for random ±1 states, in units of ‖w‖."""
        return float(((rounded - weight).square().sum((1, 2, 3)).sqrt() / norm).mean())

    q, step = bits.digits(weight, 2)
    scaled = q * step[..., None, None, None]
    assert error(scaled[0]) < error(weight.bfloat16().double()) < 2e-3
    assert error(scaled.sum(0)) < 3e-6  # the polynomial for erf is good to 3e-6, a draw of 16 bits to 8e-6


def test_a_fan_in_whose_sums_leave_float32_is_refused():
    for shape in ((1, 25_000), (1, 1000, 5, 5), (1, 1, 50, 100)):  # the last reads one state in each step of five
        assert bits.fits(torch.empty(shape, device="meta"))
    for shape in ((1, 30_000), (1, 1200, 5, 5), (1, 1, 50, 120)):
        assert not bits.fits(torch.empty(shape, device="meta"))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("top", [1, 7, 127])
def test_weights_of_few_bits_are_what_they_are(count, top):
    """In units of any power of two, so that what cancels among them cancels in the digits."""
    generator = torch.Generator().manual_seed(top)
    weight = torch.randint(-top, top + 1, (6, 40, 3, 3), generator=generator) * 2.0 ** torch.arange(-9, 9, 3).view(
        6, 1, 1, 1
    )
    q, step = bits.digits(weight, count)
    assert torch.equal((q * step[..., None, None, None]).sum(0), weight.double())


def test_tables_are_exact_under_autocast_too():
    q, _ = bits.digits(torch.randn(5, 13, 3, 1, generator=torch.Generator().manual_seed(0)), 1)
    plain = bits._tables(q)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(bits._tables(q), plain)
    states = torch.tensor([[1, -1, -1, 1, 1]], dtype=torch.float64)  # the bits of 25, the first one the lowest
    first = (q[0, 0, :5, 0, 0] * states).sum()
    assert plain[0, 0, 0, 0, 25] == first


# ------------------------------------------------------------------------- the first layer


@needs_library
@pytest.mark.parametrize(("units", "size", "pool"), [(1, (1, 1), (1, 1)), (16, (4, 6), (2, 2)), (37, (5, 4), (3, 1))])
@pytest.mark.parametrize("local", [False, True])
@pytest.mark.usefixtures("poisoned")
def test_the_first_layer(units, size, pool, local):
    generator = torch.Generator().manual_seed(1)
    inputs, samples = 41, 3
    product = torch.randn(inputs, *size, units, generator=generator)
    k, c = torch.randn(2, units, *(size if local else (1, 1)), generator=generator)
    k[0], c[0] = 0.0, float("inf")  # a certain unit
    k[-1], c[-1] = 0.0, -float("inf")
    first = bits.First(bits.Geometry(*size, pool=pool), k, c)
    tile = slots(inputs).clamp(min=0)
    thresholds = first.thresholds(LIBRARY, product, tile)
    rows = slots(inputs)
    row = torch.cat([torch.where(rows < 0, -1, rows + s * inputs) for s in range(samples)])
    source = philox.Keyed(
        KEY, torch.arange(samples).repeat_interleave(inputs), 2**32 - 1 - torch.arange(inputs).repeat(samples)
    )
    of_inputs, of_samples = (v.to(torch.int32)[row.clamp(min=0)] for v in (source.inputs, source.samples))
    found = bits.Rows(row, of_inputs, of_samples, source.key)
    states = bits.unpack(LIBRARY, first.draw(LIBRARY, thresholds, found, 5), found, inputs * samples, torch.float32)
    e = functional.erf(product.movedim(-1, 1) * k + c)
    e = (e if pool == (1, 1) else functional.pooled(e, pool)).movedim(1, -1).flatten(1)
    source.draws = 5
    assert torch.equal(states, toss(e.repeat(samples, 1), source))


@needs_library
@pytest.mark.usefixtures("poisoned")
def test_a_threshold_is_the_largest_number_that_fires():
    """r + ½ ≤ 2¹⁵ e for r up to the threshold and not beyond, for a million e, found in float64."""
    t = torch.linspace(-3.5, 3.5, 2**20).view(32, -1)
    t[0, :4] = torch.tensor([float("inf"), -float("inf"), 0.0, -0.0])
    first = bits.First(bits.Geometry(), torch.ones(t.shape[1]), torch.zeros(t.shape[1]))
    most, can = first.thresholds(LIBRARY, t, torch.arange(32)[None])
    truth = torch.floor(functional.erf(t).double() * 2**15 - 0.5)
    assert {-32769.0, 32767.0} <= set(truth.unique().tolist())  # never and always are among them
    assert torch.equal(most[0].T, truth.clamp(min=-(2**15)).to(torch.int16))
    fires = (can[0].long()[None] >> torch.arange(32)[:, None] & 1).bool()
    assert torch.equal(fires, truth > -32769)


# ------------------------------------------------------------------------- the layers above

GEOMETRIES = [
    (1, 1, bits.Geometry()),
    (1024, 6, bits.Geometry()),
    (3, 5, bits.Geometry(4, 5, (3, 2))),
    (7, 4, bits.Geometry(6, 6, (3, 3), margins=((1, 1), (1, 1)), pool=(2, 2))),
    (32, 9, bits.Geometry(7, 9, (3, 2), (2, 1), (1, 2), ((1, 2), (0, 1)), (2, 3))),
    (6, 3, bits.Geometry(5, 5, (1, 1), pool=(5, 5))),
]


@needs_library
@pytest.mark.parametrize(("channels", "units", "geometry"), GEOMETRIES, ids=str)
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("rows", [1, 32, 75])
@pytest.mark.usefixtures("poisoned")
def test_layers(channels, units, geometry, count, rows):
    generator = torch.Generator().manual_seed(channels)
    weight = torch.randn(units, channels, *geometry.kernel, generator=generator)
    weight[0] = 0
    q, step = bits.digits(weight, count)
    local = geometry.margins != ((0, 0), (0, 0))
    shape = (units, *geometry.size) if local else (units, 1, 1)
    k = torch.rand(shape, generator=generator) / weight.square().sum((1, 2, 3), keepdim=True)[0].sqrt().clamp(min=1)
    c = 0.3 * torch.randn(shape, generator=generator)
    k[0], c[0] = 0.0, float("inf")
    slope = torch.stack([k * s[:, None, None] for s in step.float()])
    layer = bits.Layer(geometry, q, slope, c)
    below = torch.randn(rows, geometry.height, geometry.width, channels, generator=generator).sign()
    source = source_of(rows)
    states = layer(LIBRARY, pack(below.flatten(1)), rows_of(source), 3)
    found = bits.unpack(LIBRARY, states, rows_of(source), rows, torch.bfloat16)

    (top, bottom), (left, right) = geometry.margins
    padded = F.pad(below.movedim(-1, 1).double(), (left, right, top, bottom))
    t = c
    for d in range(count):
        x = F.conv2d(padded, q[d], None, geometry.stride, 0, geometry.dilation)
        t = x.float() * slope[d] + t
    e = functional.erf(t)
    e = (e if geometry.pool == (1, 1) else functional.pooled(e, geometry.pool)).movedim(1, -1).flatten(1)
    source.draws = 3
    assert torch.equal(found.float(), toss(e, source))


@needs_library
@pytest.mark.parametrize(("channels", "units", "geometry"), GEOMETRIES, ids=str)
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("p", [0.5, 0.25, 0.3])
@pytest.mark.parametrize("rows", [32, 75])
@pytest.mark.usefixtures("poisoned")
def test_layers_with_blank_out_at_neurons(channels, units, geometry, count, p, rows):
    """Of the same states in two samples, by sgn(slope₀ w·z + slope₁ w·((2ξ − 1) z) + offset), summed digit by digit."""
    generator = torch.Generator().manual_seed(channels)
    weight = torch.randn(units, channels, *geometry.kernel, generator=generator)
    q, step = bits.digits(weight, count)
    local = geometry.margins != ((0, 0), (0, 0))
    shape = (2, units, *geometry.size) if local else (2, units, 1, 1)
    k = torch.randn(shape, generator=generator)
    c = torch.randn(shape[1:], generator=generator)
    slope = torch.cat([each * step[..., None, None].float() for each in k])
    noise = nsm.Bernoulli(p)
    layer = bits.Layer(geometry, q, slope, c, noise.bound)
    below = torch.randn(rows, geometry.height, geometry.width, channels, generator=generator).sign()
    source = source_of(2 * rows)
    row = torch.cat([slots(rows), torch.where(slots(rows) < 0, -1, slots(rows) + rows)])
    of_inputs, of_samples = (v.to(torch.int32)[row.clamp(min=0)] for v in (source.inputs, source.samples))
    found = bits.Rows(row, of_inputs, of_samples, source.key)
    states = bits.unpack(LIBRARY, layer(LIBRARY, pack(below.flatten(1)), found, 3), found, 2 * rows, torch.float32)

    source.draws = 3
    with philox.keyed(source):
        xi = noise.sample((2 * rows, below[0].numel())).view(2 * rows, *below.shape[1:])
    assert 0 < xi.mean() < 1
    z = below.repeat(2, 1, 1, 1)
    (top, bottom), (left, right) = geometry.margins
    u = c
    for i, each in enumerate((z, (2 * xi - 1) * z)):
        padded = F.pad(each.movedim(-1, 1).double(), (left, right, top, bottom))
        for d in range(count):
            x = F.conv2d(padded, q[d], None, geometry.stride, 0, geometry.dilation)
            u = x.float() * slope[i * count + d] + u
    expected = F.max_pool2d(torch.where(u >= 0, 1.0, -1.0), geometry.pool)
    assert torch.equal(states, expected.movedim(1, -1).flatten(1))


@needs_library
@pytest.mark.parametrize(
    ("channels", "geometry", "better"),
    [
        (1, bits.Geometry(9, 11, (5, 5), pool=(2, 2)), True),
        (2, bits.Geometry(9, 11, (3, 3), (2, 2), (2, 3), ((1, 2), (0, 0))), True),
        (6, bits.Geometry(4, 7, (2, 4), (1, 3)), True),
        (1, bits.Geometry(9, 11, (5, 5), margins=((2, 2), (2, 2))), False),
        (5, bits.Geometry(9, 11, (5, 5)), False),
        (1, bits.Geometry(), False),
    ],
    ids=str,
)
@pytest.mark.usefixtures("poisoned")
def test_a_widened_layer_is_the_same_layer(channels, geometry, better):
    weight = torch.randn(3, channels, *geometry.kernel, generator=torch.Generator().manual_seed(0))
    found = bits.widened(geometry, weight)
    assert bool(found) == better
    if not found:
        return
    wide, turned, source = found
    assert wide.size == geometry.size
    states = []
    for each, w, at in ((geometry, weight, None), (wide, turned, source)):
        q = (64 * w).round()[None]  # the same integers, whatever their order
        slope, bound = torch.full((2, 3), 0.01), nsm.Bernoulli(0.5).bound
        layer = bits.Layer(each, q, slope, torch.zeros(3), bound, at)
        below = torch.randn(40, geometry.height * geometry.width * channels, generator=torch.Generator().manual_seed(1))
        states.append(layer(LIBRARY, pack(below), rows_of(source_of(40)), 2))
    assert torch.equal(*states)


def test_states_are_packed_slot_by_slot():
    states = torch.randn(40, 7, generator=torch.Generator().manual_seed(0)).sign()
    slots = torch.randint(40, (3, bits.SLOTS), generator=torch.Generator().manual_seed(1))
    words = bits.pack(states, slots).long()
    up = words[:, None] >> torch.arange(bits.SLOTS)[:, None] & 1  # (tiles, slots, elements)
    assert torch.equal(up * 2.0 - 1, states[slots])


@needs_library
@pytest.mark.parametrize("blank", [None, nsm.Bernoulli(0.5).bound], ids=["by themselves", "blank-out"])
def test_threads_change_nothing(blank):
    weight = torch.randn(6, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    q, step = bits.digits(weight, 1)
    slope = step.float().repeat(2 if blank else 1, 1)
    layer = bits.Layer(bits.Geometry(8, 8, (3, 3), pool=(2, 2)), q, slope, torch.zeros(6), blank)
    source = source_of(400)
    below = pack(torch.randn(400, 256, generator=torch.Generator().manual_seed(1)))
    threads = torch.get_num_threads()
    try:
        drawn = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            drawn.append(layer(LIBRARY, below, rows_of(source), 0))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[0], drawn[2])
