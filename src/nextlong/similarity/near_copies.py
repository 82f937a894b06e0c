"""Near-copies: is a candidate the meta-document's own text again, or that of another candidate?

In:  SHINGLES of some candidates, their meta-document, and WEIGHTS, which say how rare each shingle is.
Out: which candidates repeat the meta-document, and which pairs of the others repeat each other.

The rule is docs/decisions/0005-near-copies.md. A text repeats another if `threshold` of its words, by weight, stand in runs of
three that the other has too; or if both have the same 100 words in a row; or, of fewer than ten words, if the other has the
same. It is asymmetric: a part is a copy of the whole.

Texts with the same words are compared once; the meta-document is one more of them. Nothing shares more with one other text
than with all of them together, so only those that share enough with all can repeat one. The segments of runs that two texts
have in common bound how much they share, and where that is enough it is counted. Every decision is exact: nothing but the
64-bit numbers and whole weights counts.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nextlong.similarity.distinct import distinct_texts
from nextlong.similarity.passages import repeated_passages, with_passages
from nextlong.similarity.shared_runs import Bools, Ints, SharedRuns, equal_runs, shared_runs
from nextlong.similarity.shingles import SHINGLE_WORDS, Document, Shingles, Weights
from nextlong.similarity.texts import Texts, covered

_FEW_HOLDERS: Final = 16  # of a segment; what more texts have counts as shared with all until it is counted
_CELLS: Final = 1 << 26  # segments times texts, of which it is held who has which
_NO_PAIRS: Final = np.empty((0, 2), np.int64)


class NearCopies(NamedTuple):
    """What m candidates repeat."""

    of_document: Bools  # (m,)
    pairs: Ints  # (n, 2) ascending places a < b of candidates: one is a copy of the other, or of a part of it
    by_passage: Bools  # (m,) those that would be no near-copy but for 100 words in a row


def find(candidates: Shingles, *, document: Document, weights: Weights, threshold: float) -> NearCopies:
    """Return which candidates are near-copies of a document or of a part of it, and which of the others of each other.

    `weights` is what `weigh_shingles` wrote.
    """
    distinct = distinct_texts(candidates)
    count, repeated = len(distinct.texts.offsets) - 1, np.bincount(distinct.kinds) > 1
    texts = Texts.of(_with(distinct.texts, document), weights, threshold)
    equal = equal_runs(texts.hashes, texts.owners)
    suspects = texts.suspects(equal.is_shared)
    suspects[-1] = False  # the document
    shared = shared_runs(equal, texts.owners, among=suspects | with_passages(texts, equal.is_shared))
    pairs = _repeating(texts, shared, suspects)
    by_words = np.zeros(count, np.bool_)
    by_words[pairs[pairs[:, 1] == count, 0]] = True
    is_short = distinct.texts.is_short
    by_words[is_short] = np.isin(distinct.texts.hashes[distinct.texts.offsets[:-1][is_short]], document.wholes)
    passages = repeated_passages(texts, shared, left_out=np.append(by_words, False))
    of_document = by_words.copy()
    of_document[passages[passages[:, 1] == count, 0]] = True
    kept = np.append(~of_document, False)
    same = np.flatnonzero(repeated & kept[:-1] & (np.diff(distinct.texts.offsets) > 0))
    pairs = np.concatenate([pairs[kept[pairs].all(axis=1)], np.stack([same, same], axis=1)])
    passages = passages[kept[passages].all(axis=1)]
    otherwise, by_passage = by_words.copy(), of_document.copy()
    otherwise[pairs] = by_passage[passages] = True
    return NearCopies(
        of_document[distinct.kinds],
        distinct.pairs(np.concatenate([pairs, passages])),
        (by_passage & ~otherwise)[distinct.kinds],
    )


def similarities(candidates: Shingles, *, document: Document, weights: Weights) -> NDArray[np.float64]:
    """Return for each of m candidates the share of its words, by weight, that stand in a shared shingle, (m,) in [0, 1].

    1 or 0 for a text of fewer than ten words: the document has the same or not.
    """
    texts = Texts.of(candidates, weights, 1.0)
    places = np.flatnonzero(np.isin(texts.hashes, document.runs))
    groups = texts.owners[places].astype(np.int64)
    shared = texts.covered(places, places + 1, groups, count=len(texts.whole)).astype(np.float64)
    shares: NDArray[np.float64] = np.divide(shared, texts.whole, out=np.zeros_like(shared), where=texts.whole > 0)
    shares[candidates.is_short] = np.isin(texts.hashes[texts.offsets[:-1][candidates.is_short]], document.wholes)
    return shares


def _with(texts: Shingles, document: Document) -> Shingles:
    """Return the texts, and the whole document behind them."""
    hashes = np.concatenate([texts.hashes, document.runs])
    return Shingles(hashes, np.append(texts.offsets, len(hashes)))


def _repeating(texts: Texts, shared: SharedRuns, suspects: Bools) -> Ints:
    """Return the pairs (a, b) of which a, one of the suspects, shares enough of its words with b, (n, 2)."""
    if not suspects.any():
        return _NO_PAIRS
    common = shared.holders[shared.segments] > _FEW_HOLDERS
    by_common = _covered(texts, shared, common)
    is_crowded = suspects & texts.enough(by_common)
    likely = _likely(texts, shared, of=suspects & ~is_crowded, those=~common, besides=by_common)
    repeating = [_NO_PAIRS]
    width = max(1, _CELLS // max(1, len(shared.holders)))
    for first in range(0, len(texts.whole), width):
        holds = _holds(shared, first, min(width, len(texts.whole) - first))
        pairs = likely[(likely[:, 1] >= first) & (likely[:, 1] < first + width)]
        repeating.append(pairs[texts.enough(_shared(texts, shared, holds, pairs, first=first), pairs[:, 0])])
        repeating += [_all_of(texts, shared, holds, text, first=first) for text in np.flatnonzero(is_crowded).tolist()]
    return np.concatenate(repeating)


def _covered(texts: Texts, shared: SharedRuns, those: Bools) -> Ints:
    """Return the weight of each text's words that stand in `those` of its parts, (n,)."""
    starts, groups = shared.starts[those], shared.texts[those].astype(np.int64)
    return texts.covered(starts, starts + shared.runs[those], groups, count=len(texts.whole))


