"""Exact: every query against every vector, by blocks of matrix products.

In:  VECTORS, float16 of unit length, memory-mapped; queries of the same kind.
Out: the k nearest of each query, none of them in the range of ids that it leaves out.

A block of vectors is made float32 once and multiplied with all queries; what reaches a query's present k-th best is kept
(`best.py`), from the beginning on what reaches a guess of it from a sample of the vectors: so the search costs little more than
to read the vectors and multiply. The float32 products only select:
the scores are those of `cosines.py`, the same on every machine. Descending by score, equal scores by id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artefacts.flat_npy import opened
from nextlong.search.best import Best, cells
from nextlong.search.cosines import exact_cosines, half_vectors
from nextlong.search.index import IndexFiles, Neighbours

_BLOCK_ROWS = 8_192  # vectors held as float32 at a time: 8 MB at 256 dimensions, near enough to the caches
_SCORES = 1 << 23  # products held at a time: 32 MB
_HELD = 1 << 24  # scores and ids of the best held at a time: 200 MB
_SAMPLED = 1 << 14  # vectors from which the k-th best is guessed
_WORTH_SAMPLING = 16  # times as many vectors: below that a guess saves less than it costs


class Exact:
    """The index that needs none: it reads the vectors as they are stored."""

    recall = 1.0

    def __init__(self, files: IndexFiles) -> None:
        self._vectors = files.vectors

    def search(self, queries_QD: NDArray[np.float32], k: int, *, exclude: NDArray[np.int64]) -> Neighbours:
        """See `Index.search`."""
        return nearest(queries_QD, self._vectors, k=k, exclude=exclude)


def nearest(
    queries_QD: NDArray[np.float32], vectors: Sequence[Path], *, k: int, exclude: NDArray[np.int64]
) -> Neighbours:
    """Return the ids and cosines of each query's `k` nearest, outside its [first, last) in `exclude`, shape (Q, 2).

    Fewer only where there are no more. Descending by cosine, a float32 rounded from the exact one; equal ones by id.
    """
    ids: list[NDArray[np.int64]] = []
    scores: list[NDArray[np.float32]] = []
    k = min(k, sum(opened(path).shape[0] for path in vectors))
    most = max(1, _HELD // cells(k))
    for first in range(0, len(queries_QD) if k else 0, most):
        for neighbours, cosines in _pass(queries_QD[first : first + most], vectors, k, exclude[first : first + most]):
            ids.append(neighbours)
            scores.append(cosines)
    return ids, scores


def _pass(
    queries_QD: NDArray[np.float32],
    vectors: Sequence[Path],
    k: int,
    exclude_Q2: NDArray[np.int64],
    *,
    start: Literal["guess", "nothing"] = "guess",
) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Return the nearest of each query, after one pass over all vectors, and another for queries guessed wrongly."""

    def exact(queries: NDArray[np.int64], ids: Sequence[NDArray[np.int64]]) -> list[NDArray[np.float32]]:
        return exact_cosines(queries_QD[queries], ids, vectors)

    count, dimensions = queries_QD.shape
    guess_Q = _guess(queries_QD, vectors, k, exclude_Q2) if start == "guess" else None
    best = Best(count, k=k, error=rounding_error(dimensions), exact=exact, guess_Q=guess_Q)
    columns = max(1, min(_BLOCK_ROWS, _SCORES // count))
    scores_QB = np.empty((count, columns), np.float32)
    for ids, block_BD in blocks(vectors):
        for first in range(0, len(ids), columns):
            part = ids[first : first + columns]
            products = scores_QB[:, : len(part)] if len(part) == columns else np.empty((count, len(part)), np.float32)
            np.matmul(queries_QD, block_BD[first : first + columns].T, out=products)
            leave_out(products, part, exclude_Q2)
            best.add(products, part)
    nearest_of = list(best.finish())
    if len(again := best.too_high()):
        redone = _pass(queries_QD[again], vectors, k, exclude_Q2[again], start="nothing")
        for query, found in zip(again.tolist(), redone, strict=True):
            nearest_of[query] = found
    return nearest_of


def _guess(
    queries_QD: NDArray[np.float32], vectors: Sequence[Path], k: int, exclude_Q2: NDArray[np.int64]
) -> NDArray[np.float32] | None:
    """Return a score for each query that, by a sample, some more than `k` vectors reach; None where that would not pay."""
    counts = np.array([len(np.load(path, mmap_mode="r")) for path in vectors])
    expected = k * _SAMPLED / counts.sum()
    rank = int(
        np.ceil(expected + 6 * np.sqrt(expected) + 6)
    )  # six standard deviations, so that it is hardly ever too high
    if counts.sum() < _WORTH_SAMPLING * _SAMPLED or rank >= _SAMPLED:
        return None
    places = np.arange(_SAMPLED) * counts.sum() // _SAMPLED
    shards = np.searchsorted(np.cumsum(counts), places, side="right")
    ids = shards << schemas.SHARD_BITS | (places - (np.cumsum(counts) - counts)[shards])
    sample_SD = half_vectors(ids, vectors).astype(np.float32)
    guess_Q = np.empty(len(queries_QD), np.float32)
    most = max(1, _SCORES // _SAMPLED)
    for some in (slice(first, first + most) for first in range(0, len(queries_QD), most)):
        scores_QS = queries_QD[some] @ sample_SD.T
        leave_out(scores_QS, ids, exclude_Q2[some])
        guess_Q[some] = np.partition(scores_QS, -rank, axis=1)[:, -rank]
    return guess_Q


def rounding_error(dimensions: int) -> float:
    """Return how far a float32 product of unit vectors can be from the true one: n·u (Higham, 2002, §3.1), and 1 % more."""
    return 1.01 * dimensions * 2.0**-24


def leave_out(scores_QB: NDArray[np.float32], ids_B: NDArray[np.int64], exclude_Q2: NDArray[np.int64]) -> None:
    """Set to -inf the scores of columns whose ids, ascending, lie in their query's range [first, last)."""
    lows, highs = np.searchsorted(ids_B, exclude_Q2[:, 0]), np.searchsorted(ids_B, exclude_Q2[:, 1])
    for query in np.flatnonzero(lows < highs).tolist():
        scores_QB[query, lows[query] : highs[query]] = -np.inf


def blocks(
    vectors: Sequence[Path], *, rows: int | None = None
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Stream all vectors as float32 blocks that may span shards, with their chunk ids; a block is valid until the next."""
    most = rows or _BLOCK_ROWS
    ids: list[NDArray[np.int64]] = []
    held_BD, filled = np.empty((0, 0), np.float32), 0
    for shard, path in enumerate(vectors):
        stored = opened(path)
        start = 0
        while start < len(stored):
            if not held_BD.size:
                held_BD = np.empty((most, stored.shape[1]), np.float32)
            stop = min(len(stored), start + most - filled)
            held_BD[filled : filled + stop - start] = stored[start:stop]
            ids.append(schemas.pack_ids(shard, np.arange(start, stop)))
            filled, start = filled + stop - start, stop
            if filled == most:
                yield np.concatenate(ids), held_BD
                ids, filled = [], 0
    if filled:
        yield np.concatenate(ids), held_BD[:filled]
