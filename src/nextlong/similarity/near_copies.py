"""Near-copies: is a candidate the meta-document's own text again, or that of another candidate?

In:  SHINGLES of some candidates, their meta-document, and WEIGHTS, which say how rare each shingle is.
Out: which candidates repeat the meta-document, and which pairs of the others repeat each other.

The rule is docs/decisions/0005-near-copies.md. A text repeats another if `threshold` of its words, by weight, stand in runs of
three that the other has too; or if both have the same 100 words in a row; or, of fewer than ten words, if the other has the
same. It is asymmetric: a part is a copy of the whole.

All candidates are compared at once. Whoever shares too little with all others together shares too little with each of them,
and that costs two scattered writes a shingle. Of the few that are left, a matrix product bounds what each pair shares from
both sides; only pairs between the bounds are compared one by one. Every decision is exact: nothing but the 64-bit numbers
and whole weights counts.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nextlong.similarity.passages import repeated_passages
from nextlong.similarity.shingles import SHINGLE_WORDS, Document, Offsets, Shingles, Weights
from nextlong.similarity.words import U64

Bools = NDArray[np.bool_]
Pairs = NDArray[np.int64]

_MILLION: Final = 1_000_000  # a threshold is a whole number of millionths
_NO_PAIRS: Final = np.empty((0, 2), np.int64)


class NearCopies(NamedTuple):
    """What m candidates repeat."""

    of_document: Bools  # (m,)
    pairs: Pairs  # (n, 2) ascending places a < b of candidates: one is a copy of the other, or of a part of it
    by_passage: Bools  # (m,) those that would be no near-copy but for 100 words in a row


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


def find(candidates: Shingles, *, document: Document, weights: Weights, threshold: float) -> NearCopies:
    """Return which candidates are near-copies of a document or of a part of it, and which of the others of each other.

    `weights` is what `weigh_shingles` wrote.
    """
    texts = _Texts.of(candidates, weights, threshold)
    slots, is_shared, in_document = _screened(texts, document.runs)
    repeats = _repeats_document(texts, document.runs, in_document)
    is_short = candidates.is_short
    numbers = candidates.hashes[candidates.offsets[:-1][is_short]]
    repeats[is_short] = np.isin(numbers, document.wholes)
    passage_of_document, passages = repeated_passages(candidates, document.runs, is_shared)
    of_document = repeats | passage_of_document
    pairs = np.concatenate(
        [
            _copied(texts, of_document, slots=slots, is_shared=is_shared),
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


def _screened(texts: _Texts, document: U64) -> tuple[NDArray[np.int64], Bools, Bools]:
    """Return a slot for each shingle, whether another text has one in it, and whether the document has; (s,) each.

    Equal shingles have equal slots, so these are never too few. First and last owner of a slot differ if it has two.
    """
    bits = max(10, (len(texts.hashes) + len(document)).bit_length() + 2)
    mask = np.uint64((1 << bits) - 1)
    slots = (texts.hashes & mask).view(np.int64)
    first, last = np.empty((2, 1 << bits), np.int16 if len(texts.whole) < 1 << 15 else np.int32)
    owners = texts.owners.astype(first.dtype)
    last[slots] = owners
    first[slots[::-1]] = owners[::-1]  # of equal indices the last one stays
    of_document = (document & mask).view(np.int64)
    there = np.zeros(1 << bits, np.bool_)
    there[of_document] = True
    in_document = there[slots]
    return slots, (first[slots] != last[slots]) | in_document, in_document


def _repeats_document(texts: _Texts, document: U64, in_document: Bools) -> Bools:
    """Return which texts share enough of their words with the document."""
    repeats = texts.enough(_sums(_covered(in_document) * texts.weight, texts.offsets))
    suspects = np.flatnonzero(repeats)
    if len(suspects):
        rows, offsets = texts.rows(suspects), np.append(0, np.cumsum(np.diff(texts.offsets)[suspects]))
        covered = _covered(np.isin(texts.hashes[rows], document)) * texts.weight[rows]
        repeats[suspects] = texts.enough(_sums(covered, offsets), suspects)
    return repeats


def _copied(texts: _Texts, of_document: Bools, *, slots: NDArray[np.int64], is_shared: Bools) -> Pairs:
    """Return the pairs (a, b) of which a shares enough of its words with b, shape (n, 2)."""
    suspects = np.flatnonzero(texts.enough(_sums(_covered(is_shared) * texts.weight, texts.offsets)) & ~of_document)
    if not len(suspects):
        return _NO_PAIRS
    own = texts.rows(suspects)
    own = own[is_shared[own]]
    wanted = np.zeros(int(slots.max()) + 1, np.bool_)
    wanted[slots[own]] = True
    rows = np.flatnonzero(wanted[slots] & ~of_document[texts.owners])
    groups = np.full(len(slots), -1, np.int64)
    groups[rows] = np.unique(texts.hashes[rows], return_inverse=True)[1]
    shape = (int(groups.max()) + 1, len(texts.whole))
    has = sp.csr_array((np.ones(len(rows), np.bool_), (groups[rows], texts.owners[rows])), shape=shape)
    # A shared run covers three words. Whoever adds all three counts each word once to three times.
    covers = texts.weight.astype(np.int64)
    for step in range(1, SHINGLE_WORDS):
        covers[step:] += texts.weight[:-step]
    place = np.zeros(len(texts.whole), np.int64)
    place[suspects] = np.arange(len(suspects))
    shares = sp.csr_array((covers[own], (place[texts.owners[own]], groups[own])), shape=(len(suspects), shape[0]))
    product = (shares @ has).tocoo()
    pairs = np.stack([suspects[product.row], product.col.astype(np.int64)], axis=1)
    is_other = pairs[:, 0] != pairs[:, 1]
    pairs, most = pairs[is_other], product.data[is_other]
    is_copy = texts.enough(most // SHINGLE_WORDS, pairs[:, 0])
    unclear = np.flatnonzero(texts.enough(most, pairs[:, 0]) & ~is_copy)
    is_copy[unclear] = _compared(texts, pairs[unclear], groups)
    copied: Pairs = pairs[is_copy]
    return copied


def _compared(texts: _Texts, pairs: Pairs, groups: NDArray[np.int64]) -> Bools:
    """Return for each pair (a, b) whether a shares enough of its words with b; equal `groups` are equal shingles."""
    held = np.zeros(int(groups.max()) + 1, np.bool_)
    found = np.zeros(len(pairs), np.bool_)
    for number, (a, b) in enumerate(pairs.tolist()):
        other = groups[texts.offsets[b] : texts.offsets[b + 1]]
        held[other[other >= 0]] = True
        own, weight = (column[texts.offsets[a] : texts.offsets[a + 1]] for column in (groups, texts.weight))
        shared = int(weight[_covered(held[own] & (own >= 0))].sum(dtype=np.int64))
        found[number] = shared * _MILLION >= texts.millionths * int(texts.whole[a])
        held[other[other >= 0]] = False
    return found


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


def _sums(values: NDArray[np.uint16], offsets: Offsets) -> Offsets:
    """Return the sums of values[offsets[i]:offsets[i + 1]]."""
    running = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, dtype=np.int64, out=running[1:])
    sums: Offsets = np.diff(running[offsets])
    return sums
