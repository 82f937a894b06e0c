"""Texts: some candidates and their meta-document, as they are compared with each other.

In:  SHINGLES, WEIGHTS, the threshold. Out: what their words weigh, and how much of that stands in some of their runs.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong.similarity.shared_runs import Bools, Ints, Owners
from nextlong.similarity.shingles import SHINGLE_WORDS, Shingles, Weights
from nextlong.similarity.words import U64

_MILLION: Final = 1_000_000  # a threshold is a whole number of millionths


class Texts(NamedTuple):
    """The shingles of n texts, s of them, and what their words weigh."""

    hashes: U64  # (s,)
    offsets: Ints  # (n + 1,)
    owners: Owners  # (s,) the text that the shingle belongs to
    words: NDArray[np.uint16]  # (s,) the weight of the shingle's last word
    whole: Ints  # (n,) the weight of all words of a text
    needed: Ints  # (n,) how much of it another text must share for this one to repeat it

    @classmethod
    def of(cls, texts: Shingles, weights: Weights, threshold: float) -> Texts:
        """Weigh the words of texts."""
        words, sizes = _word_weights(texts, weights), np.diff(texts.offsets)
        owners = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        whole = _sums(words, texts.offsets)
        needed = -(-whole * millionths_of(threshold) // _MILLION)
        return cls(texts.hashes, texts.offsets, owners, words, whole, needed)

    def suspects(self, is_shared: Bools) -> Bools:
        """Return which texts have enough of their words in the shingles, (s,), that they share with any others, (n,)."""
        shared = _sums(self.words * highest(is_shared), self.offsets)
        enough: Bools = (self.whole > 0) & (shared >= self.needed)
        return enough


def millionths_of(threshold: float) -> int:
    """Return a threshold as it is compared: in whole millionths."""
    return round(threshold * _MILLION)


def highest(of_shingles: NDArray[Any]) -> NDArray[Any]:
    """Return the highest value of the shingles that the last word of each shingle stands in, (s,): whether any is, of bools.

    The last two words of a text get values of the text behind it, too; they weigh nothing.
    """
    most = of_shingles.copy()
    for step in range(1, SHINGLE_WORDS):
        np.maximum(most[:-step], of_shingles[step:], out=most[:-step])
    return most


def covered(words: NDArray[np.integer], places: Ints, firsts: Ints) -> Ints:
    """Return the weight of the words that stand in one of the shingles at `places`, by group, (g,).

    `words`: the weight of each shingle's last word. A group goes from one of `firsts` to the next; its places ascend and are
    of one text. A word that stands in several of them counts once.
    """
    sums = np.zeros(len(words) + 1, np.int64)
    np.cumsum(words, out=sums[1:])
    # The words of a shingle are the last ones of it and of the two before; those before the text's first weigh nothing.
    since = np.maximum(places - SHINGLE_WORDS + 1, 0)
    before = places[:-1] + 1
    before[firsts[1:] - 1] = 0  # another group's
    np.maximum(since[1:], before, out=since[1:])
    weights: Ints = np.add.reduceat(sums[places + 1] - sums[since], firsts) if len(firsts) else firsts
    return weights


def _sums(words: NDArray[np.uint16], offsets: Ints) -> Ints:
    """Return the sum of each text's words, (n,)."""
    sums = np.zeros(len(offsets) - 1, np.int64)
    filled = np.flatnonzero(np.diff(offsets))
    if len(filled):
        sums[filled] = np.add.reduceat(words, offsets[filled], dtype=np.int64)
    return sums


def _word_weights(texts: Shingles, weights: Weights) -> NDArray[np.uint16]:
    """Return for each shingle the weight of its last word, that of the heaviest shingle it stands in, shape (s,).

    The first and last two words of a text stand in fewer than three shingles and do not count: 0 for the last two shingles,
    and so for the one number of a text of fewer than ten words.
    """
    heaviest: NDArray[np.uint16] = highest(weights[(texts.hashes & np.uint64(len(weights) - 1)).view(np.int64)])
    ends = texts.offsets[1:][np.diff(texts.offsets) > 0]
    for step in range(1, SHINGLE_WORDS):
        heaviest[ends - step] = 0
    return heaviest
