"""Vectors of documents that a method searches while it drafts.

In:  the files of the step `document_vectors`. Out: the documents nearest to one of
them, among those that are still free. Vectors are read block by block, because those of
all documents need not fit in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nextlong.arrays import Bools, Floats, Ints
from nextlong.retrieval.indexes.base import VectorShards

_ROWS_PER_BLOCK = 65_536  # held as float32 at a time


class Vectors:
    """The unit vectors of n documents, float16 files of one shard each."""

    def __init__(self, paths: Sequence[Path], members: Ints) -> None:
        """Open the files.

        `members`, (n,) ascending, are the rows of the documents in the concatenation of
        all files.
        """
        self._shards = VectorShards(paths)
        self._members = members

    def nearest(self, document: int, k: int, among: Bools) -> tuple[Ints, Floats]:
        """Return the `k` nearest documents and their cosines, nearest first.

        Only those marked in `among`, (n,), are searched, exactly; they may be fewer.
        """
        query = self._rows(np.array([document]))[0]
        searched = np.flatnonzero(among)
        nearest = np.empty(0, np.int64)
        cosines = np.empty(0, np.float32)
        for first in range(0, len(searched), _ROWS_PER_BLOCK):
            block = searched[first : first + _ROWS_PER_BLOCK]
            nearest = np.append(nearest, block)
            cosines = np.append(cosines, self._rows(block) @ query)
            # Stable: of equal cosines, the document that stands first in the corpus.
            best = np.argsort(-cosines, kind="stable")[:k]
            nearest = nearest[best]
            cosines = cosines[best]
        return nearest, cosines

    def _rows(self, documents: Ints) -> Floats:
        ids = self._shards.ids_at(self._members[documents])
        return self._shards.take(ids).astype(np.float32)
