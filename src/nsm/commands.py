"""The commands of `nsm`: each is a function that reads its arguments, calls one thing, and prints what came of it.

Its arguments are the options, its docstring is the help, and what it returns is the exit status. To add one, write it
and name it in `COMMANDS`; a dict there is a group of commands.
"""

import contextlib
import functools
import itertools
import json as _json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from nsm.recipes import MNIST_CNN, RECIPES, Recipe, nearest

Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
Folder = Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")]
Run = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
Stop = Annotated[float | None, tyro.conf.arg(metavar="CHANCE")]


class UsageError(Exception):
    """What was typed does not make a command."""


def data_list(json: bool = False) -> None:
    """Show every data set, and which of them are on this machine.

    Example: nsm data list

    Args:
        json: Print JSON instead of a table.
    """
    from nsm.data.catalogue import ENTRIES
    from nsm.data.store import data_root, find_files

    root, rows = data_root(), []
    for entry in ENTRIES.values():
        there = ["train", "test"] if entry.kind == "embedded" else sorted(find_files(entry, root), reverse=True)
        rows.append(
            {
                "name": entry.name,
                "there": there,
                "shape": list(entry.shape),
                "classes": len(entry.classes),
                "values": "±1" if entry.binary else "[0,1]",
                "validation": entry.validation,
                "about": entry.about,
                "licence": entry.licence,
            }
        )
    if json:
        _print_json({"root": str(root), "data": rows})
        return
    from rich import box
    from rich.table import Table

    title = f"data under {root}"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, padding=(0, 1, 0, 0))
    console = _console()
    columns = ["name", "there", "inputs", "classes", "validation"]
    for column in columns + ["about"] * (console.width >= 150):
        table.add_column(column, no_wrap=column == "name", justify="right" if column == "classes" else "left")
    for row in rows:
        inputs = f"{'×'.join(map(str, row['shape']))} {row['values']}"
        validation = str(row["validation"]).split(" of ")[0]
        there = ", ".join(row["there"]) or "–"
        cells = {**row, "inputs": inputs, "there": there, "validation": validation}
        table.add_row(*(str(cells[str(column.header)]) for column in table.columns))
    console.print(table)


def data_get(name: Name, root: Folder = None, json: bool = False) -> None:
    """Fetch a data set, check every byte of it, and make it ready to load.

    A download that was cut is continued. What is already there stays as it is.

    Example: nsm data get cifar10

    Args:
        name: Which data set; `nsm data list` shows them.
        root: Folder for data. Default: NSM_DATA, else the platform's cache folder.
        json: Print JSON instead of a sentence.
    """
    entry = _find(name)
    from nsm.data import check, get
    from nsm.data.store import data_root

    with _progress() as progress:
        get(name, root, progress=progress)
        report = check(name, root, progress=progress)
    where = "the package" if entry.kind == "embedded" else str(data_root(root))
    _print_report(name, {"where": where, **report}, json)


def data_check(name: Name, root: Folder = None, json: bool = False) -> None:
    """Verify every byte of a data set: its checksums, and that it can be read.

    Example: nsm data check mnist

    Args:
        name: Which data set; `nsm data list` shows them.
        root: Folder for data. Default: NSM_DATA, else the platform's cache folder.
        json: Print JSON instead of a sentence.
    """
    _find(name)
    from nsm.data import check

    with _progress() as progress:
        report = check(name, root, progress=progress)
    _print_report(name, report, json)


