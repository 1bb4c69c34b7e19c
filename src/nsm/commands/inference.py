"""`nsm evaluate` and `predict`."""

from pathlib import Path
from typing import Annotated, Any

import tyro

from nsm.commands.saying import (
    Folder,
    Run,
    UsageError,
    check_split,
    open_console,
    print_json,
    tell_if_unfinished,
    whole_imports,
)

Stop = Annotated[float | None, tyro.conf.arg(metavar="CHANCE")]


def evaluate(
    run: Run,
    split: str = "test",
    num_samples: int = 100,
    stop: Stop = None,
    seed: int = 0,
    picture: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    root: Folder = None,
    json: bool = False,
) -> None:
    """Measure a trained network: error, likelihood, calibration, and a reliability diagram.

    Example: nsm evaluate runs/mnist-cnn

    Args:
        run: Folder of the run.
        split: train, validation or test, or several joined by +.
        num_samples: Monte-Carlo samples of each input.
        stop: Sample an input only until its label is settled, with at most this chance of error, such as 0.01.
        seed: Seed of the noise.
        picture: The diagram's PNG file, with an SVG beside it. Default: RUN/reliability.png
        root: Folder for data. Default: NSM_DATA, else the platform's cache folder.
        json: Print JSON instead of sentences.
    """
    confident = _confident(stop, num_samples, seed)
    check_split(split)
    with whole_imports():
        from nsm import evaluation

    tell_if_unfinished(run)
    found = evaluation.evaluate(run, split=split, num_samples=num_samples, seed=seed, stop=confident, root=root)
    problem, drawn = None, list[Path]()
    try:
        drawn = evaluation.reliability_diagram(found, picture or run / "reliability.png")
    except OSError as error:  # numbers come first
        problem = error
    if json:
        print_json({**found, "pictures": [str(path) for path in drawn]})
    else:
        _show(found, split, drawn)
    if problem:
        raise problem


def _show(found: dict[str, Any], split: str, drawn: list[Path]) -> None:
    print(f"error                {100 * found['error']:.3f} ± {100 * found['standard_error']:.3f} %")
    if "error_per_recording" in found:
        print(f"error per recording  {100 * found['error_per_recording']:.3f} %")
    print(f"log-likelihood       {-found['negative_log_likelihood']:.4f}")
    print(f"Brier score          {found['brier_score']:.4f}")
    print(f"calibration error    {100 * found['expected_calibration_error']:.2f} %")
    spread = f"over {found['seeds']} seeds" if found["seeds"] > 1 else f"of a share of {found['n']}"
    samples = f"{found['mean_samples']:.1f}".removesuffix(".0")
    print(
        f"{found['n']} inputs of {found['data']} {split}, {samples} samples each; "
        f"± is the standard error {spread}; diagram: {drawn[0] if drawn else 'none'}"
    )


def predict(
    run: Run,
    files: Annotated[list[Path], tyro.conf.Positional, tyro.conf.arg(metavar="FILE")],
    num_samples: int = 100,
    stop: Stop = None,
    seed: int = 0,
    invert: bool = False,
    json: bool = False,
) -> None:
    """Ask a trained network about pictures or arrays: labels, and how sure it is of them.

    Example: nsm predict runs/mnist-cnn digit.png digits.npy

    Args:
        run: Folder of the run.
        files: Pictures, .npy or .npz files, or folders of pictures.
        num_samples: Monte-Carlo samples of each input.
        stop: Sample an input only until its label is settled, with at most this chance of error, such as 0.01.
        seed: Seed of the noise.
        invert: The files are dark on light; the digits the network knows are light on dark.
        json: Print JSON instead of a table.
    """
    confident = _confident(stop, num_samples, seed)
    if not files:
        raise UsageError("Expected at least one FILE, but got none (see nsm predict --help)")
    with whole_imports():
        from nsm.evaluation import predict_files

    tell_if_unfinished(run)
    rows = predict_files(run, files, num_samples=num_samples, seed=seed, stop=confident, invert=invert)
    if json:
        print_json(rows)
        return
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("input", "label", "confidence", "entropy", "samples"):
        table.add_column(column, justify="left" if column == "input" else "right", overflow="fold")
    for row in rows:
        cells = f"{100 * row['confidence']:.1f} %", f"{row['entropy']:.3f}", str(row["samples"])
        table.add_row(row["input"], row["label"], *cells)
    open_console().print(table)


def _confident(stop: float | None, num_samples: int, seed: int) -> Any:
    """What --stop means; all three numbers are checked before anything is loaded."""
    if not 0 <= seed < 2**63:
        raise UsageError(f"Expected --seed to be in 0 to 2⁶³ − 1, but got {seed}")
    if num_samples < 1:
        raise UsageError(f"Expected --num-samples to be at least 1, but got {num_samples}")
    if stop is None:
        return None
    if not 0 < stop < 1:
        raise UsageError(f"Expected --stop to be in (0, 1), but got {stop}")
    from nsm.sampling import Confident

    return Confident(stop)
