"""`nsm train`, `resume` and `recipes`."""

import itertools
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import tyro

from nsm.commands.saying import (
    Folder,
    Run,
    UsageError,
    bars,
    check_split,
    find_data,
    open_console,
    print_json,
    whole_imports,
)
from nsm.recipes import MNIST_CNN, RECIPES, Recipe, nearest


def trainer(name: str) -> Callable[..., None]:
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
    fall = " --schedule-epochs 10" if default.schedule in ("linear", "cosine") else ""
    train.__doc__ = f"""{about}.

    {lead}: nsm train {name} --epochs 20 --lr 1e-3{fall} --run runs/{name}

    Args:
        recipe: What to do.
        run: Folder of the run. Default: runs/{name}, or a number more where that is taken.
        root: Folder for data. Default: NSM_DATA, else the platform's cache folder.
        json: Print JSON instead of a sentence.
    """
    return train


def resume(run: Run, root: Folder = None, json: bool = False) -> None:
    """Go on with a run that was cut; it ends as if it had not been.

    Example: nsm resume runs/mnist-cnn

    Args:
        run: Folder of the run.
        root: Folder for data. Default: NSM_DATA, else the platform's cache folder.
        json: Print JSON instead of a sentence.
    """
    from nsm.checkpoint import check_data, read_recipe

    check_data(run)
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
        print_json({one: {"about": about, **recipe.to_dict()} for one, (about, recipe) in shown.items()})
        return
    from rich import box
    from rich.table import Table

    table, console = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)), open_console()
    if name:
        table.add_column("option")
        table.add_column(f"in {name}")
        for key, value in RECIPES[name][1].to_dict().items():
            turn = "no-" if value is True else ""  # a flag is there to change what is so without it
            table.add_row(f"--{turn}{key.replace('_', '-')}", "not given" if isinstance(value, bool) else str(value))
    else:
        for column in ("name", "about", "epochs", "batch", "lr"):
            if column != "about" or console.width >= 60:
                number = column not in ("name", "about")
                table.add_column(column, no_wrap=number, min_width=6 if number else None, overflow="fold")
        for one, (about, recipe) in shown.items():
            cells = {"name": one, "about": about, "epochs": recipe.epochs, "batch": recipe.batch_size, "lr": recipe.lr}
            table.add_row(*(str(cells[str(column.header)]) for column in table.columns))
    console.print(table)


def _train(recipe: Recipe, run: Path, root: Path | None, json: bool, resume: bool = False) -> None:
    find_data(recipe.data)
    for option, split in (("--train-split", recipe.train_split), ("--validation-split", recipe.validation_split)):
        if split is not None:
            check_split(split, option)
    with whole_imports():
        from nsm.data import DataError
        from nsm.processes import Interrupted, is_first_process
        from nsm.training import train

    try:
        with bars() as progress:
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
        print_json({"run": str(run), "picture": str(picture), "history": history.rows})
        return
    error = last["validation_error"]
    measured = "" if error is None else f", {recipe.validation_split} error {100 * error:.2f} %"
    print(f"{run}: {last['epoch']} epochs, training loss {last['loss']:.4f}{measured}; see {picture}")


def _free_folder(folder: Path) -> Path:
    """The folder, or the first of folder-2, folder-3, … that holds nothing yet."""
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
    return next(path for path in itertools.chain([folder], numbered) if not (path / "run.json").exists())
