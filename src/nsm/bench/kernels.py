"""The work of the kernels: each against the same arithmetic as torch compiles it.

A kernel that is not 1.2 times as fast has no reason to be there. Those of learning go from a layer's product to its
states and back; the reference is what `nsm.functional` and `nsm.estimators` say, compiled as a step of learning is:
with torch's own random numbers.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from nsm import functional, philox
from nsm.bench import blankout, checks
from nsm.bench.graphs import Graphed
from nsm.bench.inference import by_definition, network
from nsm.bench.peers import looped
from nsm.bench.timing import Contender, Race, Wrong, race
from nsm.data import load
from nsm.estimators import Probability, sgn
from nsm.firing import mean_line, thresholded
from nsm.kernels import bits, operations
from nsm.layers import NSMConv2d, NSMLayer
from nsm.noise import Bernoulli, Gaussian
from nsm.sampling import predict
from nsm.steps import COMPILE

LAYERS = ((96, 32, True), (192, 16, True), (192, 8, True), (192, 8, False))  # units, size and padding: CIFAR's network
PICTURES = (100, 24, 24, 32)  # the first layer of the MNIST CNN
STATES = (1000, 32 * 32 * 96)  # rows and states of a layer of the CIFAR network
BATCH = 100
CHANCES = {"1/2": 0.5, "1/4": 0.25, "0.1": 0.1}

Way = Callable[[], Any]
Case = tuple[Way, Way, Callable[[Any, Any], None]]  # kernel, compiled reference, check of (kernel's, reference's)


def cases(device: str) -> dict[str, Callable[[], Case]]:
    """How to make every case of a device, by name."""
    found: dict[str, Callable[[], Case]] = {
        "fire": partial(_units, device, "fire"),
        "fire_pool": partial(_windows, device, "fire"),
        "threshold_pool": partial(_windows, device, "threshold"),
        "blank": partial(_blank, device),
    }
    if device == "cpu":
        return found | {
            "threshold": partial(_units, device, "threshold"),
            "synapse": partial(_pictures, "synapse"),
            "neuron": partial(_pictures, "neuron"),
            "bits": partial(_predict, "synapse"),
            "bits, neuron": partial(_predict, "neuron"),
        }
    found |= {"counters": partial(_counters, device), "toss": partial(_toss, device), "cross": partial(_cross, device)}
    found |= {"keyed blank": partial(_noisy, device, Bernoulli(0.5)), "jitter": partial(_noisy, device, Gaussian())}
    return found | {f"blankout {name}": partial(_blankout, device, p) for name, p in CHANCES.items()}


def kernel_race(device: str, case: str, rounds: int) -> Race:
    """A kernel against its reference."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    kernel, reference, check = cases(device)[case]()
    ours, theirs = (Graphed(way, device == "cuda") for way in (kernel, reference))
    sides = {
        "kernel": [Contender(f"{case}, kernel", ours, lambda: check(ours(), theirs()))],
        "compiled": [Contender(f"{case}, compiled", theirs, theirs)],
    }
    return race(sides, rounds, calls=20 if device == "cuda" else 3)


# ------------------------------------------------------------------------- learning


def fired(x: Tensor, k: Tensor, c: Tensor) -> Tensor:
    """States with P = ½(1 + erf t), t = k x + c, and the gradient of erf t."""
    t = k * x + c
    return Probability()(t, lambda: functional.toss(functional.erf(t.detach()))).to(x.dtype)


def _dtype(device: str) -> torch.dtype:
    return torch.bfloat16 if device == "cuda" else torch.float32


