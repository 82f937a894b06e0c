"""Near-copies: is a candidate the meta-document's own text again, or that of another candidate?

In:  SHINGLES of the meta-document and of some candidates, and WEIGHTS, which say how rare each shingle is.
Out: which candidates repeat the meta-document, and which pairs of the others repeat each other.

A text's similarity to another is the share of its words that stand in a shared shingle (run of three words), so 0.8 means
that about 80 % of the words are unchanged, whether single words were changed or a whole passage. It never misses a copy
with one word in twenty changed (at worst each change hides two neighbours: 15 %), and it tells half a copy from a copy,
which the c^(1/n) of Mash (Ondov et al. 2016) does not: that takes every change for a single word. It is asymmetric: a part
is a copy of the whole. Rare words weigh more.

All candidates are compared at once: sorting their shingles brings equal ones together. Nothing shares more with one other
text than with all of them together, so only the few that share enough with all are compared one by one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong.similarity.shingles import SHINGLE_WORDS, U32, Offsets, Shingles

Bools = NDArray[np.bool_]

_DOCUMENT = -1
_ROUNDING = 1e-4  # of a sum; more than one of float32 is off by
_SUSPECTS_AT_ONCE = 64  # candidates for which it is held who else has each of their shingles


class NearCopies(NamedTuple):
    """What m candidates repeat."""

    of_document: Bools  # (m,)
    pairs: NDArray[
        np.int64
    ]  # (n, 2) ascending places a < b of candidates: one is a copy of the other, or of a part of it


def find(candidates: Shingles, *, document: Shingles, weights: NDArray[np.float16], threshold: float) -> NearCopies:
    """Return which candidates are near-copies of a document or of a part of it, and which of the others of each other.

    `document` holds one text or several (its chunks); `weights` is what `weigh_shingles` wrote.
    """
    equal = _Equal.among(candidates, document.hashes)
    weight = _word_weights(candidates, weights)
    # A text without words is a copy of nothing.
    least = np.maximum(threshold * _sums(weight, candidates.offsets), np.finfo(np.float64).tiny)
    of_document = _sums(_covered(equal.in_document) * weight, candidates.offsets) >= least
    shared = _sums(_covered(equal.is_shared) * weight, candidates.offsets) >= least
    suspects = np.flatnonzero(shared & ~of_document)
    pairs = [np.empty((0, 2), np.int64)]
    for first in range(0, len(suspects), _SUSPECTS_AT_ONCE):
        pairs += _copied_by(suspects[first : first + _SUSPECTS_AT_ONCE], candidates.offsets, equal, weight, least)
    found = np.unique(np.sort(np.concatenate(pairs), axis=1), axis=0)
    return NearCopies(of_document, found[~of_document[found].any(axis=1)])


def similarities(candidates: Shingles, *, document: Shingles, weights: NDArray[np.float16]) -> NDArray[np.float64]:
    """Return for each of m candidates the share of its words, by weight, that stand in a shared shingle, (m,) in [0, 1]."""
    weight = _word_weights(candidates, weights)
    whole = _sums(weight, candidates.offsets)
    shared = _sums(_covered(np.isin(candidates.hashes, document.hashes)) * weight, candidates.offsets)
    shares: NDArray[np.float64] = np.divide(shared, whole, out=np.zeros_like(shared), where=whole > 0)
    return shares


class _Equal(NamedTuple):
    """Which of the candidates' shingles are equal; arrays of shape (s,)."""

    owners: NDArray[np.int32]  # the candidate that the shingle belongs to
    groups: NDArray[np.int64]  # equal shingles have equal numbers
    is_shared: Bools  # with another candidate or the document
    in_document: Bools

    @classmethod
    def among(cls, candidates: Shingles, document: U32) -> _Equal:
        own = np.repeat(np.arange(len(candidates.offsets) - 1, dtype=np.int32), np.diff(candidates.offsets))
        owners = np.concatenate([np.full(len(document), _DOCUMENT, np.int32), own])
        # A key ends in the shingle's place: sorting such numbers is several times as fast as argsort.
        keys = np.concatenate([document, candidates.hashes]).astype(np.uint64) << np.uint64(32)
        keys |= np.arange(len(keys), dtype=np.uint64)
        keys.sort()
        order = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
        keys >>= np.uint64(32)
        starts = np.flatnonzero(np.diff(keys, prepend=~keys[:1]))
        sizes = np.diff(starts, append=len(keys))
        groups = np.empty(len(keys), np.int64)
        groups[order] = np.repeat(np.arange(len(starts)), sizes)
        groups = groups[len(document) :]
        first, last = owners[order[starts]], owners[order[starts + sizes - 1]]
        return cls(own, groups, (first != last)[groups], (first == _DOCUMENT)[groups])


