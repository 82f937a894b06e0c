"""Near-copies: is a candidate the meta-document's own text again, or that of another candidate?

In:  SHINGLES of some candidates, their meta-document, and WEIGHTS, which say how rare each shingle is.
Out: which candidates repeat the meta-document, and which pairs of the others repeat each other.

The rule is docs/decisions/0005-near-copies.md. A text repeats another if `threshold` of its words, by weight, stand in runs of
three that the other has too; or if both have the same 100 words in a row; or, of fewer than ten words, if the other has the
same. It is asymmetric: a part is a copy of the whole.

All candidates are compared at once: sorting their shingles brings equal ones together. Nothing shares more with one other
text than with all of them together, so only the few that share enough with all are compared one by one. Every decision is
exact: nothing but the 64-bit numbers and whole weights counts.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong.similarity.passages import repeated_passages
from nextlong.similarity.shingles import SHINGLE_WORDS, Document, Offsets, Shingles, Weights
from nextlong.similarity.words import U64

Bools = NDArray[np.bool_]
Pairs = NDArray[np.int64]

_MILLION: Final = 1_000_000  # a threshold is a whole number of millionths
_ROUNDING: Final = 1e-4  # of a sum; more than one of float32 is off by
_SUSPECTS_AT_ONCE: Final = 64  # candidates for which it is held who else has each of their shingles
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
    equal, in_document = _Equal.among(texts.hashes, texts.owners), _in_document(texts, document.runs)
    repeats = _repeats_document(texts, document.runs, in_document)
    is_short = candidates.is_short
    numbers = candidates.hashes[candidates.offsets[:-1][is_short]]
    repeats[is_short] = np.isin(numbers, document.wholes)
    passage_of_document, passages = repeated_passages(candidates, document.runs, (equal.is_met) | in_document)
    of_document = repeats | passage_of_document
    pairs = np.concatenate(
        [
            _copied(texts, of_document, equal),
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


class _Equal(NamedTuple):
    """Which of the s shingles are equal."""

    group: NDArray[np.int64]  # (s,) equal shingles have equal numbers
    is_met: Bools  # (s,) whether another text has it

    @classmethod
    def among(cls, hashes: U64, owners: NDArray[np.int32]) -> _Equal:
        # A key ends in the shingle's place: sorting such numbers is several times as fast as argsort.
        bits = np.uint64(max(1, len(hashes).bit_length()))
        keys = np.sort(hashes >> bits << bits | np.arange(len(hashes), dtype=np.uint64))
        order = (keys & np.uint64((1 << int(bits)) - 1)).view(np.int64)
        starts = np.flatnonzero(np.diff(keys >> bits, prepend=~keys[:1]))
        ordered = hashes[order]
        if np.count_nonzero(ordered[1:] != ordered[:-1]) + 1 > len(
            starts
        ):  # one in a billion differs in those bits alone
            order = np.argsort(hashes, kind="stable")
            starts = np.flatnonzero(np.diff(hashes[order], prepend=~hashes[order[:1]]))
        sizes = np.diff(starts, append=len(order))
        group = np.empty(len(order), np.int64)
        group[order] = np.repeat(np.arange(len(sizes)), sizes)
        return cls(group, (owners[order[starts]] != owners[order[starts + sizes - 1]])[group])


def _in_document(texts: _Texts, document: U64) -> Bools:
    """Return whether the document may have each shingle, (s,); never too few, because equal shingles have equal slots."""
    mask = np.uint64((1 << max(10, len(document).bit_length() + 6)) - 1)
    there = np.zeros(int(mask) + 1, np.bool_)
    there[(document & mask).view(np.int64)] = True
    found: Bools = there[(texts.hashes & mask).view(np.int64)]
    return found


def _repeats_document(texts: _Texts, document: U64, in_document: Bools) -> Bools:
    """Return which texts share enough of their words with the document."""
    repeats = texts.enough(_sums(_covered(in_document) * texts.weight, texts.offsets))
    suspects = np.flatnonzero(repeats)
    if len(suspects):
        rows, offsets = texts.rows(suspects), np.append(0, np.cumsum(np.diff(texts.offsets)[suspects]))
        covered = _covered(np.isin(texts.hashes[rows], document)) * texts.weight[rows]
        repeats[suspects] = texts.enough(_sums(covered, offsets), suspects)
    return repeats


def _copied(texts: _Texts, of_document: Bools, equal: _Equal) -> Pairs:
    """Return the pairs (a, b) of which a shares enough of its words with b, shape (n, 2)."""
    suspects = texts.enough(_sums(_covered(equal.is_met) * texts.weight, texts.offsets)) & ~of_document
    pairs = [_NO_PAIRS]
    places = np.flatnonzero(suspects)
    for first in range(0, len(places), _SUSPECTS_AT_ONCE):
        pairs += _copied_by(texts, places[first : first + _SUSPECTS_AT_ONCE], equal)
    return np.concatenate(pairs)


def _copied_by(texts: _Texts, suspects: Offsets, equal: _Equal) -> list[Pairs]:
    """Return for each suspect the pairs (suspect, candidate that it is a copy of), shape (n, 2)."""
    ranges = list(zip(texts.offsets[suspects].tolist(), texts.offsets[suspects + 1].tolist(), strict=True))
    wanted = np.zeros(int(equal.group.max()) + 1, np.bool_)
    for first, last in ranges:
        wanted[equal.group[first:last][equal.is_met[first:last]]] = True
    row_of_group = np.cumsum(wanted) * wanted  # row 0: nobody else
    places = np.flatnonzero(wanted[equal.group])
    holds = np.zeros((int(wanted.sum()) + 1, len(texts.whole)), np.bool_)
    holds[row_of_group[equal.group[places]], texts.owners[places]] = True
    pairs = []
    for own, (first, last) in zip(suspects.tolist(), ranges, strict=True):
        rows, weight = row_of_group[equal.group[first:last]], texts.weight[first:last]
        may_miss = (_MILLION - texts.millionths) * int(texts.whole[own]) / _MILLION
        half = len(rows) // 2
        # Most candidates miss too much of the first half already.
        covered = _covered(holds[rows[: half + SHINGLE_WORDS - 1]])[:half]
        missed = weight[:half].sum(dtype=np.int64) - weight[:half].astype(np.float32) @ covered.astype(np.float32)
        others = np.flatnonzero(missed <= may_miss + _ROUNDING * float(texts.whole[own]))
        shared = weight.astype(np.float64) @ _covered(holds[rows[:, None], others])  # of whole numbers: exact
        others = others[texts.enough(shared.astype(np.int64), np.full(len(others), own)) & (others != own)]
        pairs.append(np.stack([np.full_like(others, own), others], axis=1))
    return pairs


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
    pairs = pairs[kept[pairs].all(axis=1)]
    keys = np.unique(pairs.min(axis=1, initial=len(kept)) * len(kept) + pairs.max(axis=1, initial=0))
    return np.stack(np.divmod(keys, max(1, len(kept))), axis=1)


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
