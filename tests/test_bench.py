"""The measuring itself: fair timing, no time without a right result, and works that do what they say."""

import json
import math
from dataclasses import replace
from functools import partial

import pytest
import torch

import nsm
from nsm.bench import __main__ as program
from nsm.bench import blankout, checks, inference, kernels, learning, peers, probes, scaling, works
from nsm.bench.timing import Contender, Race, Timing, Wrong, interleave, quartiles, race
from nsm.layers import NSMLayer
from nsm.networks import bnsm, mnist_cnn, relu
from nsm.sampling import predict

# ------------------------------------------------------------------------- timing


class FakeClock:
    """Seconds of its own: what each run takes, plus a drift that grows with every call."""

    def __init__(self, drift: float = 0.0) -> None:
        self.drift, self.count, self.order = drift, 0, []

    def __call__(self, run, calls):
        name, seconds = run(), {"a": 2.0, "b": 1.0}
        self.order.append(name)
        self.count += 1
        return seconds[name] + self.drift * self.count


def test_runs_are_taken_in_turn_and_backwards():
    clock, warmed = FakeClock(), []

    def run(name):
        warmed.append(name)
        return name

    found = interleave({"a": partial(run, "a"), "b": partial(run, "b")}, 3, warm=2, clock=clock)
    assert clock.order == ["a", "b", "b", "a", "a", "b"]
    assert warmed[:4] == ["a", "a", "b", "b"]
    assert found["a"].times == (2.0, 2.0, 2.0)


def test_a_slow_spell_is_shared():
    """With a drift of a tenth per call the ratio of interleaved medians stays near 2."""
    found = interleave({"a": lambda: "a", "b": lambda: "b"}, 8, clock=FakeClock(drift=0.1))
    ratio, (low, high) = found["a"].over(found["b"])
    assert ratio == pytest.approx((2 + 0.85) / (1 + 0.85), rel=0.03)
    assert low <= ratio <= high


def test_median_and_quartiles():
    timing = Timing((5.0, 1.0, 2.0, 4.0, 3.0))
    assert (timing.seconds, timing.spread) == (3.0, (2.0, 4.0))
    assert timing.scaled(2).seconds == 6.0
    assert quartiles([7.0]) == (7.0, 7.0)


def test_the_fastest_of_a_side_is_its_best():
    times = {"slow": 3.0, "fast": 1.0, "peer": 2.0}
    found = race(
        {
            "ours": [Contender("slow", lambda: "slow", _fine), Contender("fast", lambda: "fast", _fine, scale=1.5)],
            "theirs": [Contender("peer", lambda: "peer", _fine)],
        },
        5,
        clock=lambda run, calls: times[str(run())],
    )
    assert found.best["ours"][0] == "fast"
    assert found.best["ours"][1].over(found.best["theirs"][1])[0] == 0.75
    assert {way["name"]: way["seconds"] for way in found.tried} == {"slow": 3.0, "fast": 1.5, "peer": 2.0}


def test_one_that_cannot_run_is_named_and_left_out():
    found = race({"ours": [Contender("new", _none, _cannot), Contender("old", _none, _fine)]}, 2)
    assert found.best["ours"][0] == "old"
    assert found.tried[0] == {"side": "ours", "name": "new", "seconds": None, "reason": "not on this card"}
    with pytest.raises(RuntimeError, match="not on this card"):
        race({"ours": [Contender("new", _none, _cannot)]}, 2)


def _fine():
    pass


def _none():
    return None


def _cannot():
    raise RuntimeError("not on this card\nand more")


# ------------------------------------------------------------------------- no time without a right result


def test_a_wrong_result_is_not_timed():
    ran = []

    def check():
        raise Wrong("off by 0.3")

    with pytest.raises(Wrong, match="fast: off by"):
        race({"ours": [Contender("fast", lambda: ran.append(1), check)]}, 2)
    assert not ran


def test_a_wrong_result_prints_no_time(monkeypatch, capsys, tmp_path):
    def wrong(device, quick):
        raise Wrong("off by 0.3")

    monkeypatch.setitem(works.WORKS, "mc", wrong)
    monkeypatch.setattr(works, "device_here", lambda: "cpu")
    assert program.main(["--only", "mc", "--out", str(tmp_path / "bench.json")]) == 1
    said = capsys.readouterr().out
    assert "off by 0.3" in said
    assert not any(f"{digit} {unit}" in said for digit in "0123456789" for unit in ("s ", "ms ", "µs "))
    rows = [row for row in json.loads((tmp_path / "bench.json").read_text())["rows"] if row["name"] == "mc"]
    assert len(rows) == 2
    for row in rows:
        assert (row["seconds"], row["ratio"], row["met"], row["reason"]) == (None, None, False, "off by 0.3")


