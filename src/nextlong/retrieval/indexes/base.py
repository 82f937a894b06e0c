"""The contract of an index, the files that it is opened from, and the stored vectors that it reads.

Mining needs only `search` and the recall that it guarantees, so any nearest-neighbour search fits: exact search compares
every query with every vector, `ivf` only with the vectors in the nearest clusters. Recipes name an index `exact`, by a
FAISS factory string, or as another package declares it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts.lookup import opened
from nextlong.plugins import INDEXES

Neighbours = tuple[
    list[NDArray[np.int64]], list[NDArray[np.float32]]
]  # of each query: ids, cosines


class Index(Protocol):
    """Queries in, the nearest vectors out."""

    @property
    def recall(self) -> float:
        """The mean share of a query's k nearest that a search returns; 1 for exact search."""

    def search(
        self, queries_QD: NDArray[np.float32], k: int, *, exclude: NDArray[np.int64]
    ) -> Neighbours:
        """Return the ids and cosines of the `k` vectors nearest to each query, (Q, D), outside its range [first, last) of ids.

        `exclude` has the ranges, shape (Q, 2). Descending by cosine, which is that of the stored vectors; equal cosines by id.
        Fewer than k only where no more are found.
        """


@dataclass(frozen=True)
class IndexFiles:
    """The files that an index is opened from: the stored vectors, and the trained, filled and tuned index if there is one."""

    index: str  # exact, or a FAISS factory string
    vectors: Sequence[Path]
    template: Path | None = None
    lists: tuple[Path, ...] = ()  # the stems of the filled parts
    probes: int = 0  # clusters that a query visits
    spare: float = 0.0  # additional vectors retrieved by rough scores, as a share of k
    recall: float = 1.0


class VectorShards:
    """VECTORS of a corpus, one float16 array (rows, dim) a shard, memory-mapped each time one is read."""

    def __init__(
        self, paths: Sequence[Path], block: range | None = None, *, is_held: bool = True
    ) -> None:
        """Search only the shards of `block` if it is given; they are loaded into memory unless `is_held` is false."""
        self._paths = paths
        self._loaded = {
            shard: np.load(paths[shard]) for shard in (block or () if is_held else ())
        }
        self.numbers = range(len(paths)) if block is None else block
        self.rows = [
            self[shard].shape[0] for shard in self.numbers
        ]  # of each searched shard

    def __getitem__(self, shard: int) -> NDArray[np.float16]:
        return (
            self._loaded[shard] if shard in self._loaded else opened(self._paths[shard])
        )

    def take(self, ids: NDArray[np.int64]) -> NDArray[np.float16]:
        """Return the stored rows, shape (n, dim), of ascending ids, shape (n,)."""
        shards, rows = schemas.shard_of(ids), schemas.row_of(ids)
        firsts = np.flatnonzero(np.diff(shards, prepend=-1)).tolist()
        pieces = [
            self[int(shards[low])][rows[low:high]]
            for low, high in pairwise([*firsts, len(ids)])
        ]
        return np.concatenate(pieces) if pieces else np.empty((0, 0), np.float16)

    def ids_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids of positions, shape (n,), in the concatenation of all searched shards."""
        ends = np.cumsum(self.rows)
        of_shards = np.searchsorted(ends, positions, side="right")
        shards = np.asarray(self.numbers, np.int64)[of_shards]
        return schemas.pack_ids(shards, positions - (ends - self.rows)[of_shards])

    def blocks(
        self, rows: int
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Stream all vectors as float32 blocks, which may span shards, with their ids; a block is overwritten by the next."""
        ids: list[NDArray[np.int64]] = []
        block_BD, filled = np.empty((0, 0), np.float32), 0
        for shard in self.numbers:
            stored, start = self[shard], 0
            while start < len(stored):
                if not block_BD.size:
                    block_BD = np.empty((rows, stored.shape[1]), np.float32)
                stop = min(len(stored), start + rows - filled)
                block_BD[filled : filled + stop - start] = stored[start:stop]
                ids.append(schemas.pack_ids(shard, np.arange(start, stop)))
                filled, start = filled + stop - start, stop
                if filled == rows:
                    yield np.concatenate(ids), block_BD
                    ids, filled = [], 0
        if filled:
            yield np.concatenate(ids), block_BD[:filled]


@dataclass(frozen=True, kw_only=True)
class IndexKind:
    """A kind of index, as its module declares it (`INDEX`)."""

    name: str
    takes: str  # a regular expression for the values of `search.index` that select this kind
    usage: str  # how messages describe these values
    open: Callable[[IndexFiles], Index]
    # A built index is trained, filled and tuned by FAISS before it is searched, and its recall is measured. Any other index
    # reads the stored vectors and must return exactly the nearest.
    is_built: bool = False
    version: int = 1  # raise it when the index returns other neighbours


def index_kind(index: str) -> IndexKind:
    """Return the kind of index for a value of `search.index`, which the recipe has validated."""
    kinds: dict[str, IndexKind] = INDEXES.declarations(IndexKind)
    return next(kind for kind in kinds.values() if re.fullmatch(kind.takes, index))
