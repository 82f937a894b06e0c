"""Best: the k nearest of many queries, while the scores of block after block go by.

In:  blocks of rough scores, off by at most `error`, and the ids of their columns, ascending from block to block.
Out: for each query its k nearest, by exact scores.

A score enters only if it reaches its query's present k-th best, so past the first blocks hardly any does, and what is
kept is a few thousand numbers a query. Rough scores that `error` cannot tell from the k-th best stay too; exact ones
decide at the end, or as soon as there are too many of them, as where a text stands in the corpus a thousand times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Scores = NDArray[np.float32]
ExactScores = Callable[[NDArray[np.int64], Sequence[Ids]], list[Scores]]  # of queries and, for each, of so many ids

_TIES = 64  # beyond k that a query may hold because rough scores cannot tell them apart
_LEAST_ROOM = 512  # that may enter before a list is pruned, at least
_SETTLED = 64  # queries whose exact scores are computed at a time


class Best:
    """The best `k` ids of each query so far; `cells` (scores held) grow with queries and k alone."""

    def __init__(
        self, queries: int, *, k: int, error: float, exact: ExactScores | None, guess_Q: Scores | None = None
    ) -> None:
        """`exact` gives the scores that decide; None: rough ones do. `guess_Q`, shape (queries,): see `too_high`."""
        self._k, self._error, self._exact = k, error, exact
        self._room = room(k)
        # Row q holds the scores and ids of query q in its first held[q] cells, in no order.
        self._scores = np.full((queries, cells(k)), -np.inf, np.float32)
        self._ids = np.full(self._scores.shape, -1, np.int64)
        self._held = np.zeros(queries, np.int64)
        self._least = np.full((queries, 1), np.finfo(np.float32).min, np.float32)  # a score that may still count
        self._guess = guess_Q
        if guess_Q is not None:
            self._least[:, 0] = np.maximum(self._least[:, 0], guess_Q)

    def add(self, scores_QB: Scores, ids_B: Ids, queries: NDArray[np.int64] | None = None) -> None:
        """Take in a block's scores, shape (queries, block); -inf where a query must not find a column.

        `queries`, shape (rows,), says whose rows these are, each once; by default they are those of all queries.
        """
        whose = np.arange(len(self._held)) if queries is None else queries
        if self._guess is None and len(ids_B) > self._room and not self._held[whose].any():
            self._raise(scores_QB, whose)  # of a first block only its own k best can count
        hits = np.flatnonzero(scores_QB >= self._least[whose])
        rows = hits // len(ids_B)
        columns = hits - rows * len(ids_B)
        counts = np.bincount(rows, minlength=len(whose))
        if counts.max(initial=0) > self._room:  # as where one text stands in the block a thousand times
            half = len(ids_B) // 2
            self.add(scores_QB[:, :half], ids_B[:half], whose)
            self.add(scores_QB[:, half:], ids_B[half:], whose)
            return
        full = whose[self._held[whose] + counts > self._scores.shape[1]]
        if len(full):
            self._prune(full)
        # Hits are sorted by row: `within` counts them in their row, which gives the cell that each goes to.
        within = np.arange(len(hits)) - np.repeat(np.cumsum(counts) - counts, counts)
        hit_queries = whose[rows]
        places = self._held[hit_queries] + within
        self._scores[hit_queries, places] = scores_QB[rows, columns]
        self._ids[hit_queries, places] = ids_B[columns]
        self._held[whose] += counts

    def finish(self) -> Iterator[tuple[Ids, Scores]]:
        """Yield the ids and scores of each query, descending, equal scores by id; fewer than k if there are no more."""
        for first in range(0, len(self._held), _SETTLED):
            queries = np.arange(first, min(first + _SETTLED, len(self._held)))
            places = [self._places(query) for query in queries.tolist()]
            ids = [self._ids[query, there] for query, there in zip(queries, places, strict=True)]
            for row_ids, scores in zip(ids, self._decisive(queries, places), strict=True):
                order = np.lexsort((row_ids, -scores))[: self._k]
                yield row_ids[order], scores[order]

    def too_high(self) -> NDArray[np.int64]:
        """Return the queries whose guess may have left out what counts: fewer than k scores lie above it for certain.

        A score below the guess never enters: one just below the k-th best spares what would enter before that is known.
        """
        if self._guess is None:
            return np.empty(0, np.int64)
        kth = np.full(len(self._held), -np.inf, np.float32)
        for query in np.flatnonzero(self._held >= self._k).tolist():
            kth[query] = np.partition(self._scores[query, : self._held[query]], -self._k)[-self._k]
        return np.flatnonzero(kth - np.float32(2 * self._error) < self._guess)

    def _places(self, query: int) -> NDArray[np.int64]:
        """Return where a query holds what may be among its k best."""
        scores = self._scores[query, : self._held[query]]
        if len(scores) > self._k:
            self._raise(scores[None], np.array([query]))
        return np.flatnonzero(scores >= self._least[query])

    def _decisive(self, queries: NDArray[np.int64], places: Sequence[NDArray[np.int64]]) -> list[Scores]:
        """Return the scores that decide, of what stands at the given places."""
        if self._exact is None:
            return [self._scores[query, there] for query, there in zip(queries, places, strict=True)]
        return self._exact(queries, [self._ids[query, there] for query, there in zip(queries, places, strict=True)])

    def _prune(self, queries: NDArray[np.int64]) -> None:
        """Keep the best `k + _TIES` of the given queries, which hold more; exact scores choose where that is too few."""
        wide = self._k + _TIES
        scores = self._scores[queries]
        order = np.argpartition(scores, -wide, axis=1)[:, -wide:]
        best = np.take_along_axis(scores, order, axis=1)
        self._raise(best, queries)
        for row in np.flatnonzero(best.min(axis=1) >= self._least[queries, 0]).tolist():
            places = np.flatnonzero(scores[row] >= self._least[queries[row]])
            (decisive,) = self._decisive(queries[row : row + 1], [places])
            order[row] = places[np.lexsort((self._ids[queries[row], places], -decisive))[:wide]]
            best[row] = scores[row, order[row]]
        self._scores[queries] = -np.inf
        self._scores[queries, :wide] = best
        self._ids[queries, :wide] = np.take_along_axis(self._ids[queries], order, axis=1)
        self._held[queries] = wide

    def _raise(self, scores: Scores, queries: NDArray[np.int64]) -> None:
        """Raise what a score must reach to the k-th best of `scores`, one row for each of the given queries."""
        kth = np.partition(scores, -self._k, axis=1)[:, -self._k]
        self._least[queries, 0] = np.maximum(self._least[queries, 0], kth - np.float32(2 * self._error))


def room(k: int) -> int:
    """Return how many scores may reach a query between two prunings: a block's k best, and ties, at least."""
    return max(2 * (k + _TIES), _LEAST_ROOM)


def cells(k: int) -> int:
    """Return how many scores and ids are held for a query."""
    return k + _TIES + room(k)
