"""The command `nextlong completion`: what makes a shell complete commands, options and paths."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nextlong.cli.asked import add_json, print_json

_SHELLS = ("bash", "zsh", "fish")


def add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], parser_of: Callable[[], argparse.ArgumentParser]
) -> None:
    """Add the command to the parser; `parser_of` makes the parser that is completed."""
    completion = commands.add_parser(
        "completion",
        help="print the completion script of a shell",
        description='bash: eval "$(nextlong completion bash)" in ~/.bashrc  ·  '
        "zsh: nextlong completion zsh > a folder of $fpath, as _nextlong  ·  "
        "fish: nextlong completion fish > ~/.config/fish/completions/nextlong.fish",
    )
    completion.add_argument("shell", choices=_SHELLS)
    add_json(completion, about="print it within JSON")
    completion.set_defaults(command=lambda asked: _completion(asked, parser_of()))


def _completion(asked: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    import shtab

    _complete_paths(parser, shtab.FILE)
    script = shtab.complete(parser, shell=asked.shell)
    if asked.json:
        print_json({"shell": asked.shell, "script": script})
    else:
        print(script)


def _complete_paths(parser: argparse.ArgumentParser, files: Mapping[str, Any]) -> None:
    """Say of every argument that is a path that files complete it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                _complete_paths(sub, files)
        elif action.type is Path:
            action.complete = files  # type: ignore[attr-defined] # shtab's own attribute
