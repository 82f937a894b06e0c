"""Exact search on the CPU: every query with every vector, by blocks of matrix products.

In:  VECTORS, float16 of unit length, memory-mapped or in memory; queries of the same
     kind.
Out: the k nearest of each query, outside the range of ids that it excludes, descending
     by score, equal scores by id.

A block of vectors is converted to float32 once and multiplied with all queries; only
scores that reach a query's current k-th best are kept (`Best`). A sample gives a first
guess of the k-th best, so a search costs little more than reading and multiplying the
vectors. Float32 products only select candidates; their final scores are exact
(docs/decisions/0008-search.md). Shapes: Q queries, D dimensions, B vectors of a block.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np

from nextlong.retrieval.indexes.base import Neighbours, VectorShards, widen
from nextlong.retrieval.indexes.best import Best, Ids, Scores, cells

# Vectors held as float32 at a time: 8 MB at 256 dimensions, about the size of caches.
_BLOCK_ROWS = 8_192
# Products held at a time: 32 MB.
_SCORES = 1 << 23
# Cells of all queries held at a time: 200 MB.
_CELLS_AT_ONCE = 1 << 24
# Vectors scored exactly at a time: 1 MB as float64 at 256 dimensions, which fits a
# core's cache.
_SCORED_ROWS = 512
# The k-th best is guessed from one vector of so many, and from at most _MAX_SAMPLE.
_SAMPLED = 32
_MAX_SAMPLE = 1 << 14
# A guess pays where there are this many times as many vectors as sampled ones.
_WORTH_SAMPLING = 16
# Times the rounding error of a CPU: tensor cores may align the terms of a sum before
# they add them.
ROUNDING = 4.0


class Exact:
    """Exact search on the CPU, directly on the stored vectors."""

    recall = 1.0
    _queries_at_once = 0  # 0: as many as `_CELLS_AT_ONCE` allows

    def __init__(self, vectors: VectorShards) -> None:
        self._vectors = vectors

    def search(
        self,
        queries_QD: Scores,
        k: int,
        *,
        exclude: Ids,
        min_scores_Q: Scores | None = None,
    ) -> Neighbours:
        """See `Index.search`; neighbours below `min_scores_Q`, (Q,), are left out."""
        k = min(k, sum(self._vectors.rows))
        if not k:
            no_ids = [np.empty(0, np.int64)] * len(queries_QD)
            no_scores = [np.empty(0, np.float32)] * len(queries_QD)
            return no_ids, no_scores
        at_once = self._queries_at_once or max(1, _CELLS_AT_ONCE // cells(k))
        nearest: list[tuple[Ids, Scores]] = []
        for first in range(0, len(queries_QD), at_once):
            part = slice(first, first + at_once)
            bounds = None if min_scores_Q is None else min_scores_Q[part]
            nearest += self._nearest(queries_QD[part], k, exclude[part], bounds)
        return [ids for ids, _ in nearest], [scores for _, scores in nearest]

    def _nearest(
        self, queries_QD: Scores, k: int, exclude_Q2: Ids, min_scores_Q: Scores | None
    ) -> list[tuple[Ids, Scores]]:
        """Return the nearest of each query after one pass over all vectors.

        Queries with a wrong guess take a second pass.
        """
        if min_scores_Q is not None:
            best = self._stream(queries_QD, k, exclude_Q2, min_scores_Q)
            return _reaching(best.finish(), min_scores_Q)
        guess_Q = guess_kth(
            queries_QD,
            self._vectors,
            k=k,
            exclude_Q2=exclude_Q2,
            sample=min(_MAX_SAMPLE, sum(self._vectors.rows) // _SAMPLED),
        )
        best = self._stream(queries_QD, k, exclude_Q2, guess_Q)
        nearest = list(best.finish())
        again = best.too_high()
        if len(again):
            best = self._stream(queries_QD[again], k, exclude_Q2[again], None)
            for query, row in zip(again.tolist(), best.finish(), strict=True):
                nearest[query] = row
        return nearest

    def _stream(
        self, queries_QD: Scores, k: int, exclude_Q2: Ids, guess_Q: Scores | None
    ) -> Best:
        """Multiply every vector with every query and return the best of each query."""
        count, dimensions = queries_QD.shape
        best = Best(
            count,
            k=k,
            error=rounding_error(dimensions),
            exact=partial(exact_cosines, queries_QD, self._vectors),
            guess_Q=guess_Q,
        )
        width = max(1, min(_BLOCK_ROWS, _SCORES // count))
        scores_QB = np.empty((count, width), np.float32)
        for ids, block_BD in self._vectors.blocks(_BLOCK_ROWS):
            for first in range(0, len(ids), width):
                part = ids[first : first + width]
                products = scores_QB
                # The last block is narrower, and a slice of `scores_QB` would not be
                # contiguous, which `matmul` requires.
                if len(part) < width:
                    products = np.empty((count, len(part)), np.float32)
                np.matmul(queries_QD, block_BD[first : first + width].T, out=products)
                exclude_ranges(products, part, exclude_Q2)
                best.add(products, part)
        return best


def _reaching(
    nearest: Iterable[tuple[Ids, Scores]], min_scores_Q: Scores
) -> list[tuple[Ids, Scores]]:
    """Return the neighbours of each query that reach its bound."""
    reaching = []
    for (ids, scores), min_score in zip(nearest, min_scores_Q, strict=True):
        is_near = scores >= min_score
        reaching.append((ids[is_near], scores[is_near]))
    return reaching


def sampled_rank(k: float, total: float, *, sample: int) -> int | None:
    """Return the rank in a sample whose score `k` of all vectors almost surely reach.

    None where sampling does not pay.
    """
    expected = k * sample / max(1, total)
    # Six standard deviations more: hardly ever too high.
    rank = math.ceil(expected + 6 * math.sqrt(expected) + 6)
    if total < _WORTH_SAMPLING * sample or rank >= sample:
        return None
    return rank


def guess_kth(
    queries_QD: Scores, vectors: VectorShards, *, k: int, exclude_Q2: Ids, sample: int
) -> Scores | None:
    """Return a score for each query that somewhat more than `k` vectors reach.

    It is guessed from every n-th vector; None where that does not pay. A guess that is
    too high excludes neighbours, so callers must check the k-th best against it and
    search again.
    """
    total = sum(vectors.rows)
    rank = sampled_rank(k, total, sample=sample)
    if rank is None:
        return None
    ids = vectors.ids_at(np.arange(sample) * total // sample)
    sample_SD = vectors.take(ids).astype(np.float32)
    guess_Q = np.empty(len(queries_QD), np.float32)
    at_once = max(1, _SCORES // sample)
    for first in range(0, len(queries_QD), at_once):
        part = slice(first, first + at_once)
        scores_QS = queries_QD[part] @ sample_SD.T
        exclude_ranges(scores_QS, ids, exclude_Q2[part])
        guess_Q[part] = np.partition(scores_QS, -rank, axis=1)[:, -rank]
    return guess_Q


def rounding_error(dimensions: int) -> float:
    """Return the largest error of a float32 product of unit vectors.

    It is n·u (Higham, 2002, §3.1), and 1 % more.
    """
    return 1.01 * dimensions * 2.0**-24


def exclude_ranges(scores_QB: Scores, ids_B: Ids, exclude_Q2: Ids) -> None:
    """Set to -inf the scores of columns that their query excludes.

    Column ids ascend; a query excludes the range [first, last).
    """
    lows = np.searchsorted(ids_B, exclude_Q2[:, 0])
    highs = np.searchsorted(ids_B, exclude_Q2[:, 1])
    for query in np.flatnonzero(lows < highs).tolist():
        scores_QB[query, lows[query] : highs[query]] = -np.inf


def exact_cosines(
    queries_QD: Scores, vectors: VectorShards, queries: Ids, ids: Sequence[Ids]
) -> list[Scores]:
    """Return the exact cosines of each of some `queries` to its own list of ids.

    Shape (len(ids[i]),) each.
    """
    # Queries share many neighbours: each stored row is read once, and `back` maps the
    # entries of all lists to these rows.
    entries = np.concatenate([np.empty(0, np.int64), *ids])
    distinct, back = np.unique(entries, return_inverse=True)
    rows_RD = vectors.take(distinct)
    counts = [len(row) for row in ids]
    bounds = np.cumsum([0, *counts]).tolist()
    buffer_shape = (min(_SCORED_ROWS, len(entries)), queries_QD.shape[1])
    float16_BD = np.empty(buffer_shape, np.float16)
    float32_BD = np.empty(buffer_shape, np.float32)
    float64_BD = np.empty(buffer_shape, np.float64)
    cosines = []
    queries_float64 = queries_QD[queries].astype(np.float64)
    for query_D, (low, high) in zip(queries_float64, pairwise(bounds), strict=True):
        products = np.empty(high - low, np.float32)
        for first in range(low, high, _SCORED_ROWS):
            last = min(high, first + _SCORED_ROWS)
            count = last - first
            # Without `clip`, NumPy copies what it takes once more.
            taken = float16_BD[:count]
            np.take(rows_RD, back[first:last], axis=0, out=taken, mode="clip")
            widen(taken, float32_BD[:count])
            float64_BD[:count] = float32_BD[:count]
            products[first - low : last - low] = float64_BD[:count] @ query_D
        cosines.append(products)
    return cosines