def data_show(
    name: Name,
    split: str = "train",
    count: Annotated[int | None, tyro.conf.arg(metavar="NUMBER")] = None,
    output: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    root: Folder = None,
    json: bool = False,
) -> None:
    """Write a picture of a data set; of events, the frames over time.

    Example: nsm data show mnist --split test --count 50 --output digits.png

    Args:
        name: Which data set; `nsm data list` shows them.
        split: train, validation or test, or several joined by +.
        count: How many inputs. Default: 40 images, or 10 rows of frames.
        output: The PNG file. Default: NAME.png
        root: Folder for data. Default: NSM_DATA, else the platform's cache folder.
        json: Print JSON instead of a sentence.
    """
    entry = _find(name)
    if count is not None and not 1 <= count <= 400:
        raise UsageError(f"Expected --count to be 1 to 400, but got {count}")
    _check_split(split)
    from nsm.data import load
    from nsm.data.montage import montage

    target = output or Path(f"{name}.png")
    with _progress() as progress:
        dataset = load(name, split, root, progress=progress)
        montage(dataset, target, count or (40 if entry.shape[0] in (1, 3) else 10))
    if json:
        samples = len(dataset)
        _print_json({"name": name, "split": split, "samples": samples, "picture": str(target)})
    else:
        print(f"{target}: {dataset}")


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
    confident = _confident(stop, num_samples)
    _check_split(split)
    with _whole_imports():
        from nsm import evaluation

    found = evaluation.evaluate(run, split=split, num_samples=num_samples, seed=seed, stop=confident, root=root)
    drawn = evaluation.reliability_diagram(found, picture or run / "reliability.png")
    if json:
        _print_json({**found, "pictures": [str(path) for path in drawn]})
        return
    print(f"error                {100 * found['error']:.3f} ± {100 * found['standard_error']:.3f} %")
    if "error_per_recording" in found:
        print(f"error per recording  {100 * found['error_per_recording']:.3f} %")
    print(f"log-likelihood       {-found['negative_log_likelihood']:.4f}")
    print(f"Brier score          {found['brier_score']:.4f}")
    print(f"calibration error    {100 * found['expected_calibration_error']:.2f} %")
    spread = f"over {found['seeds']} seeds" if found["seeds"] > 1 else f"of a share of {found['n']}"
    print(
        f"{found['n']} inputs of {found['data']} {split}, {found['mean_samples']:.1f} samples each; "
        f"± is the standard error {spread}; diagram: {drawn[0]}"
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
    confident = _confident(stop, num_samples)
    if not files:
        raise UsageError("Expected at least one FILE, but got none (see nsm predict --help)")
    with _whole_imports():
        from nsm.evaluation import predict_files

    rows = predict_files(run, files, num_samples=num_samples, seed=seed, stop=confident, invert=invert)
    if json:
        _print_json(rows)
        return
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("input", "label", "confidence", "entropy", "samples"):
        table.add_column(column, justify="left" if column == "input" else "right", overflow="fold")
    for row in rows:
        cells = f"{100 * row['confidence']:.1f} %", f"{row['entropy']:.3f}", str(row["samples"])
        table.add_row(row["input"], row["label"], *cells)
    _console().print(table)


def _confident(stop: float | None, num_samples: int) -> Any:
    """What --stop means; both numbers are checked before anything is loaded."""
    if num_samples < 1:
        raise UsageError(f"Expected --num-samples to be at least 1, but got {num_samples}")
    if stop is None:
        return None
    if not 0 < stop < 1:
        raise UsageError(f"Expected --stop to be in (0, 1), but got {stop}")
    from nsm.sampling import Confident

    return Confident(stop)


def _check_split(split: str) -> None:
    if not {*split.split("+")} <= {"train", "validation", "test"}:
        raise UsageError(f"Expected --split to be of train, validation, test, joined by +, but got {split}")


def resume(run: Run, root: Folder = None, json: bool = False) -> None:
    """Go on with a run that was cut; it ends as if it had not been.

    Example: nsm resume runs/mnist-cnn

    Args:
        run: Folder of the run.
        root: Folder for data. Default: NSM_DATA, else the platform's cache folder.
        json: Print JSON instead of a sentence.
    """
    from nsm.checkpoint import read_recipe

    _train(read_recipe(run), run, root, json, resume=True)


def recipes(
    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = None, json: bool = False
) -> None:
    """Show the recipes, or every field of one.

    Example: nsm recipes mnist-cnn

    Args:
        name: A recipe. Default: all of them.
        json: Print JSON instead of a table.
    """
    if name is not None and name not in RECIPES:
        raise UsageError(f"Expected a recipe: {', '.join(RECIPES)}, but got {name!r}{nearest(name, RECIPES)}")
    shown = {one: RECIPES[one] for one in ([name] if name else RECIPES)}
    if json:
        _print_json({one: {"about": about, **recipe.to_dict()} for one, (about, recipe) in shown.items()})
        return
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    if name:
        table.add_column("option")
        table.add_column(f"in {name}")
        for key, value in RECIPES[name][1].to_dict().items():
            turn = "no-" if value is True else ""  # a flag is there to change what is so without it
            table.add_row(f"--{turn}{key.replace('_', '-')}", "not given" if isinstance(value, bool) else str(value))
    else:
        for column in ("name", "about", "epochs", "batch", "lr"):
            table.add_column(column, no_wrap=column == "name")
        for one, (about, recipe) in shown.items():
            table.add_row(one, about, str(recipe.epochs), str(recipe.batch_size), str(recipe.lr))
    _console().print(table)


def _trainer(name: str) -> Callable[..., None]:
    """The command that trains by one recipe; its options are the recipe's fields."""
    about, default = RECIPES[name]

    def train(
        recipe: tyro.conf.OmitArgPrefixes[Recipe] = default,
        run: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", aliases=["--run-dir"])] = None,
        root: Folder = None,
        json: bool = False,
    ) -> None:
        _train(recipe, run or _free_folder(Path("runs") / name), root, json)

    lead = "Example" if default is MNIST_CNN else "For instance"  # one is enough in the help above
    train.__doc__ = f"""{about}.

    {lead}: nsm train {name} --epochs 20 --lr 1e-3 --run runs/{name}

    Args:
        recipe: What to do.
        run: Folder of the run. Default: runs/{name}, or a number more where that is taken.
        root: Folder for data. Default: NSM_DATA, else the platform's cache folder.
        json: Print JSON instead of a sentence.
    """
    return train


def _train(recipe: Recipe, run: Path, root: Path | None, json: bool, resume: bool = False) -> None:
    _find(recipe.data)
    with _whole_imports():
        from nsm.data import DataError
        from nsm.processes import Interrupted, is_first_process
        from nsm.training import train

    try:
        with _progress() as progress:
            history = train(recipe, run, resume=resume, root=root, progress=progress)
    except DataError:
        raise
    except ValueError as error:
        if not str(error).startswith("Expected"):
            raise
        raise UsageError(str(error)) from None
    except Interrupted as cut:
        words = ["nsm", "resume", str(run), *([] if root is None else ["--root", str(root)])]
        cut.args = (f"stopped and saved; to go on: {shlex.join(words)}",)
        raise
    if not is_first_process():
        return
    last, picture = history.rows[-1], run / "learning-curve.png"
    if json:
        _print_json({"run": str(run), "picture": str(picture), "history": history.rows})
        return
    error = last["validation_error"]
    measured = "" if error is None else f", {recipe.validation_split} error {100 * error:.2f} %"
    print(f"{run}: {last['epoch']} epochs, training loss {last['loss']:.4f}{measured}; see {picture}")


def _free_folder(folder: Path) -> Path:
    """The folder, or the first of folder-2, folder-3, … that holds nothing yet."""
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
    return next(path for path in itertools.chain([folder], numbered) if not (path / "run.json").exists())


def reproduce(
    what: Annotated[
        Literal[
            "table1", "table2", "table3", "table4", "figure-percentiles", "figure-weights", "figure-statistics", "all"
        ],
        tyro.conf.Positional,
    ],
    quick: bool = False,
    seeds: Annotated[int | None, tyro.conf.arg(metavar="NUMBER")] = None,
    processes: int = 1,
    ray: bool = False,
    root: Folder = None,
    work: Path = Path("runs/paper"),
    results: Path = Path("results"),
    json: bool = False,
) -> int:
    """Run a table or figure of the paper again, and show how it came out beside the paper.

    What is in the results already, with the same recipe and as many seeds, is not run again; what was cut is resumed.

    Example: nsm reproduce table1 --quick --seeds 1

    Args:
        what: Which table or figure, or all.
        quick: A small version, in minutes on two cores; its numbers are marked and kept apart, in runs/quick.
        seeds: Networks for each row. Default: 5, of a small version 2.
        processes: How many parts to train at the same time on this machine.
        ray: Spread the work over a Ray cluster; RAY_ADDRESS names it.
        root: Folder for data. Default: NSM_DATA, else the platform's cache folder.
        work: Folder of the runs.
        results: Folder of the results.
        json: Print JSON instead of a table.
    """
    seeds = (2 if quick else 5) if seeds is None else seeds
    for option, value in (("--seeds", seeds), ("--processes", processes)):
        if value < 1:
            raise UsageError(f"Expected {option} to be at least 1, but got {value}")
    from nsm.paper.reproduce import reproduce as run_again

    said = functools.partial(print, file=sys.stderr, flush=True)
    places: dict[str, Any] = {"root": root, "work": work, "results": results}
    try:
        found = run_again(what, quick=quick, seeds=seeds, processes=processes, ray=ray, say=said, **places)
    except ValueError as error:
        if not str(error).startswith("Expected Ray"):
            raise
        raise UsageError(str(error)) from None
    if json:
        _print_json(found)
    elif "rows" in found:
        _console().print(_comparison(found["rows"], quick))
        print(f"{found['file']} has all rows")
    for name in found["figures"] if not json else ():
        print(f"{name}: see {found['results']}/figures/{name}.png")
    return 1 if found["not_finished"] else 0


def _comparison(rows: list[dict[str, Any]], quick: bool) -> Any:
    """The table that sets our errors beside the paper's."""
    from rich import box
    from rich.table import Table

    title = "test error in percent" + (" (quick version: not to be compared)" if quick else "")
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("data", "model", "paper", "ours", "n"):
        table.add_column(column, justify="left" if column in ("data", "model") else "right", overflow="fold")
    for row in rows:
        paper = "" if row["paper"] is None else f"{row['paper']:g}"
        spread = "" if row["standard_error"] is None else f" ± {row['standard_error']:.3f}"
        ours = f"– {row['reason']}" if row["mean"] is None else f"{row['mean']:.3f}{spread}"
        table.add_row(row["data"], row["model"], paper, ours, str(row["n"] or ""))
    return table


def bench(
    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="WORK ...")] = (),
    quick: bool = False,
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    json: bool = False,
) -> int:
    """Measure the speed of this machine, beside the networks an NSM replaces.

    Works are mnist-step, mc and memory; on a GPU also cifar-step, epochs, seeds and blankout. The work scaling draws
    time and memory against sizes, and is done only where it is named. A time is printed once its result was checked.

    Example: nsm bench --only mnist-step mc

    Args:
        only: Some works. Default: all that concern this machine.
        quick: Few repeats and small sizes; nothing is kept without --out.
        out: The JSON file, with a PNG and an SVG beside it. Default: results/bench/HARDWARE.json
        json: Print JSON instead of a table.
    """
    from nsm.bench.__main__ import bench

    try:
        return bench(list(only), quick, out, json)
    except ValueError as error:
        if not str(error).startswith("Expected a work"):
            raise
        raise UsageError(str(error)) from None


