"""Texts: some candidates and their meta-document, as they are compared with each other.

In:  SHINGLES, WEIGHTS, the threshold. Out: what their words weigh, and how much of that stands in some of their runs.
"""

from __future__ import annotations

from typing import Final, NamedTuple

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
    weights: Ints  # (s + 1,) of all words before the shingle's last one
    whole: Ints  # (n,) the weight of all words of a text
    millionths: int

    @classmethod
    def of(cls, texts: Shingles, weights: Weights, threshold: float) -> Texts:
        """Weigh the words of texts."""
        words, sums = _word_weights(texts, weights), np.zeros(len(texts.hashes) + 1, np.int64)
        np.cumsum(words, out=sums[1:])
        owners = np.repeat(np.arange(len(texts.offsets) - 1, dtype=np.int32), np.diff(texts.offsets))
        whole = np.diff(sums[texts.offsets])
        return cls(texts.hashes, texts.offsets, owners, words, sums, whole, millionths_of(threshold))

    def enough(self, shared: Ints, texts: Ints | slice = slice(None)) -> Bools:
        """Return whether `shared`, of the weights of some texts, reaches the threshold; no words reach none."""
        whole = self.whole[texts]
        reached: Bools = (whole > 0) & (shared * _MILLION >= self.millionths * whole)
        return reached

    def suspects(self, is_shared: Bools) -> Bools:
        """Return which texts have enough of their words in the shingles, (s,), that they share with any others, (n,)."""
        shared = np.zeros(len(self.whole), np.int64)
        filled = np.diff(self.offsets) > 0
        if filled.any():
            shared[filled] = np.add.reduceat(self.words * covered(is_shared), self.offsets[:-1][filled], dtype=np.int64)
        return self.enough(shared)

    def covered(self, starts: Ints, ends: Ints, groups: Ints, *, count: int) -> Ints:
        """Return the weight of the words that stand in runs [starts[i], ends[i]), by the group of each i, (count,).

        Groups, and starts within one, ascend; the runs of a group are of one text. A word that stands in several runs counts once.
        """
        step = len(self.hashes) + 1
        reached = np.maximum.accumulate(ends + groups * step) if len(ends) else ends
        before = np.concatenate([[0], reached[:-1]]) - groups * step  # negative where another group's
        # The words of a run are the last ones of it and of the two before; those before the text's first weigh nothing.
        first_words = np.maximum(np.maximum(starts - SHINGLE_WORDS + 1, before), 0)
        added = self.weights[np.maximum(ends, first_words)] - self.weights[first_words]
        return np.bincount(groups, added, count).astype(np.int64)  # sums of whole numbers below 2^53: exact


def millionths_of(threshold: float) -> int:
    """Return a threshold as it is compared: in whole millionths."""
    return round(threshold * _MILLION)


def covered(matched: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whether the last word of each shingle of a text stands in one that is matched, shape (s, …)."""
    words = matched.copy()
    for step in range(1, SHINGLE_WORDS):
        words[:-step] |= matched[step:]
    return words


def _word_weights(texts: Shingles, weights: Weights) -> NDArray[np.uint16]:
    """Return for each shingle the weight of its last word, that of the heaviest shingle it stands in, shape (s,).

    The first and last two words of a text stand in fewer than three shingles and do not count: 0 for the last two shingles,
    and so for the one number of a text of fewer than ten words.
    """
    rarity = weights[(texts.hashes & np.uint64(len(weights) - 1)).view(np.int64)]
    heaviest: NDArray[np.uint16] = rarity.copy()
    ends = texts.offsets[1:][np.diff(texts.offsets) > 0]
    for step in range(1, SHINGLE_WORDS):
        np.maximum(heaviest[:-step], rarity[step:], out=heaviest[:-step])
    for step in range(1, SHINGLE_WORDS):
        heaviest[ends - step] = 0
    return heaviest
