"""Spans: the SEQUENCES of a run as flat arrays.

In:  SEQUENCES files; CHUNKS, for the document of each chunk. Out: blocks of spans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from nextlong import schemas
from nextlong.arrays import Doubles, Int8s, Ints
from nextlong.artifacts import corpus_files
from nextlong.artifacts.corpus_files import CorpusFiles

# Roles of the spans that hold a document's text.
CHUNK_ROLES: Final = (
    schemas.META,
    schemas.NEGATIVE,
    schemas.DOCUMENT,
    schemas.CONTEXT,
)
# Roles of the spans of documents that a sequence is about.
ABOUT_ROLES: Final = (schemas.META, schemas.DOCUMENT)
# About how many spans are read at a time.
_BLOCK_SPANS: Final = 1 << 18


class Block(NamedTuple):
    """The spans of some sequences, one after the other; all arrays have shape (P,).

    `sequence` is the index of a span's sequence within the block. `chunk_ids` and
    `doc_ids` are -1 for separators and special tokens.
    """

    sequence: Ints
    chunk_ids: Ints
    doc_ids: Ints
    roles: Int8s
    groups: Ints
    starts: Ints
    ends: Ints
    scores: Doubles

    def of(self, *roles: int) -> Block:
        """Return the spans of the given roles."""
        has_role = np.isin(self.roles, roles)
        return Block._make(column[has_role] for column in self)

    @property
    def lengths(self) -> Ints:
        """Tokens of each span."""
        return self.ends - self.starts


def read_blocks(
    path: Path, take: int, corpus: CorpusFiles, *, first: int = 0
) -> Iterator[Block]:
    """Yield the sequences [first, take) of a SEQUENCES file, some at a time."""
    reader = _reader(corpus_files.file_version(path))
    batches: list[pa.RecordBatch] = []
    num_spans = 0
    for number in range(first, take):
        batches.append(reader.get_batch(number))
        num_spans += len(batches[-1].column("role").values)
        if num_spans >= _BLOCK_SPANS or number == take - 1:
            yield _block(batches, corpus)
            batches = []
            num_spans = 0


def _block(batches: Sequence[pa.RecordBatch], corpus: CorpusFiles) -> Block:
    """Return the spans of some sequences, each of which is a batch of one row."""
    table = pa.Table.from_batches(batches)
    # Each column is a list per sequence. Its values are those of all spans, one after
    # the other, and its offsets say where each sequence begins in them.
    columns = {
        name: table.column(name).combine_chunks() for name in schemas.SPAN_COLUMNS
    }
    spans_per_sequence = np.diff(columns["role"].offsets.to_numpy())

    def integers(name: str) -> Ints:
        values: Ints = columns[name].values.to_numpy().astype(np.int64)
        return values

    chunk_ids = columns["chunk_id"].values.to_numpy()
    is_chunk = chunk_ids != schemas.NO_CHUNK
    doc_ids = np.full(len(chunk_ids), schemas.NO_CHUNK, np.int64)
    doc_ids[is_chunk] = corpus_files.documents_of(chunk_ids[is_chunk], corpus.chunks)
    # Vectors are kept in half precision, so that the cosine of a text to itself comes
    # out as 1.0001.
    scores = columns["score"].values.to_numpy().astype(np.float64).clip(-1, 1)
    return Block(
        sequence=np.repeat(np.arange(len(spans_per_sequence)), spans_per_sequence),
        chunk_ids=chunk_ids,
        doc_ids=doc_ids,
        roles=columns["role"].values.to_numpy(),
        groups=integers("group"),
        starts=integers("token_start"),
        ends=integers("token_end"),
        scores=scores,
    )


# Kept open, because a file has a batch for each sequence, so that opening one of a
# million takes milliseconds. It is no memory map, of which all pages that were read
# would count as memory of the process.
@lru_cache(maxsize=1)
def _reader(file: corpus_files.FileVersion) -> pa.RecordBatchFileReader:
    options = pa.ipc.IpcReadOptions(use_threads=False)
    return pa.ipc.open_file(pa.OSFile(str(file.path)), options=options)
