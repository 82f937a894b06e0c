"""Tokens: random access to TOKENS on disk.

A shard's TOKENS are three arrays: `rows` (n,) the sorted chunk rows that were tokenized, `offsets` (n + 1,) and `ids`,
where chunk row `rows[i]` has the ids `ids[offsets[i]:offsets[i + 1]]`. All are memory-mapped, so opening costs nothing and
reading what the page cache holds costs a copy. A process keeps its maps from one task to the next: to open and fault them
anew took a third of an export's look-ups.
"""

from __future__ import annotations

import resource
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts import lookup
from nextlong.artifacts.lookup import FileVersion
from nextlong.errors import RunError

# A map keeps its file open, and a shard has three: a quarter of the files that a process may open, for both kinds of store.
SHARDS_KEPT = max(8, min(512, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 12))


class TokenShard(NamedTuple):
    rows: NDArray[np.int64]
    offsets: NDArray[np.int64]
    ids: NDArray[np.uint32]


class TokenStore:
    """The tokens of every chunk that drafts refer to; one file of each kind a shard, in shard order."""

    def __init__(
        self,
        *,
        rows: Sequence[Path],
        offsets: Sequence[Path],
        ids: Sequence[Path],
        documents: Sequence[Path] = (),
        chunks: Sequence[Path] = (),
    ) -> None:
        """Name the files; DOCUMENTS and CHUNKS only give a chunk its name in an error."""
        self._paths = list(zip(rows, offsets, ids, strict=True))
        self._documents, self._chunks = documents, chunks

    def counts(self, chunk_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many tokens each chunk has, shape (n,)."""
        starts, stops = self.bounds(chunk_ids)
        return stops - starts

    def bounds(self, chunk_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where in its shard's ids each chunk starts and stops, shape (n,) each."""

        def load(number: int, wanted: NDArray[np.int64]) -> list[NDArray[np.int64]]:
            if number >= len(self._paths):
                raise self._never_tokenized(schemas.pack_ids(number, wanted)[0])
            shard = self._shard(number)
            places = np.searchsorted(shard.rows, wanted)
            if places[-1] == len(shard.rows) or (shard.rows[places] != wanted).any():
                raise self._never_tokenized(schemas.pack_ids(number, wanted)[~np.isin(wanted, shard.rows)][0])
            return [shard.offsets[places], shard.offsets[places + 1]]

        starts, stops = lookup.by_shard(chunk_ids, load)
        return starts, stops

    def copy_into(
        self,
        target: NDArray[Any],
        *,
        chunk_ids: NDArray[np.int64],
        starts: NDArray[np.int64],
        at: NDArray[np.int64],
        lengths: NDArray[np.int64],
    ) -> None:
        """Copy the first `lengths[j]` ids of each chunk to `target[at[j]:]`; `starts` are the chunks' `bounds`."""
        shards = schemas.shard_of(chunk_ids)
        held: dict[int, Any] = {n: self._shard(n).ids.view(np.int32) for n in np.unique(shards).tolist()}
        into: Any = target
        if target.dtype == np.int32:  # slices of plain memory cost half as much as an array's, but convert nothing
            held, into = {number: ids.data for number, ids in held.items()}, target.data
        columns = (shards, starts, at, lengths)
        for number, start, place, length in zip(*(column.tolist() for column in columns), strict=True):
            into[place : place + length] = held[number][start : start + length]

    def ids(
        self, chunk_ids: NDArray[np.int64], *, starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return all ids of the chunks, flat, and where in them each begins, shape (n + 1,); given are the chunks' `bounds`."""
        lengths = stops - starts
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        ids = np.empty(offsets[-1], np.int32)
        self.copy_into(ids, chunk_ids=chunk_ids, starts=starts, at=offsets[:-1], lengths=lengths)
        return ids, offsets

    def _shard(self, number: int) -> TokenShard:
        return _open(*(lookup.file_version(path) for path in self._paths[number]))

    def _never_tokenized(self, chunk_id: int) -> RunError:
        try:
            name = lookup.chunk_name(chunk_id, documents=self._documents, chunks=self._chunks)
        except IndexError:
            name = "a chunk that is not in the corpus"
        return RunError(
            f"{name} is in a sequence but was never tokenized: a file of the run was altered; run nextlong verify RUN to find it"
        )


@lru_cache(maxsize=SHARDS_KEPT)
def _open(*files: FileVersion) -> TokenShard:
    """Return the rows, offsets and ids of a shard, by what names these very files."""
    return TokenShard(*(np.load(file.path, mmap_mode="r").view(np.ndarray) for file in files))
