"""The few lines that figures learn with, where something is to be looked at in every step."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from nsm.batches import Batches, derive
from nsm.data import Dataset
from nsm.ensemble import Ensemble
from nsm.initialization import initialize
from nsm.layers import NSMLayer
from nsm.networks import build
from nsm.processes import processes
from nsm.recipes import Recipe
from nsm.state import INITIAL_BATCH
from nsm.steps import GraphedStep, Step
from nsm.training import set_rates


def device() -> torch.device:
    """The GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def start(recipe: Recipe, data: Dataset, weights: nn.Module | None = None) -> nn.Module:
    """The network of a recipe as `nsm.train` would begin it, on the device of ``data``.

    Args:
        recipe: What to build; its seed decides the weights and which inputs make the data-dependent start.
        data: The training data.
        weights: A network of the same shape to take the weights of every layer from.
    """
    torch.manual_seed(derive(recipe.seed, "weights"))
    network = build(recipe).to(data.labels.device)
    if weights is not None:
        with torch.no_grad():
            for own, other in zip(layers(network).values(), layers(weights).values(), strict=True):
                own.weight.copy_(other.weight)
    if recipe.initialize and any(isinstance(module, NSMLayer) for module in network.modules()):
        some = Generator().manual_seed(derive(recipe.seed, "initialize", 0))
        initialize(network, Batches(data, recipe, data.labels.device).head(INITIAL_BATCH, some))
    torch.manual_seed(derive(recipe.seed, "noise", 0))
    return network


def layers(network: nn.Module) -> dict[str, nn.Linear | nn.Conv2d | NSMLayer]:
    """Every layer with weights under its name in the architecture, from the input to the output."""
    found = {}
    for name, module in network.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d | NSMLayer):
            found[name.split(".")[0]] = module
    return found


def minibatches(data: Dataset, recipe: Recipe, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and labels of the first ``steps`` mini-batches that `nsm.train` would show."""
    recipe = replace(recipe, seeds=1)
    batches = Batches(data, recipe, data.labels.device)
    order = Generator(batches.order_device).manual_seed(derive(recipe.seed, "order"))
    augment = Generator(data.labels.device).manual_seed(derive(recipe.seed, "augment", 0))
    done = epoch = 0
    while done < steps:
        for what, _ in batches.epoch(epoch, batches.order(order), 0):
            if done == steps:
                return
            yield batches.read(*what, generator=augment)
            done += 1
        epoch += 1


def differentiate(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Leave the gradient of the loss in the parameters; returns the loss."""
    network.zero_grad()
    loss = cross_entropy(network(x), y)
    loss.backward()
    return loss.detach()


def learn(
    ensemble: Ensemble, data: Dataset, recipe: Recipe, after: Callable[[], None] | None = None
) -> Iterator[tuple[int, int]]:
    """Train networks side by side by one recipe, each on batches of its own; on a GPU steps are compiled and captured.

    Args:
        ensemble: The networks at their start.
        data: The training data, on the device.
        recipe: Batches, epochs, rates and seed.
        after: What to do to the networks after every update, as part of the step.

    Yields:
        The epoch and the step: before every step, and once after the last.
    """
    recipe = replace(recipe, seeds=ensemble.size)
    with processes(recipe) as fabric:
        batches = Batches(data, recipe, fabric.device)
        order = Generator(batches.order_device).manual_seed(derive(recipe.seed, "order"))
        augment = Generator(fabric.device).manual_seed(derive(recipe.seed, "augment", 0))
        on_gpu = fabric.device.type == "cuda"
        lr = torch.tensor(recipe.lr, device=fabric.device) if on_gpu else recipe.lr
        optimizer = torch.optim.Adam(ensemble.parameters(), lr=lr, capturable=on_gpu, fused=on_gpu)
        if after is not None:
            optimizer.register_step_post_hook(lambda *_: after())

        def read(*what: Tensor) -> tuple[Tensor, Tensor]:
            x, y = batches.read(*what, generator=augment)
            return (x, y) if ensemble.size > 1 else (x[None], y[None])

        parts: Any = (recipe, ensemble.train(), fabric.setup_optimizers(optimizer), fabric, read)
        whole = on_gpu and not ensemble.apart
        step = GraphedStep(*parts, whole=whole, generators=(augment,)) if on_gpu else Step(*parts)
        losses = torch.zeros(ensemble.size, dtype=torch.float64, device=fabric.device)
        torch.manual_seed(derive(recipe.seed, "noise", 0))
        done = 0
        for epoch in range(recipe.epochs):
            set_rates(optimizer, recipe, epoch)
            for what, size in batches.epoch(epoch, batches.order(order), 0):
                yield epoch, done
                losses += step(what, size)
                done += 1
            step.check(done, losses, None)
        yield recipe.epochs, done
