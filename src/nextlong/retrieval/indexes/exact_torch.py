"""Exact search by torch: the same results as the processor's, from the GPU that the task was given.

In:  VECTORS, float16 of unit length, memory-mapped or in memory; queries of the same kind.
Out: as `exact.py`, to the last bit.

Float16 numbers are exact in TF32, so a product on tensor cores is off by the rounding of its sum alone. The device keeps
each query's best by these rough scores, and a few more; the processor scores them exactly. Where rough scores cannot tell
more than those apart, as among a thousand copies of a text, the processor searches for that query itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.engine.executor import granted_gpus
from nextlong.retrieval.indexes.base import Neighbours, VectorShards
from nextlong.retrieval.indexes.exact import Exact, exact_cosines, rounding_error

if TYPE_CHECKING:
    import torch

_SPARE = 64  # kept beyond k: what rough scores may confuse
_QUERIES = 2048  # multiplied at a time
_ROWS = 1 << 17  # with so many vectors: 1 GB of scores on the device
ROUNDING = 4.0  # tensor cores may align the terms of a sum before they add: four times the error of a processor's


class ExactTorch:
    """Exact search on a device; without a GPU of its own the task searches on torch's processor device."""

    recall = 1.0

    def __init__(self, vectors: VectorShards) -> None:
        import torch

        self._torch = torch
        self._vectors = vectors
        gpus = granted_gpus()
        self._device = torch.device(f"cuda:{gpus[0]}" if gpus else "cpu")

    def search(
        self,
        queries_QD: NDArray[np.float32],
        k: int,
        *,
        exclude: NDArray[np.int64],
        least_Q: NDArray[np.float32] | None = None,
    ) -> Neighbours:
        """See `ExactIndex.search`."""
        k = min(k, sum(self._vectors.rows))
        least = np.full(len(queries_QD), -np.inf, np.float32) if least_Q is None else least_Q
        ids: list[NDArray[np.int64]] = []
        scores: list[NDArray[np.float32]] = []
        for first in range(0, len(queries_QD) if k else 0, _QUERIES):
            part = slice(first, first + _QUERIES)
            rough_QW, ids_QW = self._rough(queries_QD[part], k + _SPARE, exclude[part])
            nearest = self._rescore(queries_QD[part], k, exclude[part], least[part], rough_QW, ids_QW)
            ids += nearest[0]
            scores += nearest[1]
        empty = len(queries_QD) - len(ids)
        return ids + [np.empty(0, np.int64)] * empty, scores + [np.empty(0, np.float32)] * empty

    def _rough(
        self, queries_QD: NDArray[np.float32], width: int, exclude_Q2: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the rough scores, descending, and ids of the `width` best of each query, shape (Q, ≤ width)."""
        torch = self._torch
        queries = torch.from_numpy(np.ascontiguousarray(queries_QD)).to(self._device)
        best = torch.full((len(queries_QD), 0), -torch.inf, device=self._device)
        best_ids = torch.empty((len(queries_QD), 0), dtype=torch.int64, device=self._device)
        with _tensor_cores(torch):
            for first_id, vectors in self._blocks():
                scores = queries @ vectors.float().T
                # The ids of a block are consecutive: a query's excluded ones are a run of columns, empty for nearly all.
                ranges_Q2 = np.clip(exclude_Q2 - first_id, 0, len(vectors))
                for query in np.flatnonzero(ranges_Q2[:, 0] < ranges_Q2[:, 1]).tolist():
                    low, high = ranges_Q2[query].tolist()
                    scores[query, low:high] = -torch.inf
                top, columns = scores.topk(min(width, len(vectors)), dim=1)
                best_ids = torch.cat([best_ids, columns + first_id], dim=1)
                best, places = torch.cat([best, top], dim=1).topk(min(width, best_ids.shape[1]), dim=1)
                best_ids = best_ids.gather(1, places)
        return best.cpu().numpy(), best_ids.cpu().numpy()

    def _rescore(
        self,
        queries_QD: NDArray[np.float32],
        k: int,
        exclude_Q2: NDArray[np.int64],
        least_Q: NDArray[np.float32],
        rough_QW: NDArray[np.float32],
        ids_QW: NDArray[np.int64],
    ) -> Neighbours:
        """Return the `k` best by exact scores; queries that rough scores cannot decide are searched for again."""
        error = np.float32(2 * ROUNDING * rounding_error(queries_QD.shape[1]))
        lowest = np.float32(np.finfo(np.float32).min)  # an excluded vector has -inf
        bars = np.maximum(rough_QW[:, min(k, rough_QW.shape[1]) - 1], least_Q) - error
        candidates = [ids[scores >= max(bar, lowest)] for ids, scores, bar in zip(ids_QW, rough_QW, bars, strict=True)]
        exact = exact_cosines(queries_QD, candidates, self._vectors)
        orders = [np.lexsort((ids, -scores))[:k] for ids, scores in zip(candidates, exact, strict=True)]
        ids = [row[order] for row, order in zip(candidates, orders, strict=True)]
        scores = [row[order] for row, order in zip(exact, orders, strict=True)]
        if rough_QW.shape[1] < sum(self._vectors.rows):
            crowded = np.flatnonzero(rough_QW[:, -1] >= np.maximum(bars, lowest))
            again = Exact(self._vectors).search(queries_QD[crowded], k, exclude=exclude_Q2[crowded])
            for place, again_ids, cosines in zip(crowded.tolist(), *again, strict=True):
                ids[place], scores[place] = again_ids, cosines
        rows = zip(ids, scores, least_Q, strict=True)
        reached = [(row[cosines >= least], cosines[cosines >= least]) for row, cosines, least in rows]
        return [row for row, _ in reached], [cosines for _, cosines in reached]

    def _blocks(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the first id and the float16 vectors, on the device, of blocks of all shards; one is read ahead."""
        places = [
            (shard, first, last)
            for shard, rows in zip(self._vectors.numbers, self._vectors.rows, strict=True)
            for first, last in pairwise([*range(0, rows, _ROWS), rows])
        ]

        def read(place: tuple[int, int, int]) -> torch.Tensor:
            shard, first, last = place
            rows = self._torch.from_numpy(np.array(self._vectors[shard][first:last]))
            return rows.pin_memory() if self._device.type == "cuda" else rows

        with ThreadPoolExecutor(1) as reader:
            ahead = reader.submit(read, places[0]) if places else None
            for (shard, first, _), following in zip(places, [*places[1:], None], strict=False):
                assert ahead is not None
                rows = ahead.result()
                ahead = reader.submit(read, following) if following else None
                yield shard << schemas.SHARD_BITS | first, rows.to(self._device, non_blocking=True)


@contextmanager
def _tensor_cores(torch_module: Any) -> Iterator[None]:
    """Let float32 products run in TF32 meanwhile."""
    before = torch_module.get_float32_matmul_precision()
    torch_module.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch_module.set_float32_matmul_precision(before)
