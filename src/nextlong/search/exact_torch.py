"""Exact search by torch: the same results as the processor's, from the GPU that the task was given.

In:  VECTORS, float16 of unit length, memory-mapped; queries of the same kind.
Out: as `exact.py`, to the last bit.

Float16 numbers are exact in TF32, so a product on tensor cores is off by the rounding of its sum alone. The device keeps
each query's best by these rough scores, and a few more; the processor scores them exactly. Where rough scores cannot tell
more than those apart, as among a thousand copies of a text, the processor searches for that query itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.engine.executor import granted_gpus
from nextlong.search.cosines import exact_cosines
from nextlong.search.exact import nearest, rounding_error
from nextlong.search.index import IndexFiles, Neighbours

if TYPE_CHECKING:
    import torch

_SPARE = 64  # kept beyond k: what rough scores may confuse
_QUERIES = 2048  # multiplied at a time
_ROWS = 1 << 17  # with so many vectors: 1 GB of scores on the device
_ROUNDING = 4.0  # tensor cores may align the terms of a sum before they add: four times the error of a processor's


class ExactTorch:
    """Exact search on a device; without a GPU of its own the task searches on torch's processor device."""

    recall = 1.0

    def __init__(self, files: IndexFiles) -> None:
        import torch

        self._torch = torch
        self._vectors = files.vectors
        gpus = granted_gpus()
        self._device = torch.device(f"cuda:{gpus[0]}" if gpus else "cpu")

    def search(self, queries_QD: NDArray[np.float32], k: int, *, exclude: NDArray[np.int64]) -> Neighbours:
        """See `Index.search`."""
        rows = [np.load(path, mmap_mode="r").shape[0] for path in self._vectors]
        k = min(k, sum(rows))
        ids: list[NDArray[np.int64]] = []
        scores: list[NDArray[np.float32]] = []
        for first in range(0, len(queries_QD) if k else 0, _QUERIES):
            part = slice(first, first + _QUERIES)
            nearest = self._pass(queries_QD[part], k, exclude[part])
            ids += nearest[0]
            scores += nearest[1]
        empty = len(queries_QD) - len(ids)
        return ids + [np.empty(0, np.int64)] * empty, scores + [np.empty(0, np.float32)] * empty

    def _pass(self, queries_QD: NDArray[np.float32], k: int, exclude_Q2: NDArray[np.int64]) -> Neighbours:
        """Return the nearest of some queries, after one pass over all vectors."""
        torch = self._torch
        queries = torch.from_numpy(np.ascontiguousarray(queries_QD)).to(self._device)
        exclude = torch.from_numpy(np.ascontiguousarray(exclude_Q2)).to(self._device)
        best = torch.full((len(queries_QD), 0), -torch.inf, device=self._device)
        best_ids = torch.empty((len(queries_QD), 0), dtype=torch.int64, device=self._device)
        with _tensor_cores(torch):
            for ids, vectors in self._blocks():
                scores = queries @ vectors.T
                scores.masked_fill_((ids >= exclude[:, :1]) & (ids < exclude[:, 1:]), -torch.inf)
                scores = torch.cat([best, scores], dim=1)
                ids = torch.cat([best_ids, ids.expand(len(queries_QD), -1)], dim=1)
                best, places = scores.topk(min(k + _SPARE, scores.shape[1]), dim=1)
                best_ids = ids.gather(1, places)
        return self._settled(queries_QD, k, exclude_Q2, best.cpu().numpy(), best_ids.cpu().numpy())

    def _settled(
        self,
        queries_QD: NDArray[np.float32],
        k: int,
        exclude_Q2: NDArray[np.int64],
        best_QW: NDArray[np.float32],
        ids_QW: NDArray[np.int64],
    ) -> Neighbours:
        """Return the `k` best by exact scores; those that rough scores could not find are searched for again."""
        error = 2 * _ROUNDING * rounding_error(queries_QD.shape[1])
        least = np.maximum(best_QW[:, min(k, best_QW.shape[1]) - 1] - np.float32(error), np.finfo(np.float32).min)
        candidates = [ids[scores >= bar] for ids, scores, bar in zip(ids_QW, best_QW, least, strict=True)]
        exact = exact_cosines(queries_QD, candidates, self._vectors)
        orders = [np.lexsort((ids, -scores))[:k] for ids, scores in zip(candidates, exact, strict=True)]
        ids = [row[order] for row, order in zip(candidates, orders, strict=True)]
        scores = [row[order] for row, order in zip(exact, orders, strict=True)]
        total = sum(np.load(path, mmap_mode="r").shape[0] for path in self._vectors)
        crowded = np.flatnonzero(best_QW[:, -1] >= least) if best_QW.shape[1] < total else np.empty(0, np.int64)
        if len(crowded):
            again = nearest(queries_QD[crowded], self._vectors, k=k, exclude=exclude_Q2[crowded])
            for place, again_ids, cosines in zip(crowded.tolist(), *again, strict=True):
                ids[place], scores[place] = again_ids, cosines
        return ids, scores

    def _blocks(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the ids and vectors of blocks of all shards, on the device, as float32."""
        for shard, path in enumerate(self._vectors):
            stored = np.load(path, mmap_mode="r")
            for first, last in pairwise([*range(0, len(stored), _ROWS), len(stored)]):
                rows = self._torch.from_numpy(np.array(stored[first:last])).to(self._device)
                ids = self._torch.from_numpy(schemas.pack_ids(shard, np.arange(first, last))).to(self._device)
                yield ids, rows.float()


@contextmanager
def _tensor_cores(torch_module: Any) -> Iterator[None]:
    """Let float32 products run in TF32 meanwhile."""
    before = torch_module.get_float32_matmul_precision()
    torch_module.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch_module.set_float32_matmul_precision(before)
