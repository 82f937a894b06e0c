"""Near-duplicates: is a candidate the meta-document's own text again, or that of another candidate?

In:  SHINGLES of some candidates, their meta-document, and WEIGHTS, which say how rare each shingle is.
Out: which candidates repeat the meta-document, and which pairs of the others repeat each other.

The rule is docs/decisions/0005-near-duplicates.md. A text repeats another if `threshold` of its words, by weight, stand in runs of
three that the other has too; or if both have the same 100 words in a row; or, of fewer than ten words, if the other has the
same. It is asymmetric: a part is a copy of the whole.

Texts with the same words are compared once; the meta-document is one more of them. Nothing shares more with one other text
than with all of them together, so only those that share enough with all can repeat one. Every decision is exact: nothing but
the 64-bit numbers and whole weights counts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong.retrieval.near_duplicates.coverage import repeated_passages, repeating
from nextlong.retrieval.near_duplicates.shingles import Document, Shingles, Weights
from nextlong.retrieval.near_duplicates.texts import Bools, Ints, Texts, covered, distinct_texts, shared_runs


class NearDuplicates(NamedTuple):
    """What m candidates repeat."""

    of_document: Bools  # (m,)
    pairs: Ints  # (n, 2) ascending places a < b of candidates: one is a copy of the other, or of a part of it
    by_passage: Bools  # (m,) those that would be no near-duplicate but for 100 words in a row


def find_near_duplicates(
    candidates: Shingles, *, document: Document, weights: Weights, threshold: float
) -> NearDuplicates:
    """Return which candidates are near-duplicates of a document or of a part of it, and which of the others of each other.

    `weights` is what `weigh_shingles` wrote.
    """
    distinct = distinct_texts(candidates)
    # (d,) of the distinct texts: those that repeat the document by their share of words.
    by_words = _repeat_document(distinct.texts, document, weights, threshold)
    # In a corpus of near-identical pages nearly all repeat the document: only the other texts are paired. `texts` holds
    # these, and the document behind them as number `count`.
    others = np.flatnonzero(~by_words)
    count = len(others)
    texts = Texts.of(_with(distinct.texts.picked(others), document), weights, threshold)
    shared = shared_runs(texts.hashes, texts.owners)
    is_shared = shared.kinds > 0
    suspects = texts.suspects(is_shared)
    suspects[-1] = False  # the document
    # Rows (a, b) of numbers among `texts`: a repeats b by its share of words, or both hold the same passage.
    pairs = repeating(texts, shared, suspects)
    passages = repeated_passages(texts, is_shared)
    by_passage = np.zeros(count + 1, np.bool_)
    by_passage[passages[passages[:, 1] == count, 0]] = True
    of_document = by_words.copy()
    of_document[others[by_passage[:-1]]] = True
    # Whoever repeats the document is no candidate any more, so only pairs of the others count.
    kept = ~by_passage
    kept[-1] = False
    pairs, passages = (found[kept[found].all(axis=1)] for found in (pairs, passages))
    # A distinct text that stands for several candidates pairs with itself: `Distinct.pairs` makes pairs of candidates of it.
    repeated = np.bincount(distinct.kinds, minlength=len(by_words))[others] > 1
    same = np.flatnonzero(repeated & kept[:-1] & (np.diff(texts.offsets)[:-1] > 0))
    pairs = np.concatenate([pairs, np.stack([same, same], axis=1)])
    by_passage[passages] = True
    by_passage[pairs] = False  # these repeat each other by their words as well
    only_passage = np.zeros(len(by_words), np.bool_)
    only_passage[others] = by_passage[:-1]
    return NearDuplicates(
        of_document[distinct.kinds],
        distinct.pairs(others[np.concatenate([pairs, passages])]),
        only_passage[distinct.kinds],
    )


def _repeat_document(texts: Shingles, document: Document, weights: Weights, threshold: float) -> Bools:
    """Return which of m texts repeat the document by their share of words, or one of its short chunks, (m,)."""
    weighed = Texts.of(texts, weights, threshold)
    repeats: Bools = (weighed.whole > 0) & (_covered_by(document, weighed) >= weighed.needed)
    repeats[texts.is_short] = np.isin(texts.hashes[texts.offsets[:-1][texts.is_short]], document.wholes)
    return repeats


def _covered_by(document: Document, texts: Texts) -> Ints:
    """Return the weight of each text's words that stand in runs of the document, (m,)."""
    places = np.flatnonzero(np.isin(texts.hashes, document.runs))
    firsts = np.flatnonzero(np.diff(texts.owners[places], prepend=-1))
    weights = np.zeros(len(texts.whole), np.int64)
    weights[texts.owners[places[firsts]]] = covered(texts.words, places, firsts)
    return weights


def similarities(candidates: Shingles, *, document: Document, weights: Weights) -> NDArray[np.float64]:
    """Return for each of m candidates the share of its words, by weight, that stand in a shared shingle, (m,) in [0, 1].

    1 or 0 for a text of fewer than ten words: the document has the same or not.
    """
    texts = Texts.of(candidates, weights, 1.0)
    shares = _covered_by(document, texts).astype(np.float64)
    np.divide(shares, texts.whole, out=shares, where=texts.whole > 0)
    shares[candidates.is_short] = np.isin(texts.hashes[texts.offsets[:-1][candidates.is_short]], document.wholes)
    return shares


def _with(texts: Shingles, document: Document) -> Shingles:
    """Return the texts, and the whole document behind them."""
    hashes = np.concatenate([texts.hashes, document.runs])
    return Shingles(hashes, np.append(texts.offsets, len(hashes)))
