"""Exact search on a GPU, where the vectors stay while all queries stream past them.

In:  the same vectors and queries as of `exact.py`.
Out: the same neighbours and scores, to the bit.

A block of 2 GB is read once: each vector is copied into pinned memory and from there to the
device, whatever the number of queries and calls. Tensor cores multiply float32 as TF32, in
which float16 numbers are exact, so their rough scores differ by the rounding of the sum
alone. They select candidates, whose scores are then computed in float64, where sums of such
products are exact in any order (docs/decisions/0008-search.md).

Positions are rows of the concatenation of all searched shards, which ascend as ids do.
Shapes: Q queries, D dimensions, W candidates and K neighbours of each query.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.engine.executor import granted_gpus
from nextlong.retrieval.indexes.base import VectorShards
from nextlong.retrieval.indexes.exact import ROUNDING, Exact, rounding_error

_Ids = NDArray[np.int64]
_Scores = NDArray[np.float32]

_DEVICE_QUERIES = 2048  # queries multiplied at a time
_DEVICE_ROWS = 1 << 17  # vectors multiplied at a time, for 1 GB of scores on the device
_DEVICE_BYTES = 4 << 30  # of vectors that stay on the device; a block has 2 GB
_RESCORED_BYTES = 1 << 30  # of vectors scored exactly at a time, as float64
# Candidates of all queries at a time. A candidate takes some 50 bytes while they are
# sorted, and 2,048 queries of the usual number of neighbours have 3 million.
_CANDIDATES_AT_ONCE = 1 << 25
_LEAST_SPARE = 64  # candidates beyond k, because rough scores may be in a wrong order


class ExactTorch(Exact):
    """Exact search on the GPU that the task was given, or on torch's CPU device if it has none."""

    _queries_at_once = _DEVICE_QUERIES

    def __init__(self, vectors: VectorShards) -> None:
        super().__init__(vectors)
        gpus = granted_gpus()
        self._device = torch.device(f"cuda:{gpus[0]}" if gpus else "cpu")
        self._resident: torch.Tensor | None = None

    def _nearest(
        self, queries_QD: _Scores, k: int, exclude_Q2: _Ids, least_Q: _Scores | None
    ) -> list[tuple[_Ids, _Scores]]:
        """Return the `k` best of each query by exact scores, from each piece of the vectors."""
        count = len(queries_QD)
        if least_Q is None:
            least_Q = np.full(count, -np.inf, np.float32)
        queries = self._moved(queries_QD)
        least = self._moved(least_Q)
        ranges_Q2 = self._positions_of(exclude_Q2)
        scores_QK = torch.empty((count, 0), device=self._device)
        positions_QK = torch.empty((count, 0), dtype=torch.int64, device=self._device)
        before = torch.get_float32_matmul_precision()
        # Float32 products in TF32, on tensor cores.
        torch.set_float32_matmul_precision("high")
        try:
            for first, rows in self._pieces():
                ranges = np.clip(ranges_Q2 - first, 0, len(rows))
                scores, positions = self._best_of(
                    rows, queries, k, ranges_Q2=ranges, least=least
                )
                scores_QK, positions_QK = _best_by_score(
                    torch.cat([scores_QK, scores], dim=1),
                    torch.cat([positions_QK, positions + first], dim=1),
                    k,
                )
        finally:
            torch.set_float32_matmul_precision(before)
        found_scores, found_positions = (
            scores_QK.cpu().numpy(),
            positions_QK.cpu().numpy(),
        )
        # Descending, so what a query excludes, and what is too low for it, comes last.
        lowest = np.finfo(np.float32).min
        is_kept = found_scores >= np.maximum(least_Q, lowest)[:, None]
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
        ranges_Q2: _Ids,
        least: torch.Tensor,
        spare: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return exact scores and positions of the `k` best of `rows`, (Q, ≤ k), -inf for excluded ones."""
        if spare is None:
            spare = max(_LEAST_SPARE, k // 2)
        width = min(k + spare, len(rows))
        rough, positions = self._rough(rows, queries, width, ranges_Q2)
        exact = self._exact(rows, queries, positions)
        exact = exact.masked_fill(rough == -torch.inf, -torch.inf)
        scores, positions = _best_by_score(exact, positions, k)
        if width == len(rows):
            return scores, positions
        # All rows that may be among the k best are candidates, unless as many as there are
        # candidates lie within the rounding error of the k-th: copies of one text, say.
        error = 2 * ROUNDING * rounding_error(queries.shape[1])
        bars = torch.maximum(rough[:, min(k, width) - 1], least) - error
        is_crowded = (rough[:, -1] >= bars) & (rough[:, -1] > -torch.inf)
        crowded = is_crowded.nonzero()[:, 0]
        more_spare = 4 * spare
        more_width = min(k + more_spare, len(rows))
        at_once = max(1, _CANDIDATES_AT_ONCE // more_width)
        for some in crowded.split(at_once):
            if not len(some):
                continue
            scores[some], positions[some] = self._best_of(
                rows,
                queries[some],
                k,
                ranges_Q2=ranges_Q2[some.cpu().numpy()],
                least=least[some],
                spare=more_spare,
            )
        return scores, positions

    def _rough(
        self, rows: torch.Tensor, queries: torch.Tensor, width: int, ranges_Q2: _Ids
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rough scores, descending, and the positions of the `width` best of each query, (Q, width)."""
        best = torch.empty((len(queries), 0), device=self._device)
        positions = torch.empty(
            (len(queries), 0), dtype=torch.int64, device=self._device
        )
        for first in range(0, len(rows), _DEVICE_ROWS):
            block = rows[first : first + _DEVICE_ROWS]
            scores = queries @ block.float().T
            excluded_queries, columns = _cells(
                np.clip(ranges_Q2 - first, 0, len(block))
            )
            scores[self._moved(excluded_queries), self._moved(columns)] = -torch.inf
            top, top_columns = scores.topk(min(width, len(block)), dim=1)
            best = torch.cat([best, top], dim=1)
            positions = torch.cat([positions, top_columns + first], dim=1)
            best, places = best.topk(min(width, best.shape[1]), dim=1)
            positions = positions.gather(1, places)
        return best, positions

    def _exact(
        self, rows: torch.Tensor, queries: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """Return the exact scores of the rows at `positions`, (Q, W), float32."""
        most = max(1, _RESCORED_BYTES // (8 * queries.shape[1]))  # candidates
        width = positions.shape[1]
        if width > most:
            parts = positions.split(most, dim=1)
            return torch.cat(
                [self._exact(rows, queries, part) for part in parts], dim=1
            )
        scores = []
        at_once = max(1, most // width)
        for some, whose in zip(
            positions.split(at_once), queries.split(at_once), strict=True
        ):
            candidates_QWD = rows[some].double()
            products = torch.bmm(candidates_QWD, whose.double()[:, :, None])
            scores.append(products[:, :, 0].float())
        return torch.cat(scores)

    def _pieces(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the first position and the float16 vectors of each piece; the only one stays on the device."""
        if self._resident is not None:
            yield 0, self._resident
            return
        total = sum(self._vectors.rows)
        dimensions = self._vectors[self._vectors.numbers[0]].shape[1]
        most = max(1, _DEVICE_BYTES // (2 * dimensions))
        for first in range(0, total, most):
            last = min(total, first + most)
            piece = self._read(first, last, dimensions=dimensions)
            if last - first == total:
                self._resident = piece
            yield first, piece

    def _read(self, first: int, last: int, *, dimensions: int) -> torch.Tensor:
        """Return the vectors at positions [first, last) on the device; each is copied into pinned memory, then there."""
        piece = torch.empty(
            (last - first, dimensions), dtype=torch.float16, device=self._device
        )
        ends = np.cumsum([0, *self._vectors.rows])
        parts = []
        for shard, (begin, end) in zip(
            self._vectors.numbers, pairwise(ends.tolist()), strict=True
        ):
            for start in range(max(first, begin), min(last, end), _DEVICE_ROWS):
                stop = min(last, end, start + _DEVICE_ROWS)
                parts.append((shard, start - begin, stop - begin, start - first))

        def read(part: tuple[int, int, int, int]) -> torch.Tensor:
            shard, start, stop, _ = part
            block = torch.empty(
                (stop - start, dimensions),
                dtype=torch.float16,
                pin_memory=self._device.type == "cuda",
            )
            block.numpy()[:] = self._vectors[shard][start:stop]
            return block

        with ThreadPoolExecutor(1) as reader:
            ahead = reader.submit(read, parts[0])
            for part, following in zip(parts, [*parts[1:], None], strict=True):
                block = ahead.result()
                if following is not None:
                    ahead = reader.submit(read, following)
                place = part[3]
                piece[place : place + len(block)].copy_(block, non_blocking=True)
        return piece

    def _positions_of(self, ids: _Ids) -> _Ids:
        """Return how many searched vectors have a lower id than each of `ids`."""
        ends = np.cumsum([0, *self._vectors.rows])
        numbers = self._vectors.numbers
        shards = schemas.shard_of(ids)
        places = np.clip(shards - numbers.start, 0, len(numbers))
        is_searched = (shards >= numbers.start) & (shards < numbers.stop)
        sizes = np.append(self._vectors.rows, 0)[places]
        within = np.where(is_searched, np.minimum(schemas.row_of(ids), sizes), 0)
        return np.asarray(ends[places] + within, np.int64)

    def _moved(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)


def _best_by_score(
    scores: torch.Tensor, positions: torch.Tensor, k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the `k` best of each row, descending, equal scores by position."""
    positions, order = positions.sort(dim=1)
    scores = scores.gather(1, order)
    scores, order = scores.sort(dim=1, descending=True, stable=True)
    return scores[:, :k], positions.gather(1, order)[:, :k]


def _cells(ranges_Q2: _Ids) -> tuple[_Ids, _Ids]:
    """Return the query and the column of every cell in the columns [first, last) of a query."""
    counts = np.maximum(0, ranges_Q2[:, 1] - ranges_Q2[:, 0])
    queries = np.repeat(np.arange(len(ranges_Q2)), counts)
    begins = np.repeat(np.cumsum(counts) - counts, counts)
    columns = np.repeat(ranges_Q2[:, 0], counts) + np.arange(len(queries)) - begins
    return queries, columns
