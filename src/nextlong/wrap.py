"""Wrap: text for the width of a terminal."""

from __future__ import annotations

import textwrap
from typing import Final

HANGING: Final = "  "  # before what goes on below a message's first line


def wrapped(text: str, cells: int, *, indent: str = "") -> list[str]:
    """Return the lines of a text in parts of at most so many characters; words that are longer stay whole.

    `indent` stands before all but the first part of a line.
    """
    return [part for line in text.split("\n") for part in _parts(line, cells, indent)]


def _parts(line: str, cells: int, indent: str) -> list[str]:
    return textwrap.wrap(line, cells, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) or [""]