def completion(shell: Annotated[Literal["bash", "zsh"], tyro.conf.Positional] = "bash") -> None:
    """Print what teaches a shell to complete `nsm` commands and options.

    Example: source <(nsm completion bash)

    Args:
        shell: bash or zsh.
    """
    from nsm.completion import script

    print(script(COMMANDS, shell))


def report(
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")] = Path("report.html"),
    results: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("results"),
    json: bool = False,
) -> None:
    """Make one page of everything that was measured: tables beside the paper's, figures, settings.

    Example: nsm report --out report.html

    Args:
        out: The HTML file, which needs no other.
        results: Folder of the results.
        json: Print the rows and the claims as JSON instead of a sentence.
    """
    if not results.is_dir():
        raise UsageError(f"Expected --results to be a folder of results, but got {results}")
    from nsm.paper import report as paper_report

    findings = paper_report.write(out, results)
    if json:
        _print_json({"file": str(out), **paper_report.summary(findings)})
        return
    run = sum(row["mean"] is not None for row in findings.rows)
    print(f"{out}: {run} of {len(findings.rows)} rows were run, {len(findings.records)} other records")


COMMANDS: dict[str, Any] = {
    "train": {name: _trainer(name) for name in RECIPES},
    "resume": resume,
    "recipes": recipes,
    "evaluate": evaluate,
    "predict": predict,
    "bench": bench,
    "data": {"list": data_list, "get": data_get, "check": data_check, "show": data_show},
    "reproduce": reproduce,
    "report": report,
    "completion": completion,
}
ABOUT = {
    "train": "Train a network by a recipe; `nsm recipes` shows them.",
    "data": "Real data: what there is, fetch it, verify it, look at it.",
}


