"""Clusters: centres for a sample of vectors, and the centres nearest to a vector.

In:  unit vectors, float32. Out: centres of unit length (spherical k-means); for each vector the numbers of its nearest.

Both are products of a block of vectors with all centres. FAISS does the same for its own indexes four times as slowly
on one core (29 GFLOP/s against 114, `bench/search.py`), and building an index is hardly anything else.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from nextlong.rng import rng_for

_PRODUCTS = 1 << 24  # held at a time: 64 MB
_MOST_ROWS = 8_192


def nearest_centres(rows_ND: NDArray[np.float32], centres_CD: NDArray[np.float32], *, count: int) -> NDArray[np.int64]:
    """Return the `count` centres of the highest products with each row, descending, shape (n, min(count, centres))."""
    count = min(count, len(centres_CD))
    numbers = np.empty((len(rows_ND), count), np.int64)
    for first, products_RC in _products(rows_ND, centres_CD):
        last = first + len(products_RC)
        if count == 1:
            numbers[first:last, 0] = products_RC.argmax(axis=1)
            continue
        nearest = np.argpartition(products_RC, -count, axis=1)[:, -count:]
        order = np.argsort(-np.take_along_axis(products_RC, nearest, axis=1), axis=1, kind="stable")
        numbers[first:last] = np.take_along_axis(nearest, order, axis=1)
    return numbers


def train_centres(sample_ND: NDArray[np.float32], *, count: int, iterations: int, seed: int) -> NDArray[np.float32]:
    """Return `count` centres, shape (count, dim), by so many rounds of spherical k-means that begin with random vectors.

    A centre that no vector is nearest to goes to one of the vectors farthest from theirs.
    """
    drawn = rng_for(seed, "index.centres").choice(len(sample_ND), count, replace=False)
    centres_CD = sample_ND[np.sort(drawn)]
    best_N = np.empty(len(sample_ND), np.float32)
    numbers_N = np.empty(len(sample_ND), np.int64)
    for _ in range(iterations):
        for first, products_RC in _products(sample_ND, centres_CD):
            numbers = products_RC.argmax(axis=1)
            numbers_N[first : first + len(numbers)] = numbers
            best_N[first : first + len(numbers)] = products_RC[np.arange(len(numbers)), numbers]
        centres_CD = _means(sample_ND, numbers_N, best_N, count=count)
    return centres_CD


def _means(
    sample_ND: NDArray[np.float32], numbers_N: NDArray[np.int64], best_N: NDArray[np.float32], *, count: int
) -> NDArray[np.float32]:
    from scipy import sparse  # a tenth of a second, at every start of nextlong

    # A matrix of vectors × clusters with one 1 in each row: its transpose sums the vectors of each cluster.
    ones, ends = np.ones(len(sample_ND), np.float32), np.arange(len(sample_ND) + 1)
    of_row = sparse.csr_matrix((ones, numbers_N, ends), shape=(len(sample_ND), count))
    sums_CD: NDArray[np.float32] = of_row.T @ sample_ND
    empty = np.flatnonzero(np.bincount(numbers_N, minlength=count) == 0)
    sums_CD[empty] = sample_ND[np.argsort(best_N, kind="stable")[: len(empty)]]
    lengths_C = np.linalg.norm(sums_CD, axis=1, keepdims=True)
    return np.ascontiguousarray(sums_CD / np.where(lengths_C > 0, lengths_C, 1), np.float32)


def _products(
    rows_ND: NDArray[np.float32], centres_CD: NDArray[np.float32]
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield the products of block after block of rows with all centres, and the first row's number; valid until the next."""
    rows = max(1, min(_MOST_ROWS, _PRODUCTS // len(centres_CD), len(rows_ND)))
    held_RC = np.empty((rows, len(centres_CD)), np.float32)
    for first in range(0, len(rows_ND), rows):
        block_RD = rows_ND[first : first + rows]
        yield first, np.matmul(block_RD, centres_CD.T, out=held_RC[: len(block_RD)])
