"""Wrap: text for the width of a terminal."""

from __future__ import annotations

import textwrap


def wrapped(text: str, cells: int) -> list[str]:
    """Return the lines of a text in parts of at most so many characters; words that are longer stay whole."""
    return [part for line in text.split("\n") for part in _parts(line, cells)]


def _parts(line: str, cells: int) -> list[str]:
    return textwrap.wrap(line, cells, break_long_words=False, break_on_hyphens=False) or [""]
