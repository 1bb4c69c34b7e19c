"""One step of learning: forward, backward, update; as it is, or captured whole in a CUDA graph."""

from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils import get_total_norm

from nsm.processes import Diverged, reduce


class Step:
    """A step as torch runs it.

    On the CPU a step that is not finite is noticed before it changes a weight. On CUDA looking would mean waiting, so
    ``finite`` stays on the device until `check` asks for it.

    Args:
        network: From inputs to logits, as the fabric set it up.
        optimizer: Likewise.
        fabric: For the backward pass, and the number of processes.
        samples: Samples of every input whose mean softmax the loss is taken of.
        smoothing: Share of every label that is spread over all classes.
    """

    def __init__(
        self, network: Any, optimizer: Any, fabric: Fabric, *, samples: int = 1, smoothing: float = 0.0
    ) -> None:
        self.network, self.optimizer, self.fabric = network, optimizer, fabric
        self.samples, self.smoothing = samples, smoothing
        self.finite = torch.ones((), dtype=torch.bool, device=fabric.device)
        self.synchronous = fabric.device.type == "cpu"

    def __call__(self, inputs: Tensor, labels: Tensor, size: int) -> Tensor:
        """Learn from one batch, of ``size`` inputs in all processes together; returns each seed's mean loss."""
        self.optimizer.zero_grad()
        losses = self._losses(inputs, labels).sum(-1)
        losses = losses * (self.fabric.world_size / size)  # processes average their gradients
        self.fabric.backward(losses.sum())
        gradients = [p.grad for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        self.finite.logical_and_(get_total_norm(gradients).isfinite() & losses.isfinite().all())
        if not self.synchronous or self.finite:
            self.optimizer.step()
        return losses.detach().double().view(-1)

    def _losses(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of every input, in the shape of the labels: (batch,), or (seeds, batch)."""
        batch = labels.dim() - 1
        if self.samples > 1:
            inputs = inputs.repeat_interleave(self.samples, batch)
        logits = self.network(inputs)
        if self.samples > 1:  # the logarithm of the mean softmax, but for a constant that cross_entropy ignores
            logits = logits.unflatten(batch, (-1, self.samples)).log_softmax(-1).logsumexp(batch + 1)
        each = cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none", label_smoothing=self.smoothing)
        return each.view(labels.shape)

    def check(self, step: int, folder: Path | None) -> None:
        """Raise if any step so far was not finite, in any process."""
        if reduce(self.fabric, self.finite.int()) < self.fabric.world_size:
            kept = f"; the last good state is in {folder}" if folder else ""
            raise Diverged(f"Expected loss and gradient to be finite, but got others at step {step}{kept}")


class GraphedStep(Step):
    """The step as one CUDA graph, captured anew when the rates change.

    The first steps run as they are, on a stream of their own, so that every library has set itself up before it is
    captured; so do batches of another shape, like a smaller last one. What is drawn and computed is the same.
    """

    WARM = 3

    def __init__(self, network: Any, optimizer: Any, fabric: Fabric, **loss: Any) -> None:
        super().__init__(network, optimizer, fabric, **loss)
        self.stream = torch.cuda.Stream(fabric.device)
        self.ran, self.captured = 0, ()

    def __call__(self, inputs: Tensor, labels: Tensor, size: int) -> Tensor:
        """As `Step`."""
        rates = [(group["lr"], group["betas"]) for group in self.optimizer.param_groups]
        self.ran += 1
        if self.ran == 1:
            self.inputs, self.labels = torch.empty_like(inputs), torch.empty_like(labels)
        if self.ran <= self.WARM or inputs.shape != self.inputs.shape:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                losses = super().__call__(inputs, labels, size)
            torch.cuda.current_stream().wait_stream(self.stream)
            return losses
        self.inputs.copy_(inputs)
        self.labels.copy_(labels)
        if self.captured != rates:
            self.captured, self.graph = rates, torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.losses = super().__call__(self.inputs, self.labels, size)
        self.graph.replay()
        return self.losses
