"""Train cluster centres and product quantizers, and find the centres nearest to a vector.

In:  unit vectors, float32. Out: centres of unit length (spherical k-means); for each vector the numbers of its nearest.

Everything is a product of a block of vectors with all centres, four times as fast on one core as FAISS's training
(docs/decisions/0008-search.md). The rotation before a product quantizer is that of optimized product quantization (Ge et al.,
2013, §3.1): train codebooks for a rotation, take the rotation nearest to what they reconstruct, and repeat.

Shapes: N vectors, D dimensions, C centres; P parts of a code, V values of a part, W = D / P dimensions of a part.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nextlong.rng import rng_for

_Rows = NDArray[np.float32]

_PRODUCTS = 1 << 24  # products held at a time: 64 MB
_MOST_ROWS = 8_192
# With 65,536 centres, 2^20 vectors of 1,024 dimensions take a core 5 hours at 60 GFLOP/s; in two levels 6 minutes.
_MOST_AT_ONCE = 8_192
_NEAR_CELLS = 8  # cells whose centres a vector is compared with in the second level
_REFINING = 2  # rounds of k-means over all centres after the second level


def nearest_centres(
    rows_ND: _Rows, centres_CD: _Rows, *, count: int
) -> NDArray[np.int64]:
    """Return the numbers of the `count` nearest centres of each row, nearest first, shape (n, min(count, centres))."""
    count = min(count, len(centres_CD))
    numbers = np.empty((len(rows_ND), count), np.int64)
    for first, products_RC in _products(rows_ND, centres_CD):
        last = first + len(products_RC)
        if count == 1:
            numbers[first:last, 0] = products_RC.argmax(axis=1)
            continue
        nearest = np.argpartition(products_RC, -count, axis=1)[:, -count:]
        order = np.argsort(
            -np.take_along_axis(products_RC, nearest, axis=1), axis=1, kind="stable"
        )
        numbers[first:last] = np.take_along_axis(nearest, order, axis=1)
    return numbers


def train_centres(sample_ND: _Rows, *, count: int, iterations: int, seed: int) -> _Rows:
    """Return `count` centres, shape (count, dim), of spherical k-means that starts from randomly sampled vectors."""
    if count > _MOST_AT_ONCE:
        return _train_in_cells(sample_ND, count=count, iterations=iterations, seed=seed)
    centres_CD = sample_ND[
        np.sort(
            rng_for(seed, "index.centres").choice(len(sample_ND), count, replace=False)
        )
    ]
    best_N, numbers_N = (
        np.empty(len(sample_ND), np.float32),
        np.empty(len(sample_ND), np.int64),
    )
    for _ in range(iterations):
        for first, products_RC in _products(sample_ND, centres_CD):
            numbers = products_RC.argmax(axis=1)
            numbers_N[first : first + len(numbers)] = numbers
            best_N[first : first + len(numbers)] = products_RC[
                np.arange(len(numbers)), numbers
            ]
        centres_CD = _means(sample_ND, numbers_N, best_N, count=count)
    return centres_CD


def _train_in_cells(
    sample_ND: _Rows, *, count: int, iterations: int, seed: int
) -> _Rows:
    """Train in two levels: cells, then the centres of each cell; refine all centres by those of the nearest cells."""
    cells_LD = train_centres(
        sample_ND, count=_cells_of(count), iterations=iterations, seed=seed
    )
    cell_N = nearest_centres(sample_ND, cells_LD, count=1)[:, 0]
    sizes = np.bincount(cell_N, minlength=len(cells_LD))
    rows_of = np.split(np.argsort(cell_N, kind="stable"), np.cumsum(sizes)[:-1])
    # Cell l gets the centres [ends[l], ends[l + 1]), in proportion to the number of its vectors.
    ends = np.concatenate([[0], np.cumsum(sizes) * count // len(sample_ND)])
    train = partial(train_centres, iterations=iterations, seed=seed)
    counts = zip(rows_of, np.diff(ends).tolist(), strict=True)
    centres_CD = np.concatenate(
        [train(sample_ND[rows], count=own) for rows, own in counts if own]
    )
    near_LM = nearest_centres(cells_LD, cells_LD, count=_NEAR_CELLS)
    numbers_N = np.empty(len(sample_ND), np.int64)
    for _ in range(_REFINING):
        for rows, near in zip(rows_of, near_LM, strict=True):
            candidates = np.concatenate(
                [np.arange(ends[cell], ends[cell + 1]) for cell in near]
            )
            if not len(
                candidates
            ):  # these cells have so few vectors that none has a centre
                candidates = np.arange(count)
            numbers_N[rows] = candidates[
                nearest_centres(sample_ND[rows], centres_CD[candidates], count=1)[:, 0]
            ]
        centres_CD = _means(
            sample_ND,
            numbers_N,
            np.einsum("nd,nd->n", sample_ND, centres_CD[numbers_N]),
            count=count,
        )
    return centres_CD


def _cells_of(count: int) -> int:
    return int(2 ** round(np.log2(count**0.5)))


def training_products(rows: float, count: int, *, iterations: int) -> float:
    """Return the number of products of a vector and a centre that `train_centres` takes."""
    if count <= _MOST_AT_ONCE:
        return iterations * rows * count
    cells = _cells_of(count)
    return rows * (
        iterations * (cells + count / cells) + _REFINING * _NEAR_CELLS * count / cells
    )


def _means(
    sample_ND: _Rows, numbers_N: NDArray[np.int64], best_N: _Rows, *, count: int
) -> _Rows:
    """Return the unit mean of the vectors of each centre; a centre without vectors moves to a vector far from its own."""
    from scipy import (
        sparse,
    )  # imported here because it takes 0.1 s, which every start of nextlong would pay

    # A matrix (vectors, centres) with a single 1 in each row: its transpose times the vectors sums them by centre.
    ones, ends = np.ones(len(sample_ND), np.float32), np.arange(len(sample_ND) + 1)
    sums_CD: _Rows = (
        sparse.csr_matrix((ones, numbers_N, ends), shape=(len(sample_ND), count)).T
        @ sample_ND
    )
    empty = np.flatnonzero(np.bincount(numbers_N, minlength=count) == 0)
    sums_CD[empty] = sample_ND[np.argsort(best_N, kind="stable")[: len(empty)]]
    lengths_C = np.linalg.norm(sums_CD, axis=1, keepdims=True)
    return np.ascontiguousarray(
        sums_CD / np.where(lengths_C > 0, lengths_C, 1), np.float32
    )


def _products(rows_ND: _Rows, centres_CD: _Rows) -> Iterator[tuple[int, _Rows]]:
    """Yield the first row number and the products with all centres of each block of rows; overwritten by the next block."""
    rows = max(1, min(_MOST_ROWS, _PRODUCTS // len(centres_CD), len(rows_ND)))
    buffer_RC = np.empty((rows, len(centres_CD)), np.float32)
    for first in range(0, len(rows_ND), rows):
        block_RD = rows_ND[first : first + rows]
        yield first, np.matmul(block_RD, centres_CD.T, out=buffer_RC[: len(block_RD)])


_ROUNDS: Final = 8  # of k-means, and of updating the rotation
_ROUNDS_A_TURN: Final = 2  # of k-means after each update of the rotation, starting from the previous codebooks
_ROWS: Final = 4096  # compared at a time: 4 MB of products with 256 values


def first_codebooks(rows_ND: _Rows, *, parts: int, values: int, seed: int) -> _Rows:
    """Return randomly sampled rows as initial codebooks of `parts` equal slices, shape (parts, values, dim / parts)."""
    sampled = rng_for(seed, "index.codes").choice(
        len(rows_ND), values, replace=len(rows_ND) < values
    )
    return _slices(rows_ND[sampled], parts)


def train_codebooks(
    rows_ND: _Rows, books_PVW: _Rows, *, rounds: int = _ROUNDS
) -> _Rows:
    """Return the codebooks after `rounds` of k-means; a value that is nearest to no row does not change."""
    books_PVW = books_PVW.copy()
    for slice_NW, book_VW in zip(
        _slices(rows_ND, len(books_PVW)), books_PVW, strict=True
    ):
        for _ in range(rounds):
            nearest_N = _nearest(slice_NW, book_VW)
            counts_V = np.bincount(nearest_N, minlength=len(book_VW))
            sums_VW = np.stack(
                [np.bincount(nearest_N, column, len(book_VW)) for column in slice_NW.T],
                axis=1,
            )
            book_VW[counts_V > 0] = sums_VW[counts_V > 0] / counts_V[counts_V > 0, None]
    return books_PVW


def train_rotation(rows_ND: _Rows, *, parts: int, values: int, seed: int) -> _Rows:
    """Return the rotation R, shape (dim, dim), for which a product quantizer of `parts` parts codes R·x best."""
    dimensions = rows_ND.shape[1]
    random_DD = rng_for(seed, "index.rotation").standard_normal(
        (dimensions, dimensions)
    )
    rotation_DD = np.linalg.qr(random_DD)[0].astype("f4")
    books_PVW = first_codebooks(
        rows_ND @ rotation_DD.T, parts=parts, values=values, seed=seed
    )
    for turn in range(_ROUNDS):
        rotated_ND = rows_ND @ rotation_DD.T
        books_PVW = train_codebooks(
            rotated_ND, books_PVW, rounds=_ROUNDS_A_TURN if turn else _ROUNDS
        )
        slices = zip(_slices(rotated_ND, parts), books_PVW, strict=True)
        coded_ND = np.concatenate(
            [book_VW[_nearest(slice_NW, book_VW)] for slice_NW, book_VW in slices],
            axis=1,
        )
        left, _, right = np.linalg.svd(
            coded_ND.T @ rows_ND
        )  # orthogonal Procrustes problem
        rotation_DD = (left @ right).astype(np.float32)
    return rotation_DD


def _slices(rows_ND: _Rows, parts: int) -> _Rows:
    """Return the rows cut into equal slices, shape (parts, n, dim / parts)."""
    return np.ascontiguousarray(rows_ND.reshape(len(rows_ND), parts, -1).swapaxes(0, 1))


def _nearest(rows_NW: _Rows, book_VW: _Rows) -> NDArray[np.int64]:
    """Return the number of the value nearest to each row by Euclidean distance, shape (n,)."""
    half_squares_V = np.einsum("vw,vw->v", book_VW, book_VW) / 2
    blocks = [rows_NW[first : first + _ROWS] for first in range(0, len(rows_NW), _ROWS)]
    return np.concatenate(
        [(block @ book_VW.T - half_squares_V).argmax(axis=1) for block in blocks]
    )
