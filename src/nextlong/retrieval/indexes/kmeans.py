"""Clusters: centres for a sample of vectors, and the centres nearest to a vector.

In:  unit vectors, float32. Out: centres of unit length (spherical k-means); for each vector the numbers of its nearest.

All are products of a block of vectors with all centres, which FAISS makes four times as slowly on one core
(docs/decisions/0008-search.md). Product quantizers, and the rotations before them, are trained likewise, as one matrix product a
part and round. The rotation is that of optimized product quantization (Ge et al., 2013, §3.1): codebooks for a rotation, then the
rotation that comes nearest to what they reconstruct.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nextlong.rng import rng_for

_Rows = NDArray[np.float32]

_PRODUCTS = 1 << 24  # held at a time: 64 MB
_MOST_ROWS = 8_192
# Of 65,536 centres for 2^20 vectors of 1,024 dimensions k-means takes 5 hours of a core at 60 GFLOP/s, two levels take 6 minutes.
_MOST_AT_ONCE = 8_192
_NEAR_CELLS = 8
_REFINING = 2


def nearest_centres(rows_ND: _Rows, centres_CD: _Rows, *, count: int) -> NDArray[np.int64]:
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


def train_centres(sample_ND: _Rows, *, count: int, iterations: int, seed: int) -> _Rows:
    """Return `count` centres, shape (count, dim), by so many rounds of spherical k-means that begin with random vectors."""
    if count > _MOST_AT_ONCE:
        return _train_in_cells(sample_ND, count=count, iterations=iterations, seed=seed)
    drawn = rng_for(seed, "index.centres").choice(len(sample_ND), count, replace=False)
    centres_CD = sample_ND[np.sort(drawn)]
    best_N, numbers_N = np.empty(len(sample_ND), np.float32), np.empty(len(sample_ND), np.int64)
    for _ in range(iterations):
        for first, products_RC in _products(sample_ND, centres_CD):
            numbers = products_RC.argmax(axis=1)
            numbers_N[first : first + len(numbers)] = numbers
            best_N[first : first + len(numbers)] = products_RC[np.arange(len(numbers)), numbers]
        centres_CD = _means(sample_ND, numbers_N, best_N, count=count)
    return centres_CD


def _train_in_cells(sample_ND: _Rows, *, count: int, iterations: int, seed: int) -> _Rows:
    """Train in two levels: cells, the centres of each by its own share of the sample, then all by those of the cells nearby."""
    cells_LD = train_centres(sample_ND, count=_cells_of(count), iterations=iterations, seed=seed)
    cell_N = nearest_centres(sample_ND, cells_LD, count=1)[:, 0]
    sizes = np.bincount(cell_N, minlength=len(cells_LD))
    rows_of = np.split(np.argsort(cell_N, kind="stable"), np.cumsum(sizes)[:-1])
    # Cell l gets the centres [ends[l], ends[l + 1]), in proportion to its vectors.
    ends = np.concatenate([[0], np.cumsum(sizes) * count // len(sample_ND)])
    train = partial(train_centres, iterations=iterations, seed=seed)
    counts = zip(rows_of, np.diff(ends).tolist(), strict=True)
    centres_CD = np.concatenate([train(sample_ND[rows], count=own) for rows, own in counts if own])
    near_LM = nearest_centres(cells_LD, cells_LD, count=_NEAR_CELLS)
    numbers_N = np.empty(len(sample_ND), np.int64)
    for _ in range(_REFINING):
        for rows, near in zip(rows_of, near_LM, strict=True):
            candidates = np.concatenate([np.arange(ends[cell], ends[cell + 1]) for cell in near])
            if not len(candidates):  # so few vectors that none of these cells has a centre
                candidates = np.arange(count)
            numbers_N[rows] = candidates[nearest_centres(sample_ND[rows], centres_CD[candidates], count=1)[:, 0]]
        best_N = np.einsum("nd,nd->n", sample_ND, centres_CD[numbers_N])
        centres_CD = _means(sample_ND, numbers_N, best_N, count=count)
    return centres_CD


def _cells_of(count: int) -> int:
    return int(2 ** round(np.log2(count**0.5)))


def training_products(rows: float, count: int, *, iterations: int) -> float:
    """Return how many products of a vector and a centre `train_centres` takes."""
    if count <= _MOST_AT_ONCE:
        return iterations * rows * count
    cells = _cells_of(count)
    return rows * (iterations * (cells + count / cells) + _REFINING * _NEAR_CELLS * count / cells)


def _means(sample_ND: _Rows, numbers_N: NDArray[np.int64], best_N: _Rows, *, count: int) -> _Rows:
    """Return the unit means of the vectors of each number; one without vectors goes to one of the farthest from their centres."""
    from scipy import sparse  # a tenth of a second, at every start of nextlong

    # A matrix of vectors × clusters with one 1 in each row: its transpose sums the vectors of each cluster.
    ones, ends = np.ones(len(sample_ND), np.float32), np.arange(len(sample_ND) + 1)
    sums_CD: _Rows = sparse.csr_matrix((ones, numbers_N, ends), shape=(len(sample_ND), count)).T @ sample_ND
    empty = np.flatnonzero(np.bincount(numbers_N, minlength=count) == 0)
    sums_CD[empty] = sample_ND[np.argsort(best_N, kind="stable")[: len(empty)]]
    lengths_C = np.linalg.norm(sums_CD, axis=1, keepdims=True)
    return np.ascontiguousarray(sums_CD / np.where(lengths_C > 0, lengths_C, 1), np.float32)


def _products(rows_ND: _Rows, centres_CD: _Rows) -> Iterator[tuple[int, _Rows]]:
    """Yield the products of block after block of rows with all centres, and the first row's number; valid until the next."""
    rows = max(1, min(_MOST_ROWS, _PRODUCTS // len(centres_CD), len(rows_ND)))
    held_RC = np.empty((rows, len(centres_CD)), np.float32)
    for first in range(0, len(rows_ND), rows):
        block_RD = rows_ND[first : first + rows]
        yield first, np.matmul(block_RD, centres_CD.T, out=held_RC[: len(block_RD)])


_ROUNDS: Final = 8  # of k-means, and of turning the rotation
_ROUNDS_A_TURN: Final = 2  # of k-means, from the codebooks of the turn before
_ROWS: Final = 4096  # compared at a time: 4 MB of products with 256 values


def first_codebooks(rows_ND: _Rows, *, parts: int, values: int, seed: int) -> _Rows:
    """Return rows drawn at random as codebooks of `parts` equal slices, shape (parts, values, dim / parts)."""
    drawn = rng_for(seed, "index.codes").choice(len(rows_ND), values, replace=len(rows_ND) < values)
    return _slices(rows_ND[drawn], parts)


def train_codebooks(rows_ND: _Rows, books_PVW: _Rows, *, rounds: int = _ROUNDS) -> _Rows:
    """Return the codebooks after so many rounds of k-means. A value that no row is nearest to stays."""
    books_PVW = books_PVW.copy()
    for slice_NW, book_VW in zip(_slices(rows_ND, len(books_PVW)), books_PVW, strict=True):
        for _ in range(rounds):
            nearest_N = _nearest(slice_NW, book_VW)
            counts_V = np.bincount(nearest_N, minlength=len(book_VW))
            sums_VW = np.stack([np.bincount(nearest_N, column, len(book_VW)) for column in slice_NW.T], axis=1)
            book_VW[counts_V > 0] = sums_VW[counts_V > 0] / counts_V[counts_V > 0, None]
    return books_PVW


def train_rotation(rows_ND: _Rows, *, parts: int, values: int, seed: int) -> _Rows:
    """Return the rotation R, shape (dim, dim), for which R·x is coded best by a product quantizer of so many parts."""
    dimensions = rows_ND.shape[1]
    random_DD = rng_for(seed, "index.rotation").standard_normal((dimensions, dimensions))
    rotation_DD = np.linalg.qr(random_DD)[0].astype("f4")
    books_PVW = first_codebooks(rows_ND @ rotation_DD.T, parts=parts, values=values, seed=seed)
    for turn in range(_ROUNDS):
        rotated_ND = rows_ND @ rotation_DD.T
        books_PVW = train_codebooks(rotated_ND, books_PVW, rounds=_ROUNDS_A_TURN if turn else _ROUNDS)
        slices = zip(_slices(rotated_ND, parts), books_PVW, strict=True)
        coded_ND = np.concatenate([book_VW[_nearest(slice_NW, book_VW)] for slice_NW, book_VW in slices], axis=1)
        left, _, right = np.linalg.svd(coded_ND.T @ rows_ND)  # orthogonal Procrustes
        rotation_DD = (left @ right).astype(np.float32)
    return rotation_DD


def _slices(rows_ND: _Rows, parts: int) -> _Rows:
    """Return the rows cut into equal slices, shape (parts, n, dim / parts)."""
    return np.ascontiguousarray(rows_ND.reshape(len(rows_ND), parts, -1).swapaxes(0, 1))


def _nearest(rows_NW: _Rows, book_VW: _Rows) -> NDArray[np.int64]:
    """Return the value nearest to each row, by Euclidean distance, shape (n,)."""
    half_squares_V = np.einsum("vw,vw->v", book_VW, book_VW) / 2
    blocks = [rows_NW[first : first + _ROWS] for first in range(0, len(rows_NW), _ROWS)]
    return np.concatenate([(block @ book_VW.T - half_squares_V).argmax(axis=1) for block in blocks])
