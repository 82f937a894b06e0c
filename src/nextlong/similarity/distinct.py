"""Distinct: of texts with the same words one is compared for all.

In:  SHINGLES of texts. Out: those of the distinct ones, and which of these each text is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nextlong.similarity.shared_runs import Ints
from nextlong.similarity.shingles import Shingles
from nextlong.similarity.words import mix


class Distinct(NamedTuple):
    """The d distinct texts among m, by their first appearance."""

    texts: Shingles
    kinds: Ints  # (m,) which of the distinct ones each is

    def pairs(self, kinds: Ints) -> Ints:
        """Return the pairs a < b of the m texts whose kinds are paired, (n, 2), once each and ascending."""
        members, counts = np.argsort(self.kinds, kind="stable"), np.bincount(self.kinds, minlength=1)
        firsts = np.cumsum(counts) - counts
        once = np.unique(
            np.stack([kinds.min(axis=1, initial=len(counts)), kinds.max(axis=1, initial=0)], axis=1), axis=0
        )
        left, right = once.T
        sizes = counts[left] * counts[right]
        pair = np.repeat(np.arange(len(once)), sizes)
        place = np.arange(len(pair)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        rows, columns = np.divmod(place, counts[right][pair])
        a, b = members[firsts[left][pair] + rows], members[firsts[right][pair] + columns]
        kept = (left != right)[pair] | (a < b)  # of a kind with itself each pair was made twice
        keys = np.sort(np.minimum(a, b)[kept] * len(members) + np.maximum(a, b)[kept])
        return np.stack(np.divmod(keys, max(1, len(members))), axis=1)


def distinct_texts(texts: Shingles) -> Distinct:
    """Return the distinct texts: equal ones have the same numbers in the same order."""
    starts, sizes = texts.offsets[:-1], np.diff(texts.offsets)
    keys = sizes.astype(np.uint64)
    filled = np.flatnonzero(sizes)
    for share in (0, 0.5, 1):  # texts with the same number here, here and there are probably equal
        keys[filled] = mix(keys[filled] + texts.hashes[starts[filled] + (share * (sizes[filled] - 1)).astype(np.int64)])
    _, key_of, counts = np.unique(keys, return_inverse=True, return_counts=True)
    if (counts == 1).all():
        return Distinct(texts, np.arange(len(sizes)))
    first_alike: dict[bytes, int] = {}
    same_as = np.arange(len(sizes))
    for text in np.flatnonzero((counts > 1)[key_of]).tolist():
        numbers = texts.hashes[texts.offsets[text] : texts.offsets[text + 1]].tobytes()
        same_as[text] = first_alike.setdefault(numbers, text)
    chosen, kinds = np.unique(same_as, return_inverse=True)
    return Distinct(texts.picked(chosen), kinds)
