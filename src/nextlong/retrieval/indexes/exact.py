"""Exact search: compare every query with every vector, by blocks of matrix products.

In:  VECTORS, float16 of unit length, memory-mapped or in memory; queries of the same kind.
Out: the k nearest of each query, outside the range of ids that it excludes, descending by score, equal scores by id.

A block of vectors is converted to float32 once and multiplied with all queries; only scores that reach a query's current
k-th best are kept (`Best`). A sample gives a first guess of the k-th best, so a search costs little more than reading and
multiplying the vectors. Float32 products (on a GPU, rough scores of tensor cores) only select candidates; their final scores
are exact (docs/decisions/0008-search.md); `exact_gpu.py` is the same search on a GPU. Shapes: Q queries, D dimensions, B
vectors of a block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from nextlong.engine.executor import granted_gpus
from nextlong.retrieval.indexes.base import (
    IndexFiles,
    IndexKind,
    Neighbours,
    VectorShards,
)

_Ids = NDArray[np.int64]
_Scores = NDArray[np.float32]
_ExactScores = Callable[
    [_Ids, Sequence[_Ids]], list[_Scores]
]  # (queries, the ids of each) → the scores of these ids

_TIES = (
    64  # ids that a query may hold beyond k because rough scores cannot separate them
)
_LEAST_ROOM = 512  # new ids, at least, that a query can hold before they are pruned
_SETTLED = 64  # queries whose exact scores are computed at a time


class Best:
    """The best `k` ids of each query while blocks of scores arrive; ids ascend from block to block.

    A score enters only if it reaches the query's current k-th best. Rough scores within `error` of it are kept as well;
    exact scores decide at the end, or earlier where there are too many of them (a text with a thousand copies).
    """

    def __init__(
        self,
        queries: int,
        *,
        k: int,
        error: float,
        exact: _ExactScores | None,
        guess_Q: _Scores | None = None,
    ) -> None:
        """`exact` gives final scores (None: rough ones are final); `guess_Q`, (queries,): scores that > k vectors may reach."""
        self._k, self._error, self._exact = k, error, exact
        self._room = cells(k) - k - _TIES
        # Row q holds the scores and ids of query q in its first held[q] cells, unordered.
        self._scores = np.full((queries, cells(k)), -np.inf, np.float32)
        self._ids = np.full(self._scores.shape, -1, np.int64)
        self._held = np.zeros(queries, np.int64)
        # The score that a new entry must reach.
        self._least = np.full((queries, 1), np.finfo(np.float32).min, np.float32)
        self._guess = guess_Q
        if guess_Q is not None:
            self._least[:, 0] = np.maximum(self._least[:, 0], guess_Q)

    def add(self, scores_QB: _Scores, ids_B: _Ids, queries: _Ids | None = None) -> None:
        """Add the scores of a block, (queries, block), of some `queries` (None: all); -inf excludes a column for a query."""
        whose = np.arange(len(self._held)) if queries is None else queries
        if (
            self._guess is None
            and len(ids_B) > self._room
            and not self._held[whose].any()
        ):
            self._raise(
                scores_QB, whose
            )  # only the k best of the first block can matter
        hits = np.flatnonzero(scores_QB >= self._least[whose])
        rows = hits // len(ids_B)
        columns = hits - rows * len(ids_B)
        counts = np.bincount(rows, minlength=len(whose))
        if (
            counts.max(initial=0) > self._room
        ):  # e.g. a text with a thousand copies in the block
            half = len(ids_B) // 2
            self.add(scores_QB[:, :half], ids_B[:half], whose)
            self.add(scores_QB[:, half:], ids_B[half:], whose)
            return
        full = whose[self._held[whose] + counts > self._scores.shape[1]]
        if len(full):
            self._prune(full)
        # Hits are sorted by row; `within` numbers them in their row, which gives the cell of each.
        within = np.arange(len(hits)) - np.repeat(np.cumsum(counts) - counts, counts)
        hit_queries = whose[rows]
        places = self._held[hit_queries] + within
        self._scores[hit_queries, places] = scores_QB[rows, columns]
        self._ids[hit_queries, places] = ids_B[columns]
        self._held[whose] += counts

    def finish(self) -> Iterator[tuple[_Ids, _Scores]]:
        """Yield the ids and scores of each query, descending, equal scores by id; fewer than k if no more were added."""
        for first in range(0, len(self._held), _SETTLED):
            queries = np.arange(first, min(first + _SETTLED, len(self._held)))
            places = []  # of each query, the cells that may be among its k best
            for query in queries.tolist():
                scores = self._scores[query, : self._held[query]]
                if len(scores) > self._k:
                    self._raise(scores[None], np.array([query]))
                places.append(np.flatnonzero(scores >= self._least[query]))
            ids = [
                self._ids[query, entries]
                for query, entries in zip(queries, places, strict=True)
            ]
            for row_ids, scores in zip(
                ids, self._decisive(queries, places), strict=True
            ):
                order = np.lexsort((row_ids, -scores))[: self._k]
                yield row_ids[order], scores[order]

    def too_high(self) -> _Ids:
        """Return the queries whose guess may have excluded neighbours: fewer than k scores lie above it for certain."""
        if self._guess is None:
            return np.empty(0, np.int64)
        kth = np.full(len(self._held), -np.inf, np.float32)
        for query in np.flatnonzero(self._held >= self._k).tolist():
            kth[query] = np.partition(
                self._scores[query, : self._held[query]], -self._k
            )[-self._k]
        return np.flatnonzero(kth - np.float32(2 * self._error) < self._guess)

    def _decisive(self, queries: _Ids, places: Sequence[_Ids]) -> list[_Scores]:
        """Return the final scores of the given cells of each query."""
        if self._exact is None:
            return [
                self._scores[query, entries]
                for query, entries in zip(queries, places, strict=True)
            ]
        return self._exact(
            queries,
            [
                self._ids[query, entries]
                for query, entries in zip(queries, places, strict=True)
            ],
        )

    def _prune(self, queries: _Ids) -> None:
        """Keep the best `k + _TIES` entries of each given query; exact scores choose where rough ones leave more."""
        wide = self._k + _TIES
        scores = self._scores[queries]
        order = np.argpartition(scores, -wide, axis=1)[:, -wide:]
        best = np.take_along_axis(scores, order, axis=1)
        self._raise(best, queries)
        for row in np.flatnonzero(best.min(axis=1) >= self._least[queries, 0]).tolist():
            places = np.flatnonzero(scores[row] >= self._least[queries[row]])
            (decisive,) = self._decisive(queries[row : row + 1], [places])
            order[row] = places[
                np.lexsort((self._ids[queries[row], places], -decisive))[:wide]
            ]
            best[row] = scores[row, order[row]]
        self._scores[queries] = -np.inf
        self._scores[queries, :wide] = best
        self._ids[queries, :wide] = np.take_along_axis(
            self._ids[queries], order, axis=1
        )
        self._held[queries] = wide

    def _raise(self, scores: _Scores, queries: _Ids) -> None:
        """Raise the score that new entries must reach to the k-th best of `scores`, one row for each given query."""
        kth = np.partition(scores, -self._k, axis=1)[:, -self._k]
        self._least[queries, 0] = np.maximum(
            self._least[queries, 0], kth - np.float32(2 * self._error)
        )


def cells(k: int) -> int:
    """Return the number of cells of a query: k, ties, and the entries between two prunings."""
    return k + _TIES + max(2 * (k + _TIES), _LEAST_ROOM)


_BLOCK_ROWS = 8_192  # vectors held as float32 at a time: 8 MB at 256 dimensions, about the size of caches
_SCORES = 1 << 23  # products held at a time: 32 MB
_HELD = 1 << 24  # cells of all queries held at a time: 200 MB
_SCORED_ROWS = 512  # vectors scored exactly at a time: 1 MB as float64 at 256 dimensions, which fits a core's cache
_LEAST_SAMPLE = 1 << 14  # vectors from which the k-th best is guessed
_WORTH_SAMPLING = (
    16  # a guess pays where there are this many times as many vectors as sampled ones
)


class Exact:
    """Exact search on the CPU, directly on the stored vectors."""

    recall = 1.0
    _queries_at_once = 0  # 0: as many as `_HELD` allows

    def __init__(self, vectors: VectorShards) -> None:
        self._vectors = vectors

    def search(
        self,
        queries_QD: _Scores,
        k: int,
        *,
        exclude: _Ids,
        least_Q: _Scores | None = None,
    ) -> Neighbours:
        """See `Index.search`; `least_Q`, shape (Q,), excludes neighbours with a lower cosine."""
        k = min(k, sum(self._vectors.rows))
        most = self._queries_at_once or max(1, _HELD // cells(k))
        nearest: list[tuple[_Ids, _Scores]] = []
        for part in (
            slice(first, first + most)
            for first in range(0, len(queries_QD) if k else 0, most)
        ):
            nearest += self._nearest(
                queries_QD[part],
                k,
                exclude[part],
                None if least_Q is None else least_Q[part],
            )
        nearest += [(np.empty(0, np.int64), np.empty(0, np.float32))] * (
            len(queries_QD) - len(nearest)
        )
        return [ids for ids, _ in nearest], [scores for _, scores in nearest]

    def _nearest(
        self, queries_QD: _Scores, k: int, exclude_Q2: _Ids, least_Q: _Scores | None
    ) -> list[tuple[_Ids, _Scores]]:
        """Return the nearest of each query after one pass over all vectors, and a second pass for queries with a wrong guess."""
        if least_Q is not None:
            return _reaching(
                self._stream(queries_QD, k, exclude_Q2, least_Q).finish(), least_Q
            )
        guess_Q = guess_kth(
            queries_QD, self._vectors, k=k, exclude_Q2=exclude_Q2, sample=_LEAST_SAMPLE
        )
        best = self._stream(queries_QD, k, exclude_Q2, guess_Q)
        nearest = list(best.finish())
        if len(again := best.too_high()):
            redone = self._stream(
                queries_QD[again], k, exclude_Q2[again], None
            ).finish()
            for query, row in zip(again.tolist(), redone, strict=True):
                nearest[query] = row
        return nearest

    def _stream(
        self, queries_QD: _Scores, k: int, exclude_Q2: _Ids, guess_Q: _Scores | None
    ) -> Best:
        """Multiply every vector with every query and return the best of each query."""
        count, dimensions = queries_QD.shape
        exact = partial(exact_cosines, queries_QD, self._vectors)
        best = Best(
            count, k=k, error=rounding_error(dimensions), exact=exact, guess_Q=guess_Q
        )
        columns = max(1, min(_BLOCK_ROWS, _SCORES // count))
        scores_QB = np.empty((count, columns), np.float32)
        for ids, block_BD in self._vectors.blocks(_BLOCK_ROWS):
            for first in range(0, len(ids), columns):
                part = ids[first : first + columns]
                # The last block is narrower, and a slice of `scores_QB` would not be contiguous, which `matmul` requires.
                products = (
                    scores_QB
                    if len(part) == columns
                    else np.empty((count, len(part)), np.float32)
                )
                np.matmul(queries_QD, block_BD[first : first + columns].T, out=products)
                exclude_ranges(products, part, exclude_Q2)
                best.add(products, part)
        return best


def _reaching(
    nearest: Iterable[tuple[_Ids, _Scores]], least_Q: _Scores
) -> list[tuple[_Ids, _Scores]]:
    rows = zip(nearest, least_Q, strict=True)
    return [
        (ids[scores >= least], scores[scores >= least]) for (ids, scores), least in rows
    ]


ROUNDING = 4.0  # times the rounding error of a CPU: tensor cores may align the terms of a sum before they add them


def open_exact(files: IndexFiles, *, block: range | None = None) -> Exact:
    """Return exact search over all shards, or those of a block, on the GPU that the task was given if there is one."""
    has_gpu = bool(granted_gpus())
    # A GPU holds the vectors itself; main memory would hold them a second time.
    vectors = VectorShards(files.vectors, block, is_held=not has_gpu)
    if not has_gpu:
        return Exact(vectors)
    from nextlong.retrieval.indexes.exact_gpu import ExactTorch

    return ExactTorch(vectors)


def sampled_rank(k: float, total: float, *, sample: int) -> int | None:
    """Return the rank in a sample whose score at least `k` of all vectors almost surely reach; None where sampling does not pay."""
    expected = k * sample / max(1, total)
    rank = math.ceil(
        expected + 6 * math.sqrt(expected) + 6
    )  # six standard deviations: hardly ever too high
    return None if total < _WORTH_SAMPLING * sample or rank >= sample else rank


def guess_kth(
    queries_QD: _Scores, vectors: VectorShards, *, k: int, exclude_Q2: _Ids, sample: int
) -> _Scores | None:
    """Return a score for each query that somewhat more than `k` vectors reach, from every n-th vector; None where it does not pay.

    A guess that is too high excludes neighbours, so callers must check the k-th best against it and search again.
    """
    total = sum(vectors.rows)
    if (rank := sampled_rank(k, total, sample=sample)) is None:
        return None
    ids = vectors.ids_at(np.arange(sample) * total // sample)
    sample_SD = vectors.take(ids).astype(np.float32)
    guess_Q = np.empty(len(queries_QD), np.float32)
    most = max(1, _SCORES // sample)
    for part in (
        slice(first, first + most) for first in range(0, len(queries_QD), most)
    ):
        scores_QS = queries_QD[part] @ sample_SD.T
        exclude_ranges(scores_QS, ids, exclude_Q2[part])
        guess_Q[part] = np.partition(scores_QS, -rank, axis=1)[:, -rank]
    return guess_Q


def rounding_error(dimensions: int) -> float:
    """Return the largest error of a float32 product of unit vectors: n·u (Higham, 2002, §3.1), and 1 % more."""
    return 1.01 * dimensions * 2.0**-24


def exclude_ranges(scores_QB: _Scores, ids_B: _Ids, exclude_Q2: _Ids) -> None:
    """Set to -inf the scores of columns whose ids, ascending, are in the excluded range [first, last) of their query."""
    lows, highs = (
        np.searchsorted(ids_B, exclude_Q2[:, 0]),
        np.searchsorted(ids_B, exclude_Q2[:, 1]),
    )
    for query in np.flatnonzero(lows < highs).tolist():
        scores_QB[query, lows[query] : highs[query]] = -np.inf


def exact_cosines(
    queries_QD: _Scores, vectors: VectorShards, queries: _Ids, ids: Sequence[_Ids]
) -> list[_Scores]:
    """Return the exact cosines of each of some `queries` to its own list of ids, shape (len(ids[i]),)."""
    # Queries share many neighbours: each stored row is read once, and `back` maps the entries of all lists to these rows.
    distinct, back = np.unique(
        np.concatenate([np.empty(0, np.int64), *ids]), return_inverse=True
    )
    rows_RD = vectors.take(distinct)
    bounds = np.cumsum([0, *map(len, ids)]).tolist()
    buffer_BD = np.empty(
        (min(_SCORED_ROWS, max(map(len, ids), default=0)), queries_QD.shape[1])
    )
    cosines = []
    for query_D, (low, high) in zip(
        queries_QD[queries].astype(np.float64), pairwise(bounds), strict=True
    ):
        products = np.empty(high - low, np.float32)
        for first in range(0, high - low, max(1, len(buffer_BD))):
            part = back[low + first : min(high, low + first + len(buffer_BD))]
            buffer_BD[: len(part)] = rows_RD[part]
            products[first : first + len(part)] = buffer_BD[: len(part)] @ query_D
        cosines.append(products)
    return cosines


INDEX = IndexKind(name="exact", takes="exact", usage="exact", open=open_exact)
