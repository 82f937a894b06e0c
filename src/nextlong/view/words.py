"""Words: which texts contain what is searched for, from an index of their words.

In:  texts. Out: a record batch of WORDS, the distinct words of these texts, each with
the texts that it occurs in; and for a term, the texts that can contain it.

A search is for substrings, and ignores case. A term without separators, such as
`photosynth`, lies within one word of a text that contains it, so it is searched for in
the distinct words alone: a tenth of the text or less. The words of a phrase only narrow
the texts down, and the caller reads those. Decision 0027 compares this with the
full-text search of SQLite, tantivy and DuckDB.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nextlong.arrays import Bools

# One row per word of some texts, with case folded; `texts` are ascending.
WORDS: Final = pa.schema([("word", pa.string()), ("texts", pa.list_(pa.uint16()))])
# Of one batch, so that 16 bits number its texts: about 12 MB, half a second to index.
MAX_TEXTS: Final = 1 << 13

# What ends a word: white space, and punctuation of ASCII, of U+20xx and of Chinese and
# Japanese. None of it has a case, so a term ends in the same places as a text that
# contains it. The same pattern for Python and for Arrow.
_SEPARATORS: Final = "[\x01-/:-@\\[-`{-\x7f\u2000-\u206f\u3000-\u303f]+"
_TEXT_BITS: Final = 16
_TEXT_MASK: Final = (1 << _TEXT_BITS) - 1
# Pairs of one character each that Unicode also calls equal.
_EQUAL: Final = {"\u1fd3": "\u0390", "\u1fe3": "\u03b0", "\ufb05": "\ufb06"}


def index_words(texts: Sequence[str]) -> pa.RecordBatch:
    """Return the WORDS of at most MAX_TEXTS texts."""
    column = pa.array(texts, pa.large_string())
    words_of_texts = pc.split_pattern_regex(column, _SEPARATORS)
    words_per_text = np.diff(words_of_texts.offsets.to_numpy())
    as_written = words_of_texts.flatten().dictionary_encode()
    folded = pa.array(map(fold, as_written.dictionary.to_pylist()), pa.string())
    distinct = folded.dictionary_encode()

    # One key for each word of each text, by word, then text. Sorting and comparing
    # neighbors takes a fiftieth of the time of `np.unique`.
    word_as_written = as_written.indices.to_numpy()
    word = distinct.indices.to_numpy()[word_as_written].astype(np.int64)
    text = np.repeat(np.arange(len(texts)), words_per_text)
    keys = np.sort(word << _TEXT_BITS | text)
    keys = keys[np.diff(keys, prepend=-1) > 0]

    count = len(distinct.dictionary)
    firsts = np.searchsorted(keys >> _TEXT_BITS, np.arange(count + 1))
    texts_of_words = pa.ListArray.from_arrays(
        pa.array(firsts, pa.int32()), pa.array(keys & _TEXT_MASK, pa.uint16())
    )
    return pa.record_batch([distinct.dictionary, texts_of_words], schema=WORDS)


def may_contain(words: pa.RecordBatch, term: str) -> Bools:
    """Return which texts can contain a term, shape (MAX_TEXTS,).

    For a term that `is_word`, these are the texts that do.
    """
    contains = np.ones(MAX_TEXTS, np.bool_)
    for part in _split(term):
        has_part = pc.match_substring(words.column("word"), part)
        texts = words.column("texts").filter(has_part).flatten()
        contains_part = np.zeros(MAX_TEXTS, np.bool_)
        contains_part[texts.to_numpy()] = True
        contains &= contains_part
    return contains


def is_word(term: str) -> bool:
    """Return whether a term has no separators."""
    return _split(term) == [fold(term)]


def _split(term: str) -> list[str]:
    """Return the distinct parts of a term between separators."""
    parts = re.split(_SEPARATORS, fold(term))
    return sorted({part for part in parts if part})


def fold(text: str) -> str:
    """Return a text with each character folded by itself, as Arrow ignores case.

    Unlike `str.casefold`, which turns one ß into two characters.
    """
    if text.isascii():
        return text.lower()
    return "".join(map(_fold_character, text))


@lru_cache(maxsize=1 << 16)
def _fold_character(character: str) -> str:
    # First, because the lower case of these is one character, but not the equal one.
    if character in _EQUAL:
        return _EQUAL[character]
    for folded in (character.casefold(), character.lower()):
        if len(folded) == 1:
            return folded
    return character
