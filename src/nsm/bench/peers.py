"""What an NSM is compared with: the same architecture with rectifiers, MC dropout, and the equations written down.

Nothing here uses a fast path of ours.
"""

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nsm.bench.graphs import Graphed
from nsm.bench.timing import Contender
from nsm.layers import NSMLayer
from nsm.networks import mnist_cnn, relu
from nsm.noise import Bernoulli
from nsm.wiring import Convolution

# ------------------------------------------------------------------------- the textbook's NSM


def unit(layer: NSMLayer, z: Tensor) -> Tensor:
    """u = Σ_j (ξ_ij + a_i) w_ij z_j + b_i and its sign, by two products and every ξ drawn.

    At neurons these are W(ξ∘z) and Wz. At synapses, where u is taken to be normal, they are its mean and its variance.
    Where a gradient is wanted it is that of erf t, t = E[u]/√(2 Var[u]).
    """
    if not isinstance(layer.noise, Bernoulli) or layer.bias is None:
        raise ValueError(f"Expected argument `layer` to have blank-out noise and a bias, but got {layer}")

    def product(x: Tensor, w: Tensor) -> Tensor:
        wiring = layer.wiring
        return F.conv2d(x, w, padding=wiring.padding) if isinstance(wiring, Convolution) else F.linear(x, w)

    def variance() -> Tensor:
        return s**2 * product(z**2, w**2)

    convolution = isinstance(layer.wiring, Convolution)
    w, p = layer.weight, layer.noise.p
    s = math.sqrt(p * (1 - p))
    b, beta = (v[:, None, None] if convolution else v for v in (layer.bias, layer.beta))
    a = math.sqrt(2) * s * beta - p
    x = product(z, w)
    mean = (p + a) * x + b
    if layer.site == "neuron":
        xi = torch.bernoulli(torch.full_like(z, p))
        u = product(xi * z, w) + a * x + b
    else:
        u = mean + torch.sqrt(variance()) * torch.randn_like(mean)
    states = torch.where(u >= 0, 1.0, -1.0).to(z.dtype)
    if not torch.is_grad_enabled():
        return states
    e = torch.erf(mean / torch.sqrt(2 * variance()))
    return states + (e - e.detach())


class Textbook(nn.Module):
    """One of our networks with every layer of units by `unit`."""

    def __init__(self, network: nn.Sequential) -> None:
        super().__init__()
        self.network = network

    def forward(self, z: Tensor) -> Tensor:
        """Logits."""
        for child in self.network.children():
            z = unit(child, z) if isinstance(child, NSMLayer) else child(z)
        return z


@torch.no_grad()
def textbook(network: nn.Sequential, x: Tensor, num_samples: int, batch: int = 10_000) -> Tensor:
    """Probabilities by a loop over samples; ``network`` is one of ours, and gives the parameters."""
    return looped(Textbook(network), x, num_samples, batch)


@torch.no_grad()
def looped(network: Callable[[Tensor], Tensor], x: Tensor, num_samples: int, batch: int = 10_000) -> Tensor:
    """Probabilities by a loop over samples, in plain PyTorch."""
    total = torch.zeros(len(x), 1, device=x.device)
    for _ in range(num_samples):
        total = total + torch.cat([network(z).float().softmax(-1) for z in x.split(batch)])
    return total / num_samples


# ------------------------------------------------------------------------- MC dropout


def dropout_network() -> nn.Sequential:
    """The MNIST CNN with rectifiers and dropout before its linear layers, left in train() to keep it on."""
    network = mnist_cnn(relu)
    children = dict(network.named_children())
    fc1, out = children.pop("fc1"), children.pop("out")
    return nn.Sequential(*children.values(), nn.Dropout(0.5), fc1, nn.Dropout(0.5), out).train()


# ------------------------------------------------------------------------- the deterministic network


class PlainStep:
    """One step of learning in plain PyTorch: autocast, Adam in one kernel and, on CUDA, all of it in one graph."""

    def __init__(
        self, network: nn.Module, read: Callable[[], tuple[Tensor, Tensor]], lr: float, *, compile: bool
    ) -> None:
        self.network, self.read = network, read
        self.forward = torch.compile(network, dynamic=False) if compile else network
        self.cuda = next(network.parameters()).is_cuda
        self.optimizer = torch.optim.Adam(network.parameters(), lr=lr, fused=True, capturable=self.cuda)
        self.run = Graphed(self._step, self.cuda)

    def _step(self) -> Tensor:
        inputs, labels = self.read()
        self.optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=self.cuda):
            loss = F.cross_entropy(self.forward(inputs), labels)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def __call__(self) -> Tensor:
        """Learn from the batch; returns its loss."""
        return self.run()


class Passes:
    """Passes of a network over the same images, without gradients and, on CUDA, each one graph."""

    def __init__(self, network: Callable[[Tensor], Tensor], x: Tensor, batch: int, count: int) -> None:
        self.network, self.parts, self.count = network, x.split(batch), count
        self.run = Graphed(self.logits, x.is_cuda)

    @torch.no_grad()
    def logits(self) -> Tensor:
        """One pass."""
        return torch.cat([self.network(part) for part in self.parts])

    def __call__(self) -> Tensor:
        """All passes; returns the logits of the last."""
        return [self.run() for _ in range(self.count)][-1]


def deterministic_passes(
    network: nn.Module,
    x: Tensor,
    dtype: torch.dtype,
    *,
    count: int,
    passes: int,
    ways: tuple[str, ...],
    batches: tuple[int, ...],
    check: Callable[[Tensor, Tensor], None],
) -> Iterator[Contender]:
    """The dCNN's passes over ``x`` in every layout, way ("eager", "compiled", "frozen") and size of batch.

    Args:
        network: With rectifiers, in eval().
        x: The images.
        dtype: Of weights and images.
        count: Passes in one run.
        passes: Passes in the work.
        ways: Those to try.
        batches: Those to try.
        check: Compares logits with those of the eager network.
    """
    word = {torch.float32: "fp32", torch.bfloat16: "bf16"}[dtype]
    for layout in (torch.contiguous_format, torch.channels_last):
        net = copy.deepcopy(network).to(dtype=dtype, memory_format=layout).eval()  # type: ignore[call-overload]
        images = x.to(dtype).contiguous(memory_format=layout)
        for way in ways:
            for batch in batches:
                runs: Any = net
                if way != "eager":
                    options: Any = {"freezing": True} if way == "frozen" else None
                    runs = torch.compile(copy.deepcopy(net), dynamic=False, options=options)
                all_passes = Passes(runs, images, batch, count)
                name = f"dCNN, {word}, {way}, {'NCHW' if layout is torch.contiguous_format else 'NHWC'}, batch {batch}"

                def checked(all_passes: Passes = all_passes, net: nn.Module = net, images: Tensor = images) -> None:
                    with torch.no_grad():
                        check(all_passes.logits(), net(images))

                yield Contender(name, all_passes, checked, passes / count)
