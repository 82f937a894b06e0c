"""Gather: look up columns of chunks and documents by id, a shard at a time, so that memory does not grow with the corpus.

In:  ids in any order, with repeats, and the shard files they lie in.
Out: arrays aligned with the ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artefacts.chunks import read_chunks
from nextlong.artefacts.flat_npy import opened

Ids = NDArray[np.int64]

_HELD_BYTES = 1 << 25  # of columns of DOCUMENTS, a process
_held_tables: dict[tuple[FileVersion, tuple[str, ...]], pa.Table] = {}


def by_shard(ids: Ids, load: Callable[[int, NDArray[np.int64]], Sequence[NDArray[Any]]]) -> list[NDArray[Any]]:
    """Return columns aligned with `ids`, shape (n,); `load(shard, rows)` gives them for distinct sorted rows of a shard."""
    distinct, back = np.unique(ids, return_inverse=True)
    shards, rows = schemas.shard_of(distinct), schemas.row_of(distinct)
    firsts = np.flatnonzero(np.diff(shards, prepend=-1))
    bounds = pairwise([*firsts.tolist(), len(distinct)])
    pieces = [load(int(shards[first]), rows[first:last]) for first, last in bounds]
    return [np.concatenate(column)[back] for column in zip(*pieces, strict=True)]


def chunk_columns(ids: Ids, chunks: Sequence[Path], names: Sequence[str]) -> list[NDArray[Any]]:
    """Return the named CHUNKS columns of the given chunk ids."""

    def load(shard: int, rows: NDArray[np.int64]) -> list[NDArray[Any]]:
        table = _chunk_table(file_version(chunks[shard]))
        return [table[name][rows] for name in names]

    return by_shard(ids, load)


def chunk_ordinals(ids: Ids, chunks: Sequence[Path]) -> NDArray[np.int64]:
    """Return the place of each chunk in its document, from 1, shape (n,): what a person is shown instead of a chunk id."""

    def load(shard: int, rows: NDArray[np.int64]) -> list[NDArray[Any]]:
        doc_rows = _chunk_table(file_version(chunks[shard]))["doc_row"]
        return [rows - np.searchsorted(doc_rows, doc_rows[rows]) + 1]

    ordinals: NDArray[np.int64] = by_shard(ids, load)[0]
    return ordinals


def chunk_name(chunk_id: int, *, documents: Sequence[Path], chunks: Sequence[Path]) -> str:
    """Return what a person is shown instead of a chunk id, such as `doc-17 · chunk 3`. Raises IndexError if there is none."""
    ids = np.array([chunk_id])
    (doc_rows,) = chunk_columns(ids, chunks, ("doc_row",))
    (source_id,) = source_ids(schemas.shard_of(ids) << schemas.SHARD_BITS | doc_rows, documents)
    return f"{source_id} · chunk {chunk_ordinals(ids, chunks)[0]}"


def chunk_chars(ids: Ids, chunks: Sequence[Path]) -> NDArray[np.int64]:
    """Return the length in characters of each chunk, shape (n,)."""
    start, end = chunk_columns(ids, chunks, ("start", "end"))
    chars: NDArray[np.int64] = end - start
    return chars


def source_ids(doc_ids: Ids, documents: Sequence[Path]) -> NDArray[np.object_]:
    """Return each document's `source_id`, shape (n,), without reading any text."""
    return document_columns(doc_ids, documents, ("source_id",))[0]


def document_columns(doc_ids: Ids, documents: Sequence[Path], names: Sequence[str]) -> list[NDArray[Any]]:
    """Return the named DOCUMENTS columns of the given documents; other columns are not even decompressed."""

    def load(shard: int, rows: NDArray[np.int64]) -> list[NDArray[Any]]:
        table = _document_table(documents[shard], tuple(names)).take(pa.array(rows))
        return [table.column(name).to_numpy() for name in names]

    return by_shard(doc_ids, load)


def kept_values(doc_ids: Ids, documents: Sequence[Path]) -> NDArray[np.object_]:
    """Return what each document's source keeps of it beside its text, as JSON, shape (n,); None of one that keeps nothing."""

    def load(shard: int, rows: NDArray[np.int64]) -> list[NDArray[Any]]:
        with pa.ipc.open_file(pa.memory_map(str(documents[shard]))) as reader:
            if "kept" not in reader.schema.names:
                return [np.full(len(rows), None, object)]
        return [_document_table(documents[shard], ("kept",)).take(pa.array(rows)).column("kept").to_numpy()]

    return by_shard(doc_ids, load)[0]


def _document_table(documents: Path, names: tuple[str, ...]) -> pa.Table:
    """Return columns of a DOCUMENTS file; the first of them stay in memory, for whoever looks up block after block."""
    key = (file_version(documents), names)
    if key in _held_tables:
        return _held_tables[key]
    options = pa.ipc.IpcReadOptions(
        included_fields=[schemas.DOCUMENTS_KEPT.get_field_index(name) for name in names], use_threads=False
    )
    with pa.ipc.open_file(pa.memory_map(str(documents)), options=options) as reader:
        table = reader.read_all().combine_chunks()
    if table.nbytes + sum(held.nbytes for held in _held_tables.values()) <= _HELD_BYTES:
        _held_tables[key] = table
    return table


@lru_cache(maxsize=1024)  # maps of files, which hold neither memory nor a file descriptor; opening one takes 0.2 ms
def _chunk_table(chunks: FileVersion) -> dict[str, NDArray[Any]]:
    return read_chunks(chunks.path)


class FileVersion(NamedTuple):
    """What names a file until another takes its place."""

    path: Path
    inode: int
    mtime_ns: int
    bytes: int


def file_version(path: Path) -> FileVersion:
    """Return what names the file that now lies at a path."""
    stat = path.stat()
    return FileVersion(path, stat.st_ino, stat.st_mtime_ns, stat.st_size)


def vectors(ids: Ids, paths: Sequence[Path]) -> NDArray[np.float32]:
    """Return the vectors, shape (n, dim), of chunks (n,), read from memory-mapped shards."""

    def load(shard: int, rows: NDArray[np.int64]) -> list[NDArray[Any]]:
        return [opened(paths[shard])[rows].astype(np.float32)]

    vectors_of_ids: NDArray[np.float32] = by_shard(ids, load)[0]
    return vectors_of_ids
