"""Options that several commands share, and what commands print and write."""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from nextlong.errors import NextlongError

if TYPE_CHECKING:
    from rich.console import Console

    from nextlong.engine.progress import Reporter

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

RUN_HELP = "a run directory, or one of its variants: RUN@NAME"
RUNS_HELP = "run directories or variants (RUN@NAME); RUN@*: all variants, or those that match"


def imported(name: str) -> Callable[[argparse.Namespace], int | None]:
    """Return a command, `module:function` of this folder, that is imported when it runs."""
    module, _, function = name.partition(":")

    def command(args: argparse.Namespace) -> int | None:
        code: int | None = getattr(importlib.import_module(f"nextlong.cli.{module}"), function)(args)
        return code

    return command


def check_installed(command: str, names: Sequence[str], *, extra: str) -> None:
    """Raise NextlongError, with the extra that brings them, if packages are missing; none of them is imported."""
    if missing := [name for name in names if importlib.util.find_spec(name) is None]:
        raise NextlongError(f"{command} needs {', '.join(missing)}; pip install 'nextlong[{extra}]'")


def add_set(sub: argparse.ArgumentParser, *, example: str = "compose.target_tokens=65536") -> None:
    """Add `--set`."""
    sub.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=f"set a key of the recipe, e.g. {example}; may be repeated",
    )


def add_json(sub: argparse.ArgumentParser, *, about: str = "print JSON") -> None:
    """Add `--json`."""
    sub.add_argument("--json", action="store_true", help=about)


def console(*, stderr: bool = False) -> Console:
    """Return the console that commands print to."""
    from nextlong.report.tables import PipeConsole

    return PipeConsole(stderr=stderr)


def reporter(*, stderr: bool = False) -> Reporter:
    """Return the reporter of the progress of a run."""
    from nextlong.engine.progress import reporter_for
    from nextlong.pipeline import STEP_TITLES

    return reporter_for(console(stderr=stderr), STEP_TITLES)


def say(message: str) -> None:
    """Print a message to standard output."""
    from nextlong.report import tables

    tables.say(message, console())


def print_json(plain: Any) -> None:
    """Print the output of `--json`; progress and notes go to standard error then."""
    print(json.dumps(plain, indent=1, ensure_ascii=False))


def words(text: str) -> list[str]:
    """Return the words of a comma-separated option."""
    return [word.strip() for word in text.split(",") if word.strip()]


def first_few(names: Sequence[str], *, most: int) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names) if more < 2 else f"{', '.join(names[:most])} and {more} more"


def write(path: Path, content: str | bytes) -> None:
    """Write a file that the user named; text as UTF-8. Raises NextlongError if that is not possible."""
    check_folder_of(path)
    try:
        path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    except OSError as error:
        raise NextlongError(f"{path} cannot be written: {error.strerror}; choose another path") from None


def check_folder_of(path: Path) -> None:
    """Raise NextlongError if the folder of a file does not exist."""
    if not path.parent.is_dir():
        raise NextlongError(
            f"{path} cannot be written: {path.parent} is not a folder; create it, or choose another path"
        )
