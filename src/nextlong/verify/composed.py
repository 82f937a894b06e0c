"""Composed: one sequence, its spans as parallel arrays, and what the corpus says of the chunks they name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong.schemas import DOCUMENT, META, NEGATIVE, NO_CHUNK, ROLES
from nextlong.verify.marks import chunk_name

Ids = NDArray[np.int64]

UNKNOWN = NO_CHUNK  # what is not to be found


@dataclass(frozen=True)
class Stored:
    """One sequence as SEQUENCES has it; all arrays have shape (spans,)."""

    number: int
    id: str
    key: int
    method: str
    layout: str
    chunk: Ids
    role: NDArray[np.int8]
    group: NDArray[np.int32]
    start: NDArray[np.int32]
    end: NDArray[np.int32]
    score: NDArray[np.float32]


@dataclass(frozen=True)
class Composed(Stored):
    """One sequence with what CHUNKS and TOKENS say; UNKNOWN where a span names no chunk, or one that is not there."""

    doc: Ids
    doc_first: Ids  # the document's chunks are [doc_first, doc_stop)
    doc_stop: Ids
    char_start: Ids
    char_end: Ids
    open_ended: NDArray[np.bool_]  # the chunk does not end in a newline
    tokens: Ids  # of the whole chunk

    @property
    def is_chunk(self) -> NDArray[np.bool_]:
        """Which spans are a chunk's."""
        return np.isin(self.role, (META, NEGATIVE, DOCUMENT))

    @property
    def is_truncated(self) -> NDArray[np.bool_]:
        """Which spans hold only the beginning of a chunk."""
        truncated: NDArray[np.bool_] = self.is_chunk & (self.end - self.start < self.tokens)
        return truncated

    def where(self, span: int) -> str:
        """Name a span for a person."""
        role = ROLES[self.role[span]] if 0 <= self.role[span] < len(ROLES) else f"role {self.role[span]}"
        chunk = f" {chunk_name(self.chunk[span])}" if self.chunk[span] != NO_CHUNK else ""
        return f"sequence {self.number} span {span} ({role}{chunk}, tokens {self.start[span]}–{self.end[span]})"


_LISTS = ("chunk_id", "role", "group", "token_start", "token_end", "score")


def stored(batch: pa.RecordBatch, row: int, number: int) -> Stored:
    """Return one row of SEQUENCES as the `number`-th sequence of the data set."""
    columns = [batch.column(name)[row].values.to_numpy(zero_copy_only=False) for name in _LISTS]
    names = [batch.column(name)[row].as_py() for name in ("sequence_id", "key", "method", "layout")]
    return Stored(number, *names, *columns)


def sequences_of(path: Path, places: range, *, first: int) -> Iterator[Stored]:
    """Yield the sequences at some places of a SEQUENCES file, the first of which is the `first`-th of the data set."""
    before = 0
    with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
        for batch in first_rows(reader, places.stop):
            for row in range(max(places.start - before, 0), batch.num_rows):
                yield stored(batch, row, first + before + row)
            before += batch.num_rows


def first_rows(reader: pa.RecordBatchFileReader, take: int) -> Iterator[pa.RecordBatch]:
    """Yield the batches of the first `take` rows."""
    for number in range(reader.num_record_batches):
        if take <= 0:
            return
        batch = reader.get_batch(number).slice(0, take)
        take -= batch.num_rows
        yield batch
