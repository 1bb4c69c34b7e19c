"""The folder of a run: what it was told, what it measured, and where it stands, never half written.

    run.json               recipe, architecture, versions, commit, hardware: written once, at the start
    metrics.jsonl          one line for every epoch
    checkpoint.json        where the run stands; names the tensors' file and the SHA-256 of both files above it
    state-….safetensors    weights, moments of the optimiser, states of the random generators
    lock                   held while a process trains here; holds its id

Every file is written beside its place, flushed to the disk and renamed. The tensors' file is named by its content and
comes before the checkpoint that names it, so whenever a run is cut, the checkpoint found is whole. Nothing is pickled.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from nsm import record
from nsm.data.errors import DataError
from nsm.networks import build
from nsm.recipes import Recipe

FORMAT = 1
RUN, CHECKPOINT, METRICS, LOCK = "run.json", "checkpoint.json", "metrics.jsonl", "lock"


class CheckpointError(DataError):
    """A run's folder holds something other than what was written there."""


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands.

    Attributes:
        recipe: What the run was told.
        architecture: The network as text, which says what weights do not: noise, site and estimator.
        tensors: Weights (``model/…``), their average over epochs where that is the network (``average/…``), the
            optimiser's moments (``optimizer/…``) and generators (``random/…``).
        progress: Epoch, batch and step, and the rows of finished epochs, as JSON values.
    """

    recipe: Recipe
    architecture: str
    tensors: dict[str, Tensor]
    progress: dict[str, Any]

    @property
    def weights(self) -> dict[str, Tensor]:
        """The network's parameters and buffers; with several seeds, all of them stacked along axis 0."""
        found = self.part("average") or self.part("model")
        return {name.replace("/", "."): value for name, value in found.items()}

    def part(self, kind: str) -> dict[str, Tensor]:
        """The tensors of one kind, by the rest of their names."""
        return {name.removeprefix(f"{kind}/"): v for name, v in self.tensors.items() if name.startswith(f"{kind}/")}


def load(run_dir: str | Path, *, member: int = 0, model: nn.Module | None = None) -> nn.Module:
    """The trained network of a run, as it stands in its last checkpoint, in ``eval()`` mode on the CPU.

    Args:
        run_dir: Folder of the run.
        member: Which network of a run of several seeds.
        model: A module of the architecture that was trained; the recipe's network if None.

    Raises:
        CheckpointError: The files are damaged, or belong to another architecture.
        OSError: There is no run, or it cannot be read.
    """
    checkpoint = read(run_dir)
    if not 0 <= member < checkpoint.recipe.seeds:
        raise ValueError(f"Expected argument `member` to be below {checkpoint.recipe.seeds}, but got {member}")
    if model is None:
        with torch.random.fork_rng(devices=[]):  # the weights drawn here are replaced below
            model = build(checkpoint.recipe)
    check_architecture(checkpoint, model, run_dir)
    several = checkpoint.recipe.seeds > 1
    model.load_state_dict({name: value[member] if several else value for name, value in checkpoint.weights.items()})
    return model.eval()


def check_architecture(checkpoint: Checkpoint, model: nn.Module, run_dir: str | Path) -> None:
    """Raise unless ``model`` is what was trained: the same layers, shapes, noise and estimators."""
    several = checkpoint.recipe.seeds > 1
    saved = {name: tuple(value.shape[several:]) for name, value in checkpoint.weights.items()}
    given = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    # shapes tell of every bias, which some versions of torch name in more layers than others
    texts = (re.sub(r", bias=\w+", "", text).splitlines() for text in (checkpoint.architecture, repr(model)))
    before, now = next((pair for pair in zip(*texts, strict=False) if pair[0] != pair[1]), (None, None))
    if before is None:  # no line differs; a shape or a layer more still may
        names = sorted(name for name in saved.keys() | given.keys() if saved.get(name) != given.get(name))
        before, now = (f"{names[0]} {part.get(names[0])}" for part in (saved, given)) if names else (None, None)
    if before is not None and now is not None:
        raise CheckpointError(
            f"Expected the network to be the one trained in {run_dir}, with {before.strip()}, but got {now.strip()}"
        )


# ------------------------------------------------------------------------- writing

_held = set[TextIO]()  # locks, of which processes that load data would keep copies, and may outlive this one
os.register_at_fork(after_in_child=lambda: [file.close() for file in _held])


