"""Exact search: the nearest vectors by brute force, in blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nextlong import schemas

_BLOCK_ROWS = 32_768  # vectors held as float32 at a time: 32 MB at 256 dimensions
_OVERFETCH = 64  # beyond `fetch`, for the own document; most documents have fewer chunks
_LONGEST_SHARED = 4096  # chunks of a document that is still searched together with others: 64 · 4³
_HEAP_CELLS = 1 << 24  # queries times neighbours held at a time: 200 MB


def nearest(
    queries_QD: NDArray[np.float32],
    vectors: Sequence[Path],
    *,
    fetch: int,
    own_first: NDArray[np.int64],
    own_last: NDArray[np.int64],
) -> tuple[list[NDArray[np.int64]], list[NDArray[np.float32]]]:
    """Return for each query the ids and cosines of its `fetch` nearest chunks, outside [own_first, own_last) of each.

    Fewer only where the corpus has no more. Descending by cosine; equal cosines by id.
    """
    found_ids: list[NDArray[np.int64]] = [np.empty(0, np.int64)] * len(queries_QD)
    found_scores: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(queries_QD)
    fetch = min(fetch, sum(np.load(path, mmap_mode="r").shape[0] for path in vectors))
    for queries, width, left_out in _searches(own_first, own_last, fetch=fetch):
        scores_QK, ids_QK = _search(queries_QD[queries], vectors, width=width, left_out=left_out)
        for query, ids, scores in zip(queries.tolist(), ids_QK, scores_QK, strict=True):
            foreign = (ids >= 0) & ((ids < own_first[query]) | (ids >= own_last[query]))
            order = np.lexsort((ids[foreign], -scores[foreign]))[:fetch]
            found_ids[query], found_scores[query] = ids[foreign][order], scores[foreign][order]
    return found_ids, found_scores


def _searches(
    own_first: NDArray[np.int64], own_last: NDArray[np.int64], *, fetch: int
) -> Iterator[tuple[NDArray[np.int64], int, tuple[int, int]]]:
    """Yield (queries, how many to fetch, chunks to leave out), each one pass over all vectors.

    Documents of like size share a search that is wide enough for the own chunks of each. One with more chunks than
    `_LONGEST_SHARED` is searched alone, with its own left out, so that the heap stays small.
    """
    own_counts = own_last - own_first
    groups: list[tuple[NDArray[np.int64], int, tuple[int, int]]] = []
    size, below = _OVERFETCH, 0
    while below < min(_LONGEST_SHARED, int(own_counts.max(initial=0))):
        groups.append((np.flatnonzero((own_counts > below) & (own_counts <= size)), fetch + size, (0, 0)))
        size, below = 4 * size, size
    for first in np.unique(own_first[own_counts > _LONGEST_SHARED]).tolist():
        own = np.flatnonzero(own_first == first)
        groups.append((own, fetch, (first, int(own_last[own[0]]))))
    for queries, width, left_out in groups:
        most = max(1, _HEAP_CELLS // width)
        for start in range(0, len(queries), most):
            yield queries[start : start + most], width, left_out


def _search(
    queries_QD: NDArray[np.float32], vectors: Sequence[Path], *, width: int, left_out: tuple[int, int]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the `width` best scores and chunk ids of each query over all shards, shape (Q, width), descending.

    Chunks [first, last) of `left_out` are passed over; ids are -1 where there are no more.
    """
    import faiss

    heap = faiss.ResultHeap(len(queries_QD), width, keep_max=True)
    for ids, block_BD in _blocks(vectors):
        stays = (ids < left_out[0]) | (ids >= left_out[1])
        if not stays.all():
            ids, block_BD = ids[stays], block_BD[stays]
        if len(ids):
            scores, rows = faiss.knn(queries_QD, block_BD, min(width, len(ids)), metric=faiss.METRIC_INNER_PRODUCT)
            heap.add_result(scores, np.where(rows < 0, -1, ids[rows]))
    heap.finalize()
    return heap.D, heap.I


def _blocks(vectors: Sequence[Path]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Stream all vectors as float32 blocks of at most `_BLOCK_ROWS` rows that may span shards, with their chunk ids."""
    ids: list[NDArray[np.int64]] = []
    pieces: list[NDArray[np.float16]] = []
    held = 0
    for shard, path in enumerate(vectors):
        rows_ND = np.load(path, mmap_mode="r")
        start = 0
        while start < len(rows_ND):
            stop = min(len(rows_ND), start + _BLOCK_ROWS - held)
            pieces.append(rows_ND[start:stop])
            ids.append(schemas.pack_ids(shard, np.arange(start, stop)))
            held += stop - start
            start = stop
            if held == _BLOCK_ROWS:
                yield np.concatenate(ids), np.concatenate(pieces).astype(np.float32)
                ids, pieces, held = [], [], 0
    if held:
        yield np.concatenate(ids), np.concatenate(pieces).astype(np.float32)
