"""Rows: the rows of a data set as memory-mapped tokens, in any order.

In:  the SEQUENCES of one or more runs, and which of them are in which row. Out: token
ids and spans of a row; the order of an epoch. No text is read: files are opened when a
row first needs them, and `Rows` that are sent to another process do not take their open
files along. The rows of a rank are a pure function of its arguments: ranks need no
communication, and an interrupted epoch resumes from the number of rows that all ranks
have read, with any number of ranks or workers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa

from nextlong import schemas
from nextlong.arrays import AnyArray, Ints
from nextlong.artifacts.blocks import document_starts
from nextlong.artifacts.sequence_files import SHARDS_KEPT, SequenceFiles
from nextlong.rng import keyed_hash

# Tokens [first, last) of a row came from one chunk, or are a separator or special
# tokens; `role` numbers schemas.ROLES.
SPANS: Final = np.dtype(
    [
        ("sequence", "i4"),
        ("chunk_id", "i8"),
        ("role", "i1"),
        ("group", "i4"),
        ("first", "i8"),
        ("last", "i8"),
    ]
)


class Rows:
    """Random access to rows.

    Row i holds the sequences index[offsets[i]:offsets[i + 1]]. The `run` of a
    SEQUENCE_INDEX row is its source.
    """

    def __init__(
        self, sources: Sequence[SequenceFiles], *, index: AnyArray, offsets: Ints
    ) -> None:
        self.index = index
        self._sources = list(sources)
        self._offsets = offsets
        self._open: dict[tuple[int, int], pa.RecordBatchFileReader] = {}

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": {}}

    @cached_property
    def fingerprint(self) -> str:
        """Hash of what the sequences hold, and of which sequences are in which row."""
        # A step's fingerprint says what its sequences hold, without reading them.
        composed = " ".join(source.fingerprint for source in self._sources)
        state = hashlib.blake2b(composed.encode(), digest_size=8)
        state.update(self.index.tobytes())
        state.update(self._offsets.tobytes())
        return state.hexdigest()

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return int(self.index["length"].max())

    def lengths(self, row: int) -> Ints:
        """Return the tokens of each sequence of a row."""
        lengths: Ints = self._index_of(row)["length"]
        return lengths

    def copy_into(self, target: Ints, row: int) -> None:
        """Write the token ids of a row, shape (tokens of the row,), to `target`."""
        for source, batch, first, last in self._sequences(row):
            chunk_ids = batch.column("chunk_id").values.to_numpy()
            roles = batch.column("role").values.to_numpy()
            starts = batch.column("token_start").values.to_numpy()
            lengths = batch.column("token_end").values.to_numpy() - starts
            is_chunk = chunk_ids != schemas.NO_CHUNK
            first_tokens, _ = source.tokens.bounds(chunk_ids[is_chunk])
            ids = target[first:last]
            source.tokens.copy_into(
                ids,
                chunk_ids=chunk_ids[is_chunk],
                starts=first_tokens,
                at=starts[is_chunk],
                lengths=lengths[is_chunk],
            )
            source.special.copy_into(ids, roles=roles, starts=starts, lengths=lengths)

    def spans(self, row: int) -> AnyArray:
        """Return the SPANS of a row, in order, with tokens counted from its start."""
        spans = []
        for number, (_, batch, first, _) in enumerate(self._sequences(row)):
            columns = np.zeros(len(batch.column("role").values), SPANS)
            columns["sequence"] = number
            for name in ("chunk_id", "role", "group"):
                columns[name] = batch.column(name).values.to_numpy()
            for name, column in (("first", "token_start"), ("last", "token_end")):
                columns[name] = batch.column(column).values.to_numpy() + first
            spans.append(columns)
        return np.concatenate(spans)

    def _index_of(self, row: int) -> AnyArray:
        """Return the SEQUENCE_INDEX of the sequences of a row."""
        return self.index[self._offsets[row] : self._offsets[row + 1]]

    def _sequences(
        self, row: int
    ) -> Iterator[tuple[SequenceFiles, pa.RecordBatch, int, int]]:
        """Yield the sequences of a row.

        Of each, the run, the SEQUENCES batch, and its tokens [first, last) in the row.
        """
        # The sequences of a row follow each other without a gap.
        first = 0
        for run, part, number, length, _ in self._index_of(row).tolist():
            reader = self._reader(run, part)
            yield self._sources[run], reader.get_batch(number), first, first + length
            first += length

    def _reader(self, run: int, part: int) -> pa.RecordBatchFileReader:
        """Return the opened SEQUENCES file of a run; a process keeps some open."""
        if (run, part) not in self._open:
            if len(self._open) >= SHARDS_KEPT:
                self._open.clear()
            path = self._sources[run].sequences[part]
            source = pa.memory_map(str(path))
            self._open[run, part] = pa.ipc.open_file(source)
        return self._open[run, part]


def original_lengths(lengths: Ints, spans: AnyArray) -> Ints:
    """Return the length of each original document of a row, from its `spans` (SPANS).

    An extended sequence is one document.
    """
    starts = document_starts(
        lengths, roles=spans["role"], groups=spans["group"], starts=spans["first"]
    )
    return np.diff(starts, append=lengths.sum())


Order = Literal["shuffled", "arranged"]
Remainder = Literal["keep", "drop", "repeat"]


def epoch_order(rows: int, *, order: Order, seed: int, epoch: int) -> Ints:
    """Return the row numbers of an epoch, shape (rows,).

    As arranged, or shuffled by their keyed hash.
    """
    numbers = np.arange(rows)
    if order == "arranged":
        return numbers
    keys = keyed_hash(numbers.astype(np.uint64), seed=seed, stage=f"epoch {epoch}")
    return np.argsort(keys)


def rank_positions(
    rows: int, *, start: int, rank: int, world_size: int, remainder: Remainder
) -> Ints:
    """Return the positions in the epoch's order that a rank reads: every world_size-th.

    All ranks together have read `start` rows. If the rows do not divide evenly among
    the ranks, the rest is kept (the first ranks read one more), dropped, or filled up
    with the first rows of the epoch, so that all ranks read the same number.
    """
    # Each rank takes every world_size-th of the rows that are left.
    left = rows - start
    if remainder == "drop":
        left -= left % world_size
    elif remainder == "repeat":
        left += -left % world_size
    return np.arange(start + rank, start + left, world_size) % max(1, rows)


def worker_part(positions: Ints, *, worker: int, workers: int, batch_size: int) -> Ints:
    """Return the positions of a rank that one of its workers reads.

    Every `workers`-th batch: a DataLoader takes batches from its workers in turn, so
    the batches are in order for any number of workers.
    """
    batches = np.arange(len(positions)) // batch_size
    read: Ints = positions[batches % workers == worker]
    return read
