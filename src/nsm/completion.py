"""What a shell must know to complete `nsm`: its commands, and the options of each, read off their functions."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import tyro

from nsm.recipes import Recipe

_SCRIPT = """_nsm() {
    local words
    case "${COMP_WORDS[*]:1:COMP_CWORD-1}" in
CASES
    esac
    COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _nsm nsm"""


def script(commands: dict[str, Any], shell: str) -> str:
    """The shell's function that completes these commands; zsh runs bash's."""
    cases = "\n".join(f'        {typed}) words="{" ".join(words)}" ;;' for typed, words in _cases(commands, ""))
    bridge = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    return bridge + _SCRIPT.replace("CASES", cases)


def _cases(commands: dict[str, Any], typed: str) -> Iterator[tuple[str, list[str]]]:
    """What was typed so far, as a pattern, and the words that may follow; the narrower pattern first."""
    for word, command in commands.items():
        path = f"{typed} {word}".strip()
        if isinstance(command, dict):
            yield from _cases(command, path)
        else:
            yield f'"{path}"*', sorted(_options(command))
    yield f'"{typed}"', [*commands, "--help"]


def _options(command: Callable[..., Any]) -> Iterator[str]:
    for name, parameter in inspect.signature(command).parameters.items():
        names = [name]
        if name == "recipe":  # a flag is there to change what is so without it
            on = {field.name for field in fields(Recipe) if getattr(parameter.default, field.name) is True}
            names = [f"no_{field.name}" if field.name in on else field.name for field in fields(Recipe)]
        if tyro.conf.Positional not in getattr(parameter.annotation, "__metadata__", ()):
            yield from (f"--{one.replace('_', '-')}" for one in names)
