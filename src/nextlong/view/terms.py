"""Terms: what a search box asks for: all of its words, and phrases in quotes; case does not matter.

In:  `supply "market price"`, and texts. Out: which texts contain every term; a snippet around the first of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_TERM = re.compile(r'"([^"]+)"?|(\S+)')
_BEFORE, _AFTER = 60, 160  # characters of a snippet around the first term


class Snippet(NamedTuple):
    """A part of a text in pieces, with whether each piece is a term."""

    pieces: list[tuple[str, bool]]


def parse(text: str) -> list[str]:
    """Return the words and quoted phrases of a search box."""
    return [phrase or word for phrase, word in _TERM.findall(text)]


def contain(texts: NDArray[Any] | Sequence[str] | pa.Array, text: str) -> NDArray[np.bool_]:
    """Return which of n texts contain every term, shape (n,)."""
    column = texts if isinstance(texts, pa.Array) else pa.array(texts, pa.large_string())
    found = np.ones(len(column), np.bool_)
    for term in parse(text):
        found &= pc.match_substring(column, term, ignore_case=True).to_numpy(zero_copy_only=False)
    return found


def snippet(text: str, wanted: str) -> Snippet:
    """Return the text around the first term, all terms marked; the beginning of the text where there is none."""
    parsed = sorted(parse(wanted), key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, parsed)), re.IGNORECASE) if parsed else None
    first = pattern.search(text) if pattern else None
    start = max(0, first.start() - _BEFORE) if first else 0
    end = (first.end() if first else 0) + _AFTER
    shown = ("…" if start else "") + " ".join(text[start:end].split()) + ("…" if end < len(text) else "")
    pieces: list[tuple[str, bool]] = []
    done = 0
    for found in pattern.finditer(shown) if pattern else ():
        pieces += [(shown[done : found.start()], False), (found[0], True)]
        done = found.end()
    return Snippet([*pieces, (shown[done:], False)])