def test_the_law_is_checked():
    layer = nsm.NSMLinear(256, 64, site="synapse", draw="moments")
    torch.manual_seed(0)
    z = torch.randn(500, 256).sign()
    checks.follows_the_law(layer, z)
    checks.follows_the_law(nsm.NSMLinear(256, 64), torch.randn(2000, 256).sign())

    class Off(nsm.NSMLinear):
        def forward(self, z, **_):
            t = self.erf_argument(z) / math.sqrt(1.1)  # variance off by a tenth
            return torch.where(torch.rand_like(t) < nsm.functional.firing_probability(t), 1.0, -1.0)

    with pytest.raises(Wrong, match="sampled rates within"):
        checks.follows_the_law(Off(256, 64, site="synapse", draw="moments"), torch.randn(3000, 256).sign())
    layer.forward = lambda z, **_: 0.5 * torch.ones(len(z), 64)
    with pytest.raises(Wrong, match="−1 and \\+1"):
        checks.follows_the_law(layer, z)


@pytest.mark.parametrize("losses", [[2.0, 1.0, math.nan], [1.0] * 20, [1.0, 2.0]])
def test_a_loss_that_does_not_fall(losses):
    with pytest.raises(Wrong):
        checks.learns(losses)


def test_other_checks():
    checks.learns([2.0, 1.0])
    a = torch.randn(4, 3)
    checks.close(a, a, 0, "logits")
    with pytest.raises(Wrong, match="Expected logits within"):
        checks.close(a, a + 0.1 * a.abs().max(), 1e-2, "logits")
    with pytest.raises(Wrong, match="of shape"):
        checks.close(a, a[:2], 1, "logits")
    with pytest.raises(Wrong, match="logits"):
        checks.close(a * math.nan, a, 1, "logits")
    p = torch.full((5000, 2), 0.5)
    q = torch.tensor([0.6, 0.4]).expand(5000, 2)
    labels = torch.zeros(5000, dtype=torch.int64)
    checks.same_chance(p, p, (100, 100), labels)
    with pytest.raises(Wrong, match="mean chance"):
        checks.same_chance(p, q, (100, 100), labels)
    with pytest.raises(Wrong, match="add up"):
        checks.same_chance(p / 2, p, (100, 100), labels)
    torch.manual_seed(1)
    u, one = torch.randn(1000, 100), torch.ones(1000, 100)
    checks.same_moments(u, torch.zeros(1000, 100), one, "sums")
    with pytest.raises(Wrong, match="the mean of sums"):
        checks.same_moments(u + 0.05, torch.zeros(1000, 100), one, "sums")
    with pytest.raises(Wrong, match="the variance of sums"):
        checks.same_moments(u * 1.05, torch.zeros(1000, 100), one, "sums")


# ------------------------------------------------------------------------- peers


@pytest.mark.parametrize("site", ["neuron", "synapse"])
def test_the_textbook_is_the_law_of_the_network(site):
    torch.manual_seed(0)
    net = mnist_cnn(partial(bnsm, site=site, draw="moments" if site == "synapse" else "auto"))
    x = nsm.data.load("mnist", "test").inputs[:20]
    nsm.initialize(net, x)
    layer, z = net.fc1, torch.randn(400, 1024).sign()
    assert isinstance(layer, nsm.NSMLinear)
    states = torch.stack([peers.unit(layer, z) for _ in range(10)])
    lean = 2 * layer.firing_probability(z) - 1
    shift = float((lean.sign() * (states - lean)).mean().detach())
    assert abs(shift) < math.sqrt(2 * math.log(2e9) / 4000)
    p = peers.textbook(net, x, 2, batch=7)
    assert p.shape == (20, 10)
    assert torch.allclose(p.sum(1), torch.ones(20), atol=1e-5)


def test_dropout_is_on():
    net, x = peers.dropout_network(), torch.randn(3, 1, 28, 28).sign()
    one, other = peers.looped(net, x, 1), peers.looped(net, x, 3, batch=2)
    checks.random_chances(one, other)
    with pytest.raises(Wrong, match="two draws to differ"):
        checks.random_chances(one, one)
    with pytest.raises(Wrong, match="sum of probabilities"):
        checks.random_chances(one, 2 * other)


def test_plain_passes():
    torch.manual_seed(0)
    net, x = mnist_cnn(relu).eval(), torch.randn(10, 1, 28, 28).sign()
    seen = []
    ways = list(
        peers.deterministic_passes(
            net,
            x,
            torch.bfloat16,
            count=2,
            passes=100,
            ways=("eager",),
            batches=(4, 10),
            check=lambda got, expected: seen.append(float((got - expected).abs().max())),  # type: ignore[arg-type]
        )
    )
    assert [way.name for way in ways] == [
        f"dCNN, bf16, eager, {layout}, batch {batch}" for layout in ("NCHW", "NHWC") for batch in (4, 10)
    ]
    for way in ways:
        way.check()
        assert (way.run().shape, way.scale) == ((10, 10), 50)  # type: ignore[attr-defined]
    assert max(seen) < 0.05


