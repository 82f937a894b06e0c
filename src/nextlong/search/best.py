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
ExactScores = Callable[[Sequence[int], Sequence[Ids]], list[Scores]]  # of queries and, for each, of so many ids

_TIES = 64  # beyond k that a query may hold because rough scores cannot tell them apart
_LEAST_ROOM = 2048  # that may enter before a query's list is pruned: 24 KB
_SETTLED = 64  # queries whose exact scores are computed at a time


class Best:
    """The best `k` ids of each query so far; `cells` (scores held) grow with queries and k alone."""

    def __init__(self, queries: int, *, k: int, error: float, exact: ExactScores) -> None:
        self._k, self._error, self._exact = k, error, exact
        self._room = room(k)
        self._scores = np.full((queries, cells(k)), -np.inf, np.float32)
        self._ids = np.full(self._scores.shape, -1, np.int64)
        self._held = np.zeros(queries, np.int64)
        self._least = np.full((queries, 1), np.finfo(np.float32).min, np.float32)  # a score that may still count

    def add(self, scores_QB: Scores, ids_B: Ids, queries: NDArray[np.int64] | None = None) -> None:
        """Take in a block's scores, shape (queries, block); -inf where a query must not find a column.

        `queries`, shape (rows,), says whose rows these are, each once; by default they are those of all queries.
        """
        whose = np.arange(len(self._held)) if queries is None else queries
        if len(ids_B) > self._room and not self._held[whose].any():  # of a first block only its own k best can count
            self._raise(scores_QB, whose)
        hits = np.flatnonzero(scores_QB >= self._least[whose])
        rows = hits // len(ids_B)
        columns = hits - rows * len(ids_B)
        counts = np.bincount(rows, minlength=len(whose))
        if counts.max(initial=0) > self._room:  # as where one text stands in the block a thousand times
            half = len(ids_B) // 2
            self.add(scores_QB[:, :half], ids_B[:half], whose)
            self.add(scores_QB[:, half:], ids_B[half:], whose)
            return
        self._prune(whose[self._held[whose] + counts > self._scores.shape[1]])
        within = np.arange(len(hits)) - np.repeat(np.cumsum(counts) - counts, counts)
        hit_queries = whose[rows]
        places = self._held[hit_queries] + within
        self._scores[hit_queries, places] = scores_QB[rows, columns]
        self._ids[hit_queries, places] = ids_B[columns]
        self._held[whose] += counts

    def finish(self) -> Iterator[tuple[Ids, Scores]]:
        """Yield the ids and exact scores of each query, descending, equal scores by id; fewer than k if there are no more."""
        self._prune(np.flatnonzero(self._held > self._k))
        for first in range(0, len(self._held), _SETTLED):
            queries = range(first, min(first + _SETTLED, len(self._held)))
            ids = [self._ids[query, : self._held[query]] for query in queries]
            for found, scores in zip(ids, self._exact(queries, ids), strict=True):
                order = np.lexsort((found, -scores))[: self._k]
                yield found[order], scores[order]

    def _prune(self, queries: NDArray[np.int64]) -> None:
        """Drop what is certainly not among the k best of the given queries."""
        if not len(queries):
            return
        scores = self._scores[queries]
        self._raise(scores, queries)
        for query, stays in zip(queries.tolist(), scores >= self._least[queries], strict=True):
            self._keep(query, np.flatnonzero(stays))

    def _raise(self, scores: Scores, queries: NDArray[np.int64]) -> None:
        """Raise what a score must reach to the k-th best of `scores`, one row for each of the given queries."""
        kth = np.partition(scores, -self._k, axis=1)[:, -self._k]
        self._least[queries, 0] = np.maximum(self._least[queries, 0], kth - np.float32(2 * self._error))

    def _keep(self, query: int, places: NDArray[np.int64]) -> None:
        if len(places) > self._k + _TIES:
            ids = self._ids[query, places]
            places = places[np.lexsort((ids, -self._exact([query], [ids])[0]))[: self._k]]
        scores, ids = self._scores[query, places], self._ids[query, places]
        self._scores[query], self._held[query] = -np.inf, len(places)
        self._scores[query, : len(places)], self._ids[query, : len(places)] = scores, ids


def room(k: int) -> int:
    """Return how many scores may reach a query between two prunings: the k best of a block, and ties, at least."""
    return max(k + _TIES, _LEAST_ROOM)


def cells(k: int) -> int:
    """Return how many scores and ids are held for a query."""
    return k + _TIES + room(k)
