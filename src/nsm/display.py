"""What a run shows: a bar while it trains, TensorBoard on request, and at the end the learning curve."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


@contextlib.contextmanager
def progress(shown: bool, total: int, per_epoch: int, batch_size: int) -> Iterator[Callable[..., None]]:
    """A bar on stderr where that is a terminal: ``update(step, losses, rows)``.

    Args:
        shown: False for no bar anywhere.
        total: Steps of the whole run.
        per_epoch: Steps of one epoch.
        batch_size: Images of one step.
    """
    if not (shown and sys.stderr.isatty()):
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}"), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task("epoch 1", total=total, said="")

        def update(step: int, losses: Any, rows: Sequence[Row]) -> None:
            if step - bars.tasks[task].completed < 10 and step % per_epoch:  # to read a loss on a GPU is to wait for it
                return
            speed = bars.tasks[task].speed
            said = f"step {step}  loss {float(sum(losses)) / len(losses):.3f}"
            if rows and rows[-1]["validation_error"] is not None:
                said += f"  validation error {100 * rows[-1]['validation_error']:.2f} %"
            if speed:
                said += f"  {speed * batch_size:.0f} images/s"
            epoch = min((step - 1) // per_epoch + 1, total // per_epoch)
            bars.update(task, completed=step, said=said, description=f"epoch {epoch}/{total // per_epoch}")

        yield update


@contextlib.contextmanager
def tensorboard(folder: Path | None) -> Iterator[Callable[[Row], None]]:
    """A function that writes the numbers of an epoch as TensorBoard events under ``folder``, if there is one."""
    if folder is None:
        yield lambda row: None
        return
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError:
        raise ValueError(
            "Expected TensorBoard to be installed for `tensorboard=True` (pip install "
            "'neural-sampling-machines[tensorboard]'), but got no such package"
        ) from None
    with SummaryWriter(str(folder / "tensorboard")) as writer:

        def write(row: Row) -> None:
            for name, value in row.items():
                if name not in ("epoch", "step") and isinstance(value, float):
                    writer.add_scalar(name, value, row["step"])
            writer.flush()

        yield write


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw loss and validation error over epochs."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    left = figure.subplots()
    epochs = [row["epoch"] for row in rows]
    left.plot(epochs, [row["loss"] for row in rows], color="tab:gray", marker="s", markersize=4)
    left.set(xlabel="epoch", ylim=(0, None))
    left.set_ylabel("training loss", color="tab:gray")
    left.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    measured = [row for row in rows if row["validation_error"] is not None]
    errors = [100 * row["validation_error"] for row in measured]
    if errors:
        right = left.twinx()
        right.plot(
            [row["epoch"] for row in measured], errors, color="tab:blue", marker="o", markersize=4, linestyle="--"
        )
        right.set(ylim=(0, 1.2 * max(max(errors), 1e-9)))  # apart from the loss, whose axis also begins at 0
        right.set_ylabel("validation error (%)", color="tab:blue")
        right.set_title(f"validation error {errors[-1]:.2f} % after {epochs[-1]} epoch{'s' * (epochs[-1] > 1)}")
    save_figure(figure, path)


def save_figure(figure: Any, path: str | Path) -> list[Path]:
    """Write a figure as PNG, and as SVG beside it, each whole or not at all; returns both paths."""
    written = []
    for suffix in (".png", ".svg"):
        target = Path(path).with_suffix(suffix)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.tmp")
        undated = {"Date": None} if suffix == ".svg" else None  # else the same figure is another file every time
        figure.savefig(temporary, format=suffix[1:], dpi=150, metadata=undated)
        written.append(temporary.replace(target))
    return written
