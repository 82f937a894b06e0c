"""Document vectors: one unit vector a document, from those of its chunks, so that nothing is embedded twice.

In:  CHUNKS and VECTORS of one shard.
Out: float16 unit rows, one a document that has chunks, in the shard's order.

`of="mean"`: the mean of the document's chunk vectors, brought to unit length. `"first"`: its first chunk's vector, which
is what a model that truncates long texts would have given.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from nextlong.artefacts.chunks import read_chunks
from nextlong.results import DocumentVectorsResult

_BLOCK_CHUNKS: Final = 32_768  # vectors held as float32 at a time: 32 MB at 256 dimensions
_LEAST_LENGTH: Final = 1e-3  # of a mean; below it chunks point in opposite directions and half precision is noise


def average_shard(out: Path, *, chunks: Path, vectors: Path, of: Literal["mean", "first"]) -> DocumentVectorsResult:
    """Write `{out}.document_vectors.npy` float16 (documents, dimensions); documents without chunks are left out."""
    table = read_chunks(chunks)
    doc_rows, first, counts = np.unique(table["doc_row"], return_index=True, return_counts=True)
    chunk_vectors = np.load(vectors, mmap_mode="r")
    shape = (len(doc_rows), chunk_vectors.shape[1])
    with open(f"{out}.document_vectors.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f2", "fortran_order": False, "shape": shape})
        for low, high in _blocks(counts):
            if of == "first":
                block_vectors = chunk_vectors[first[low:high]]
            else:
                block = chunk_vectors[first[low] : first[high - 1] + counts[high - 1]]
                block_vectors = average(block, first[low:high] - first[low])
            file.write(block_vectors.astype("<f2").tobytes())
    return DocumentVectorsResult(documents=shape[0], chunks=len(chunk_vectors), dimensions=shape[1])


def average(vectors: NDArray[np.float16], first: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the unit mean, shape (documents, dimensions), of runs of rows that start at `first` and tile `vectors`.

    Where the rows of a document cancel out, the mean has no direction and its first row stands for it.
    """
    rows = vectors.astype(np.float32)
    sums = np.add.reduceat(rows, first, axis=0)
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    counts = np.diff(np.append(first, len(rows)))[:, None]
    unit: NDArray[np.float32] = np.where(
        lengths > _LEAST_LENGTH * counts, sums / np.maximum(lengths, _LEAST_LENGTH), rows[first]
    )
    return unit


def _blocks(counts: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield ranges of documents that together have at most `_BLOCK_CHUNKS` chunks, or of one that alone has more."""
    ends = np.cumsum(counts)
    low = 0
    while low < len(counts):
        begun = int(ends[low - 1]) if low else 0
        high = max(low + 1, int(np.searchsorted(ends, begun + _BLOCK_CHUNKS, side="right")))
        yield low, high
        low = high
