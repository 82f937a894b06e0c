"""The contract of an index, its files, and the stored vectors that it reads.

Mining needs only `search` and the recall that it guarantees, so any nearest-neighbour
search fits: exact search compares every query with every vector, `ivf` only with the
vectors in the nearest clusters. Recipes name an index `exact`, by a FAISS factory
string, or as another package declares it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.arrays import Floats, Ints
from nextlong.artifacts.corpus_files import opened
from nextlong.plugins import INDEXES

# Shards that stay mapped: where a shard is mapped anew, its pages are looked up anew.
_MAPPED_SHARDS = 64
# float16 numbers made float32 at a time: these stay in a core's cache.
_WIDENED = 1 << 16
# Of a float32, the bits that a float16 has too: its sign, exponent and 10 bits.
_FLOAT16_BITS = np.uint32(0x8FFFE000).astype(np.int32)
# The exponent of a float32 is larger by 112.
_WIDER_EXPONENT = np.float32(2.0**112)
_SUBNORMAL = np.float32(2.0**-136)

# Of each query: ids, cosines.
Neighbours = tuple[list[Ints], list[Floats]]


class Index(Protocol):
    """Queries in, the nearest vectors out."""

    @property
    def recall(self) -> float:
        """The mean share of a query's k nearest that a search returns.

        1 for exact search.
        """

    def search(self, queries_QD: Floats, k: int, *, exclude: Ints) -> Neighbours:
        """Return the ids and cosines of the `k` vectors nearest to each query, (Q, D).

        `exclude`, (Q, 2), has the range [first, last) of ids that a query excludes.
        Descending by cosine, which is that of the stored vectors; equal cosines by id.
        Fewer than k only where no more are found.
        """


@dataclass(frozen=True)
class IndexFiles:
    """The files that an index is opened from.

    They are the stored vectors, and the trained, filled and tuned index if there is
    one.
    """

    index: str  # exact, or a FAISS factory string
    vectors: Sequence[Path]
    template: Path | None = None
    lists: tuple[Path, ...] = ()  # the stems of the filled parts
    probes: int = 0  # clusters that a query visits
    spare: float = 0.0  # additional vectors retrieved by rough scores, as a share of k
    recall: float = 1.0


class VectorShards:
    """VECTORS of a corpus, one float16 array (rows, dim) per shard.

    A shard is memory-mapped when it is read, unless it was loaded.
    """

    def __init__(
        self, paths: Sequence[Path], block: range | None = None, *, is_held: bool = True
    ) -> None:
        """Search only the shards of `block` if it is given.

        They are loaded into memory unless `is_held` is false.
        """
        self._paths = paths
        self._opened = lru_cache(maxsize=_MAPPED_SHARDS)(opened)
        self._loaded: dict[int, NDArray[np.float16]] = {}
        if block is not None and is_held:
            self._loaded = {shard: np.load(paths[shard]) for shard in block}
        self.numbers = range(len(paths)) if block is None else block
        # Of each searched shard.
        self.rows = [self[shard].shape[0] for shard in self.numbers]

    def __getitem__(self, shard: int) -> NDArray[np.float16]:
        if shard in self._loaded:
            return self._loaded[shard]
        return self._opened(self._paths[shard])

    def take(self, ids: Ints) -> NDArray[np.float16]:
        """Return the stored rows, shape (n, dim), of ascending ids, shape (n,)."""
        if not len(ids):
            return np.empty((0, 0), np.float16)
        shards = schemas.shard_of(ids)
        rows = schemas.row_of(ids)
        firsts = np.flatnonzero(np.diff(shards, prepend=-1)).tolist()
        taken = np.empty((len(ids), self[int(shards[0])].shape[1]), np.float16)
        for first, last in pairwise([*firsts, len(ids)]):
            shard = self[int(shards[first])]
            # Without `clip`, NumPy copies what it takes once more.
            piece = taken[first:last]
            np.take(shard, rows[first:last], axis=0, out=piece, mode="clip")
        return taken

    def ids_at(self, positions: Ints) -> Ints:
        """Return the ids of positions, (n,), in the concatenated searched shards."""
        ends = np.cumsum(self.rows)
        starts = ends - self.rows
        which = np.searchsorted(ends, positions, side="right")
        shards = np.asarray(self.numbers, np.int64)[which]
        return schemas.pack_ids(shards, positions - starts[which])

    def blocks(self, rows: int) -> Iterator[tuple[Ints, Floats]]:
        """Stream all vectors as float32 blocks, which may span shards, with their ids.

        A block is overwritten by the next.
        """
        ids: list[Ints] = []
        block_BD = np.empty((0, 0), np.float32)
        filled = 0
        for shard in self.numbers:
            stored = self[shard]
            start = 0
            while start < len(stored):
                if not block_BD.size:
                    block_BD = np.empty((rows, stored.shape[1]), np.float32)
                stop = min(len(stored), start + rows - filled)
                end = filled + stop - start
                widen(stored[start:stop], block_BD[filled:end])
                ids.append(schemas.pack_ids(shard, np.arange(start, stop)))
                filled = end
                start = stop
                if filled == rows:
                    yield np.concatenate(ids), block_BD
                    ids = []
                    filled = 0
        if filled:
            yield np.concatenate(ids), block_BD[:filled]


def widen(stored_ND: NDArray[np.float16], out_ND: NDArray[np.float32]) -> None:
    """Write finite float16 numbers as float32, six times as fast as NumPy's cast.

    Their bits are moved, and a product corrects the exponent, exactly.
    """
    # Where a library made the processor round subnormal numbers to 0, the bits of a
    # subnormal float16 would get lost.
    if _SUBNORMAL * _WIDER_EXPONENT == 0:
        out_ND[:] = stored_ND
        return
    rows = max(1, _WIDENED // stored_ND.shape[1])
    for first in range(0, len(stored_ND), rows):
        part_ND = out_ND[first : first + rows]
        bits_ND = part_ND.view(np.int32)
        # As a signed number, so that the sign reaches bit 31 by the shift.
        bits_ND[:] = stored_ND[first : first + rows].view(np.int16)
        bits_ND <<= 13
        bits_ND &= _FLOAT16_BITS
        part_ND *= _WIDER_EXPONENT


@dataclass(frozen=True, kw_only=True)
class IndexKind:
    """A kind of index, as its module declares it (`INDEX`)."""

    name: str
    # A regular expression for the values of `search.index` that select this kind.
    takes: str
    usage: str  # how messages describe these values
    open: Callable[[IndexFiles], Index]
    # A built index is trained, filled and tuned by FAISS before it is searched, and its
    # recall is measured. Any other index reads the stored vectors and must return
    # exactly the nearest.
    is_built: bool = False
    version: int = 1  # raise it when the index returns other neighbours


def index_kind(index: str) -> IndexKind:
    """Return the kind of index for a value of `search.index`.

    The recipe has validated the value.
    """
    kinds: dict[str, IndexKind] = INDEXES.declarations(IndexKind)
    fitting = (kind for kind in kinds.values() if re.fullmatch(kind.takes, index))
    return next(fitting)