# ------------------------------------------------------------------------- works, small


def test_a_step_race_on_this_machine():
    found = learning.step_race("mnist", "cpu", rounds=1, calls=1, quick=True, batch=20)
    assert set(found.best) == {"synapse", "neuron", "dCNN", "textbook synapse", "textbook neuron"}
    names = [way["name"] for way in found.tried]
    assert "plain PyTorch dCNN, eager, NHWC" in names
    assert "neuron, eager, NCHW" in names
    case = works.compared(found, "synapse", "dCNN")
    assert case["ratio"] == pytest.approx(case["seconds"] / case["peer_seconds"])


def test_a_network_that_does_not_learn_is_found_out():
    recipe = replace(learning.recipe_for("mnist", "cpu", "dCNN", False), batch_size=10, lr=1e-12)
    with learning.learner(recipe, learning.images("mnist", 100)) as one, pytest.raises(Wrong, match="loss to fall"):
        one.check()


def test_a_layer_that_does_not_learn_is_found_out(monkeypatch):
    recipe = replace(learning.recipe_for("mnist", "cpu", "neuron", False), batch_size=10)
    monkeypatch.setitem(learning.WARM_STEPS, "cpu", 2)
    monkeypatch.setattr(checks, "learns", list)
    with learning.learner(recipe, learning.images("mnist", 100)) as one:
        layer = next(module for module in one.state.network.modules() if isinstance(module, NSMLayer))
        layer.weight.register_hook(torch.zeros_like)  # as if the gradient had been lost before it
        with pytest.raises(Wrong, match=r"every parameter to learn, but conv1\S*weight"):
            one.check()


def test_whole_runs(monkeypatch):
    digits = learning.images("mnist", 200)
    monkeypatch.setattr(learning, "load", lambda name, split: digits)

    def recipe(epochs, seeds, device, network="mnist-cnn", site="synapse"):
        small = learning.recipe_for("mnist", device, site, False)
        return replace(small, epochs=epochs, seeds=seeds, batch_size=50)

    monkeypatch.setattr(learning, "run_recipe", recipe)
    found = learning.long_run("cpu", "neuron", epochs=3, limit=0.9)
    assert found["seconds"] > 0
    assert len(found["epoch"].times) == 2
    with pytest.raises(Wrong, match="test error"):
        learning.long_run("cpu", "synapse", epochs=2, limit=-1)
    seeds = learning.seeds_race("cpu", "mnist-cnn", seeds=2, epochs=2, rounds=1, count=100)
    assert set(seeds.best) == {"one seed", "2 seeds"}


def test_one_kernel_that_fails_leaves_the_others_their_rows(monkeypatch):
    """It alone has a reason."""

    def raced(device, case, rounds):
        if case == "fire":
            raise RuntimeError("not on this card\n\nat all")
        return Race({side: (side, Timing((1.0, 1.0))) for side in ("kernel", "compiled")}, [])

    monkeypatch.setattr(works, "kernel_race", raced)
    failed, *others = works.measure("cpu", "kernels", True, [])
    assert (failed["ratio"], failed["met"]) == (None, False)
    assert failed["reason"] == "RuntimeError: not on this card: at all"
    assert [row["ratio"] for row in others] == [1.0] * (len(kernels.cases("cpu")) - 1)


def test_a_work_that_needs_what_is_not_installed_says_so(monkeypatch):
    """And what was measured before it is kept."""

    def lacking(device, quick):
        raise ModuleNotFoundError("No module named 'elsewhere'")

    monkeypatch.setitem(works.WORKS, "memory", lacking)
    (row,) = works.measure("cpu", "memory", True, [])
    assert (row["ratio"], row["met"]) == (None, False)
    assert row["reason"] == "ModuleNotFoundError: No module named 'elsewhere'"


def test_pictures_for_the_cifar_network():
    pictures = learning.images("cifar", 8)
    assert pictures.inputs.shape == (8, 3, 32, 32)
    recipe = learning.recipe_for("cifar", "cpu", "dCNN", False)
    assert (recipe.network, recipe.augmentation) == ("cifar-cnn", "none")


