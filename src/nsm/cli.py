"""The command line: subcommand → function. It parses, turns errors into one line and a status, and computes nothing."""

import contextlib
import difflib
import functools
import io
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tyro

from nsm.commands import ABOUT, COMMANDS
from nsm.commands.saying import UsageError

USAGE, DATA, IO, DIVERGED, INTERRUPTED = 2, 3, 4, 5, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the value is the exit status, and errors are one line on stderr."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    return status_of(lambda: _dispatch(arguments, COMMANDS, "nsm"))


def status_of(act: Callable[[], int | None]) -> int:
    """Do something, and turn what goes wrong into one line on stderr and an exit status."""
    try:
        return act() or 0
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
    except ArithmeticError as error:
        from nsm.processes import Diverged

        if not isinstance(error, Diverged):
            raise
        return _fail(error, DIVERGED)
    except KeyboardInterrupt as cut:  # a training run that was saved says by which signal, and how to go on
        return _fail(str(cut) or "interrupted", 128 + getattr(cut, "signal", INTERRUPTED - 128))


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
        plain = re.sub(r"\x1b\[[0-9;]*m", "", said.getvalue())  # tyro colours what a terminal may show
        lines = [line.strip("│╭╰╮╯ \t") for line in plain.splitlines()[1:]]
        text = " ".join(itertools.takewhile(lambda line: not line.startswith(("───", "Got errors")), lines))
        similar = itertools.dropwhile(lambda line: not line.startswith("Perhaps you meant"), lines)
        near = next((f"; did you mean {line.split()[0]}?" for line in similar if line.startswith("--")), "")
        said_shortly = " ".join(text.split()).removeprefix("Error parsing recipe: ")
        raise UsageError(f"{said_shortly}{near} (see {program} --help)") from None


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


def _fail(error: object, status: int) -> int:
    if isinstance(error, OSError) and error.strerror:  # without the number that only a programmer knows
        error = error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    text = " ".join(str(error).split()) or type(error).__name__
    ranks = (os.environ.get(name, "0") for name in ("LOCAL_RANK", "SLURM_LOCALID"))
    if set(ranks) == {"0"}:  # of several processes one speaks on every machine: it may be the only one that fails
        print(f"nsm: {text}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