@contextlib.contextmanager
def locked(run_dir: str | Path) -> Iterator[Path]:
    """Hold the folder, made if need be, for this process alone; the system frees it when the process ends.

    Raises:
        BlockingIOError: Another process holds it.
    """
    folder = Path(run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LOCK, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise BlockingIOError(f"Expected {folder} to be free, but process {holder} is training in it") from None
        file.truncate(0)
        file.write(f"{os.getpid()} on {platform.node()}\n")
        file.flush()
        _held.add(file)
        try:
            yield folder
        finally:
            _held.remove(file)
        file.truncate(0)


def begin(folder: Path, recipe: Recipe, architecture: str, learned_from: str | None = None) -> None:
    """Write what is known before the first step; ``learned_from`` is what the data call themselves.

    Raises:
        FileExistsError: A run is there already.
    """
    if (folder / CHECKPOINT).exists():
        how = f"`nsm resume {folder}`, or nsm.fit with resume=True, continues it"
        raise FileExistsError(f"Expected {folder} to hold no run, but got one; {how}")
    about = {"format": FORMAT, "recipe": recipe.to_dict(), "architecture": architecture, "learned_from": learned_from}
    about |= record.provenance()
    _write(folder / RUN, json.dumps(about, indent=1, ensure_ascii=False).encode())


def save(folder: Path, tensors: dict[str, Tensor], progress: dict[str, Any]) -> None:
    """Make ``tensors`` and ``progress`` the run's checkpoint; until this returns, the one before it is."""
    for left in folder.glob(".*.tmp"):
        left.unlink(missing_ok=True)  # of a process that was killed while it wrote
    # copies, since of a layer that stands twice in a network both names share their memory
    copies = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in tensors.items()}
    data = safetensors.torch.save(copies)
    digest = hashlib.sha256(data).hexdigest()
    name = f"state-{digest[:16]}.safetensors"
    _write(folder / name, data)
    about = hashlib.sha256((folder / RUN).read_bytes()).hexdigest()
    body = {"format": FORMAT, "state": name, "sha256": {name: digest, RUN: about}, "progress": progress}
    _write(folder / CHECKPOINT, json.dumps({**body, "seal": _seal(body)}, indent=1).encode())
    _write(folder / METRICS, "".join(json.dumps(row) + "\n" for row in progress["history"]).encode())
    for old in folder.glob("state-*.safetensors"):
        if old.name != name:
            old.unlink()


def _write(path: Path, data: bytes) -> None:
    """Put ``data`` at ``path``, whole or not at all, and on the disk before this returns."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # the system says what went wrong, but not where
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the name itself
    finally:
        os.close(folder)


def _seal(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


# ------------------------------------------------------------------------- reading


def read(run_dir: str | Path) -> Checkpoint:
    """The checkpoint of a run, every byte of it verified.

    Raises:
        CheckpointError: A file is damaged or missing beside the checkpoint.
        FileNotFoundError: There is no checkpoint.
    """
    folder = Path(run_dir)
    path = folder / CHECKPOINT
    if not path.exists():
        raise FileNotFoundError(f"Expected {folder} to hold a run, but got no {CHECKPOINT} there")
    try:
        body = json.loads(path.read_bytes())
        seal = body.pop("seal")
        body_format, name, sums, progress = (body[key] for key in ("format", "state", "sha256", "progress"))
    except (ValueError, KeyError, AttributeError, TypeError):
        raise _damaged(path) from None
    if body_format != FORMAT:
        raise CheckpointError(f"Expected {path} to have format {FORMAT}, but got {body_format!r}")
    if seal != _seal(body):
        raise _damaged(path)
    about, data = (_verified(folder / file, sums[file]) for file in (RUN, name))
    try:
        described = json.loads(about)
        tensors = safetensors.torch.load(data)
        return Checkpoint(Recipe.from_dict(described["recipe"]), described["architecture"], tensors, progress)
    except (ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:  # sound, but of another version
        raise CheckpointError(f"Expected {folder} to hold a run of this version of nsm, but got: {error}") from None


def check_data(run_dir: str | Path) -> None:
    """Raise if a run learned, by `fit`, from other data than its recipe names: what the recipe says is not of it."""
    recipe, learned_from = read_recipe(run_dir), _about(run_dir).get("learned_from")
    if learned_from is not None and str(learned_from).split(" ")[0] != recipe.data:
        raise CheckpointError(
            f"Expected {run_dir} to have learned from {recipe.data}, but got a run of nsm.fit on {learned_from}; "
            "nsm.fit(..., resume=True) goes on with it, nsm.predict(nsm.load(...), ...) asks it"
        )


def _about(run_dir: str | Path) -> dict[str, Any]:
    path = Path(run_dir) / RUN
    if not path.exists():
        raise FileNotFoundError(f"Expected {run_dir} to hold a run, but got no {RUN} there")
    try:
        return dict(json.loads(path.read_bytes()))
    except (ValueError, TypeError):
        raise _damaged(path) from None


def read_recipe(run_dir: str | Path) -> Recipe:
    """The recipe of a run, which is there before its first checkpoint."""
    path, about = Path(run_dir) / RUN, _about(run_dir)
    try:
        known = dict(about["recipe"])
    except (ValueError, KeyError, TypeError):
        raise _damaged(path) from None
    try:
        return Recipe.from_dict(known)
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"Expected {path} to hold a recipe of this version of nsm, but got: {error}") from None


def _verified(path: Path, digest: str) -> bytes:
    if not path.exists():
        raise CheckpointError(f"Expected {path} beside the checkpoint, but got no such file")
    data = path.read_bytes()
    if (got := hashlib.sha256(data).hexdigest()) != digest:
        raise CheckpointError(f"Expected {path} to have SHA-256 {digest}, but got {got}: the file is damaged")
    return data


def _damaged(path: Path) -> CheckpointError:
    return CheckpointError(f"Expected {path} to be as it was written, but got a damaged file")
