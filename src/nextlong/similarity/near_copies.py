"""Near-copies: is a candidate the meta-document's own text again, or that of another candidate?

In:  SHINGLES of some candidates, their meta-document, and WEIGHTS, which say how rare each shingle is.
Out: which candidates repeat the meta-document, and which pairs of the others repeat each other.

The rule is docs/decisions/0005-near-copies.md. A text repeats another if `threshold` of its words, by weight, stand in runs of
three that the other has too; or if both have the same 100 words in a row; or, of fewer than ten words, if the other has the
same. It is asymmetric: a part is a copy of the whole.

All candidates are compared at once. Of the words of a copy at most 1 − threshold are missing from the original, so any few
words that weigh more have one that it shares: the rarest among the candidates are looked for, and whoever shares none of
them is no copy. The pairs that are left, a few a candidate, are compared run by run, first by a table that has too much
and then exactly. Every decision is exact: nothing but the 64-bit numbers and whole weights counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong.similarity.passages import repeated_passages
from nextlong.similarity.shingles import SHINGLE_WORDS, Document, Offsets, Shingles, Weights
from nextlong.similarity.words import U64

Bools = NDArray[np.bool_]
Pairs = NDArray[np.int64]

_MILLION: Final = 1_000_000  # a threshold is a whole number of millionths
_COMPARED_AT_ONCE: Final = 1 << 21  # shingles of pairs: 100 MB
_LEVELS: Final = (1, 2, 3, 5, 9, 17, 65)  # how often shingles are met among the candidates
_VERDICT_BITS: Final = 21  # 19 MB
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)
_NO_PAIRS: Final = np.empty((0, 2), np.int64)


class NearCopies(NamedTuple):
    """What m candidates repeat."""

    of_document: Bools  # (m,)
    pairs: Pairs  # (n, 2) ascending places a < b of candidates: one is a copy of the other, or of a part of it
    by_passage: Bools  # (m,) those that would be no near-copy but for 100 words in a row


class Verdicts:
    """Which chunks share enough of their words with which, as earlier drafts found: a chunk is offered in many.

    A table of fixed size, a verdict overwrites another; for one table of weights and one threshold.
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self.chunks = np.empty(0, np.int64)  # of the candidates at hand, (m,)
        self._keys = np.zeros(1 << _VERDICT_BITS, np.uint64)
        self._is_copy = np.zeros(1 << _VERDICT_BITS, np.bool_)

    def of(self, pairs: Pairs) -> tuple[Bools, Bools]:
        """Return which pairs of candidates are known, and which of these are copies, shape (n,) each."""
        keys, places = self._places(pairs)
        is_known = self._keys[places] == keys
        return is_known, is_known & self._is_copy[places]

    def add(self, pairs: Pairs, is_copy: Bools) -> None:
        """Remember the verdicts of pairs, (n,)."""
        keys, places = self._places(pairs)
        self._keys[places] = keys
        kept = self._keys[places] == keys
        self._is_copy[places[kept]] = is_copy[kept]

    def _places(self, pairs: Pairs) -> tuple[U64, NDArray[np.int64]]:
        a, b = (self.chunks[column].astype(np.uint64) for column in pairs.T)
        keys = (a * _ODD ^ (a * _ODD) >> np.uint64(29)) + b
        keys = (keys * _ODD ^ (keys * _ODD) >> np.uint64(31)) * _ODD | np.uint64(1)  # 0 is an empty place
        return keys, (keys >> np.uint64(64 - _VERDICT_BITS)).view(np.int64)


