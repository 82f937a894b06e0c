"""Words: texts → the lower-case words that LSA counts, as one Arrow array.

A word is a run of letters, digits, underscores and marks, of two characters or more; runs of a script without spaces become
their pairs of characters. Cut by NumPy over whole batches, from tables that say of each code point what becomes of it.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

SPACE: Final = 0x20
# Scripts written without spaces between words: Thai to Myanmar, Khmer, kana, Han, Hangul, their compatibility forms and
# the Han planes. Hangul has spaces, but its endings stick to its words.
UNSPACED: Final = (
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3005, 0x3007), (0x3040, 0x30FF), (0x31F0, 0x31FF),
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xAC00, 0xD7AF), (0xF900, 0xFAFF), (0xFF66, 0xFF9F), (0x20000, 0x3FFFF),
)  # fmt: skip


def cut_words(texts: Sequence[str]) -> tuple[Any, NDArray[np.int64]]:
    """Cut texts into lower-case words of two characters or more.

    Returns all words as one Arrow array of UTF-32 bytes, and where each text's begin, shape (n + 1,). A word is a run
    of letters, digits, underscores and marks; runs of a script without spaces become their pairs of characters.
    """
    characters = "\n".join(texts).encode("utf-32-le", "surrogatepass")
    codes = _LOWERED.take(
        np.frombuffer(characters, np.uint32), mode="clip"
    )  # none is higher; half the time of checking
    bounds = np.cumsum([0, *(len(text) + 1 for text in texts)])
    high = np.flatnonzero(
        codes >= UNSPACED[0][0]
    )  # few in most texts: what is not of Latin, Greek, Cyrillic, Hebrew, Arabic …
    if len(unspaced := high[_UNSPACED.take(codes[high])]):
        codes, bounds = _pair_unspaced(codes, bounds, unspaced)
    inside = codes != SPACE
    edges = np.flatnonzero(np.diff(inside, prepend=False, append=False))
    firsts, lengths = edges[::2], edges[1::2] - edges[::2]
    inside[firsts[lengths == 1]] = False
    firsts, lengths = firsts[lengths > 1], lengths[lengths > 1]
    offsets = np.concatenate([[0], np.cumsum(lengths)]) * 4
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(codes[inside])]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(firsts), buffers), np.searchsorted(firsts, bounds)


def cut_ascii_words(texts: Sequence[str]) -> tuple[Any, NDArray[np.int64]]:
    """Cut texts of nothing but ASCII in half the time: words as bytes, those of one character too, and where each text's begin."""
    letters = "\n".join(texts).encode("ascii").translate(_LOWERED_ASCII)
    inside = np.zeros(len(letters) + 2, np.bool_)
    np.not_equal(np.frombuffer(letters, np.uint8), SPACE, out=inside[1:-1])
    edges = np.flatnonzero(inside[1:] != inside[:-1])
    firsts = edges[::2]
    offsets = np.concatenate([[0], np.cumsum(edges[1::2] - firsts)])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(letters.translate(None, b" "))]
    bounds = np.cumsum([0, *(len(text) + 1 for text in texts)])
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(firsts), buffers), np.searchsorted(firsts, bounds)


def _pair_unspaced(
    codes: NDArray[np.uint32], bounds: NDArray[np.int64], unspaced: NDArray[np.int64]
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Write each run abc of a script without spaces as `ab bc`, apart from the words beside it, and move the bounds.

    `unspaced` says where such characters stand, ascending.
    """
    ends_run = np.diff(unspaced, append=len(codes) + 1) > 1
    begins_run = np.concatenate([[True], ends_run[:-1]])
    last, before = unspaced[ends_run], unspaced[begins_run] - 1
    last, before = last[last + 1 < len(codes)], before[before >= 0]
    apart = np.concatenate([last[codes[last + 1] != SPACE], before[codes[before] != SPACE]])  # c → c␣
    inner = unspaced[~ends_run & ~begins_run]  # c → c␣c
    at = np.concatenate([apart, inner, inner]) + 1
    order = np.argsort(at, kind="stable")
    inserted = np.concatenate([np.full(len(apart) + len(inner), SPACE, np.uint32), codes[inner]])[order]
    return np.insert(codes, at[order], inserted), bounds + np.searchsorted(at[order], bounds, side="right")


def _lowered() -> NDArray[np.uint32]:
    """Return what becomes of each code point: its lower case if it can stand in a word, else a space."""
    table = np.arange(sys.maxunicode + 1, dtype=np.uint32)
    for code in range(0x20000):
        letter = chr(code)
        if letter.isalnum() or letter == "_" or unicodedata.category(letter)[0] == "M":
            lower = letter.lower()
            table[code] = ord(lower) if len(lower) == 1 else code
        else:
            table[code] = SPACE
    table[0x40000:] = SPACE  # tags and private use; between lie the Han planes
    table[ord("ς")] = ord("σ")
    return table


def _unspaced() -> NDArray[np.bool_]:
    table = np.zeros(sys.maxunicode + 1, np.bool_)
    for first, last in UNSPACED:
        table[first : last + 1] = True
    return table


# Made where the module is imported: once, by the server that workers are forked from.
_LOWERED: Final = _lowered()
_UNSPACED: Final = _unspaced()
_LOWERED_ASCII: Final = bytes(_LOWERED[:128].tolist()).ljust(256)