def _inputs(shape: tuple[int, ...], lines: int, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """A product, a fluctuation, and slope and offset, with gradients; and α = k."""
    x, y = torch.randn(2, *shape, device=device).to(_dtype(device))
    k, c = 0.1 + torch.rand(lines, device=device), torch.randn(lines, device=device) / 10
    leaves = (x.requires_grad_(), k.requires_grad_(), c.requires_grad_())
    return leaves[0], y, k.detach().clone(), leaves[1], leaves[2]


def _there_and_back(
    states: Callable[..., Tensor], given: tuple[Tensor, ...], leaves: tuple[Tensor, ...], g: Tensor
) -> Way:
    """Forward and backward, as part of what torch compiles."""
    compiled: Any = torch.compile(states, **COMPILE)

    def run() -> tuple[Tensor, ...]:
        z = compiled(*given)
        return z.detach(), *torch.autograd.grad(z, leaves, g)

    return run


def _units(device: str, what: Literal["fire", "threshold"]) -> Case:
    """What follows the product in layers of all sizes, channels last; a padded layer has a line for every place."""
    cases = [_layer(device, what, units, size, padded) for units, size, padded in LAYERS]

    def check(found: list[Any], expected: list[Any]) -> None:
        for (*_, same), one, other in zip(cases, found, expected, strict=True):
            same(one, other)

    return lambda: [ours() for ours, *_ in cases], lambda: [theirs() for _, theirs, _ in cases], check


def _layer(device: str, what: Literal["fire", "threshold"], units: int, size: int, padded: bool) -> Case:
    """From the product of a layer, and its weights, to the states; and back to the gradients of both."""
    layer = NSMConv2d(units, units, 3 if padded else 1, padding=int(padded)).to(device)
    x, y = torch.randn(2, BATCH, size, size, units, device=device).to(_dtype(device))
    g, z = torch.randn_like(x), x.detach().movedim(-1, 1)  # of the states that reach the layer only the size is asked
    leaves, bias = (x.requires_grad_(), *layer.parameters()), layer.get_parameter("bias")

    def line() -> tuple[Tensor, ...]:
        k, c = functional.line(z, layer.weight, bias, layer.beta, noise=layer.noise, wiring=layer.wiring)
        return *mean_line(k.shape, bias, layer.beta, noise=layer.noise, wiring=layer.wiring), k.flatten(), c.flatten()

    def states(fire: Callable[..., Tensor], threshold: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def run(x: Tensor, y: Tensor) -> Tensor:
            alpha, b, k, c = line()
            rows, noise = (v.reshape(-1, len(k)) for v in (x, y))
            return (fire(rows, k, c) if what == "fire" else threshold(rows, noise, alpha, b, k, c)).view(x.shape)

        return run

    def check(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
        k, c = line()[2:]
        if what == "fire":
            _same_rate(found[0], functional.erf(k * x.reshape(-1, len(k)) + c).view(x.shape))
        else:
            _same_states(found[0], expected[0])
        for gradient, other in zip(found[1:], expected[1:], strict=True):  # which no draw changes
            checks.close(gradient, other, 2e-2, "gradients")

    ways = states(_fire, operations.threshold), states(fired, thresholded)
    kernel, reference = (_there_and_back(way, (x, y), leaves, g) for way in ways)
    return kernel, reference, check


def _fire(x: Tensor, k: Tensor, c: Tensor) -> Tensor:
    return operations.fire(x, k, c, operations.new_key(x.device))


def _windows(device: str, what: Literal["fire", "threshold"]) -> Case:
    n, height, width, units = PICTURES
    x, y, alpha, k, c = _inputs((n * height * width, units), units, device)
    zero = torch.zeros_like(alpha)

    given = (x, k, c) if what == "fire" else (x, y, alpha, zero, k, c)
    states = fired if what == "fire" else thresholded

    def kernel(*given: Tensor) -> Tensor:
        if what == "fire":
            return operations.fire_pool(*given, operations.new_key(x.device), height, width)[0]
        return operations.threshold_pool(*given, height, width)[0]

    def plain(*given: Tensor) -> Tensor:
        z = states(*given).unflatten(0, (n, height, width)).movedim(-1, 1)
        return max_pool2d(z, 2).movedim(1, -1).flatten(0, 2)

    g = torch.randn(n * height * width // 4, units, device=device).to(x.dtype)

    def check(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
        if what == "fire":
            e = functional.erf(k * x + c).unflatten(0, (n, height, width)).movedim(-1, 1)
            _same_rate(found[0], functional.pooled(e, (2, 2)).movedim(1, -1).flatten(0, 2))
            _same_size(found[1], expected[1])
        else:  # nothing is drawn: the same units win
            _same_states(found[0], expected[0])
            checks.close(found[1], expected[1], 1e-3, "gradients", mean=True)
            for gradient, other in zip(found[2:], expected[2:], strict=True):
                checks.close(gradient, other, 2e-2, "gradients of a line")

    ours, theirs = (_there_and_back(way, given, (x, k, c), g) for way in (kernel, plain))
    return ours, theirs, check


def _blank(device: str) -> Case:
    units, size, _ = LAYERS[0]
    z = (2 * torch.randint(2, (BATCH, size, size, units), device=device) - 1).to(_dtype(device))
    noise = Bernoulli(0.5)
    compiled: Any = torch.compile(
        lambda z: ((noise.sample(z.shape, device=z.device) - noise.mean) * z).to(z.dtype), **COMPILE
    )

    def check(found: Tensor, expected: Tensor) -> None:
        for blanked in (found, expected):
            _same_rate(2 * blanked * z, torch.zeros_like(z))

    kernel: Any = torch.compile(lambda z: operations.blank(z, 0.5, operations.new_key(z.device)), **COMPILE)
    return lambda: kernel(z), lambda: compiled(z), check


def _pictures(site: Literal["neuron", "synapse"]) -> Case:
    """On the CPU a kernel has the product within it: the second layer of the MNIST CNN, and its pool."""
    layer = NSMConv2d(32, 64, 5, site=site, draw="moments" if site == "synapse" else "auto").train()
    z = (2 * torch.randint(2, (100, 32, 12, 12)) - 1).float().contiguous(memory_format=torch.channels_last)
    z.requires_grad_()
    leaves = (z, *layer.parameters())
    if not (layer.fires(z) and layer.can_pool(z)):
        raise blankout.Absent("there is no kernel: C cannot be compiled here")

    def plain(z: Tensor) -> Tensor:
        return max_pool2d(sampled(layer, z), 2)

    g = torch.randn_like(plain(z))

    def kernel(z: Tensor) -> Tensor:
        return layer.fire(z, operations.new_key(z.device), True)

    def check(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
        """Each by other draws, ten of every input: their means are compared, and what the weights would learn."""
        _same_size(found[1], expected[1])
        many = z.detach().repeat(10, 1, 1, 1).contiguous(memory_format=torch.channels_last)
        drawn = [way(many) for way in (kernel, plain)]
        lean = sgn(functional.pooled(2 * layer.firing_probability(many).detach() - 1, (2, 2)))
        _same_draws(*(lean * states.detach() for states in drawn))
        learned = [torch.autograd.grad(states, leaves[1:], g.repeat(10, 1, 1, 1)) for states in drawn]
        for one, other in zip(*learned, strict=True):
            _alike(one, other)

    ours, theirs = (_there_and_back(way, (z,), leaves, g) for way in (kernel, plain))
    return ours, theirs, check


def sampled(layer: NSMLayer, z: Tensor) -> Tensor:
    """What a layer does, without kernels."""
    law: Any = {name: getattr(layer, name) for name in ("noise", "site", "draw", "inputs", "wiring", "estimator")}
    return functional.sample(z, layer.weight, layer.bias, layer.beta, **law)


def _same_rate(states: Tensor, expected: Tensor) -> None:
    """Independent states of ±1 have the mean of 2P − 1 and lean to its sides by as much, up to Hoeffding's bound."""
    states, expected = states.detach(), expected.detach()
    if not bool((states.abs() == 1).all()):
        raise Wrong("Expected states of −1 and +1, but got others")
    apart, bound = states.double() - expected.double(), checks.hoeffding(states.numel())
    shift = max(abs(float(side.mean())) for side in (apart, sgn(expected) * apart))
    if not shift <= bound:
        raise Wrong(f"Expected a mean state within {bound:.3g} of the law's, but it is off by {shift:.3g}")


def _same_draws(one: Tensor, other: Tensor) -> None:
    """States of ±1, of inputs along axis 0 that are drawn independently, have one mean, within 6.1 standard errors."""
    if not bool((one.abs() == 1).all()):
        raise Wrong("Expected states of −1 and +1, but got others")
    means = torch.stack([states.double().flatten(1).mean(1) for states in (one, other)])
    apart, error = float(means.mean(1).diff()), float((means.var(1).sum() / len(one)).sqrt())
    if not abs(apart) <= 6.1 * error:
        raise Wrong(f"Expected a mean state within {6.1 * error:.3g} of the reference's, but it is off by {apart:+.3g}")


def _alike(gradient: Tensor, other: Tensor) -> None:
    """Gradients of a parameter, summed over many draws: nearly one direction and one length."""
    cosine = float(torch.cosine_similarity(gradient.flatten(), other.flatten(), 0))
    longer = float(gradient.norm() / other.norm())
    if not (cosine > 0.8 and 0.9 < longer < 1.1):
        raise Wrong(f"Expected the reference's gradient, but got one {longer:.2g} times as long, cosine {cosine:.2g}")


def _same_states(found: Tensor, expected: Tensor) -> None:
    """But for roundings at a threshold."""
    apart = float((found != expected).float().mean())
    if not apart < 1e-4:
        raise Wrong(f"Expected the states of the definition, but {apart:.2%} are others")


def _same_size(gradient: Tensor, other: Tensor) -> None:
    """Gradients of a product that belong to two draws have one size."""
    checks.close(gradient.float().square().mean(), other.float().square().mean(), 0.05, "the size of gradients")


# ------------------------------------------------------------------------- prediction


def _predict(site: Literal["neuron", "synapse"]) -> Case:
    """On the CPU states are bits; the reference is the network, compiled, in a loop over samples."""
    net = network(site, "cpu", 3000)
    test = load("mnist", "test")
    x, labels, samples = test.inputs[:100], test.labels[:100], 20
    if bits.library() is None:
        raise blankout.Absent("there is no kernel: C cannot be compiled here")

    @torch.no_grad()
    def logits(z: Tensor) -> Tensor:
        for child in net.children():
            z = sampled(child, z) if isinstance(child, NSMLayer) else child(z)
        return z

    compiled: Any = torch.compile(logits)

    def ours() -> Tensor:
        return predict(net, x, samples, seed=0).probabilities

    def check(found: Tensor, expected: Tensor) -> None:
        checks.same_chance(found, expected, (samples, samples), labels)
        checks.close(found, by_definition(ours), 1e-4, "probabilities from the same noise", mean=True)

    return ours, lambda: looped(compiled, x, samples), check


def _source(rows: int, device: str) -> philox.Keyed:
    return philox.Keyed(7, torch.arange(rows, device=device) % 10, torch.arange(rows, device=device) // 10)


def counted(element: Tensor, inputs: Tensor, samples: Tensor, n: int, kind: torch.dtype = torch.int16) -> Tensor:
    """``n`` integers of a kind for each row, as `nsm.philox.Keyed` defines them, from the numbers of their blocks.

    Those are given: of a range that inductor makes itself it thinks that 32 bits hold all products.
    """
    return torch.stack(philox.cut(_words(element, inputs, samples), kind), 1).flatten(1)[:, :n]


def _words(element: Tensor, inputs: Tensor, samples: Tensor) -> philox.Words:
    return philox.philox((element, inputs[:, None], samples[:, None], torch.zeros_like(element)), (7, 0))


def _blocks(source: philox.Keyed, many: int) -> Tensor:
    """The numbers of the blocks that have ``many`` bytes."""
    return torch.arange(-(-many // 16), device=source.inputs.device)


def _counters(device: str) -> Case:
    rows, n = 10_000, 4608  # the states of the first layer of the MNIST CNN
    source = _source(rows, device)
    kernel: Any = import_module("nsm.kernels.counters")
    given, blocks = source.counters, _blocks(source, 2 * n)
    compiled: Any = torch.compile(counted, dynamic=False)

    def check(found: Tensor, expected: Tensor) -> None:
        if not torch.equal(found, expected):
            raise Wrong("Expected the numbers of the definition, but got others")

    return (
        lambda: kernel.integers(*given, 0, n, torch.int16),
        lambda: compiled(blocks, source.inputs, source.samples, n),
        check,
    )


def _noisy(device: str, noise: Bernoulli | Gaussian) -> Case:
    """Noise on the states of ten samples of an input: a layer of the CIFAR network."""
    rows, n = STATES
    source, kernel = _source(rows, device), import_module("nsm.kernels.counters")
    z = (2 * torch.randint(2, (rows // 10, n), device=device) - 1).to(torch.bfloat16)
    blocks = _blocks(source, n if isinstance(noise, Bernoulli) else 4 * n)

    def plain(z: Tensor, blocks: Tensor) -> Tensor:
        if isinstance(noise, Bernoulli):
            kind, bound = noise.bound
            xi = (counted(blocks, source.inputs, source.samples, n, kind) < bound).float()
        else:
            a, b, c, d = _words(blocks, source.inputs, source.samples)
            normal = torch.stack([*philox.normals(a, b), *philox.normals(c, d)], 1).flatten(1)[:, :n]
            xi = 1 + noise.sigma * normal
        return ((xi - noise.mean).unflatten(0, (10, -1)) * z).flatten(0, 1).to(z.dtype)

    compiled: Any = torch.compile(plain, dynamic=False)

    def check(found: Tensor, expected: Tensor) -> None:  # but for the rounding of logarithms and cosines
        checks.close(found, expected, 1e-2, "noisy states")

    def ours() -> Tensor:
        if isinstance(noise, Bernoulli):
            return kernel.blank(*source.counters, 0, z, noise.p, noise.bound, z.dtype)
        return kernel.jitter(*source.counters, 0, z, noise.sigma, z.dtype)

    return ours, lambda: compiled(z, blocks), check


def _toss(device: str) -> Case:
    rows, (height, width, units), pool = 10_000, (8, 8, 64), (2, 2)  # the second layer of the MNIST CNN
    source, kernel = _source(rows, device), import_module("nsm.kernels.toss")
    x = torch.randn(rows, height, width, units, device=device).to(torch.bfloat16)
    k, c = 0.1 + torch.rand(units, device=device), torch.randn(units, device=device) / 10
    inputs, samples, key = source.counters
    counters = kernel.Rows(inputs, samples, key, 0)
    blocks = _blocks(source, 2 * height * width * units // 4)

    def plain(x: Tensor, blocks: Tensor) -> Tensor:
        e = functional.pooled(functional.erf(k * x + c).movedim(-1, 1), pool).movedim(1, -1)
        r = counted(blocks, source.inputs, source.samples, e[0].numel()).reshape(e.shape)
        return sgn(2**15 * e - (r + 0.5)).to(x.dtype)

    compiled: Any = torch.compile(plain, dynamic=False)

    return lambda: kernel.fire(x, k, c, pool, counters, torch.bfloat16), lambda: compiled(x, blocks), _same_states


def _cross(device: str) -> Case:
    samples, inputs, (height, width, units), pool = 10, 1000, (8, 8, 64), (2, 2)  # the same layer, noise at neurons
    kernel = import_module("nsm.kernels.toss")
    x, *y = torch.randn(1 + samples, inputs, height, width, units, device=device).to(torch.bfloat16)
    y, alpha, b = torch.stack(y), 0.1 + torch.rand(units, device=device), torch.randn(units, device=device) / 10

    def plain(x: Tensor, y: Tensor) -> Tensor:
        u = (alpha * x + b + y).flatten(0, 1)
        return sgn(max_pool2d(u.movedim(-1, 1), pool).movedim(1, -1)).to(x.dtype)

    compiled: Any = torch.compile(plain, dynamic=False)

    return lambda: kernel.cross(x, y.flatten(0, 1), alpha, b, pool), lambda: compiled(x, y), _same_states


def _blankout(device: str, p: float) -> Case:
    run, _ = blankout.kernel(p)
    z, weight, mean, variance = blankout.sums(device, p)
    compiled: Any = torch.compile(blankout.masked_sum)

    def check(found: Tensor, expected: Tensor) -> None:
        for u in (found, expected):
            checks.same_moments(u, mean, variance, "sums")

    return lambda: run(z, weight), lambda: compiled(z, weight, p), check