class _Texts(NamedTuple):
    """The candidates' shingles, s of them, and what their words weigh."""

    hashes: U64  # (s,)
    offsets: Offsets  # (m + 1,)
    owners: NDArray[np.int32]  # (s,) the candidate that the shingle belongs to
    weight: NDArray[np.uint16]  # (s,) of the shingle's last word
    whole: Offsets  # (m,) the weight of all words of a candidate
    millionths: int

    @classmethod
    def of(cls, candidates: Shingles, weights: Weights, threshold: float) -> _Texts:
        weight = _word_weights(candidates, weights)
        owners = np.repeat(np.arange(len(candidates.offsets) - 1, dtype=np.int32), np.diff(candidates.offsets))
        whole = _sums(weight, candidates.offsets)
        return cls(candidates.hashes, candidates.offsets, owners, weight, whole, millionths_of(threshold))

    def rows(self, texts: Offsets) -> Offsets:
        """Return the places of the shingles of some texts, one text after the other."""
        sizes = np.diff(self.offsets)[texts]
        ends = np.cumsum(sizes)
        rows: Offsets = np.arange(ends[-1] if len(ends) else 0) + np.repeat(self.offsets[texts] - ends + sizes, sizes)
        return rows

    def enough(self, shared: Offsets, texts: slice | Offsets = slice(None)) -> Bools:
        """Return whether `shared`, (t,) of the weights of some texts, reaches the threshold; no words reach none."""
        whole = self.whole[texts]
        reached: Bools = (whole > 0) & (shared * _MILLION >= self.millionths * whole)
        return reached


def millionths_of(threshold: float) -> int:
    """Return a threshold as it is compared: in whole millionths."""
    return round(threshold * _MILLION)


def find(
    candidates: Shingles, *, document: Document, weights: Weights, threshold: float, verdicts: Verdicts | None = None
) -> NearCopies:
    """Return which candidates are near-copies of a document or of a part of it, and which of the others of each other.

    `weights` is what `weigh_shingles` wrote; `verdicts` are used and added to.
    """
    texts = _Texts.of(candidates, weights, threshold)
    slots, counts, in_document = _counted(texts, document.runs)
    repeats = _repeats_document(texts, document.runs, in_document)
    is_short = candidates.is_short
    numbers = candidates.hashes[candidates.offsets[:-1][is_short]]
    repeats[is_short] = np.isin(numbers, document.wholes)
    passage_of_document, passages = repeated_passages(candidates, document.runs, (counts > 1) | in_document)
    of_document = repeats | passage_of_document
    pairs = np.concatenate(
        [
            _copied(texts, of_document, verdicts, slots=slots, counts=counts),
            np.flatnonzero(is_short)[_equal(numbers)],
        ]
    )
    pairs = _among(pairs, ~of_document)
    both = _among(np.concatenate([pairs, passages]), ~of_document)
    otherwise = repeats.copy()
    otherwise[pairs] = True
    by_passage = passage_of_document.copy()
    by_passage[both] = True
    return NearCopies(of_document, both, by_passage & ~otherwise)


def similarities(candidates: Shingles, *, document: Document, weights: Weights) -> NDArray[np.float64]:
    """Return for each of m candidates the share of its words, by weight, that stand in a shared shingle, (m,) in [0, 1].

    1 or 0 for a text of fewer than ten words: the document has the same or not.
    """
    texts = _Texts.of(candidates, weights, 1.0)
    shared = _sums(_covered(np.isin(texts.hashes, document.runs)) * texts.weight, texts.offsets).astype(np.float64)
    shares: NDArray[np.float64] = np.divide(shared, texts.whole, out=np.zeros_like(shared), where=texts.whole > 0)
    shares[candidates.is_short] = np.isin(texts.hashes[texts.offsets[:-1][candidates.is_short]], document.wholes)
    return shares


def _counted(texts: _Texts, document: U64) -> tuple[NDArray[np.int64], NDArray[np.int64], Bools]:
    """Return a slot for each shingle, how often that is met, and whether the document may have the shingle; (s,) each.

    Equal shingles have equal slots, so neither is ever too little.
    """
    bits = max(10, (len(texts.hashes) + len(document)).bit_length() + 2)
    mask = np.uint64((1 << bits) - 1)
    slots = (texts.hashes & mask).view(np.int64)
    there = np.zeros(1 << bits, np.bool_)
    there[(document & mask).view(np.int64)] = True
    return slots, np.bincount(slots, minlength=1 << bits)[slots], there[slots]


