"""Cosines: the exact score of a query and a stored vector, the same on every machine.

The product of two float16 numbers is a multiple of 2^-48, and a sum of them for vectors of unit length stays below 2: a
float64 holds it without rounding, in whatever order it is added up. So the cosine, rounded once to float32, depends
neither on the linear algebra library nor on the processor, the block, the number of queries or a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artefacts.flat_npy import opened

_ROWS = 8192  # read at a time: 16 MB as float64 at 256 dimensions


def exact_cosines(
    queries_QD: NDArray[np.float32], ids: Sequence[NDArray[np.int64]], vectors: Sequence[Path]
) -> list[NDArray[np.float32]]:
    """Return for each query the cosines of its own list of chunk ids, shape (len(ids[i]),), float32."""
    distinct, back = np.unique(np.concatenate([np.empty(0, np.int64), *ids]), return_inverse=True)
    rows_RD = half_vectors(distinct, vectors)
    bounds = np.cumsum([0, *map(len, ids)]).tolist()
    held = np.empty((min(_ROWS, max(map(len, ids), default=0)), queries_QD.shape[1]))
    return [
        _products(query.astype(np.float64), rows_RD, back[low:high], held)
        for query, (low, high) in zip(queries_QD, pairwise(bounds), strict=True)
    ]


def _products(
    query_D: NDArray[np.float64], rows_RD: NDArray[np.float16], wanted: NDArray[np.int64], held: NDArray[np.float64]
) -> NDArray[np.float32]:
    products = np.empty(len(wanted), np.float32)
    for first in range(0, len(wanted), max(1, len(held))):
        part = wanted[first : first + len(held)]
        held[: len(part)] = rows_RD[part].astype(np.float32)  # by way of float32, as processors do it
        products[first : first + len(part)] = held[: len(part)] @ query_D
    return products


def half_vectors(ids: NDArray[np.int64], paths: Sequence[Path]) -> NDArray[np.float16]:
    """Return the stored rows, shape (n, dim), of ascending chunk ids (n,), read from memory-mapped shards."""
    shards, rows = schemas.shard_of(ids), schemas.row_of(ids)
    firsts = np.flatnonzero(np.diff(shards, prepend=-1)).tolist()
    pieces = [opened(paths[int(shards[low])])[rows[low:high]] for low, high in pairwise([*firsts, len(ids)])]
    return np.concatenate(pieces) if pieces else np.empty((0, 0), np.float16)
