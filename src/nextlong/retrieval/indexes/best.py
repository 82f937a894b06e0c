"""Keep the best ids of each query while blocks of rough scores arrive.

In:  scores of all queries and a block of vectors, block by block.
Out: the k best of each query, descending by exact score, equal scores by id.

Rough scores, which may be wrong by a rounding error, only select: everything within the
error of a query's k-th best is kept, and exact scores decide at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from nextlong.arrays import Floats, Ints

Ids = Ints
Scores = Floats
# (queries, the ids of each) → the scores of these ids.
ExactScores = Callable[[Ids, Sequence[Ids]], list[Scores]]

# Ids that a query may hold beyond k because rough scores cannot separate them.
_TIES = 64
# New ids, at least, that a query can hold before they are pruned.
_MIN_ROOM = 512
# Queries whose exact scores are computed at a time.
_SETTLED = 64


class Best:
    """The best `k` ids of each query while blocks of scores arrive.

    Ids ascend from block to block. A score enters only if it reaches the query's bar,
    its current k-th best less the `error` of two rough scores. Exact scores decide at
    the end, or earlier where there are too many of them (a text with a thousand
    copies).
    """

    def __init__(
        self,
        queries: int,
        *,
        k: int,
        error: float,
        exact: ExactScores | None,
        guess_Q: Scores | None = None,
    ) -> None:
        """`exact` gives final scores; if None, rough ones are final.

        `guess_Q`, (queries,), are scores that more than k vectors may reach.
        """
        self._k = k
        self._error = error
        self._exact = exact
        self._room = cells(k) - k - _TIES
        # Row q has the scores and ids of query q in its first counts[q] cells,
        # unordered.
        self._scores = np.full((queries, cells(k)), -np.inf, np.float32)
        self._ids = np.full(self._scores.shape, -1, np.int64)
        self._counts = np.zeros(queries, np.int64)
        # The score that a new entry must reach, (queries, 1).
        self._bars = np.full((queries, 1), np.finfo(np.float32).min, np.float32)
        self._guess = guess_Q
        if guess_Q is not None:
            self._bars[:, 0] = np.maximum(self._bars[:, 0], guess_Q)

    def add(self, scores_QB: Scores, ids_B: Ids, queries: Ids | None = None) -> None:
        """Add the scores of a block, (queries, block), of some `queries`.

        None means all queries; -inf excludes a column for a query.
        """
        if queries is None:
            queries = np.arange(len(self._counts))
        # Of a large first block, only the k best can matter.
        is_large = self._guess is None and len(ids_B) > self._room
        if is_large and not self._counts[queries].any():
            self._raise_bars(scores_QB, queries)
        hits = np.flatnonzero(scores_QB >= self._bars[queries])
        # Hits ascend: where those of each query begin among them, (queries + 1,).
        width = len(ids_B)
        row_starts = np.arange(len(queries) + 1) * width
        bounds = np.searchsorted(hits, row_starts)
        counts = np.diff(bounds)

        # Too many of a block, e.g. of a text with a thousand copies: add it by halves.
        if counts.max(initial=0) > self._room:
            half = width // 2
            self.add(scores_QB[:, :half], ids_B[:half], queries)
            self.add(scores_QB[:, half:], ids_B[half:], queries)
            return
        is_full = self._counts[queries] + counts > self._scores.shape[1]
        full = queries[is_full]
        if len(full):
            self._prune(full)

        # The hits of a query fill its next cells.
        next_cells = queries * self._scores.shape[1] + self._counts[queries]
        cells = np.arange(len(hits)) + np.repeat(next_cells - bounds[:-1], counts)
        columns = hits - np.repeat(row_starts[:-1], counts)
        self._scores.reshape(-1)[cells] = scores_QB.reshape(-1)[hits]
        self._ids.reshape(-1)[cells] = ids_B[columns]
        self._counts[queries] += counts

    def finish(self) -> Iterator[tuple[Ids, Scores]]:
        """Yield the ids and scores of each query, descending, equal scores by id.

        A query has fewer than k if no more were added.
        """
        for first in range(0, len(self._counts), _SETTLED):
            queries = np.arange(first, min(first + _SETTLED, len(self._counts)))
            scores = self._scores[queries]
            self._raise_bars(scores, queries)
            # The cells of each query that may be among its k best; unused ones have
            # -inf.
            rows, columns = np.nonzero(scores >= self._bars[queries])
            bounds = np.searchsorted(rows, np.arange(1, len(queries)))
            entries = np.split(columns, bounds)
            final_scores = self._final_scores(queries, entries)
            for query, cells, scores in zip(
                queries.tolist(), entries, final_scores, strict=True
            ):
                ids = self._ids[query, cells]
                order = np.lexsort((ids, -scores))[: self._k]
                yield ids[order], scores[order]

    def too_high(self) -> Ids:
        """Return the queries whose guess may have excluded neighbours.

        Fewer than k of their scores lie above the guess for certain. Call it after
        `finish`.
        """
        if self._guess is None:
            return np.empty(0, np.int64)
        return np.flatnonzero(self._bars[:, 0] <= self._guess)

    def _final_scores(self, queries: Ids, entries: Sequence[Ids]) -> list[Scores]:
        """Return the final scores of the given cells of each query."""
        rows = list(zip(queries, entries, strict=True))
        if self._exact is None:
            return [self._scores[query, cells] for query, cells in rows]
        ids = [self._ids[query, cells] for query, cells in rows]
        return self._exact(queries, ids)

    def _prune(self, queries: Ids) -> None:
        """Keep the best `k + _TIES` entries of each given query.

        Exact scores choose where rough ones leave more.
        """
        width = self._k + _TIES
        scores = self._scores[queries]
        order = np.argpartition(scores, -width, axis=1)[:, -width:]
        best = np.take_along_axis(scores, order, axis=1)
        self._raise_bars(best, queries)
        # Where even the last of them reaches the bar, others may too.
        is_crowded = best.min(axis=1) >= self._bars[queries, 0]
        crowded = np.flatnonzero(is_crowded)
        entries = [
            np.flatnonzero(scores[row] >= self._bars[queries[row]])
            for row in crowded.tolist()
        ]
        final_scores = self._final_scores(queries[crowded], entries)
        for row, cells, finals in zip(
            crowded.tolist(), entries, final_scores, strict=True
        ):
            ids = self._ids[queries[row], cells]
            order[row] = cells[np.lexsort((ids, -finals))[:width]]
            best[row] = scores[row, order[row]]
        self._scores[queries] = -np.inf
        self._scores[queries, :width] = best
        best_ids = np.take_along_axis(self._ids[queries], order, axis=1)
        self._ids[queries, :width] = best_ids
        self._counts[queries] = width

    def _raise_bars(self, scores: Scores, queries: Ids) -> None:
        """Raise the bars of queries to the k-th best of `scores`, a row for each."""
        kth = np.partition(scores, -self._k, axis=1)[:, -self._k]
        bars = kth - np.float32(2 * self._error)
        self._bars[queries, 0] = np.maximum(self._bars[queries, 0], bars)


def cells(k: int) -> int:
    """Return the number of cells of a query.

    They hold k, ties, and the entries between two prunings.
    """
    return k + _TIES + max(2 * (k + _TIES), _MIN_ROOM)
