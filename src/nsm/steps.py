"""One step of learning: batch, forward, backward, update; as torch runs it, or captured whole in a CUDA graph."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils import get_total_norm

from nsm import sharding
from nsm.batches import Batch
from nsm.processes import Diverged, reduce
from nsm.recipes import Recipe

#: torch's own random numbers in compiled code: inductor's have repeated (pytorch #198333), and are no faster here.
#: Of batches there are few sizes, and of Adam's moments, each with code of its own: code for any would come to other
#: last bits, and which of both a run gets would depend on what its process has compiled before. Nor is the order of a
#: sum chosen by timing, which may come out otherwise when a run that was cut goes on.
COMPILE: dict[str, Any] = {"options": {"fallback_random": True, "deterministic": True}, "dynamic": False}

Read = Callable[..., tuple[Tensor, Tensor]]


def batch_losses(
    logits: Tensor, labels: Tensor, scale: float, samples: int = 1, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """What is minimised, and each seed's part of it: cross-entropies summed over the batch, times ``scale``.

    Args:
        logits: (batch · samples, classes), or (seeds, batch · samples, classes).
        labels: (batch,), or (seeds, batch).
        scale: One over the size of the batch, for a mean.
        samples: Samples of every input, of whose mean softmax the loss is taken.
        smoothing: Share of every label that is spread over all classes.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if samples > 1:  # the logarithm of the mean softmax, but for a constant that cross_entropy ignores
        logits = logits.unflatten(-2, (-1, samples)).log_softmax(-1).logsumexp(-2)
    each = cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none", label_smoothing=smoothing)
    losses = each.view(labels.shape).sum(-1) * scale
    return losses.sum(), losses.detach().double().view(-1)