def _likely(texts: Texts, shared: SharedRuns, *, of: Bools, those: Bools, besides: Ints) -> Ints:
    """Return the pairs (a, b), a one `of` the texts, that may share enough: by `those` parts, and the weight `besides` of a."""
    starts, ends = shared.starts, shared.starts + shared.runs
    most = (
        texts.weights[ends] - texts.weights[np.maximum(starts - SHINGLE_WORDS + 1, 0)]
    )  # words in two parts count twice
    ones = np.ones(len(starts), np.int64)
    bounds = (_matrix(texts, shared, those & of[shared.texts], most) @ _matrix(texts, shared, those, ones).T).tocoo()
    a, b = bounds.row.astype(np.int64), bounds.col.astype(np.int64)
    likely = texts.enough(bounds.data + besides[a], a) & (a != b)
    return np.stack([a[likely], b[likely]], axis=1)


def _matrix(texts: Texts, shared: SharedRuns, those: Bools, values: Ints) -> sp.csr_array:
    """Return a value for each segment that a text has among `those` parts, (n, g)."""
    counts = np.bincount(shared.texts[those], minlength=len(texts.whole))
    shape = (len(texts.whole), len(shared.holders))
    return sp.csr_array((values[those], shared.segments[those], np.append(0, np.cumsum(counts))), shape=shape)


def _holds(shared: SharedRuns, first: int, count: int) -> Bools:
    """Return which segments each of `count` texts from `first` on has, (g, count)."""
    holds = np.zeros((len(shared.holders), count), np.bool_)
    there = (shared.texts >= first) & (shared.texts < first + count)
    holds[shared.segments[there], shared.texts[there] - first] = True
    return holds


def _shared(texts: Texts, shared: SharedRuns, holds: Bools, pairs: Ints, *, first: int) -> Ints:
    """Return the weight of the words of a that stand in runs that b has, of each pair (a, b), (n,); b from `first` on."""
    parts = np.bincount(shared.texts, minlength=len(texts.whole))
    sizes = parts[pairs[:, 0]]
    pair = np.repeat(np.arange(len(pairs)), sizes)
    part = np.arange(len(pair)) + np.repeat((np.cumsum(parts) - parts)[pairs[:, 0]] - np.cumsum(sizes) + sizes, sizes)
    held = holds[shared.segments[part], np.repeat(pairs[:, 1] - first, sizes)]
    starts = shared.starts[part[held]]
    return texts.covered(starts, starts + shared.runs[part[held]], pair[held], count=len(pairs))


def _all_of(texts: Texts, shared: SharedRuns, holds: Bools, text: int, *, first: int) -> Ints:
    """Return the pairs (text, b) of which the text shares enough with b, (n, 2), from all b that `holds` is about."""
    parts = slice(*np.searchsorted(shared.texts, [text, text + 1]))
    begin, end = int(texts.offsets[text]), int(texts.offsets[text + 1])
    matched = np.zeros((end - begin, holds.shape[1]), np.bool_)
    matched[np.flatnonzero(shared.is_shared[begin:end])] = np.repeat(
        holds[shared.segments[parts]], shared.runs[parts], axis=0
    )
    weight = np.diff(texts.weights[begin : end + 1]).astype(np.float64)  # sums of whole numbers below 2^53: exact
    others = np.flatnonzero(texts.enough((weight @ covered(matched)).astype(np.int64), np.full(holds.shape[1], text)))
    others = others[others + first != text]
    return np.stack([np.full_like(others, text), others + first], axis=1)
