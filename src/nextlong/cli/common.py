"""Common: printing and writing for all commands."""

from __future__ import annotations

import importlib.util
import json
import os
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nextlong.errors import NextlongError, RecipeError
from nextlong.report import tables

if TYPE_CHECKING:
    from nextlong.engine.progress import Reporter


def check_installed(command: str, *names: str, extra: str) -> None:
    """Raise NextlongError with the extra to install if packages are missing.

    None of them is imported.
    """
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise NextlongError(
            where=command,
            problem=f"it needs {', '.join(missing)}",
            fix=f"pip install 'nextlong[{extra}]'",
        )


# What commands print to.
console = tables.PipeConsole


def reporter(
    args: Namespace,
    *,
    stderr: bool | None = None,
    lines: Literal["phases", "steps"] = "phases",
) -> Reporter:
    """Return what shows the progress of a command; with -v, every step has a line.

    On standard error if the command prints JSON.
    """
    shown = console(stderr=args.json if stderr is None else stderr)
    if args.verbose or lines == "steps":
        from nextlong.engine.progress import reporter_for
        from nextlong.pipeline import STEP_TITLES

        return reporter_for(shown, STEP_TITLES)
    from nextlong.engine.phases import phases_for
    from nextlong.runs.phases import PHASES

    return phases_for(shown, PHASES)


def present(
    args: Namespace,
    plain: Any,
    shown: str | Callable[[tables.PipeConsole], object] | None = None,
) -> None:
    """Print the result of a command.

    plain: the result of `--json`, or a function that returns it
    shown: a message, or a function that prints to a console; None if the command has
        printed its result itself
    """
    # With --json, progress and notes go to standard error.
    if args.json:
        data = plain() if callable(plain) else plain
        print(json.dumps(data, indent=1, ensure_ascii=False))
    elif isinstance(shown, str):
        tables.say(shown, console())
    elif shown is not None:
        shown(console())


def absolute(path: str | Path) -> str:
    """Return an absolute path.

    Symbolic links are kept, because the user knows their names and not those of their
    targets.
    """
    return os.path.normpath(Path(path).expanduser().absolute())


def first_few(names: Sequence[str], *, max_names: int) -> str:
    """Return the first names and the number of the others."""
    others = len(names) - max_names
    # "and 1 more" would be no shorter than the last name.
    if others < 2:
        return ", ".join(names)
    return f"{', '.join(names[:max_names])} and {others} more"


def write(path: Path, content: str | bytes, *, overwrite: bool = True) -> None:
    """Write a file that the user named; text as UTF-8.

    Raises NextlongError if that is not possible.
    """
    if path.exists() and not overwrite:
        raise already_exists(path)
    check_folder_of(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        path.write_bytes(data)
    except OSError as error:
        raise NextlongError(
            where=path,
            problem=f"it cannot be written: {error.strerror}",
            fix="choose another path",
        ) from None


def already_exists(path: Path) -> RecipeError:
    """Return the error for a file that must not be overwritten."""
    return RecipeError(
        where=path,
        problem="it exists",
        fix="choose another name, or add --force to overwrite it",
    )


def check_folder_of(path: Path) -> None:
    """Raise NextlongError unless the folder of a file to write exists."""
    if not path.parent.is_dir():
        raise NextlongError(
            where=path,
            problem=f"it cannot be written: {path.parent} is not a folder",
            fix="create it or choose another path",
        )
