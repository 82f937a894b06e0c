"""Exact: every query against every vector, by blocks of matrix products.

In:  VECTORS, float16 of unit length, memory-mapped or in memory; queries of the same kind.
Out: the k nearest of each query, none of them in the range of ids that it excludes.

A block of vectors is made float32 once and multiplied with all queries; only scores that reach a query's current k-th best are
kept (`top_k.py`). A sample of the vectors gives a first guess of the k-th best, so a search costs little more than reading the
vectors and multiplying them. Float32 products only select: the final scores are exact. Descending by score, equal scores by id.

Why the scores are exact: the product of two float16 numbers is a multiple of 2^-48, and a sum of such products for vectors of
unit length stays below 2, which a float64 holds without rounding, in whatever order it is added up. So the cosine, rounded once
to float32, depends neither on the linear algebra library nor on the processor, the block, the number of queries or a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from nextlong.retrieval.indexes.base import Index, IndexFiles, IndexKind, Neighbours, VectorShards, open_exact
from nextlong.retrieval.indexes.top_k import Best, cells

_BLOCK_ROWS = 8_192  # vectors held as float32 at a time: 8 MB at 256 dimensions, near enough to the caches
_SCORES = 1 << 23  # products held at a time: 32 MB
_HELD = 1 << 24  # scores and ids of the best held at a time: 200 MB
_SCORED_ROWS = 8_192  # scored exactly at a time: 16 MB as float64 at 256 dimensions
_LEAST_SAMPLE = 1 << 14  # vectors from which the k-th best is guessed
_WORTH_SAMPLING = 16  # times as many vectors: below that a guess saves less than it costs

Found = tuple[NDArray[np.int64], NDArray[np.float32]]  # ids and cosines of one query


class Exact:
    """The index that needs none: it reads the vectors as they are stored."""

    recall = 1.0

    def __init__(self, vectors: VectorShards) -> None:
        self._vectors = vectors

    def search(
        self,
        queries_QD: NDArray[np.float32],
        k: int,
        *,
        exclude: NDArray[np.int64],
        least_Q: NDArray[np.float32] | None = None,
    ) -> Neighbours:
        """See `ExactIndex.search`."""
        ids: list[NDArray[np.int64]] = []
        scores: list[NDArray[np.float32]] = []
        k = min(k, sum(self._vectors.rows))
        most = max(1, _HELD // cells(k))
        for part in (slice(first, first + most) for first in range(0, len(queries_QD), most)):
            least = None if least_Q is None else least_Q[part]
            for row_ids, cosines in self._pass(queries_QD[part], k, exclude[part], least) if k else ():
                ids.append(row_ids)
                scores.append(cosines)
        empty = len(queries_QD) - len(ids)
        return ids + [np.empty(0, np.int64)] * empty, scores + [np.empty(0, np.float32)] * empty

    def _pass(
        self,
        queries_QD: NDArray[np.float32],
        k: int,
        exclude_Q2: NDArray[np.int64],
        least_Q: NDArray[np.float32] | None,
    ) -> list[Found]:
        """Return the nearest of each query after one pass over all vectors, and another for queries with a wrong guess."""
        guess_Q = least_Q
        if least_Q is None:
            guess_Q = guess_kth(queries_QD, self._vectors, k=k, exclude_Q2=exclude_Q2, sample=_LEAST_SAMPLE)
        best = self._stream(queries_QD, k, exclude_Q2, guess_Q)
        nearest = list(best.finish())
        if least_Q is not None:
            rows = zip(nearest, least_Q, strict=True)
            return [(ids[scores >= least], scores[scores >= least]) for (ids, scores), least in rows]
        if len(again := best.too_high()):
            redone = self._stream(queries_QD[again], k, exclude_Q2[again], None).finish()
            for query, found in zip(again.tolist(), redone, strict=True):
                nearest[query] = found
        return nearest

    def _stream(
        self,
        queries_QD: NDArray[np.float32],
        k: int,
        exclude_Q2: NDArray[np.int64],
        guess_Q: NDArray[np.float32] | None,
    ) -> Best:
        """Multiply every vector with every query and return the best of each."""

        def exact(queries: NDArray[np.int64], ids: Sequence[NDArray[np.int64]]) -> list[NDArray[np.float32]]:
            return exact_cosines(queries_QD[queries], ids, self._vectors)

        count, dimensions = queries_QD.shape
        best = Best(count, k=k, error=rounding_error(dimensions), exact=exact, guess_Q=guess_Q)
        columns = max(1, min(_BLOCK_ROWS, _SCORES // count))
        scores_QB = np.empty((count, columns), np.float32)
        for ids, block_BD in self._vectors.blocks(_BLOCK_ROWS):
            for first in range(0, len(ids), columns):
                part = ids[first : first + columns]
                # The last block is narrower: a part of `scores_QB` would not be contiguous, which `matmul` needs.
                products = scores_QB if len(part) == columns else np.empty((count, len(part)), np.float32)
                np.matmul(queries_QD, block_BD[first : first + columns].T, out=products)
                exclude_ranges(products, part, exclude_Q2)
                best.add(products, part)
        return best


def sampled_rank(k: float, total: float, *, sample: int) -> int | None:
    """Return which best score of a sample is reached by hardly fewer than `k` of all; None where sampling would not pay."""
    expected = k * sample / max(1, total)
    rank = math.ceil(expected + 6 * math.sqrt(expected) + 6)  # six standard deviations: hardly ever too high
    return None if total < _WORTH_SAMPLING * sample or rank >= sample else rank


def guess_kth(
    queries_QD: NDArray[np.float32], vectors: VectorShards, *, k: int, exclude_Q2: NDArray[np.int64], sample: int
) -> NDArray[np.float32] | None:
    """Return a score for each query that somewhat more than `k` vectors reach, by a sample; None where it would not pay.

    The sample is every n-th vector. A guess that is too high hides neighbours: whoever uses it must check the k-th best
    against it and search again.
    """
    total = sum(vectors.rows)
    rank = sampled_rank(k, total, sample=sample)
    if rank is None:
        return None
    ids = vectors.ids_at(np.arange(sample) * total // sample)
    sample_SD = vectors.take(ids).astype(np.float32)
    guess_Q = np.empty(len(queries_QD), np.float32)
    most = max(1, _SCORES // sample)
    for part in (slice(first, first + most) for first in range(0, len(queries_QD), most)):
        scores_QS = queries_QD[part] @ sample_SD.T
        exclude_ranges(scores_QS, ids, exclude_Q2[part])
        guess_Q[part] = np.partition(scores_QS, -rank, axis=1)[:, -rank]
    return guess_Q


def rounding_error(dimensions: int) -> float:
    """Return how far a float32 product of unit vectors can be from the true one: n·u (Higham, 2002, §3.1), and 1 % more."""
    return 1.01 * dimensions * 2.0**-24


def exclude_ranges(scores_QB: NDArray[np.float32], ids_B: NDArray[np.int64], exclude_Q2: NDArray[np.int64]) -> None:
    """Set to -inf the scores of columns whose ids, ascending, lie in their query's range [first, last)."""
    lows, highs = np.searchsorted(ids_B, exclude_Q2[:, 0]), np.searchsorted(ids_B, exclude_Q2[:, 1])
    for query in np.flatnonzero(lows < highs).tolist():
        scores_QB[query, lows[query] : highs[query]] = -np.inf


