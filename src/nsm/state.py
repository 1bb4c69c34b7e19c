"""Everything that the next step of a run depends on: weights, moments, place in the epoch, generators."""

import copy
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from torch import Generator, Tensor, nn
from torch.nn.utils import parametrize

from nsm import checkpoint
from nsm.batches import Batches, derive
from nsm.checkpoint import Checkpoint, CheckpointError
from nsm.ensemble import Ensemble
from nsm.imitation import imitate
from nsm.initialization import initialize, start_from
from nsm.layers import NSMLayer
from nsm.optimizers import Muon
from nsm.processes import gather, on_first, reduce, share_buffers
from nsm.recipes import Recipe
from nsm.sampling import predict
from nsm.sharding import collect, follow, whole
from nsm.steps import COMPILE, GraphedStep, Step

INITIAL_BATCH = 100  # inputs for the data-dependent start, as in the paper
OWN = ("losses", "random/augment", "random/noise", "random/cuda")  # in a checkpoint, what each process has of its own


class State:
    """A run between two steps: begun, restored, saved, measured."""

    def __init__(self, model: nn.Module, batches: Batches, recipe: Recipe, fabric: Fabric) -> None:
        self.recipe, self.fabric, self.batches = recipe, fabric, batches
        self.model = model
        self.epoch = self.batch = self.step = 0
        self.losses = torch.zeros(recipe.seeds, dtype=torch.float64, device=fabric.device)
        self.history: list[dict[str, Any]] = []
        self.order = Generator(batches.order_device).manual_seed(derive(recipe.seed, "order"))
        self.augment = Generator(fabric.device).manual_seed(derive(recipe.seed, "augment", fabric.global_rank))
        self.order_before = self.order.get_state()  # whence the order of this epoch is drawn
        self.shares: nn.Module | None = None  # with fsdp, what is trained in place of the whole network

    def begin(self, folder: Path | None) -> None:
        """A fresh start: weights that every process agrees on, then noise that is each one's own."""
        recipe, device, text = self.recipe, self.fabric.device, repr(self.model)
        if recipe.imitate and not recipe.init_from:
            raise ValueError(f"Expected argument `init_from` with imitate={recipe.imitate}, but got {recipe.init_from}")
        members = self._members()
        for k, member in enumerate(members):
            torch.manual_seed(derive(recipe.seed, "start", k))
            if k:
                _draw_anew(member)
            some = Generator().manual_seed(derive(recipe.seed, "initialize", k))
            trained = _trained(recipe.init_from, recipe.seed + k).to(device) if recipe.init_from else None
            if trained is not None and recipe.imitate:
                imitate(member, trained, self.batches.head(recipe.imitate, some))
                continue
            if trained is not None:
                start_from(member, trained)
            if recipe.initialize and any(isinstance(module, NSMLayer) for module in member.modules()):
                initialize(member, self.batches.head(INITIAL_BATCH, some))
        self._assemble(members)
        torch.manual_seed(derive(recipe.seed, "noise", self.fabric.global_rank))
        if folder:
            on_first(self.fabric, lambda: checkpoint.begin(folder, recipe, text, self.batches.learned_from))
            self.save(folder)

    def restore(self, saved: Checkpoint, folder: Path) -> None:
        """The state of a checkpoint."""
        checkpoint.check_architecture(saved, self.model, folder)
        began = "cuda" if "random/cuda" in saved.tensors else "cpu"
        if began != self.fabric.device.type:  # whose random numbers are others
            raise CheckpointError(f"Expected {began}, on which {folder} began, but got {self.fabric.device.type}")
        if saved.progress["samples"] != len(self.batches.dataset):
            raise CheckpointError(
                f"Expected {saved.progress['samples']} inputs, with which {folder} began, "
                f"but got {len(self.batches.dataset)}"
            )
        self._assemble(self._members())
        tensors, rank = saved.tensors, self.fabric.global_rank
        # copies, since a generator reads the memory of its state from the start, whatever part of it a view shows
        own = {name: value[rank].clone() for name, value in tensors.items() if name in OWN}
        self.network.load_state_dict(saved.part("model"))
        self.kept.load_state_dict(saved.part("average") or saved.part("model"))
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in saved.part("optimizer").items():
            index, key = name.split("/")
            moments.setdefault(int(index), {})[key] = value
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})
        for weight, state in self.optimizer.state.items():  # which lie in memory as their weights do
            state.update({n: torch.empty_like(weight).copy_(v) for n, v in state.items() if v.shape == weight.shape})
        self.epoch, self.batch, self.step = (saved.progress[key] for key in ("epoch", "batch", "step"))
        self.history = list(saved.progress["history"])
        self.losses.copy_(own["losses"])
        self.order_before = tensors["random/order"]
        self.order.set_state(self.order_before)
        self.augment.set_state(own["random/augment"])
        torch.set_rng_state(own["random/noise"])
        if "random/cuda" in own:
            torch.cuda.set_rng_state(own["random/cuda"], self.fabric.device)

    def save(self, folder: Path) -> None:
        """Make this the run's checkpoint; every process takes part, the first writes."""
        self._collect()
        tensors = {f"model/{name}": value for name, value in self.network.state_dict().items()}
        if self.kept is not self.network:
            tensors |= {f"average/{name}": value for name, value in self.kept.state_dict().items()}
        # sorted: after a resume each process has an order of its own, but they must ask for the same shares together
        for index, moments in sorted(self.optimizer.state_dict()["state"].items()):
            tensors |= {f"optimizer/{index}/{key}": whole(value).cpu() for key, value in sorted(moments.items())}
        own = {"losses": self.losses, "random/augment": self.augment.get_state(), "random/noise": torch.get_rng_state()}
        if self.fabric.device.type == "cuda":
            own["random/cuda"] = torch.cuda.get_rng_state(self.fabric.device)
        tensors |= {name: gather(self.fabric, value) for name, value in own.items()}
        tensors["random/order"] = self.order_before
        place = {"epoch": self.epoch, "batch": self.batch, "step": self.step, "samples": len(self.batches.dataset)}
        on_first(self.fabric, lambda: checkpoint.save(folder, tensors, {**place, "history": self.history}))

    def measure(self, held_out: Batches | None) -> dict[str, Any]:
        """What there is to say of an epoch that is over."""
        losses = (reduce(self.fabric, self.losses) / len(self.batches) / self.fabric.world_size).tolist()
        row: dict[str, Any] = {"epoch": self.epoch + 1, "step": self.step, "loss": sum(losses) / len(losses)}
        row["validation_error"] = errors = None
        last = self.recipe.measure_last or self.recipe.epochs
        if held_out is not None and self.epoch >= self.recipe.epochs - last:
            self._collect()
            networks = (network.to(self.fabric.device) for network in self._networks())
            errors = [_error(network, held_out, self.epoch, self.fabric, k) for k, network in enumerate(networks)]
            row["validation_error"] = sum(errors) / len(errors)
            self._make_room()
        return row | ({"losses": losses, "validation_errors": errors} if self.recipe.seeds > 1 else {})

    @torch.no_grad()
    def average(self) -> None:
        """Take the weights of an epoch that is over into the network that is kept."""
        if self.kept is self.network:
            return
        self._collect()
        share = 1 / min(self.epoch + 1, self.recipe.average_epochs)
        for mean, value in zip(_tensors(self.kept), _tensors(self.network), strict=True):
            if mean.is_floating_point():
                mean.lerp_(value, share)
            else:
                mean.copy_(value)

    def next_epoch(self, row: dict[str, Any]) -> None:
        """Close an epoch."""
        self.history.append(row)
        self.epoch, self.batch = self.epoch + 1, 0
        self.losses.zero_()
        self.order_before = self.order.get_state()

    def stepper(self) -> Step:
        """A step of the network as the fabric runs it: in its precision, in all processes, compiled, captured."""
        recipe, fabric = self.recipe, self.fabric
        network: Any = self.network.train()
        if recipe.strategy == "fsdp":
            network = self.shares = copy.deepcopy(network)
            self._make_room()
        alone = fabric.world_size == 1 and self.shares is None
        apart = isinstance(network, Ensemble) and network.apart
        if recipe.compile and apart:
            network.compile_members(**COMPILE)
        elif recipe.compile and not alone:
            network = torch.compile(network, **COMPILE)
        if self.shares is None:
            runs, updates = fabric.setup(network, self.optimizer)
        else:
            runs = fabric.setup_module(network)
            follow(self.optimizer, self.network, self.shares)
            updates = fabric.setup_optimizers(self.optimizer)
        read = partial(self.batches.read, generator=self.augment)
        parts = (recipe, network if alone else runs, updates, fabric, read)
        whole = recipe.compile and alone and not apart
        if recipe.cuda_graph:
            return GraphedStep(*parts, whole=whole, generators=(self.augment,))
        return Step(*parts, whole=whole)

    def finish(self) -> None:
        """Leave the trained weights in the caller's model."""
        self._collect()
        self.model.to(self.fabric.device)
        if self.kept is not self.model:
            self.model.load_state_dict(self._networks()[0].state_dict())

    def _collect(self) -> None:
        """Bring the whole network, in every process, to where the training of it stands."""
        share_buffers(self.fabric, self.shares or self.network)
        if self.shares is not None:
            collect(self.shares, self.network)

    def _make_room(self) -> None:
        """Keep whole networks off the device while one is trained in shares."""
        if self.shares is not None:
            self.network.cpu()
            self.kept.cpu()

    def _networks(self) -> list[nn.Module]:
        if isinstance(self.kept, Ensemble):
            return [self.kept.member(k) for k in range(self.kept.size)]
        return [self.kept]

    def _members(self) -> list[nn.Module]:
        """The caller's model and its copies."""
        layout = torch.channels_last  # in which convolutions are fastest
        first = cast(Any, self.model).to(self.fabric.device, memory_format=layout)
        return [first, *(copy.deepcopy(first) for _ in range(self.recipe.seeds - 1))]

    def _assemble(self, members: list[nn.Module]) -> None:
        recipe = self.recipe
        self.network = Ensemble(members) if len(members) > 1 else members[0]
        self.kept = copy.deepcopy(self.network) if recipe.average_epochs > 1 else self.network
        self.optimizer = self._optimizer()

    def _optimizer(self) -> torch.optim.Optimizer:
        """Adam, and Muon for the weights of the hidden layers where the recipe has a rate for it."""
        recipe, device = self.recipe, self.fabric.device
        stacked = int(isinstance(self.network, Ensemble))  # axes in front of what a network has
        kinds = {name: name.replace("/", ".").rpartition(".")[2] for name, _ in self.network.named_parameters()}
        learned = {name: value for name, value in self.network.named_parameters() if value.requires_grad}
        matrices = [name for name, value in learned.items() if kinds[name] == "weight" and value.dim() > stacked + 1]
        hidden = matrices[:-1] if recipe.muon_lr else []
        if recipe.muon_lr and not hidden:
            raise ValueError(
                f"Expected argument `muon_lr` to be 0 for a network without hidden layers, but got {recipe.muon_lr}"
            )
        groups: dict[tuple[float, float], list[nn.Parameter]] = {}  # by decay and Muon's rate
        for name, value in learned.items():
            decay = {"weight": recipe.weight_decay, "beta": recipe.beta_decay}.get(kinds[name], 0.0)
            groups.setdefault((decay, recipe.muon_lr / recipe.lr if name in hidden else 0.0), []).append(value)
        # a graph, and code for each number that it was compiled with, keep no number that changes: the rate is a tensor
        still = recipe.cuda_graph or (recipe.compile and device.type == "cuda")
        lr: Any = torch.tensor(recipe.lr, device=device) if still else recipe.lr
        options: dict[str, Any] = {
            "capturable": still,
            # one pass on the CPU, but whole weights and shares would be rounded differently; on CUDA a compiled list
            "fused": device.type == "cpu" and self.fabric.world_size == 1,
            "foreach": True if device.type == "cuda" else None,
        }
        if recipe.muon_lr:
            turned = [{"params": some, "weight_decay": decay, "muon": muon} for (decay, muon), some in groups.items()]
            return Muon(turned, lr, stacked, **options)
        plain = [{"params": some, "weight_decay": decay} for (decay, _), some in groups.items()]
        return torch.optim.AdamW(plain, lr=lr, **options)