def _find(name: str) -> Any:
    """The data set of that name; one that does not exist was mistyped."""
    from nsm.data.catalogue import find
    from nsm.data.errors import DataError

    try:
        return find(name)
    except DataError as error:
        raise UsageError(str(error)) from None


@contextlib.contextmanager
def _whole_imports() -> Iterator[None]:
    """Let Ctrl-C wait for modules to load: some swallow it half way, and are broken then."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _print_report(name: str, report: dict[str, Any], json: bool) -> None:
    """What `check` found, as JSON or as a sentence."""
    if json:
        _print_json({"name": name, **report})
        return
    where = f" in {report['where']}" if "where" in report else ""
    samples = ", ".join(f"{report[part]} samples for {part}" for part in ("train", "test") if part in report)
    sums = f"{report['known']} with a known SHA-256, {report['recorded']} recorded now"
    print(f"{name}{where} is sound: {samples}; {report['files']} files, {report['bytes']} bytes, {sums}")


def _print_json(value: Any) -> None:
    print(_json.dumps(value, ensure_ascii=False))


def _console(stderr: bool = False) -> Any:
    from rich.console import Console

    return Console(stderr=stderr)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], Callable[[int, int | None], None]]]:
    """Bars on stderr, one for each thing done; none where stderr is not a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    console = _console(stderr=True)
    first = os.environ.get("LOCAL_RANK", "0") == "0"
    with Progress(*columns, console=console, disable=not (first and console.is_terminal), transient=True) as bars:

        def start(what: str) -> Callable[[int, int | None], None]:
            task = bars.add_task(what, total=None)
            return lambda done, total: bars.update(task, completed=done, total=total)

        yield start
