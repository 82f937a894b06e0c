"""Train cluster centres and product quantizers, and find the nearest centres.

In:  unit vectors, float32. Out: centres of unit length (spherical k-means); for each
     vector the numbers of its nearest.

Everything is a product of a block of vectors with all centres, four times as fast on
one core as FAISS's training (docs/decisions/0008-search.md). The rotation before a
product quantizer is that of optimized product quantization (Ge et al., 2013, §3.1):
train codebooks for a rotation, take the rotation nearest to what they reconstruct, and
repeat.

Shapes: N vectors, D dimensions, C centres; P parts of a code, V values of a part,
W = D / P dimensions of a part.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from nextlong.arrays import Floats, Ints
from nextlong.artifacts.corpus_files import ranges
from nextlong.rng import rng_for

_Rows = Floats

# Products held at a time: 64 MB.
_PRODUCTS = 1 << 24
_MAX_ROWS = 8_192
# With 65,536 centres, 2^20 vectors of 1,024 dimensions take a core 5 hours at 60
# GFLOP/s; in two levels 6 minutes.
_MAX_AT_ONCE = 8_192
# Cells whose centres a vector is compared with in the second level.
_NEAR_CELLS = 8
# Rounds of k-means over all centres after the second level.
_REFINING = 2

# Of a product quantizer: rounds of k-means, and of updating the rotation.
_ROUNDS: Final = 8
# Rounds of k-means after each update of the rotation, starting from the previous
# codebooks.
_ROUNDS_PER_TURN: Final = 2
# Rows compared at a time: 4 MB of products with 256 values.
_ROWS: Final = 4096


def nearest_centres(rows_ND: _Rows, centres_CD: _Rows, *, count: int) -> Ints:
    """Return the numbers of the `count` nearest centres of each row, nearest first.

    Shape (n, min(count, centres)).
    """
    count = min(count, len(centres_CD))
    numbers = np.empty((len(rows_ND), count), np.int64)
    for first, products_RC in _products(rows_ND, centres_CD):
        last = first + len(products_RC)
        if count == 1:
            numbers[first:last, 0] = products_RC.argmax(axis=1)
            continue
        nearest = np.argpartition(products_RC, -count, axis=1)[:, -count:]
        products = np.take_along_axis(products_RC, nearest, axis=1)
        order = np.argsort(-products, axis=1, kind="stable")
        numbers[first:last] = np.take_along_axis(nearest, order, axis=1)
    return numbers


def train_centres(sample_ND: _Rows, *, count: int, iterations: int, seed: int) -> _Rows:
    """Return `count` centres, shape (count, dim), of spherical k-means.

    It starts from randomly sampled vectors.
    """
    if count > _MAX_AT_ONCE:
        return _train_in_cells(sample_ND, count=count, iterations=iterations, seed=seed)
    draw = rng_for(seed, "index.centres")
    start = draw.choice(len(sample_ND), count, replace=False)
    start.sort()
    centres_CD = sample_ND[start]
    # The nearest centre of each vector, and the product with it.
    numbers_N = np.empty(len(sample_ND), np.int64)
    best_N = np.empty(len(sample_ND), np.float32)
    for _ in range(iterations):
        for first, products_RC in _products(sample_ND, centres_CD):
            numbers = products_RC.argmax(axis=1)
            rows = slice(first, first + len(numbers))
            numbers_N[rows] = numbers
            best_N[rows] = products_RC[np.arange(len(numbers)), numbers]
        centres_CD = _means(sample_ND, numbers_N, best_N, count=count)
    return centres_CD


def _train_in_cells(
    sample_ND: _Rows, *, count: int, iterations: int, seed: int
) -> _Rows:
    """Train in two levels: cells, then the centres of each cell.

    Then all centres are refined by those of the nearest cells.
    """
    cells_LD = train_centres(
        sample_ND, count=_cells_of(count), iterations=iterations, seed=seed
    )
    cell_N = nearest_centres(sample_ND, cells_LD, count=1)[:, 0]
    sizes = np.bincount(cell_N, minlength=len(cells_LD))
    rows = np.argsort(cell_N, kind="stable")
    rows_by_cell = np.split(rows, np.cumsum(sizes)[:-1])

    # Cell l gets the centres [ends[l], ends[l + 1]), in proportion to the number of its
    # vectors.
    ends = np.concatenate([[0], np.cumsum(sizes) * count // len(sample_ND)])
    centres = []
    for rows, cell_count in zip(rows_by_cell, np.diff(ends).tolist(), strict=True):
        if cell_count:
            cell_centres_CD = train_centres(
                sample_ND[rows], count=cell_count, iterations=iterations, seed=seed
            )
            centres.append(cell_centres_CD)
    centres_CD = np.concatenate(centres)

    near_LM = nearest_centres(cells_LD, cells_LD, count=_NEAR_CELLS)
    numbers_N = np.empty(len(sample_ND), np.int64)
    for _ in range(_REFINING):
        for rows, near_M in zip(rows_by_cell, near_LM, strict=True):
            candidates = ranges(ends[near_M], ends[near_M + 1] - ends[near_M])
            # These cells may have so few vectors that none has a centre.
            if not len(candidates):
                candidates = np.arange(count)
            nearest = nearest_centres(sample_ND[rows], centres_CD[candidates], count=1)
            numbers_N[rows] = candidates[nearest[:, 0]]
        best_N = np.einsum("nd,nd->n", sample_ND, centres_CD[numbers_N])
        centres_CD = _means(sample_ND, numbers_N, best_N, count=count)
    return centres_CD


def _cells_of(count: int) -> int:
    return int(2 ** round(np.log2(count**0.5)))


def training_products(rows: float, count: int, *, iterations: int) -> float:
    """Return how many vectors `train_centres` multiplies with a centre."""
    if count <= _MAX_AT_ONCE:
        return iterations * rows * count
    cells = _cells_of(count)
    cell_centres = count / cells
    training = iterations * (cells + cell_centres)
    refining = _REFINING * _NEAR_CELLS * count / cells
    return rows * (training + refining)


def _means(sample_ND: _Rows, numbers_N: Ints, best_N: _Rows, *, count: int) -> _Rows:
    """Return the unit mean of the vectors of each centre.

    A centre without vectors moves to a vector far from its own.
    """
    # Imported here because it takes 0.1 s, which every start of nextlong would pay.
    from scipy import sparse

    # A matrix (vectors, centres) with a single 1 in each row: its transpose times the
    # vectors sums them by centre.
    total = len(sample_ND)
    ones = np.ones(total, np.float32)
    members_NC = sparse.csr_matrix(
        (ones, numbers_N, np.arange(total + 1)), shape=(total, count)
    )
    sums_CD: _Rows = members_NC.T @ sample_ND
    counts_C = np.bincount(numbers_N, minlength=count)
    empty = np.flatnonzero(counts_C == 0)
    farthest_N = np.argsort(best_N, kind="stable")
    sums_CD[empty] = sample_ND[farthest_N[: len(empty)]]
    lengths_C = np.linalg.norm(sums_CD, axis=1, keepdims=True)
    unit_CD = sums_CD / np.where(lengths_C > 0, lengths_C, 1)
    return np.ascontiguousarray(unit_CD, np.float32)


def _products(rows_ND: _Rows, centres_CD: _Rows) -> Iterator[tuple[int, _Rows]]:
    """Yield the first row number of each block of rows, and its products.

    The products are with all centres; the next block overwrites them.
    """
    rows = max(1, min(_MAX_ROWS, _PRODUCTS // len(centres_CD), len(rows_ND)))
    buffer_RC = np.empty((rows, len(centres_CD)), np.float32)
    for first in range(0, len(rows_ND), rows):
        block_RD = rows_ND[first : first + rows]
        yield first, np.matmul(block_RD, centres_CD.T, out=buffer_RC[: len(block_RD)])


def first_codebooks(rows_ND: _Rows, *, parts: int, values: int, seed: int) -> _Rows:
    """Return randomly sampled rows as initial codebooks of `parts` equal slices.

    Shape (parts, values, dim / parts).
    """
    draw = rng_for(seed, "index.codes")
    is_short = len(rows_ND) < values
    sampled = draw.choice(len(rows_ND), values, replace=is_short)
    return _slices(rows_ND[sampled], parts)


def train_codebooks(
    rows_ND: _Rows, books_PVW: _Rows, *, rounds: int = _ROUNDS
) -> _Rows:
    """Return the codebooks after `rounds` of k-means.

    A value that is nearest to no row does not change.
    """
    books_PVW = books_PVW.copy()
    slices_PNW = _slices(rows_ND, len(books_PVW))
    for slice_NW, book_VW in zip(slices_PNW, books_PVW, strict=True):
        for _ in range(rounds):
            nearest_N = _nearest(slice_NW, book_VW)
            counts_V = np.bincount(nearest_N, minlength=len(book_VW))
            sums = [
                np.bincount(nearest_N, column_N, len(book_VW))
                for column_N in slice_NW.T
            ]
            sums_VW = np.stack(sums, axis=1)
            is_used = counts_V > 0
            book_VW[is_used] = sums_VW[is_used] / counts_V[is_used, None]
    return books_PVW


def train_rotation(rows_ND: _Rows, *, parts: int, values: int, seed: int) -> _Rows:
    """Return the rotation R, (dim, dim), for which a product quantizer codes R·x best.

    The quantizer has `parts` parts.
    """
    dimensions = rows_ND.shape[1]
    draw = rng_for(seed, "index.rotation")
    random_DD = draw.standard_normal((dimensions, dimensions))
    rotation_DD = np.linalg.qr(random_DD)[0].astype("f4")
    books_PVW = first_codebooks(
        rows_ND @ rotation_DD.T, parts=parts, values=values, seed=seed
    )
    for turn in range(_ROUNDS):
        rotated_ND = rows_ND @ rotation_DD.T
        rounds = _ROUNDS_PER_TURN if turn else _ROUNDS
        books_PVW = train_codebooks(rotated_ND, books_PVW, rounds=rounds)
        # The rows as their codes reconstruct them, slice by slice.
        coded = []
        for slice_NW, book_VW in zip(
            _slices(rotated_ND, parts), books_PVW, strict=True
        ):
            nearest_N = _nearest(slice_NW, book_VW)
            coded.append(book_VW[nearest_N])
        coded_ND = np.concatenate(coded, axis=1)
        # The nearest rotation: the orthogonal Procrustes problem.
        left, _, right = np.linalg.svd(coded_ND.T @ rows_ND)
        rotation_DD = (left @ right).astype(np.float32)
    return rotation_DD


def _slices(rows_ND: _Rows, parts: int) -> _Rows:
    """Return the rows cut into equal slices, shape (parts, n, dim / parts)."""
    slices_NPW = rows_ND.reshape(len(rows_ND), parts, -1)
    return np.ascontiguousarray(slices_NPW.swapaxes(0, 1))


def _nearest(rows_NW: _Rows, book_VW: _Rows) -> Ints:
    """Return the value nearest to each row by Euclidean distance, (n,)."""
    half_squares_V = np.einsum("vw,vw->v", book_VW, book_VW) / 2
    nearest = []
    for first in range(0, len(rows_NW), _ROWS):
        products_RV = rows_NW[first : first + _ROWS] @ book_VW.T
        products_RV -= half_squares_V
        nearest.append(products_RV.argmax(axis=1))
    return np.concatenate(nearest)