class Step:
    """A step as torch runs it.

    On the CPU a step that is not finite is noticed before it changes a weight. On CUDA looking would mean waiting, so
    it is noticed when `check` asks: what is not finite once stays in the weights and in the sum of losses.

    Args:
        recipe: For the loss.
        network: From inputs to logits; as the fabric set it up, where there are several processes.
        optimizer: As the fabric set it up.
        fabric: For precision, the backward pass, and the number of processes.
        read: From what stands for a batch (`Batches.epoch`) to inputs and labels.
        whole: Compile the network with its loss, else each by itself if at all.
    """

    together = 1  # steps that are best taken at once

    def __init__(
        self, recipe: Recipe, network: Any, optimizer: Any, fabric: Fabric, read: Read, *, whole: bool = False
    ) -> None:
        self.network, self.optimizer, self.fabric, self.read = network, optimizer, fabric, read
        self.samples, self.smoothing, self.flips = recipe.loss_samples, recipe.label_smoothing, recipe.input_flip
        self.finite = torch.ones((), dtype=torch.bool, device=fabric.device)
        self.one = torch.ones((), device=fabric.device)  # where a backward pass begins, else made anew in every step
        self.synchronous = fabric.device.type == "cpu"
        self.losses, self.update = batch_losses, optimizer.step
        self.objective = torch.compile(self.plain_objective, **COMPILE) if whole else self.plain_objective
        if recipe.compile:  # code is compiled for its own weights, so a process that trains many networks has much
            limits = torch._dynamo.config
            limits.recompile_limit = max(limits.recompile_limit, 1000)
            limits.accumulated_recompile_limit = max(limits.accumulated_recompile_limit, 10_000)
        if recipe.compile and not self.synchronous and fabric.world_size == 1:
            if not whole:
                self.losses = torch.compile(batch_losses, **COMPILE)
            self.update = torch.compile(optimizer.optimizer.step, **COMPILE)

    def plain_objective(self, inputs: Tensor, labels: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        """What `batch_losses` returns of a batch, and the logits."""
        if self.samples > 1:
            inputs = inputs.repeat_interleave(self.samples, labels.dim() - 1)
        logits = self.network(inputs)
        return *self.losses(logits, labels, scale, self.samples, self.smoothing), logits.detach()

    def __call__(self, what: tuple[Tensor, ...], size: int) -> Tensor:
        """Learn from one batch, of ``size`` inputs in all processes together; returns each seed's mean loss."""
        inputs, labels = self.read(*what)
        self.optimizer.zero_grad()
        with self.fabric.autocast():
            scale = self.fabric.world_size / size  # processes average their gradients
            if self.flips:
                inputs, labels, scale = *self._with_harder(inputs, labels, scale), scale / 2
            loss, losses, _ = self.objective(inputs, labels, scale)
        self.fabric.backward(loss, self.one.to(loss.dtype))
        if self.synchronous:
            gradients = [p.grad for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
            self.finite.logical_and_(sharding.whole(get_total_norm(gradients)).isfinite() & losses.isfinite().all())
        if not self.synchronous or self.finite:
            self.update()
        return losses

    def _with_harder(self, inputs: Tensor, labels: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """A batch and, behind it, its copy with pixels flipped at random where that raises the loss.

        To flip x changes the loss by −2x ∂loss/∂x, to first order. What was ±1 stays so.
        """
        inputs = inputs.detach().requires_grad_()
        several = self.fabric.world_size > 1  # which must not wait for each other's gradients of this pass
        with self.fabric.no_backward_sync(self.network) if several else contextlib.nullcontext():
            (uphill,) = torch.autograd.grad(self.objective(inputs, labels, scale)[0], inputs)
        inputs = inputs.detach()
        flipped = (inputs * uphill < 0) & (torch.rand(inputs.shape, device=inputs.device) < self.flips)
        batch = labels.dim() - 1
        return torch.cat([inputs, torch.where(flipped, -inputs, inputs)], batch), torch.cat([labels, labels], batch)

    def several(self, some: Sequence[Batch]) -> Tensor:
        """Learn from batches, one after the other; returns the sum of each seed's mean losses."""
        return torch.stack([self(*one).clone() for one in some]).sum(0)

    def check(self, step: int, losses: Tensor, folder: Path | None) -> None:
        """Raise if any step so far was not finite, in any process; ``losses`` is their sum."""
        finite = self.finite & losses.isfinite().all()
        if not self.synchronous:
            weights = [p for group in self.optimizer.param_groups for p in group["params"]]
            finite = finite & sharding.whole(get_total_norm(weights)).isfinite()
        if reduce(self.fabric, finite.int()) < self.fabric.world_size:
            kept = f"; the last good state is in {folder}" if folder else ""
            raise Diverged(f"Expected loss and gradient to be finite, but got others at step {step}{kept}")


class GraphedStep(Step):
    """The step as a CUDA graph, and several as another one.

    The first steps run as they are, on a stream of their own, so that every library and compiler has set itself up
    before it is captured; so do batches of another shape, like a smaller last one. When a larger one comes, or Adam's
    moments change, which are constants of all this, it begins anew. What is drawn and computed is the same.

    Args:
        generators: Those that ``read`` draws from.
    """

    WARM = 3
    together = 25

    def __init__(self, *arguments: Any, generators: tuple[torch.Generator, ...] = (), **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.stream = torch.cuda.Stream(self.fabric.device)
        self.generators = generators
        self.ran, self.shapes = 0, []
        self.moments, self.graphs = [], {}

    def __call__(self, what: tuple[Tensor, ...], size: int) -> Tensor:
        """As `Step`; what it returns lies where the next replay writes."""
        self._renew(what)
        self.ran += 1
        if self.ran > self.WARM and self._fits(what):
            return self._replay([what], size)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            losses = super().__call__(what, size)
        torch.cuda.current_stream().wait_stream(self.stream)
        return losses

    def several(self, some: Sequence[Batch]) -> Tensor:
        """As `Step`."""
        self._renew(some[0][0])
        if self.ran < self.WARM or len(some) != self.together or not all(self._fits(what) for what, _ in some):
            return super().several(some)
        return self._replay([what for what, _ in some], some[0][1])

    def _renew(self, what: tuple[Tensor, ...]) -> None:
        moments = [group["betas"] for group in self.optimizer.param_groups]
        if self.moments != moments or what[0].shape.numel() > self.shapes[0].numel():
            self.moments, self.graphs, self.ran, self.shapes = moments, {}, 0, [part.shape for part in what]

    def _fits(self, what: tuple[Tensor, ...]) -> bool:
        return [part.shape for part in what] == self.shapes

    def _replay(self, batches: Sequence[tuple[Tensor, ...]], size: int) -> Tensor:
        """Steps from as many batches, by a graph of their own."""
        many = len(batches)
        if many not in self.graphs:
            self.graphs[many] = self._capture(tuple(part.new_empty(many, *part.shape) for part in batches[0]), size)
        given, graph, losses = self.graphs[many]
        for mine, parts in zip(given, zip(*batches, strict=True), strict=True):
            torch.stack(parts, out=mine)
        graph.replay()
        return losses

    def _capture(self, given: tuple[Tensor, ...], size: int) -> tuple[tuple[Tensor, ...], torch.cuda.CUDAGraph, Tensor]:
        """Where the batches are to be put, a graph that learns from them, and where it leaves the sum of losses."""
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph):
            losses = [Step.__call__(self, batch, size) for batch in zip(*given, strict=True)]
            total = torch.stack(losses).sum(0)
        return given, graph, total
