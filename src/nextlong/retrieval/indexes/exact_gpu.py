"""Exact search on a GPU, where the vectors stay while all queries stream past them.

In:  the same vectors and queries as of `exact_cpu.py`.
Out: the same neighbours and scores, to the bit.

A block of 2 GB is read once: each vector is copied into pinned memory and from there to
the device, whatever the number of queries and calls. Tensor cores multiply float32 as
TF32, in which float16 numbers are exact, so their rough scores differ by the rounding
of the sum alone. They select candidates, whose scores are then computed in float64,
where sums of such products are exact in any order (docs/decisions/0008-search.md).

Positions are rows of the concatenation of all searched shards, which ascend as ids do.
Shapes: Q queries, D dimensions, W candidates and K neighbours of each query.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from nextlong import schemas
from nextlong.arrays import AnyArray
from nextlong.engine.executor import granted_gpus
from nextlong.retrieval.indexes.base import VectorShards
from nextlong.retrieval.indexes.best import Ids, Scores
from nextlong.retrieval.indexes.exact_cpu import ROUNDING, Exact, rounding_error

# Queries multiplied at a time.
_DEVICE_QUERIES = 2048
# Vectors multiplied at a time, for 1 GB of scores on the device.
_DEVICE_ROWS = 1 << 17
# Of vectors that stay on the device; a block has 2 GB.
_DEVICE_BYTES = 4 << 30
# Of vectors scored exactly at a time, as float64.
_RESCORED_BYTES = 1 << 30
# Candidates of all queries at a time. A candidate takes some 50 bytes while they are
# sorted, and 2,048 queries of the usual number of neighbours have 3 million.
_CANDIDATES_AT_ONCE = 1 << 25
# Candidates beyond k, because rough scores may be in a wrong order.
_MIN_SPARE = 64


class ExactTorch(Exact):
    """Exact search on the GPU that the task was given.

    On torch's CPU device if it has none.
    """

    _queries_at_once = _DEVICE_QUERIES

    def __init__(self, vectors: VectorShards) -> None:
        super().__init__(vectors)
        gpus = granted_gpus()
        self._device = torch.device(f"cuda:{gpus[0]}" if gpus else "cpu")
        self._resident: torch.Tensor | None = None

    def _nearest(
        self, queries_QD: Scores, k: int, exclude_Q2: Ids, min_scores_Q: Scores | None
    ) -> list[tuple[Ids, Scores]]:
        """Return the `k` best of each query by exact scores, from each piece."""
        count = len(queries_QD)
        if min_scores_Q is None:
            min_scores_Q = np.full(count, -np.inf, np.float32)
        queries = self._moved(queries_QD)
        min_scores = self._moved(min_scores_Q)
        ranges_Q2 = self._positions_of(exclude_Q2)
        scores_QK = torch.empty((count, 0), device=self._device)
        positions_QK = torch.empty((count, 0), dtype=torch.int64, device=self._device)
        precision_before = torch.get_float32_matmul_precision()
        # Float32 products in TF32, on tensor cores.
        torch.set_float32_matmul_precision("high")
        try:
            for first, rows in self._pieces():
                scores, positions = self._best_of(
                    rows,
                    queries,
                    k,
                    ranges_Q2=np.clip(ranges_Q2 - first, 0, len(rows)),
                    min_scores=min_scores,
                )
                scores_QK, positions_QK = _best_by_score(
                    torch.cat([scores_QK, scores], dim=1),
                    torch.cat([positions_QK, positions + first], dim=1),
                    k,
                )
        finally:
            torch.set_float32_matmul_precision(precision_before)
        found_scores = scores_QK.cpu().numpy()
        found_positions = positions_QK.cpu().numpy()

        # Descending, so what a query excludes, and what is too low for it, comes last.
        lowest = np.finfo(np.float32).min
        is_kept = found_scores >= np.maximum(min_scores_Q, lowest)[:, None]
        nearest = []
        for query, kept in enumerate(is_kept.sum(axis=1).tolist()):
            ids = self._vectors.ids_at(found_positions[query, :kept])
            nearest.append((ids, found_scores[query, :kept]))
        return nearest

    def _best_of(
        self,
        rows: torch.Tensor,
        queries: torch.Tensor,
        k: int,
        *,
        ranges_Q2: Ids,
        min_scores: torch.Tensor,
        spare: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return exact scores and positions of the `k` best of `rows`, (Q, ≤ k).

        Excluded ones have -inf.
        """
        if spare is None:
            spare = max(_MIN_SPARE, k // 2)
        width = min(k + spare, len(rows))
        rough, positions = self._rough(rows, queries, width, ranges_Q2)
        exact = self._exact(rows, queries, positions)
        exact = exact.masked_fill(rough == -torch.inf, -torch.inf)
        scores, positions = _best_by_score(exact, positions, k)
        if width == len(rows):
            return scores, positions

        # All rows that may be among the k best are candidates, unless as many as there
        # are candidates lie within the rounding error of the k-th: copies of one text,
        # say.
        error = 2 * ROUNDING * rounding_error(queries.shape[1])
        kth = rough[:, min(k, width) - 1]
        last = rough[:, -1]
        bars = torch.maximum(kth, min_scores) - error
        is_crowded = (last >= bars) & (last > -torch.inf)
        crowded = is_crowded.nonzero()[:, 0]
        more_spare = 4 * spare
        more_width = min(k + more_spare, len(rows))
        at_once = max(1, _CANDIDATES_AT_ONCE // more_width)
        for part in crowded.split(at_once):
            if not len(part):
                continue
            scores[part], positions[part] = self._best_of(
                rows,
                queries[part],
                k,
                ranges_Q2=ranges_Q2[part.cpu().numpy()],
                min_scores=min_scores[part],
                spare=more_spare,
            )
        return scores, positions

    def _rough(
        self, rows: torch.Tensor, queries: torch.Tensor, width: int, ranges_Q2: Ids
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rough scores and the positions of the `width` best, (Q, width).

        Descending by score.
        """
        count = len(queries)
        best = torch.empty((count, 0), device=self._device)
        positions = torch.empty((count, 0), dtype=torch.int64, device=self._device)
        for first in range(0, len(rows), _DEVICE_ROWS):
            block = rows[first : first + _DEVICE_ROWS]
            scores = queries @ block.float().T
            ranges = np.clip(ranges_Q2 - first, 0, len(block))
            excluded_queries, columns = _cells(ranges)
            excluded = self._moved(excluded_queries), self._moved(columns)
            scores[excluded] = -torch.inf
            top, top_columns = scores.topk(min(width, len(block)), dim=1)
            best = torch.cat([best, top], dim=1)
            positions = torch.cat([positions, top_columns + first], dim=1)
            best, order = best.topk(min(width, best.shape[1]), dim=1)
            positions = positions.gather(1, order)
        return best, positions

    def _exact(
        self, rows: torch.Tensor, queries: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """Return the exact scores of the rows at `positions`, (Q, W), float32."""
        max_candidates = max(1, _RESCORED_BYTES // (8 * queries.shape[1]))
        width = positions.shape[1]
        if width > max_candidates:
            parts = positions.split(max_candidates, dim=1)
            scores = [self._exact(rows, queries, part) for part in parts]
            return torch.cat(scores, dim=1)
        scores = []
        at_once = max(1, max_candidates // width)
        for positions_QW, queries_QD in zip(
            positions.split(at_once), queries.split(at_once), strict=True
        ):
            candidates_QWD = rows[positions_QW].double()
            queries_QD1 = queries_QD.double()[:, :, None]
            products = torch.bmm(candidates_QWD, queries_QD1)
            scores.append(products[:, :, 0].float())
        return torch.cat(scores)

    def _pieces(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the first position and the float16 vectors of each piece.

        If there is only one, it stays on the device.
        """
        if self._resident is not None:
            yield 0, self._resident
            return
        total = sum(self._vectors.rows)
        dimensions = self._vectors[self._vectors.numbers[0]].shape[1]
        piece_rows = max(1, _DEVICE_BYTES // (2 * dimensions))
        for first in range(0, total, piece_rows):
            last = min(total, first + piece_rows)
            piece = self._read(first, last, dimensions=dimensions)
            if last - first == total:
                self._resident = piece
            yield first, piece

    def _read(self, first: int, last: int, *, dimensions: int) -> torch.Tensor:
        """Return the vectors at positions [first, last) on the device.

        Each is copied into pinned memory, then there.
        """
        shape = (last - first, dimensions)
        piece = torch.empty(shape, dtype=torch.float16, device=self._device)
        parts = self._parts_of(first, last)

        def read(part: _ShardPart) -> torch.Tensor:
            block = torch.empty(
                (part.stop - part.start, dimensions),
                dtype=torch.float16,
                pin_memory=self._device.type == "cuda",
            )
            block.numpy()[:] = self._vectors[part.shard][part.start : part.stop]
            return block

        # The next part is read while this one is copied to the device.
        with ThreadPoolExecutor(1) as reader:
            ahead = reader.submit(read, parts[0])
            for part, following in zip(parts, [*parts[1:], None], strict=True):
                block = ahead.result()
                if following is not None:
                    ahead = reader.submit(read, following)
                rows = piece[part.at : part.at + len(block)]
                rows.copy_(block, non_blocking=True)
        return piece

    def _parts_of(self, first: int, last: int) -> list[_ShardPart]:
        """Return the rows of shards that are at positions [first, last)."""
        ends = np.cumsum([0, *self._vectors.rows]).tolist()
        parts = []
        for shard, (begin, end) in zip(
            self._vectors.numbers, pairwise(ends), strict=True
        ):
            for start in range(max(first, begin), min(last, end), _DEVICE_ROWS):
                stop = min(last, end, start + _DEVICE_ROWS)
                part = _ShardPart(
                    shard=shard,
                    start=start - begin,
                    stop=stop - begin,
                    at=start - first,
                )
                parts.append(part)
        return parts

    def _positions_of(self, ids: Ids) -> Ids:
        """Return how many searched vectors have a lower id than each of `ids`."""
        starts = np.cumsum([0, *self._vectors.rows])
        numbers = self._vectors.numbers
        shards = schemas.shard_of(ids)
        which = np.clip(shards - numbers.start, 0, len(numbers))
        is_searched = (shards >= numbers.start) & (shards < numbers.stop)
        sizes = np.append(self._vectors.rows, 0)[which]
        rows = np.minimum(schemas.row_of(ids), sizes)
        within = np.where(is_searched, rows, 0)
        return np.asarray(starts[which] + within, np.int64)

    def _moved(self, array: AnyArray) -> torch.Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor.to(self._device)


class _ShardPart(NamedTuple):
    """Rows [start, stop) of a shard, which begin at the row `at` of a piece."""

    shard: int
    start: int
    stop: int
    at: int


def _best_by_score(
    scores: torch.Tensor, positions: torch.Tensor, k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the `k` best of each row, descending, equal scores by position."""
    positions, order = positions.sort(dim=1)
    scores = scores.gather(1, order)
    scores, order = scores.sort(dim=1, descending=True, stable=True)
    return scores[:, :k], positions.gather(1, order)[:, :k]


def _cells(ranges_Q2: Ids) -> tuple[Ids, Ids]:
    """Return the query and the column of every cell in the columns of a query.

    They are the range [first, last).
    """
    counts = np.maximum(0, ranges_Q2[:, 1] - ranges_Q2[:, 0])
    queries = np.repeat(np.arange(len(ranges_Q2)), counts)
    begins = np.repeat(np.cumsum(counts) - counts, counts)
    within = np.arange(len(queries)) - begins
    columns = np.repeat(ranges_Q2[:, 0], counts) + within
    return queries, columns