def _repeats_document(texts: _Texts, document: U64, in_document: Bools) -> Bools:
    """Return which texts share enough of their words with the document."""
    repeats = texts.enough(_sums(_covered(in_document) * texts.weight, texts.offsets))
    suspects = np.flatnonzero(repeats)
    if len(suspects):
        rows, offsets = texts.rows(suspects), np.append(0, np.cumsum(np.diff(texts.offsets)[suspects]))
        covered = _covered(np.isin(texts.hashes[rows], document)) * texts.weight[rows]
        repeats[suspects] = texts.enough(_sums(covered, offsets), suspects)
    return repeats


def _copied(
    texts: _Texts, of_document: Bools, verdicts: Verdicts | None, *, slots: NDArray[np.int64], counts: NDArray[np.int64]
) -> Pairs:
    """Return the pairs (a, b) of which a shares enough of its words with b, shape (n, 2)."""
    rows = np.flatnonzero(_telling(texts, counts) & ~of_document[texts.owners])
    pairs = _meeting(texts, rows, ~of_document, slots)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    if verdicts is None:
        return pairs[_compared(texts, pairs)]
    is_known, is_copy = verdicts.of(pairs)
    is_copy[~is_known] = _compared(texts, pairs[~is_known])
    verdicts.add(pairs[~is_known], is_copy[~is_known])
    return pairs[is_copy]


def _telling(texts: _Texts, counts: NDArray[np.int64]) -> Bools:
    """Return shingles of each text one of which everything has that the text repeats, shape (s,).

    They are those of words that weigh more than a copy may miss, and as rarely met as any such; none of a text that repeats
    nothing, because the words that nobody else has weigh so much.
    """
    most = counts.copy()  # of the three shingles that the last word of each stands in
    for step in range(1, SHINGLE_WORDS):
        np.maximum(most[:-step], counts[step:], out=most[:-step])
    most[texts.weight == 0] = np.iinfo(np.int64).max
    level = np.full(len(texts.whole), np.iinfo(np.int64).max - 1)
    open_texts = np.flatnonzero(texts.whole > 0)
    level[texts.whole == 0] = 1
    for limit in _LEVELS:
        rows, offsets = texts.rows(open_texts), np.append(0, np.cumsum(np.diff(texts.offsets)[open_texts]))
        reached = _sums(texts.weight[rows] * (most[rows] <= limit), offsets)
        enough = reached * _MILLION > (_MILLION - texts.millionths) * texts.whole[open_texts]
        level[open_texts[enough]] = limit
        open_texts = open_texts[~enough]
    words = most <= level[texts.owners]
    telling = words.copy()
    for step in range(1, SHINGLE_WORDS):
        telling[step:] |= words[:-step]
    return telling & (counts > 1) & (level > 1)[texts.owners]


def _meeting(texts: _Texts, rows: Offsets, offered: Bools, slots: NDArray[np.int64]) -> Pairs:
    """Return the pairs of a text and one of the `offered` that may have one of its shingles at `rows`, sorted, (n, 2)."""
    if not len(rows):
        return _NO_PAIRS
    wanted = np.zeros(int(slots.max()) + 1, np.int32)
    wanted[slots[rows]] = 1
    holders = np.flatnonzero(wanted.astype(np.bool_)[slots] & offered[texts.owners])
    # A key ends in the shingle's place: sorting such numbers is several times as fast as argsort.
    keys = np.sort(slots[holders] << 32 | holders)
    met_slots, holders = keys >> 32, keys & 0xFFFFFFFF
    firsts = np.flatnonzero(np.diff(met_slots, prepend=-1))
    wanted[met_slots[firsts]] = np.arange(len(firsts))
    first, last = (bounds[wanted[slots[rows]]] for bounds in (firsts, np.append(firsts[1:], len(holders))))
    each = np.repeat(np.arange(len(rows)), last - first)
    met = holders[np.arange(len(each)) + (last - np.cumsum(last - first))[each]]
    both = np.unique(texts.owners[rows[each]].astype(np.int64) * len(texts.whole) + texts.owners[met])
    return np.stack(np.divmod(both, len(texts.whole)), axis=1)


