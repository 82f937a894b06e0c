"""Words: a text as the hashes of its words, and of runs of words.

In:  text. Out: one 64-bit number a word, or a run of n words, equal for equal words whatever their case, on any machine.

Words are hashed as polynomials modulo 2^64, a piece of text at a time in array code.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
Offsets = NDArray[np.int64]

_PIECE_CHARS: Final = 1 << 17  # hashed at a time; its arrays stay in cache
_BASE: Final = 0xD1342543DE82EF95  # odd, hence invertible modulo 2^64
_BASE_INVERSE: Final = pow(_BASE, -1, 1 << 64)
# Scripts written without blanks: each letter counts as a word.
_SOLO_RANGES: Final = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x3400, 0x9FFF),
                       (0xF900, 0xFAFF), (0x20000, 0x3FFFF))  # fmt: skip
_LAST_LETTERS: Final = 0x40000  # behind the planes of letters only tags and private use follow


class Words(NamedTuple):
    """The words of a text, runs of letters and digits: hash and place (characters) of each, shape (w,).

    Every letter is lower-cased by itself: İ, whose lower case is two code points, stays as it is, and a Σ at the end of a
    word is the σ that it is within one.
    """

    hashes: U64
    starts: Offsets
    ends: Offsets


def hash_words(text: str) -> Words:
    """Return the words of a text; equal words have equal hashes, on any machine."""
    pieces, start = [], 0
    while start < len(text):
        end = _piece_end(text, start)
        pieces.append(_hash_piece(text[start:end], start))
        start = end
    if not pieces:
        return Words(np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64))
    return Words(*map(np.concatenate, zip(*pieces, strict=True)))


def _piece_end(text: str, start: int) -> int:
    """Return where a piece from `start` on ends: in no word, however long that is."""
    end = start + _PIECE_CHARS
    if end >= len(text):
        return len(text)
    blank = max(text.rfind("\n", start, end), text.rfind(" ", start, end)) + 1
    if blank:
        return blank
    while end < len(text) and text[end].isalnum():
        end += 1
    return end


def _hash_piece(text: str, offset: int) -> tuple[U64, Offsets, Offsets]:
    """Hash words as polynomials modulo 2^64, all at once: sums of their letters, shifted back to power 0."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    letters = _letters().take(codes, mode="clip")  # none is higher; half the time of checking
    starts, ends = _word_bounds(codes, letters != 0)
    up, down = powers(max(_PIECE_CHARS, 1 << (len(letters) - 1).bit_length()))
    letters *= up[: len(letters)]
    sums = np.add.reduceat(letters, starts) if len(starts) else letters[:0]  # what parts words counts 0
    return mix(sums * down[starts]), starts + offset, ends + offset


def _word_bounds(codes: NDArray[np.uint32], is_letter: NDArray[np.bool_]) -> tuple[Offsets, Offsets]:
    inside = np.zeros(len(codes) + 2, np.bool_)
    inside[1:-1] = is_letter
    high = np.flatnonzero(codes >= _SOLO_RANGES[0][0])  # few in most texts: curly quotes, dashes
    high = high[_is_solo().take(codes[high])]
    if not len(high):
        edges = np.flatnonzero(inside[1:] != inside[:-1])
        return edges[::2], edges[1::2]
    solo = np.zeros_like(inside)
    solo[high + 1] = True
    breaks = solo[1:] | solo[:-1]
    starts = np.flatnonzero(inside[1:] & (~inside[:-1] | breaks))
    ends = np.flatnonzero(inside[:-1] & (~inside[1:] | breaks))
    return starts, ends


@lru_cache(maxsize=1)
def _letters() -> U64:
    """Return a random number for each code point, the same for both cases of a letter; 0 for what parts words."""
    folded = np.zeros(sys.maxunicode + 1, np.uint64)
    for code in range(_LAST_LETTERS):
        if chr(code).isalnum():
            lower = chr(code).lower()
            folded[code] = ord(lower) if len(lower) == 1 else code
    return np.where(folded > 0, mix(folded * np.uint64(_BASE)), np.uint64(0))


@lru_cache(maxsize=1)
def _is_solo() -> NDArray[np.bool_]:
    """Return for each code point whether it is a word by itself."""
    solo = np.zeros(sys.maxunicode + 1, np.bool_)
    for first, last in _SOLO_RANGES:
        solo[first : last + 1] = True
    return solo


@lru_cache(maxsize=3)  # that of a piece, of a longer word, of the passages of a draft
def powers(count: int) -> tuple[U64, U64]:
    """Return the powers 0, 1, 2 … of the base and of its inverse, modulo 2^64, shape (count,) each."""
    up, down = np.full((2, count), np.uint64(_BASE))
    down[:] = _BASE_INVERSE
    up[0] = down[0] = 1
    return np.multiply.accumulate(up), np.multiply.accumulate(down)


def mix(values: U64) -> U64:
    """Return numbers that differ in all bits where the given ones differ in any (SplitMix64's finalizer)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def ngrams(word_hashes: U64, n: int) -> U64:
    """Return the hash of every run of n words, shape (w − n + 1,), by place of its first; shape (0,) if there is none."""
    runs = max(len(word_hashes) - n + 1, 0)
    rolled = word_hashes[:runs].copy()
    for step in range(1, n):
        rolled *= np.uint64(_BASE)
        rolled += word_hashes[step : step + runs]
    return mix(rolled ^ np.uint64(n))


def bounds_of(words: Words, texts: Sequence[str]) -> Offsets:
    """Return where the words of each of m texts begin, and all end, shape (m + 1,); `words` are those of "\\n".join(texts)."""
    ends_of_texts = np.cumsum([len(text) + 1 for text in texts], dtype=np.int64)
    return np.concatenate([[0], np.searchsorted(words.starts, ends_of_texts)])


def runs_on(bounds: Offsets, n: int) -> NDArray[np.bool_]:
    """Return for each word whether n words from it on belong to the same text, shape (w,)."""
    left = np.repeat(bounds[1:], np.diff(bounds)) - np.arange(bounds[-1])
    runs: NDArray[np.bool_] = left >= n
    return runs
