"""What commands have in common: how they speak, and what they say of a wrong word."""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import tyro

Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
Folder = Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")]
Run = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]


class UsageError(Exception):
    """What was typed does not make a command."""


def find_data(name: str) -> Any:
    """The data set of that name; one that does not exist was mistyped."""
    from nsm.data.catalogue import find
    from nsm.data.errors import DataError

    try:
        return find(name)
    except DataError as error:
        raise UsageError(str(error)) from None


@contextlib.contextmanager
def whole_imports() -> Iterator[None]:
    """Let Ctrl-C wait for modules to load: some swallow it half way, and are broken then."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def print_json(value: Any) -> None:
    """One line."""
    print(json.dumps(value, ensure_ascii=False))


def open_console(stderr: bool = False) -> Any:
    """Where tables are printed."""
    from rich.console import Console

    return Console(stderr=stderr)


@contextlib.contextmanager
def bars() -> Iterator[Callable[[str], Callable[[int, int | None], None]]]:
    """Bars on stderr, one for each thing done; none where stderr is not a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    console = open_console(stderr=True)
    first = os.environ.get("LOCAL_RANK", "0") == "0"
    with Progress(*columns, console=console, disable=not (first and console.is_terminal), transient=True) as shown:

        def start(what: str) -> Callable[[int, int | None], None]:
            task = shown.add_task(what, total=None)
            return lambda done, total: shown.update(task, completed=done, total=total)

        yield start


def tell_if_unfinished(run: Path) -> None:
    """Say on stderr if the network of a run has not learned all that it is to learn."""
    from nsm.checkpoint import check_data, read

    check_data(run)
    saved = read(run)
    done, epochs = saved.progress["epoch"], saved.recipe.epochs
    if done < epochs:
        print(f"{run} stands in epoch {done + 1} of {epochs}; to go on: nsm resume {run}", file=sys.stderr)


def check_split(split: str, option: str = "--split") -> None:
    """Refuse what names no part of a data set, or one twice."""
    parts = split.split("+")
    if not {*parts} <= {"train", "validation", "test"} or len({*parts}) < len(parts):
        raise UsageError(f"Expected {option} to be of train, validation, test, joined by +, but got {split}")
