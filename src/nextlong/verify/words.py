"""Words: the words of texts, as numbers, and the numbers of runs of them; the rule is docs/decisions/0005-near-copies.md.

In:  texts. Out: one 64-bit number a word, equal for equal words whatever their case.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.uint64]

RUN_WORDS = 3
_BASE = np.uint64(0xD1342543DE82EF95)
_BATCH_CHARS = 1 << 18
# Thai and Lao, Burmese, Khmer, kana, Han: written without blanks, so that each letter is a word.
_ALONE = (
    *(range(0x0E00, 0x0F00), range(0x1000, 0x10A0), range(0x1780, 0x1800), range(0x3040, 0x3100)),
    *(range(0x3400, 0xA000), range(0xF900, 0xFB00), range(0x20000, 0x40000)),
)
_LETTER, _WORD = 1, 2  # kinds of code points: a letter or digit, and one that is a word by itself; 0 parts words


def words_of(texts: Sequence[str]) -> list[Numbers]:
    """Return the numbers of the words of each text, in reading order."""
    numbers: list[Numbers] = []
    first, held = 0, 0
    for place, text in enumerate(texts):
        held += len(text)
        if held >= _BATCH_CHARS or place == len(texts) - 1:
            numbers += _batch(texts[first : place + 1])
            first, held = place + 1, 0
    return numbers


def runs_of(words: Numbers) -> Numbers:
    """Return the number of each run of three words, shape (w − 2,)."""
    numbers = np.zeros(max(0, len(words) - RUN_WORDS + 1), np.uint64)
    for step in range(RUN_WORDS):
        numbers = numbers * _BASE + words[step : step + len(numbers)]
    return _mixed(numbers ^ np.uint64(RUN_WORDS))


def _batch(texts: Sequence[str]) -> list[Numbers]:
    codes = np.frombuffer("\n".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    kinds, lower = _tables()
    kind = kinds[codes]
    begins = kind == _WORD
    begins |= (kind == _LETTER) & np.append(True, kind[:-1] != _LETTER)
    letters = np.flatnonzero(kind)
    firsts = np.flatnonzero(begins[letters])
    text_starts = np.cumsum([0, *(len(text) + 1 for text in texts[:-1])])
    cuts = np.searchsorted(letters[firsts], text_starts[1:])
    if not len(firsts):
        return [np.empty(0, np.uint64) for _ in texts]
    sizes = np.diff(firsts, append=len(letters))
    places = np.arange(len(letters)) - np.repeat(firsts, sizes)
    terms = _mixed(lower[codes[letters]].astype(np.uint64) * _BASE) * _powers(int(sizes.max()))[places]
    return np.split(_mixed(np.add.reduceat(terms, firsts)), cuts)


@lru_cache(maxsize=1)
def _tables() -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """Return the kind and the lower case of each code point; where that is several code points, the letter itself."""
    kinds = np.zeros(sys.maxunicode + 1, np.uint8)
    lower = np.arange(sys.maxunicode + 1, dtype=np.uint32)
    for code, letter in enumerate(map(chr, range(sys.maxunicode + 1))):
        if letter.isalnum():
            kinds[code] = _LETTER
            if len(small := letter.lower()) == 1:
                lower[code] = ord(small)
    for alone in _ALONE:
        kinds[alone.start : alone.stop] *= _WORD
    return kinds, lower


@lru_cache(maxsize=4)
def _powers(count: int) -> Numbers:
    """Return the powers 0 … count − 1 of the base, modulo 2^64."""
    factors = np.full(count, _BASE)
    factors[0] = 1
    return np.multiply.accumulate(factors)


def _mixed(numbers: Numbers) -> Numbers:
    """Return the numbers mixed by the finalizer of SplitMix64 (Steele, Lea, Flood 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))
