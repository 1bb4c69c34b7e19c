"""``make demo``: an NSM learns MNIST, says what it is sure of and what it is not, and shows it in one picture."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nsm import checkpoint, data
from nsm.checkpoint import CheckpointError
from nsm.cli import status_of
from nsm.commands.saying import UsageError
from nsm.display import save_figure
from nsm.evaluation import evaluate
from nsm.processes import Interrupted
from nsm.recipes import MNIST_QUICK
from nsm.sampling import Confident, Prediction, predict
from nsm.training import train

FOLDER = Path("runs/demo")
ANGLES = torch.linspace(0, 180, 13)
ERROR = 1e-2  # of the early stop


def main(folder: Path = FOLDER) -> int:
    """Train (or go on training) in ``folder``, evaluate, and draw; the value is the exit status."""
    return status_of(lambda: _demonstrate(folder))


def _demonstrate(folder: Path) -> None:
    recipe, nsm = MNIST_QUICK, _program()
    print(f"Training {recipe.network} on {recipe.data}: {recipe.epochs} epochs in {folder} …", flush=True)
    try:
        history = train(recipe, folder, resume=(folder / checkpoint.RUN).exists())
    except Interrupted as cut:
        cut.args = (f"stopped and saved; to go on: make demo, or {nsm} resume {folder}",)
        raise
    except CheckpointError:
        raise
    except ValueError as error:  # of another version, or no demonstration at all
        raise UsageError(f"{error}; remove {folder} to begin anew") from None
    for row in history.rows:
        print(f"  epoch {row['epoch']}: loss {row['loss']:.3f}, validation error {100 * row['validation_error']:.2f} %")
    print("Evaluating on the 10,000 test digits, sampling each until its label is settled …", flush=True)
    result = evaluate(folder, stop=Confident(ERROR))
    print(
        f"  test error {100 * result['error']:.2f} ± {100 * result['standard_error']:.2f} % "
        f"with {result['mean_samples']:.1f} samples a digit, calibration error "
        f"{100 * result['expected_calibration_error']:.2f} %"
    )
    network = checkpoint.load(folder)
    pictures = draw(network, data.load(recipe.data, "test"), history.rows, result, folder / "demo.png")
    print(f"The picture: {pictures[0]}   (and {pictures[1].name} beside it)")
    print(
        "What to try next:\n"
        f"  {nsm} evaluate {folder}                 error, likelihood, calibration with 100 samples\n"
        f"  {nsm} predict {folder} my-digit.png     your own pictures (--invert for dark ink on paper)\n"
        f"  {nsm} train mnist-cnn                   the paper's training, 200 epochs; {nsm} recipes shows more"
    )


def _program() -> str:
    """What to type for `nsm`: beside the Python of a virtual environment where the shell does not find it."""
    beside = Path(sys.executable).with_name("nsm")
    if shutil.which("nsm") or not beside.exists():
        return "nsm"
    return os.path.relpath(beside) if beside.is_relative_to(Path.cwd()) else str(beside)


def draw(
    network: nn.Module, test: data.Dataset, rows: tuple[dict[str, Any], ...], result: dict[str, Any], path: Path
) -> list[Path]:
    """One figure: learning curve, digits with their votes, the least certain ones, and one that turns."""
    from matplotlib.figure import Figure

    inputs, labels = test.batch(slice(0, 1000))
    found = predict(network, inputs, 100, seed=0)
    doubtful = found.entropy.argsort(descending=True)[:6]
    figure = Figure(figsize=(13, 9), layout="constrained")
    rows_of: Any = figure.subfigures(3, 1, height_ratios=(1, 1.7, 1))
    above, middle, below = rows_of
    _draw_curve(above, rows, result)
    axes = middle.subplots(3, 12, height_ratios=(1, 1, 1.2), squeeze=False)
    middle.suptitle(
        "votes of 100 samples (blue: the true digit) below the digit read and its probability:\n"
        "the first twelve test digits; below them, the least certain of the first 1,000"
    )
    for k in range(12):
        _draw_digit(axes[0][k], inputs[k])
        _draw_votes(axes[1][k], found, k, int(labels[k]))
    for axis in axes[2]:
        axis.axis("off")
    for column, k in enumerate(doubtful.tolist()):
        _draw_digit(axes[2][2 * column], inputs[k])
        axes[2][2 * column + 1].axis("on")
        _draw_votes(axes[2][2 * column + 1], found, k, int(labels[k]))
    _draw_rotation(below, network, inputs, labels, found)
    return save_figure(figure, path)


def _draw_curve(figure: Any, rows: tuple[dict[str, Any], ...], result: dict[str, Any]) -> None:
    loss, error = figure.subplots(1, 2)
    epochs = [row["epoch"] for row in rows]
    loss.plot(epochs, [row["loss"] for row in rows], marker="o", color="tab:gray")
    loss.set(xlabel="epoch", ylabel="training loss", ylim=(0, None), xticks=epochs)
    error.plot(epochs, [100 * row["validation_error"] for row in rows], marker="o", label="validation")
    test, spread = 100 * result["error"], 100 * result["standard_error"]
    error.axhline(test, color="tab:orange", label=f"test: {test:.2f} ± {spread:.2f} %")
    error.axhspan(test - spread, test + spread, color="tab:orange", alpha=0.2)
    error.set(xlabel="epoch", ylabel="error (%)", ylim=(0, None), xticks=epochs)
    error.legend()


def _draw_digit(axis: Any, image: Tensor) -> None:
    axis.imshow(image[0].numpy(), cmap="gray", vmin=-1, vmax=1, interpolation="nearest")
    axis.axis("off")


def _draw_votes(axis: Any, found: Prediction, k: int, label: int) -> None:
    """A bar for each class; the true one in blue."""
    share = (found.votes[k] / found.num_samples[k]).tolist()
    axis.bar(range(len(share)), share, color=["tab:blue" if c == label else "tab:red" for c in range(len(share))])
    axis.set(ylim=(0, 1), yticks=[], xticks=range(len(share)))
    axis.tick_params(labelsize=6, length=0, pad=1)
    axis.set_title(f"{int(found.label[k])} ({100 * float(found.confidence[k]):.0f} %)", fontsize=8, pad=2)


def _draw_rotation(figure: Any, network: nn.Module, inputs: Tensor, labels: Tensor, found: Prediction) -> None:
    """A digit that is read with confidence, turned step by step; a 2, since that is nothing else upside down."""
    certain = torch.where(labels == 2, found.confidence, torch.zeros_like(found.confidence)).argmax()
    turned = rotate(inputs[certain], ANGLES)
    said = predict(network, turned, 100, seed=1)
    left, right = figure.subfigures(1, 2, width_ratios=(1.6, 1))
    axes = left.subplots(1, len(ANGLES))
    for axis, image, angle, label in zip(axes, turned, ANGLES.tolist(), said.label.tolist(), strict=True):
        _draw_digit(axis, image)
        axis.set_title(f"{angle:.0f}°\nreads {label}", fontsize=7)
    entropy = right.subplots()
    for name in ("entropy", "mutual_information"):
        entropy.plot(ANGLES.tolist(), getattr(said, name).tolist(), marker="o", label=name.replace("_", " "))
    entropy.set(xlabel="angle (°)", ylabel="uncertainty (nats)", ylim=(0, None))
    entropy.legend()


def rotate(image: Tensor, angles: Tensor) -> Tensor:
    """One image (1, H, W) at each angle in degrees, (angles, 1, H, W), back at ±1; the corners are background."""
    radians = torch.deg2rad(angles)
    zero = torch.zeros_like(radians)
    turn = torch.stack([radians.cos(), -radians.sin(), zero, radians.sin(), radians.cos(), zero], -1).reshape(-1, 2, 3)
    several = (image + 1).expand(len(angles), *image.shape)  # 0 outside
    grid = nn.functional.affine_grid(turn, list(several.shape), align_corners=False)
    return torch.where(nn.functional.grid_sample(several, grid, align_corners=False) >= 1, 1.0, -1.0)


if __name__ == "__main__":
    sys.exit(main())
