"""Asked: what several commands ask in the same way, and the files that they are asked to write."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Literal

from nextlong.errors import NextlongError


def add_recipe(sub: argparse.ArgumentParser, *, needed: Literal["always", "a preset will do"] = "always") -> None:
    """Add a recipe, and what is set in it."""
    sub.add_argument("recipe", type=Path, nargs=None if needed == "always" else "?")
    sub.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="e.g. compose.target_tokens=65536",
    )


def add_json(sub: argparse.ArgumentParser, *, about: str = "print JSON") -> None:
    """Add `--json`."""
    sub.add_argument("--json", action="store_true", help=about)


def print_json(plain: Any) -> None:
    """Print what `--json` asks for; progress and notes are not for standard output then."""
    print(json.dumps(plain, indent=1, ensure_ascii=False))


def write(path: Path, content: str | bytes) -> None:
    """Write a file that a command was asked for; text as UTF-8. Raises NextlongError where that is not possible."""
    check_folder_of(path)
    try:
        path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    except OSError as error:
        raise NextlongError(f"{path} cannot be written: {error.strerror}; choose another place") from None


def check_folder_of(path: Path) -> None:
    if not path.parent.is_dir():
        raise NextlongError(
            f"{path} cannot be written: {path.parent} is not a folder; create it, or choose another place"
        )
