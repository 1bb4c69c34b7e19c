"""The commands of `nsm`: each is a function that reads its arguments, calls one thing, and prints what came of it.

Its arguments are the options, its docstring is the help, and what it returns is the exit status. To add one, write it
and name it in `COMMANDS`; a dict there is a group of commands.
"""

from typing import Annotated, Any, Literal

import tyro

from nsm.commands.data import data_check, data_get, data_list, data_show
from nsm.commands.inference import evaluate, predict
from nsm.commands.learning import recipes, resume, trainer
from nsm.commands.measuring import bench, report, reproduce
from nsm.recipes import RECIPES


def completion(shell: Annotated[Literal["bash", "zsh"], tyro.conf.Positional] = "bash") -> None:
    """Print what teaches a shell to complete `nsm` commands and options.

    Example: source <(nsm completion bash)

    Args:
        shell: bash or zsh.
    """
    from nsm.completion import script

    print(script(COMMANDS, shell))


COMMANDS: dict[str, Any] = {
    "train": {name: trainer(name) for name in RECIPES},
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