def _copied_by(
    suspects: NDArray[np.int64],
    offsets: Offsets,
    equal: _Equal,
    weight: NDArray[np.float64],
    least: NDArray[np.float64],
) -> list[NDArray[np.int64]]:
    """Return for each suspect the pairs (suspect, candidate that it is a copy of), shape (n, 2)."""
    ranges = list(zip(offsets[suspects].tolist(), offsets[suspects + 1].tolist(), strict=True))
    wanted = np.zeros(int(equal.groups.max()) + 1, np.bool_)
    for first, last in ranges:
        wanted[equal.groups[first:last][equal.is_shared[first:last]]] = True
    row_of_group = np.cumsum(wanted) * wanted  # row 0: nobody else
    places = np.flatnonzero(wanted[equal.groups])
    holds = np.zeros((int(wanted.sum()) + 1, len(offsets) - 1), np.bool_)
    holds[row_of_group[equal.groups[places]], equal.owners[places]] = True
    pairs = []
    for own, (first, last) in zip(suspects.tolist(), ranges, strict=True):
        rows, own_weight = row_of_group[equal.groups[first:last]], weight[first:last]
        half = len(rows) // 2
        # Most candidates miss too much of the first half already.
        covered = _covered(holds[rows[: half + SHINGLE_WORDS - 1]])[:half]
        missed = own_weight[:half].sum() - own_weight[:half].astype(np.float32) @ covered.astype(np.float32)
        others = np.flatnonzero(missed <= (1 + _ROUNDING) * own_weight.sum() - least[own])
        others = others[own_weight @ _covered(holds[rows[:, None], others]) >= least[own]]
        others = others[others != own]
        pairs.append(np.stack([np.full_like(others, own), others], axis=1))
    return pairs


def _word_weights(texts: Shingles, weights: NDArray[np.float16]) -> NDArray[np.float64]:
    """Return for each shingle the weight of its last word, that of the rarest shingle it stands in, shape (s,).

    The first and last two words of a text stand in fewer than three shingles and do not count: 0 for the last two shingles.
    Weights are multiples of 2^-24, so sums of them are exact and no order of adding changes them.
    """
    rarity = weights[texts.hashes & np.uint32(len(weights) - 1)].astype(np.float64)
    heaviest: NDArray[np.float64] = rarity.copy()
    ends = texts.offsets[1:][np.diff(texts.offsets) > 0]
    for step in range(1, SHINGLE_WORDS):
        np.maximum(heaviest[:-step], rarity[step:], out=heaviest[:-step])
    for step in range(1, SHINGLE_WORDS):
        heaviest[ends - step] = 0.0
    return heaviest


def _covered(matched: Bools) -> Bools:
    """Return whether the last word of each shingle stands in one that is matched, same shape (s,) or (s, others)."""
    covered = matched.copy()
    for step in range(1, SHINGLE_WORDS):
        covered[:-step] |= matched[step:]
    return covered


def _sums(values: NDArray[np.float64], offsets: Offsets) -> NDArray[np.float64]:
    """Return the sums of values[offsets[i]:offsets[i + 1]]."""
    running = np.zeros(len(values) + 1)
    np.cumsum(values, out=running[1:])
    return np.diff(running[offsets])