def test_samples_raced(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(inference, "SAMPLES", 4)
    setting = inference.Setting("cpu", images=20, rounds=1, passes=1, train=3000, batches=(20,), ways=("eager",))
    found, beside = inference.mc_race(setting)
    assert set(found.best) == {"synapse", "neuron", "dCNN", "dCNN, bf16"}
    assert [way["name"] for way in beside.tried] == [
        "dCNN, fp32, eager",
        "MC dropout, fp32, eager",
        "textbook NSM, neuron, fp32, eager",
        "textbook NSM, synapse, fp32, eager",
    ]


def test_memory_is_that_of_a_chunk_and_what_is_kept_of_samples_is_seen(monkeypatch):
    few, many = (inference.peak("cpu", samples, images=20) for samples in (10, 100))
    assert few <= many < 1.05 * few

    def keeping(net, x, num_samples, **options):
        kept = torch.zeros(num_samples, 250_000)  # a million bytes for each
        return predict(net, x, num_samples, **options) if len(kept) else None

    monkeypatch.setattr(inference, "predict", keeping)
    assert inference.peak("cpu", 100, images=20) == pytest.approx(many + 1e8, rel=0.01)


def test_blankout_without_its_kernel_is_skipped(monkeypatch):
    def absent(name):
        raise ImportError("no triton")

    monkeypatch.setattr(blankout, "import_module", absent)
    (row,) = works.measure("cuda", "blankout", True, [])
    assert (row["seconds"], row["met"]) == (None, None)
    assert "no triton" in row["reason"]


def test_the_masked_product_follows_its_law():
    torch.manual_seed(0)
    z, w = torch.randn(400, 64).sign(), torch.randn(32, 64)
    variance = (0.25 * 0.75 * w.square().sum(1)).expand(400, 32)
    for draw in (blankout.masked_product, blankout.masked_sum):
        checks.same_moments(draw(z, w, 0.25), 0.25 * z @ w.T, variance, "sums")


def test_the_kernel_is_raced_and_its_share_told(monkeypatch):
    class Module:
        blankout_linear = staticmethod(lambda z, weight, p, key: blankout.masked_product(z, weight, p))
        digits = staticmethod(lambda p: (1, 1))
        new_key = staticmethod(lambda device: torch.zeros(1, dtype=torch.int64))

    torch.manual_seed(0)
    monkeypatch.setattr(blankout, "import_module", lambda name: Module)
    monkeypatch.setattr(blankout, "integer_rate", lambda device: 1e9)
    monkeypatch.setattr(torch, "compile", lambda function: function)
    found, share = blankout.blankout_race("cpu", 1, sizes=(64, 32, 400))
    assert set(found.best) == {"kernel", "masked product", "compiled"}
    assert share["operations_per_xi"] == 100 / 128 + 2
    assert share["share_of_integer_limit"] == pytest.approx(share["xi_per_second"] * share["operations_per_xi"] / 1e9)
    Module.blankout_linear = staticmethod(lambda z, weight, p, key: 1.01 * p * z @ weight.T)
    with pytest.raises(Wrong, match="kernel: Expected the variance"):
        blankout.blankout_race("cpu", 1, sizes=(64, 32, 400))


def test_probes(monkeypatch):
    monkeypatch.setattr(probes, "ROUNDS", 1)
    found = probes.limits("cpu", torch.float32)
    assert set(found) == {"multiply_adds", "bytes", "random_numbers"}
    assert min(found.values()) > 1e6


# ------------------------------------------------------------------------- scaling


def test_scaling(monkeypatch, tmp_path):
    monkeypatch.setattr(probes, "ROUNDS", 1)
    monkeypatch.setitem(scaling.SIZES, "cpu", {"width": (16, 32), "samples": (1, 2)})
    monkeypatch.setitem(scaling.IMAGES, "cpu", 2)
    found = scaling.measure(quick=True, device="cpu")
    assert [(row["axis"], row["size"], row["site"]) for row in found["rows"]] == [
        (axis, size, site) for axis, size in (("width", 16), ("samples", 1)) for site in ("neuron", "synapse")
    ]
    assert "random numbers" in scaling.table(found) or "limit:" in scaling.table(found)
    files = scaling.save(tmp_path / "scaling.json", found)
    assert [path.suffix for path in files] == [".json", ".png", ".svg"]
    assert json.loads(files[0].read_text())["rows"][0]["limit"].keys() == found["rows"][0]["limit"].keys()


def test_three_decades():
    for sizes in scaling.SIZES.values():
        assert set(sizes) == {"width", "fan-in", "batch", "samples"}
        assert all(axis[-1] / axis[0] >= 1000 for axis in sizes.values())


def test_peak_bytes_sees_what_is_allocated():
    kept = []
    assert inference.peak_bytes(lambda: kept.append(torch.ones(500_000) * 2), "cpu") == pytest.approx(4e6, rel=0.01)
