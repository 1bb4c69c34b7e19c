"""The command line: subcommand → function. It parses and prints, and computes nothing.

A command is a function: its arguments are the options, its docstring is the help, and what it returns is the
exit status. To add one, write it and name it in `COMMANDS`; a dict there is a group of commands.
"""

import contextlib
import difflib
import functools
import io
import itertools
import json as _json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

USAGE, DATA, IO, INTERRUPTED = 2, 3, 4, 130
Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
Folder = Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")]


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
    if not {*split.split("+")} <= {"train", "validation", "test"}:
        raise UsageError(f"Expected --split to be of train, validation, test, joined by +, but got {split}")
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


COMMANDS: dict[str, Any] = {
    "data": {"list": data_list, "get": data_get, "check": data_check, "show": data_show},
}
ABOUT = {"data": "Real data: what there is, fetch it, verify it, look at it."}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the value is the exit status, and errors are one line on stderr."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(arguments, COMMANDS, "nsm") or 0
    except UsageError as error:
        return _fail(error, USAGE)
    except ValueError as error:
        from nsm.data.errors import DataError

        if not isinstance(error, DataError):
            raise
        return _fail(error, DATA)
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone: nobody is left to tell
        return IO
    except OSError as error:
        return _fail(error, IO)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)


def _dispatch(arguments: list[str], commands: dict[str, Any], program: str) -> int | None:
    word = arguments[0] if arguments else "--help"
    if word in ("-h", "--help"):
        print(_help(commands, program))
        return None if arguments else USAGE
    if word == "--version" and program == "nsm":
        from nsm import __version__

        print(__version__)
        return None
    if word not in commands:
        near = difflib.get_close_matches(word, commands, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"Expected a command of `{program}`: {', '.join(commands)}, but got {word}{hint}")
    command = commands[word]
    if isinstance(command, dict):
        return _dispatch(arguments[1:], command, f"{program} {word}")
    return _parse(command, f"{program} {word}", arguments[1:])()


def _parse(command: Callable[..., Any], program: str, arguments: list[str]) -> Callable[[], Any]:
    """The command with the arguments that were typed; what tyro says of wrong ones becomes one line."""
    deferred = functools.wraps(command)(lambda *args, **kwargs: functools.partial(command, *args, **kwargs))
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(deferred, prog=program, args=arguments, config=(tyro.conf.FlagCreatePairsOff,))
    except SystemExit as end:
        if not end.code:
            raise
        lines = [line.strip("│╭╰╮╯ \t") for line in said.getvalue().splitlines()[1:]]
        text = " ".join(itertools.takewhile(lambda line: not line.startswith(("───", "Got errors")), lines))
        raise UsageError(f"{' '.join(text.split())} (see {program} --help)") from None


def _help(commands: dict[str, Any], program: str) -> str:
    def line(word: str, command: Any) -> str:
        return ABOUT[word] if isinstance(command, dict) else command.__doc__.splitlines()[0]

    width = max(map(len, commands))
    lines = [f"  {word:<{width}}  {line(word, command)}" for word, command in commands.items()]
    examples = [
        text.strip().removeprefix("Example: ")
        for command in _functions(commands)
        for text in (command.__doc__ or "").splitlines()
        if text.strip().startswith("Example: ")
    ]
    return "\n".join(
        [
            f"usage: {program} COMMAND …   ({program} COMMAND --help explains one)",
            "",
            *lines,
            "",
            "for example:",
            *(f"  {example}" for example in examples),
        ]
    )


def _functions(commands: dict[str, Any]) -> Iterator[Callable[..., Any]]:
    for command in commands.values():
        yield from _functions(command) if isinstance(command, dict) else [command]


def _find(name: str) -> Any:
    """The data set of that name; one that does not exist was mistyped."""
    from nsm.data.catalogue import find
    from nsm.data.errors import DataError

    try:
        return find(name)
    except DataError as error:
        raise UsageError(str(error)) from None


def _fail(error: object, status: int) -> int:
    if isinstance(error, OSError) and error.filename is not None:
        error = f"{error.strerror}: {error.filename}"  # without the number that only a programmer knows
    text = " ".join(str(error).split()) or type(error).__name__
    print(f"nsm: {text}", file=sys.stderr)
    return status


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
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:

        def start(what: str) -> Callable[[int, int | None], None]:
            task = bars.add_task(what, total=None)
            return lambda done, total: bars.update(task, completed=done, total=total)

        yield start


if __name__ == "__main__":
    sys.exit(main())
