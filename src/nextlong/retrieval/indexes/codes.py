"""Codes: product quantizers and the rotations before them, trained on a sample.

In:  a sample of vectors, float32, as the index stores them. Out: codebooks (parts, values, width), a rotation (dim, dim).

The k-means that FAISS runs, as one matrix product a part and round: FAISS takes 90 s of a core to train PQ64 on 16,384 vectors of
256 dimensions, and many times that for OPQ64. The rotation is that of optimized product quantization (Ge et al., 2013, §3.1):
codebooks for a rotation, then the rotation that comes nearest to what they reconstruct, in turn.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from nextlong.rng import rng_for

ROUNDS: Final = 8  # of k-means, and of turning the rotation
_ROUNDS_A_TURN: Final = 2  # of k-means, from the codebooks of the turn before
_ROWS: Final = 4096  # compared at a time: 4 MB of products with 256 values


def first_codebooks(rows_ND: NDArray[np.float32], *, parts: int, values: int, seed: int) -> NDArray[np.float32]:
    """Return rows drawn at random as codebooks of `parts` equal slices, shape (parts, values, dim / parts)."""
    drawn = rng_for(seed, "index.codes").choice(len(rows_ND), values, replace=len(rows_ND) < values)
    return _slices(rows_ND[drawn], parts)


def train_codebooks(
    rows_ND: NDArray[np.float32], books_PVW: NDArray[np.float32], *, rounds: int = ROUNDS
) -> NDArray[np.float32]:
    """Return the codebooks after so many rounds of k-means. A value that no row is nearest to stays."""
    books_PVW = books_PVW.copy()
    for slice_NW, book_VW in zip(_slices(rows_ND, len(books_PVW)), books_PVW, strict=True):
        for _ in range(rounds):
            nearest_N = _nearest(slice_NW, book_VW)
            counts_V = np.bincount(nearest_N, minlength=len(book_VW))
            sums_VW = np.stack([np.bincount(nearest_N, column, len(book_VW)) for column in slice_NW.T], axis=1)
            book_VW[counts_V > 0] = sums_VW[counts_V > 0] / counts_V[counts_V > 0, None]
    return books_PVW


def train_rotation(rows_ND: NDArray[np.float32], *, parts: int, values: int, seed: int) -> NDArray[np.float32]:
    """Return the rotation R, shape (dim, dim), for which R·x is coded best by a product quantizer of so many parts."""
    dimensions = rows_ND.shape[1]
    rotation_DD = np.linalg.qr(rng_for(seed, "index.rotation").standard_normal((dimensions, dimensions)))[0].astype(
        "f4"
    )
    books_PVW = first_codebooks(rows_ND @ rotation_DD.T, parts=parts, values=values, seed=seed)
    for turn in range(ROUNDS):
        rotated_ND = rows_ND @ rotation_DD.T
        books_PVW = train_codebooks(rotated_ND, books_PVW, rounds=_ROUNDS_A_TURN if turn else ROUNDS)
        slices = zip(_slices(rotated_ND, parts), books_PVW, strict=True)
        coded_ND = np.concatenate([book_VW[_nearest(slice_NW, book_VW)] for slice_NW, book_VW in slices], axis=1)
        left, _, right = np.linalg.svd(coded_ND.T @ rows_ND)  # orthogonal Procrustes
        rotation_DD = (left @ right).astype(np.float32)
    return rotation_DD


def _slices(rows_ND: NDArray[np.float32], parts: int) -> NDArray[np.float32]:
    """Return the rows cut into equal slices, shape (parts, n, dim / parts)."""
    return np.ascontiguousarray(rows_ND.reshape(len(rows_ND), parts, -1).swapaxes(0, 1))


def _nearest(rows_NW: NDArray[np.float32], book_VW: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the value nearest to each row, by Euclidean distance, shape (n,)."""
    half_squares_V = np.einsum("vw,vw->v", book_VW, book_VW) / 2
    blocks = [rows_NW[first : first + _ROWS] for first in range(0, len(rows_NW), _ROWS)]
    return np.concatenate([(block @ book_VW.T - half_squares_V).argmax(axis=1) for block in blocks])