def _error(network: nn.Module, data: Batches, epoch: int, fabric: Fabric, member: int) -> float:
    """The fraction of wrong labels; each process looks at its share, each network by noise of its own."""
    labels: list[Tensor] = []

    def inputs() -> Iterator[Tensor]:
        for some, truth in data.all():
            labels.append(truth)
            yield some

    seed = derive(data.recipe.seed, "validation", epoch, fabric.global_rank, *[member] * (member > 0))
    wrong = torch.zeros((), dtype=torch.long, device=fabric.device)
    if fabric.global_rank < len(data.dataset):  # else there is nothing in its share
        with fabric.autocast():
            prediction = predict(network, inputs(), data.recipe.num_samples, seed=seed)
        wrong += (prediction.label != torch.cat(labels)).sum()
    return float(reduce(fabric, wrong)) / len(data.dataset)


def _trained(folder: str, seed: int) -> nn.Module:
    """The network of a seed in a run's folder; a seed beyond those that were trained there begins with the first."""
    run = checkpoint.read_recipe(folder)
    return checkpoint.load(folder, member=(seed - run.seed) % run.seeds)


def _tensors(network: nn.Module) -> list[Tensor]:
    return [*network.parameters(), *network.buffers()]


def _draw_anew(model: nn.Module) -> None:
    """Weights as of a fresh network; those that are computed from others are set, so that the others follow."""
    for module in model.modules():
        reset: Any = getattr(module, "reset_parameters", None)
        if reset is None:
            continue
        with parametrize.cached():  # else what is computed is computed anew, and lost, whenever it is asked for
            reset()
            names: Any = module.parametrizations if parametrize.is_parametrized(module) else ()
            drawn = {name: getattr(module, name).detach().clone() for name in names}
        for name, value in drawn.items():
            setattr(module, name, value)
