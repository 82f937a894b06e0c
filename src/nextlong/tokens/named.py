"""Named chunks: which drafts are taken, and which chunks they name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from nextlong import schemas
from nextlong.results import NamedChunksResult


def list_named_chunks(
    out: Path, *, drafts: Sequence[Path], chunks: Sequence[Path], limit: int | None
) -> NamedChunksResult:
    """Choose the first `limit` drafts and list the chunks they name; writes `{out}.{shard}.rows.npy`, sorted, per shard.

    Memory: one byte a chunk.
    """
    named = [np.zeros(_chunk_count(path), np.bool_) for path in chunks]
    take, left = [], limit
    for path in drafts:
        taken = 0
        with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
            for number in range(reader.num_record_batches if left is None else min(left, reader.num_record_batches)):
                ids = np.unique(reader.get_batch(number).column("chunk_id").values.to_numpy())
                for shard in np.unique(schemas.shard_of(ids)).tolist():
                    named[shard][schemas.row_of(ids[schemas.shard_of(ids) == shard])] = True
                taken += 1
        take.append(taken)
        left = None if left is None else left - taken
    for shard, rows in enumerate(named):
        np.save(f"{out}.{shard:05d}.rows.npy", np.flatnonzero(rows))
    return NamedChunksResult(take=tuple(take), drafts=sum(take), chunks=sum(int(rows.sum()) for rows in named))


def _chunk_count(chunks: Path) -> int:
    with pa.ipc.open_file(pa.memory_map(str(chunks))) as reader:
        return sum(reader.get_batch(number).num_rows for number in range(reader.num_record_batches))
