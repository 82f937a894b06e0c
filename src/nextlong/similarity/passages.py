"""Passages: which texts have the same 100 words in a row, however many documents have them too.

In:  SHINGLES of some candidates, and of their meta-document. Out: which candidates share a passage with the document, and
which pairs of them with each other.

A passage is found by its 98 runs of three words, in a row in both texts.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nextlong.similarity.shingles import SHINGLE_WORDS, Shingles
from nextlong.similarity.words import U64

Bools = NDArray[np.bool_]
Pairs = NDArray[np.int64]

PASSAGE_WORDS: Final = 100
_RUNS: Final = PASSAGE_WORDS - SHINGLE_WORDS + 1
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)


def repeated_passages(candidates: Shingles, document: U64, is_shared: Bools) -> tuple[Bools, Pairs]:
    """Return which of m candidates share a passage with a document, (m,), and the pairs a < b that share one, (n, 2).

    `is_shared` says of each shingle of the candidates whether another one or the document may have it too.
    """
    owners, passages = _passages(candidates, is_shared)
    of_document = np.zeros(len(candidates.offsets) - 1, np.bool_)
    if not len(passages):
        return of_document, np.empty((0, 2), np.int64)
    of_document[owners[np.isin(passages, _numbers(document))]] = True
    groups = np.unique(passages, return_inverse=True)[1]
    shape = (len(of_document), int(groups.max()) + 1)
    has = sp.csr_array((np.ones(len(owners), np.bool_), (owners, groups)), shape=shape)
    a, b = (has @ has.T).nonzero()
    return of_document, np.stack([a, b], axis=1)[a < b].astype(np.int64)


def _passages(texts: Shingles, is_shared: Bools) -> tuple[NDArray[np.int64], U64]:
    """Return the passages all runs of which are shared, and the text that each is of; shape (n,) each."""
    sizes = np.diff(texts.offsets)
    unshared = np.append(0, np.cumsum(~is_shared, dtype=np.int64))
    whole = np.flatnonzero(unshared[_RUNS:] == unshared[:-_RUNS]) if len(is_shared) >= _RUNS else sizes[:0]
    owners = np.searchsorted(texts.offsets, whole, side="right") - 1
    inside = whole + _RUNS <= texts.offsets[owners + 1]
    whole, owners = whole[inside], owners[inside]
    texts_with = np.unique(owners)
    rows = np.concatenate([np.arange(*texts.offsets[text : text + 2]) for text in texts_with.tolist()] or [sizes[:0]])
    numbers = _numbers(texts.hashes[rows])
    return owners, numbers[np.searchsorted(rows, whole)]


def _numbers(runs: U64) -> U64:
    """Return one number for each passage of a text, by the place of its first run; shape (max(0, r − 97),)."""
    if len(runs) < _RUNS:
        return runs[:0]
    numbers, length = runs, 1
    while 2 * length <= _RUNS:
        numbers = _joined(numbers[:-length], numbers[length:])
        length *= 2
    rest = _RUNS - length  # two of `length` that overlap
    return _joined(numbers[:-rest], numbers[rest:])


def _joined(left: U64, right: U64) -> U64:
    """Return one number for each two."""
    joined = left * _FACTOR + right
    return joined ^ joined >> np.uint64(32)
