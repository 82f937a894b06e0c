"""Common: printing and writing for all commands."""

from __future__ import annotations

import importlib.util
import json
import os
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nextlong.errors import NextlongError
from nextlong.report import tables

if TYPE_CHECKING:
    from nextlong.engine.progress import Reporter


def check_installed(command: str, *names: str, extra: str) -> None:
    """Raise NextlongError with the extra to install if packages are missing; none of them is imported."""
    if missing := [name for name in names if importlib.util.find_spec(name) is None]:
        raise NextlongError(
            f"{command} needs {', '.join(missing)}; pip install 'nextlong[{extra}]'"
        )


console = tables.PipeConsole  # what commands print to


def reporter(*, stderr: bool = False) -> Reporter:
    from nextlong.engine.progress import reporter_for
    from nextlong.pipeline import STEP_TITLES

    return reporter_for(console(stderr=stderr), STEP_TITLES)


def present(
    args: Namespace,
    plain: Any,
    shown: str | Callable[[tables.PipeConsole], object] | None = None,
) -> None:
    """Print the result of a command: with `--json` plain data (or the result of calling it), else a message or a printing function.

    Without `shown`, the command has printed its result itself.
    """
    if args.json:  # progress and notes go to standard error then
        print(
            json.dumps(
                plain() if callable(plain) else plain, indent=1, ensure_ascii=False
            )
        )
    elif isinstance(shown, str):
        tables.say(shown, console())
    elif shown is not None:
        shown(console())


def absolute(path: str | Path) -> str:
    """Return an absolute path; symbolic links are kept, because the user knows their names and not those of their targets."""
    return os.path.normpath(Path(path).expanduser().absolute())


def first_few(names: Sequence[str], *, most: int) -> str:
    """Return the first names and the number of the others."""
    more = len(names) - most
    return (
        ", ".join(names) if more < 2 else f"{', '.join(names[:most])} and {more} more"
    )


def write(path: Path, content: str | bytes, *, overwrite: bool = True) -> None:
    """Write a file that the user named; text as UTF-8. Raises NextlongError if that is not possible."""
    if path.exists() and not overwrite:
        raise NextlongError(
            f"{path} exists; choose another name, or add --force to overwrite it"
        )
    check_folder_of(path)
    try:
        path.write_bytes(
            content.encode("utf-8") if isinstance(content, str) else content
        )
    except OSError as error:
        raise NextlongError(
            f"{path} cannot be written: {error.strerror}; choose another path"
        ) from None


def check_folder_of(path: Path) -> None:
    if not path.parent.is_dir():
        cure = "create it or choose another path"
        raise NextlongError(
            f"{path} cannot be written: {path.parent} is not a folder; {cure}"
        )
