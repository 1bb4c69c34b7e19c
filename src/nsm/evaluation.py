"""What a run is worth: its error and calibration on data it has not seen, and its word on a person's own files."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nsm import checkpoint, data, metrics
from nsm.data.catalogue import find
from nsm.data.pictures import read_pictures
from nsm.display import save_figure
from nsm.sampling import Confident, Prediction, predict

_BLOCK = 1000  # inputs decoded at a time


def evaluate(
    run_dir: str | Path,
    *,
    split: str = "test",
    num_samples: int = 100,
    seed: int = 0,
    stop: Confident | None = None,
    root: str | Path | None = None,
) -> dict[str, Any]:
    """Measure the networks of a run on a split of its data set.

    The standard error is that of the mean over the run's seeds; with a single one, that of a share of n inputs.

    Args:
        run_dir: folder of the run.
        split: train, validation or test, or several joined by +.
        num_samples: Monte-Carlo samples of each input, at most.
        seed: seed of the noise.
        stop: when to stop early.
        root: folder of the data.

    Returns:
        Where the run stands; error, its standard error, negative log-likelihood, Brier score, expected calibration
        error and mean number of samples, over all networks and for each; the reliability of all networks together, bin
        by bin; for recordings cut into windows also the error per recording.
    """
    checkpoint.check_data(run_dir)
    saved = checkpoint.read(run_dir)
    recipe = saved.recipe
    dataset = data.load(recipe.data, split, root).to(_device(recipe.accelerator))
    members, bins = [], torch.zeros(3, 15, dtype=torch.float64)
    for member in range(recipe.seeds):
        network = checkpoint.load(run_dir, member=member).to(dataset.labels.device)
        found = predict(network, _blocks(dataset), num_samples, seed=seed + member, stop=stop)
        members.append(_measure(found, dataset))
        count, confidence, accuracy = metrics.reliability(found.probabilities, dataset.labels)
        bins += torch.stack([count, count * confidence, count * accuracy]).cpu()
    summary = {name: sum(each[name] for each in members) / len(members) for name in members[0]}
    return {
        "run": str(run_dir),
        "epoch": saved.progress["epoch"],
        "epochs": recipe.epochs,
        "data": recipe.data,
        "split": split,
        "n": len(dataset),
        "seeds": len(members),
        "num_samples": num_samples,
        "stop": None if stop is None else stop.error,
        "seed": seed,
        **summary,
        "standard_error": _standard_error([each["error"] for each in members], len(dataset)),
        "members": members,
        "reliability": {
            "count": bins[0].tolist(),
            "confidence": (bins[1] / bins[0].clamp(min=1)).tolist(),
            "accuracy": (bins[2] / bins[0].clamp(min=1)).tolist(),
        },
    }


def predict_files(
    run_dir: str | Path,
    paths: Sequence[str | Path],
    *,
    num_samples: int = 100,
    seed: int = 0,
    stop: Confident | None = None,
    invert: bool = False,
) -> list[dict[str, Any]]:
    """What the network of a run says of pictures and arrays: one row for each input."""
    checkpoint.check_data(run_dir)
    recipe = checkpoint.read(run_dir).recipe
    entry = find(recipe.data)
    inputs, names = read_pictures(paths, entry.shape, binary=entry.binary, invert=invert)
    network = checkpoint.load(run_dir).to(_device(recipe.accelerator))
    found = predict(network, inputs, num_samples, seed=seed, stop=stop)
    return [
        {
            "input": name,
            "label": entry.classes[int(found.label[k])],
            "confidence": float(found.confidence[k]),
            "entropy": float(found.entropy[k]),
            "mutual_information": float(found.mutual_information[k]),
            "samples": int(found.num_samples[k]),
        }
        for k, name in enumerate(names)
    ]


def reliability_diagram(evaluation: dict[str, Any], path: str | Path) -> list[Path]:
    """Draw accuracy against confidence, as PNG and as SVG beside it; returns both paths."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5, 4.5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    count, accuracy = (evaluation["reliability"][key] for key in ("count", "accuracy"))
    width = 1 / len(count)
    left = [k * width for k in range(len(count))]
    above.bar(left, accuracy, width, align="edge", color="tab:blue", edgecolor="white")
    above.plot([0, 1], [0, 1], color="black", linewidth=0.8, linestyle="--")
    calibration = 100 * evaluation["expected_calibration_error"]
    of = f"{evaluation['n']} inputs of {evaluation['data']} {evaluation['split']}"
    above.set(ylabel="accuracy", ylim=(0, 1), title=f"{of}\nexpected calibration error {calibration:.2f} %")
    below.bar(left, count, width, align="edge", color="tab:gray", edgecolor="white")
    below.set(xlabel="confidence", ylabel="inputs", xlim=(0, 1), yscale="log")
    return save_figure(figure, path)


def _measure(found: Prediction, dataset: data.Dataset) -> dict[str, float]:
    p, labels = found.probabilities, dataset.labels
    row = {
        "error": metrics.error_rate(p, labels),
        "negative_log_likelihood": metrics.negative_log_likelihood(p, labels),
        "brier_score": metrics.brier_score(p, labels),
        "expected_calibration_error": metrics.expected_calibration_error(p, labels),
        "mean_samples": found.num_samples.double().mean(),
    }
    if dataset.recordings is not None:
        _, which = dataset.recordings.unique(return_inverse=True)
        whole = torch.zeros(int(which.max()) + 1, p.shape[1], device=p.device).index_add_(0, which, p)
        truth = torch.zeros(len(whole), dtype=labels.dtype, device=p.device).scatter_(0, which, labels)
        row["error_per_recording"] = metrics.error_rate(whole, truth)
    return {name: float(value) for name, value in row.items()}


def _standard_error(errors: list[float], n: int) -> float:
    if len(errors) > 1:
        return float(torch.tensor(errors, dtype=torch.float64).std()) / math.sqrt(len(errors))
    return math.sqrt(errors[0] * (1 - errors[0]) / n)


def _blocks(dataset: data.Dataset) -> Iterator[Tensor]:
    for start in range(0, len(dataset), _BLOCK):
        yield dataset.batch(slice(start, start + _BLOCK))[0]


def _device(accelerator: str) -> str:
    return "cuda" if accelerator != "cpu" and torch.cuda.is_available() else "cpu"
