"""Words: the words of texts, as numbers, and the numbers of runs of them; the rule is docs/decisions/0005-near-copies.md.

In:  texts. Out: one 64-bit number a word, equal for equal words whatever their case.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.uint64]

RUN_WORDS = 3
_BASE = np.uint64(0xD1342543DE82EF95)
_BASE_INVERSE = np.uint64(pow(int(_BASE), -1, 1 << 64))
_BATCH_CHARS = 1 << 16
_LEAST_BITS = 17  # of a code point: letters of all scripts but rare Han are below
# Thai and Lao, Burmese, Khmer, kana, Han: written without blanks, so that each letter is a word.
_ALONE = (
    *(range(0x0E00, 0x0F00), range(0x1000, 0x10A0), range(0x1780, 0x1800), range(0x3040, 0x3100)),
    *(range(0x3400, 0xA000), range(0xF900, 0xFB00), range(0x20000, 0x40000)),
)


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


def runs_within(words: Sequence[Numbers]) -> tuple[Numbers, NDArray[np.int64]]:
    """Return the runs of some texts, one text's after the other's, and which of the texts each is of, shape (r,) each."""
    text_of_word = np.repeat(np.arange(len(words)), [*map(len, words)])
    is_within = text_of_word[RUN_WORDS - 1 :] == text_of_word[: -RUN_WORDS + 1]
    numbers = runs_of(np.concatenate([np.empty(0, np.uint64), *words]))
    return numbers[is_within], text_of_word[: len(is_within)][is_within]


def _batch(texts: Sequence[str]) -> list[Numbers]:
    codes = np.frombuffer("\n".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    bits = max(_LEAST_BITS, int(codes.max(initial=0)).bit_length())
    terms = _terms(bits)[codes]
    begins = terms != 0
    begins[1:] &= terms[:-1] == 0
    high = np.flatnonzero(codes >= _ALONE[0].start)
    alone = high[_is_alone(bits)[codes[high]]]
    after = alone[alone + 1 < len(codes)] + 1
    begins[alone], begins[after] = True, terms[after] != 0
    firsts = np.flatnonzero(begins)
    text_starts = np.cumsum([0, *(len(text) + 1 for text in texts[:-1])])
    cuts = np.searchsorted(firsts, text_starts[1:])
    if not len(firsts):
        return [np.empty(0, np.uint64) for _ in texts]
    # Σ term · B^(place in the word): by the places in the batch, then divided by B^(place of the word); what parts words adds 0.
    powers = _powers(_BASE, len(codes).bit_length())[: len(codes)]
    sums = np.add.reduceat(terms * powers, firsts)
    return np.split(_mixed(sums * _powers(_BASE_INVERSE, len(codes).bit_length())[firsts]), cuts)


@cache
def _terms(bits: int) -> Numbers:
    """Return what each code point below 2^bits adds to the number of its word, 0 if it parts words, shape (2^bits,).

    Made for the largest code point that was met: all of Unicode takes half a second.
    """
    letters = np.zeros(1 << bits, np.bool_)
    lower = np.arange(1 << bits, dtype=np.uint64)
    for code, letter in enumerate(map(chr, range(min(1 << bits, sys.maxunicode + 1)))):
        if letter.isalnum():
            letters[code] = True
            if len(small := letter.lower()) == 1:
                lower[code] = ord(small)
    return _mixed(lower * _BASE) * letters


@cache
def _is_alone(bits: int) -> NDArray[np.bool_]:
    """Return which code points below 2^bits are a word by themselves, shape (2^bits,)."""
    alone = np.zeros(1 << bits, np.bool_)
    for codes in _ALONE:
        alone[codes.start : codes.stop] = _terms(bits)[codes.start : codes.stop] != 0
    return alone


@lru_cache(maxsize=4)  # a long text's need no less memory than the text's own arrays
def _powers(base: np.uint64, bits: int) -> Numbers:
    """Return the powers of a base, modulo 2^64, from that of 0 on, shape (2^bits,)."""
    factors = np.full(1 << bits, base)
    factors[0] = 1
    return np.multiply.accumulate(factors)


def _mixed(numbers: Numbers) -> Numbers:
    """Return the numbers mixed by the finalizer of SplitMix64 (Steele, Lea, Flood 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))
