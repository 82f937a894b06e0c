"""Chunks: reading CHUNKS, and the text of chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas


class ChunkTexts(NamedTuple):
    """The chunks of one record batch of documents; n of them, in row order."""

    rows: NDArray[np.int64]  # (n,) chunk rows within the shard
    doc_rows: NDArray[np.int64]  # (n,) document rows within the shard
    numbers: NDArray[np.int64]  # (n,) which chunk of its document, from 0
    content_hashes: NDArray[np.uint64]  # (n,) of the document
    texts: list[str]


def iter_chunk_texts(documents: Path, chunks: Path, rows: NDArray[np.int64] | None = None) -> Iterator[ChunkTexts]:
    """Stream the texts of a shard's chunks, or of the given sorted chunk rows, one record batch of documents at a time."""
    table = read_chunks(chunks)
    doc_row_of = table["doc_row"]
    wanted = np.arange(len(doc_row_of)) if rows is None else rows
    docs_of_wanted = doc_row_of[wanted]
    first_doc = 0
    # Counting a batch's rows by one narrow column leaves the text of batches that nobody wants compressed.
    source = pa.memory_map(str(documents))
    wide, narrow = _only("content_hash", "text"), _only("content_hash")
    with pa.ipc.open_file(source, options=wide) as reader, pa.ipc.open_file(source, options=narrow) as counter:
        for number in range(reader.num_record_batches):
            last_doc = first_doc + counter.get_batch(number).num_rows
            low, high = np.searchsorted(docs_of_wanted, [first_doc, last_doc])
            if low < high:
                yield _texts_of(reader.get_batch(number), first_doc, wanted[low:high], table)
            first_doc = last_doc


def _texts_of(
    batch: pa.RecordBatch, first_doc: int, rows: NDArray[np.int64], table: dict[str, NDArray[Any]]
) -> ChunkTexts:
    doc_rows = table["doc_row"][rows]
    numbers = rows - np.searchsorted(table["doc_row"], doc_rows)
    distinct, which = np.unique(doc_rows - first_doc, return_inverse=True)
    docs = (
        batch.column("text").take(pa.array(distinct)).to_pylist()
        if len(distinct) < batch.num_rows
        else batch.column("text").to_pylist()
    )
    starts, ends = table["start"][rows].tolist(), table["end"][rows].tolist()
    texts = [docs[doc][start:end] for doc, start, end in zip(which.tolist(), starts, ends, strict=True)]
    hashes = batch.column("content_hash").to_numpy()[doc_rows - first_doc]
    return ChunkTexts(rows, doc_rows.astype(np.int64), numbers, hashes, texts)


def read_content_hashes(documents: Path) -> NDArray[np.uint64]:
    """Return the content hash of each document of a DOCUMENTS shard, shape (documents,); its texts stay compressed."""
    with pa.ipc.open_file(pa.memory_map(str(documents)), options=_only("content_hash")) as reader:
        batches = [reader.get_batch(number).column(0).to_numpy() for number in range(reader.num_record_batches)]
    return np.concatenate([np.empty(0, np.uint64), *batches])


def _only(*columns: str) -> pa.ipc.IpcReadOptions:
    return pa.ipc.IpcReadOptions(included_fields=[schemas.DOCUMENTS.get_field_index(column) for column in columns])


def read_chunks(chunks: Path, names: Sequence[str] = schemas.CHUNKS.names) -> dict[str, NDArray[Any]]:
    """Return the named columns of a CHUNKS shard as arrays, shape (rows,) each."""
    with pa.ipc.open_file(pa.memory_map(str(chunks))) as reader:
        table = reader.read_all()
    return {name: table.column(name).to_numpy() for name in names}
