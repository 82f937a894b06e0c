"""Sequences: where the sequences of a finished run lie, and what they refer to."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artefacts import lookup
from nextlong.artefacts.flat_npy import opened
from nextlong.schemas import SEQUENCE_INDEX


def read_index(sequences: Sequence[Path], *, take: Sequence[int], run: int = 0) -> NDArray[Any]:
    """Return the SEQUENCE_INDEX, in draw order, of the first `take[i]` sequences of each SEQUENCES file."""
    index = np.zeros(sum(take), SEQUENCE_INDEX)
    row = 0
    for part, (path, count) in enumerate(zip(sequences, take, strict=True)):
        with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
            for place in range(count):
                batch = reader.get_batch(place)
                index[row] = (
                    run,
                    part,
                    place,
                    batch.column("token_end").values[-1].as_py(),
                    batch.column("key")[0].as_py(),
                )
                row += 1
    return index


def read_references(sequences: Sequence[Path], *, take: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the chunk ids of the sequences that `read_index` gives: those of i are ids[offsets[i]:offsets[i + 1]]."""
    chunk_ids = []
    for path, count in zip(sequences, take, strict=True):
        with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
            for place in range(count):
                ids = reader.get_batch(place).column("chunk_id").values.to_numpy()
                chunk_ids.append(ids[ids != schemas.NO_CHUNK])
    offsets = np.cumsum([0, *map(len, chunk_ids)], dtype=np.int64)
    return np.concatenate([np.empty(0, np.int64), *chunk_ids]), offsets


def document_hashes(chunk_ids: NDArray[np.int64], chunks: Sequence[Path], hashes: Sequence[Path]) -> NDArray[np.uint64]:
    (doc_rows,) = lookup.chunk_columns(chunk_ids, chunks, ("doc_row",))
    doc_ids = schemas.shard_of(chunk_ids) << schemas.SHARD_BITS | doc_rows

    def load(shard: int, rows: NDArray[np.int64]) -> list[NDArray[Any]]:
        return [opened(hashes[shard])[rows]]

    content_hashes: NDArray[np.uint64] = lookup.by_shard(doc_ids, load)[0]
    return content_hashes


class References(NamedTuple):
    """Where the references of one run lie: SEQUENCES files, how many of each to take, and, one file a shard, CHUNKS and hashes.

    `corpus` is equal for runs whose chunk ids mean the same chunks.
    """

    sequences: tuple[Path, ...]
    take: tuple[int, ...]
    chunks: tuple[Path, ...]
    hashes: tuple[Path, ...]
    corpus: Hashable

    def read_index(self, *, run: int = 0) -> NDArray[Any]:
        """Return the SEQUENCE_INDEX of the run, as number `run` of several."""
        return read_index(self.sequences, take=self.take, run=run)
