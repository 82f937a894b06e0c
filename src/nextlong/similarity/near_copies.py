"""Near-copies: is a candidate the meta-document's own text again, or that of another candidate?

In:  SHINGLES of some candidates, their meta-document, and WEIGHTS, which say how rare each shingle is.
Out: which candidates repeat the meta-document, and which pairs of the others repeat each other.

The rule is docs/decisions/0005-near-copies.md. A text repeats another if `threshold` of its words, by weight, stand in runs of
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

from nextlong.similarity.distinct import distinct_texts
from nextlong.similarity.passages import repeated_passages
from nextlong.similarity.shared_runs import Bools, Ints, shared_runs
from nextlong.similarity.shares import repeating
from nextlong.similarity.shingles import Document, Shingles, Weights
from nextlong.similarity.texts import Texts, covered


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
    shared = shared_runs(texts.hashes, texts.owners)
    is_shared = shared.kinds > 0
    suspects = texts.suspects(is_shared)
    suspects[-1] = False  # the document
    pairs = repeating(texts, shared, suspects)
    by_words = np.zeros(count, np.bool_)
    by_words[pairs[pairs[:, 1] == count, 0]] = True
    is_short = distinct.texts.is_short
    by_words[is_short] = np.isin(distinct.texts.hashes[distinct.texts.offsets[:-1][is_short]], document.wholes)
    passages = repeated_passages(texts, is_shared, left_out=np.append(by_words, False))
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
    firsts = np.flatnonzero(np.diff(texts.owners[places], prepend=-1))
    shares = np.zeros(len(texts.whole))
    shares[texts.owners[places[firsts]]] = covered(texts.words, places, firsts)
    np.divide(shares, texts.whole, out=shares, where=texts.whole > 0)
    shares[candidates.is_short] = np.isin(texts.hashes[texts.offsets[:-1][candidates.is_short]], document.wholes)
    return shares


def _with(texts: Shingles, document: Document) -> Shingles:
    """Return the texts, and the whole document behind them."""
    hashes = np.concatenate([texts.hashes, document.runs])
    return Shingles(hashes, np.append(texts.offsets, len(hashes)))