def exact_cosines(
    queries_QD: NDArray[np.float32], ids: Sequence[NDArray[np.int64]], vectors: VectorShards
) -> list[NDArray[np.float32]]:
    """Return for each query the exact cosines of its own list of ids, shape (len(ids[i]),)."""
    # Queries have many neighbours in common: each stored row is read once, `back` says which one a list's entry is.
    distinct, back = np.unique(np.concatenate([np.empty(0, np.int64), *ids]), return_inverse=True)
    rows_RD = vectors.take(distinct)
    bounds = np.cumsum([0, *map(len, ids)]).tolist()
    held_BD = np.empty((min(_SCORED_ROWS, max(map(len, ids), default=0)), queries_QD.shape[1]))
    cosines = []
    for query_D, (low, high) in zip(queries_QD.astype(np.float64), pairwise(bounds), strict=True):
        products = np.empty(high - low, np.float32)
        for first in range(0, high - low, max(1, len(held_BD))):
            part = back[low + first : min(high, low + first + len(held_BD))]
            held_BD[: len(part)] = rows_RD[part].astype(np.float32)  # half to single to double: processors convert so
            products[first : first + len(part)] = held_BD[: len(part)] @ query_D
        cosines.append(products)
    return cosines


def _open(files: IndexFiles) -> Index:
    return open_exact(files.vectors)


INDEX = IndexKind(name="exact", takes="exact", usage="exact", open=_open)