def _compared(texts: _Texts, pairs: Pairs) -> Bools:
    """Return for each pair (a, b) whether a shares enough of its words with b, shape (n,)."""
    left = np.arange(len(pairs))
    for is_met in (_probably_met, _certainly_met):
        parts = 1 + len(left) * int(np.diff(texts.offsets).max(initial=0)) // _COMPARED_AT_ONCE
        left = np.concatenate([own[_is_enough(texts, pairs[own], is_met)] for own in np.array_split(left, parts)])
    is_copy = np.zeros(len(pairs), np.bool_)
    is_copy[left] = True
    return is_copy


def _is_enough(texts: _Texts, pairs: Pairs, is_met: Callable[[_Texts, Offsets, Offsets], Bools]) -> Bools:
    """Return for each pair (a, b) whether enough of the words of a stand in shingles that b has too."""
    rows, sizes = texts.rows(pairs[:, 0]), np.diff(texts.offsets)[pairs[:, 0]]
    covered = _covered(is_met(texts, rows, np.repeat(pairs[:, 1], sizes))) * texts.weight[rows]
    return texts.enough(_sums(covered, np.append(0, np.cumsum(sizes))), pairs[:, 0])


def _probably_met(texts: _Texts, rows: Offsets, others: Offsets) -> Bools:
    """Return whether the shingles at `rows` are met in the texts `others`, shape (r,); one in fifty seems so that is not."""
    bits = np.uint64(max(10, len(texts.hashes).bit_length() + 5))
    table = np.zeros(1 << int(bits), np.bool_)
    table[(_keys(texts, np.arange(len(texts.hashes)), texts.owners) >> (np.uint64(64) - bits)).view(np.int64)] = True
    met: Bools = table[(_keys(texts, rows, others) >> (np.uint64(64) - bits)).view(np.int64)]
    return met


def _certainly_met(texts: _Texts, rows: Offsets, others: Offsets) -> Bools:
    """Return whether the shingles at `rows` are met in the texts `others`, shape (r,)."""
    involved = texts.rows(np.unique(others))
    return np.isin(_keys(texts, rows, others), _keys(texts, involved, texts.owners[involved]))


def _keys(texts: _Texts, rows: Offsets, owners: NDArray[Any]) -> U64:
    """Return a number for each shingle as one of a text, 64 bits of it."""
    keys: U64 = (texts.hashes[rows] ^ owners.astype(np.uint64) * _ODD) * _ODD
    return keys


def _equal(numbers: U64) -> Pairs:
    """Return the pairs a < b of places with equal numbers, shape (n, 2)."""
    if not len(numbers):
        return _NO_PAIRS
    order = np.argsort(numbers, kind="stable")
    firsts = np.flatnonzero(np.diff(numbers[order], prepend=~numbers[order][:1]))
    pairs = [_NO_PAIRS]
    for group in np.split(order, firsts[1:]):
        a, b = np.triu_indices(len(group), 1)
        pairs.append(np.stack([group[a], group[b]], axis=1))
    return np.concatenate(pairs)


def _among(pairs: Pairs, kept: Bools) -> Pairs:
    """Return those pairs of which both are kept, once each, ascending."""
    both: Pairs = np.unique(np.sort(pairs[kept[pairs].all(axis=1)], axis=1), axis=0)
    return both


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


def _covered(matched: Bools) -> Bools:
    """Return whether the last word of each shingle stands in one that is matched, shape (s,)."""
    covered = matched.copy()
    for step in range(1, SHINGLE_WORDS):
        covered[:-step] |= matched[step:]
    return covered


def _sums(values: NDArray[Any], offsets: Offsets) -> Offsets:
    """Return the sums of values[offsets[i]:offsets[i + 1]]."""
    running = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, dtype=np.int64, out=running[1:])
    sums: Offsets = np.diff(running[offsets])
    return sums
