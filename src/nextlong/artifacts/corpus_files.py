"""Corpus files: read CHUNKS and DOCUMENTS, and look them up by id, a shard at a time.

In:  ids in any order, with repeats. Out: arrays aligned with the ids, so that memory
does not grow with the corpus. This module also writes `.npy` files piece by piece
(`write_header`) and memory-maps them cheaply (`opened`).
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from nextlong import schemas
from nextlong.arrays import AnyArray, Bools, Floats, Hashes, Ints, Objects
from nextlong.artifacts.results import (
    ChunkFiles,
    IngestFiles,
    chunk_files,
    chunks_of,
    with_inserted,
)
from nextlong.engine.step import Artifacts
from nextlong.rng import keyed_hash, threshold_for

_Column = AnyArray  # of a table, one value per row


def _one_document_column(name: str) -> pa.ipc.IpcReadOptions:
    """Return how to read one column of DOCUMENTS so that the others stay compressed."""
    field = schemas.DOCUMENTS.get_field_index(name)
    return pa.ipc.IpcReadOptions(included_fields=[field])


_TEXTS = _one_document_column("text")
_HASHES = _one_document_column("content_hash")
_MAX_CACHED_BYTES = 1 << 25  # of DOCUMENTS columns, per process
_cached_tables: dict[tuple[FileVersion, tuple[str, ...]], pa.Table] = {}
_cached_bytes = 0


def by_shard(ids: Ints) -> tuple[list[tuple[int, Ints]], Ints]:
    """Return the distinct rows of `ids`, shape (n,), by shard, each sorted.

    And for each id its index among all these rows, so that each shard is opened once:
    read the rows shard after shard, concatenate them, and take the result at the
    indices.
    """
    # Sorting by id sorts by shard, then row.
    distinct, back = np.unique(ids, return_inverse=True)
    shards = schemas.shard_of(distinct)
    rows = schemas.row_of(distinct)
    firsts = np.flatnonzero(np.diff(shards, prepend=-1)).tolist()
    rows_by_shard = []
    for first, last in pairwise([*firsts, len(distinct)]):
        rows_by_shard.append((int(shards[first]), rows[first:last]))
    return rows_by_shard, back


def ranges(starts: Ints, sizes: Ints) -> Ints:
    """Return the integers of the ranges [starts[i], starts[i] + sizes[i]).

    One range after the other.
    """
    # Where a range begins in the result, its first integer is starts[i].
    begins = np.cumsum(sizes) - sizes
    integers: Ints = np.repeat(starts - begins, sizes)
    integers += np.arange(len(integers))
    return integers


def runs_within(sizes: ArrayLike, max_sum: float) -> Iterator[tuple[int, int]]:
    """Yield bounds [first, last) of consecutive runs of `sizes`, shape (n,).

    Each has a sum of at most `max_sum`, or one element.
    """
    ends = np.append(0, np.cumsum(sizes))
    first = 0
    while first < len(ends) - 1:
        last = int(np.searchsorted(ends, ends[first] + max_sum, side="right")) - 1
        # One element may exceed the sum alone.
        last = max(last, first + 1)
        yield first, last
        first = last


def chunk_columns(
    ids: Ints, chunks: Sequence[Path], names: Sequence[str]
) -> list[Ints]:
    """Return the named CHUNKS columns of the given chunk ids."""
    shards, back = by_shard(ids)
    tables = []
    for shard, rows in shards:
        table = _chunk_table(file_version(chunks[shard]))
        tables.append((table, rows))
    columns = []
    for name in names:
        of_shards = [table[name][rows] for table, rows in tables]
        columns.append(np.concatenate(of_shards)[back])
    return columns


def documents_of(ids: Ints, chunks: Sequence[Path]) -> Ints:
    """Return the doc_id of each chunk, shape (n,)."""
    (doc_rows,) = chunk_columns(ids, chunks, ("doc_row",))
    return schemas.shard_of(ids) << schemas.SHARD_BITS | doc_rows


def chunk_names(
    ids: Ints, *, documents: Sequence[Path], chunks: Sequence[Path]
) -> list[tuple[str, int]]:
    """Return a readable name for each chunk id.

    Its document's `source_id` and its position in the document, from 1.
    """
    shards, back = by_shard(ids)
    ordinals = []
    for shard, rows in shards:
        # The chunks of a document follow each other, so its first is the first row with
        # its doc_row.
        doc_rows = _chunk_table(file_version(chunks[shard]))["doc_row"]
        firsts = np.searchsorted(doc_rows, doc_rows[rows])
        ordinals.append(rows - firsts + 1)
    doc_ids = documents_of(ids, chunks)
    names = source_ids(doc_ids, documents)
    ordinal_of_id = np.concatenate(ordinals)[back]
    return list(zip(names.tolist(), ordinal_of_id.tolist(), strict=True))


def chunk_chars(ids: Ints, chunks: Sequence[Path]) -> Ints:
    """Return the length in characters of each chunk, shape (n,)."""
    start, end = chunk_columns(ids, chunks, ("start", "end"))
    return end - start


def source_ids(doc_ids: Ints, documents: Sequence[Path]) -> Objects:
    """Return each document's `source_id`, shape (n,), without reading any text."""
    return document_columns(doc_ids, documents, ("source_id",))[0]


def document_columns(
    doc_ids: Ints, documents: Sequence[Path], names: Sequence[str]
) -> list[_Column]:
    """Return the named DOCUMENTS columns of the given documents.

    Other columns are not even decompressed. `metadata` is JSON, or None for a document
    whose source has no metadata columns.
    """
    shards, back = by_shard(doc_ids)
    columns: list[list[_Column]] = [[] for _ in names]
    for shard, rows in shards:
        table = _document_table(file_version(documents[shard]), tuple(names))
        taken = table.take(pa.array(rows))
        for column, name in zip(columns, names, strict=True):
            if name in taken.column_names:
                column.append(taken.column(name).to_numpy())
            else:
                column.append(np.full(len(rows), None))
    return [np.concatenate(of_shards)[back] for of_shards in columns]


def _document_table(file: FileVersion, names: tuple[str, ...]) -> pa.Table:
    """Return the named columns of a DOCUMENTS file, as far as it has them.

    Those of the first shards stay in memory, for callers that look up block after
    block.
    """
    global _cached_bytes
    if (file, names) in _cached_tables:
        return _cached_tables[file, names]
    source = pa.memory_map(str(file.path))
    with pa.ipc.open_file(source) as reader:
        positions = [reader.schema.get_field_index(name) for name in names]
    present = [position for position in positions if position >= 0]
    # An empty list would read all columns, so read any one.
    options = pa.ipc.IpcReadOptions(included_fields=present or [0], use_threads=False)
    with pa.ipc.open_file(source, options=options) as reader:
        table = reader.read_all().combine_chunks()
    if _cached_bytes + table.nbytes <= _MAX_CACHED_BYTES:
        _cached_tables[file, names] = table
        _cached_bytes += table.nbytes
    return table


# Memory maps, which use neither memory nor a file descriptor; opening one takes 0.2 ms.
@lru_cache(maxsize=1024)
def _chunk_table(chunks: FileVersion) -> dict[str, _Column]:
    return read_chunks(chunks.path)


class FileVersion(NamedTuple):
    """Identifies the file at a path until another file replaces it."""

    path: Path
    inode: int
    mtime_ns: int
    bytes: int


def file_version(path: Path) -> FileVersion:
    """Return the version of the file that is now at a path."""
    stat = path.stat()
    return FileVersion(path, stat.st_ino, stat.st_mtime_ns, stat.st_size)


def array_rows(ids: Ints, paths: Sequence[Path]) -> AnyArray:
    """Return the rows of ids (n,) from memory-mapped arrays, one file per shard."""
    shards, back = by_shard(ids)
    if not shards:
        # Without ids, the first file says which dtype and width the rows have.
        return opened(paths[0])[:0]
    pieces = [opened(paths[shard])[rows] for shard, rows in shards]
    return np.concatenate(pieces)[back]


def vectors(ids: Ints, paths: Sequence[Path]) -> Floats:
    """Return the vectors, shape (n, dim), of chunks (n,)."""
    return array_rows(ids, paths).astype(np.float32)


class ChunkTexts(NamedTuple):
    """The n chunks of one record batch of documents, in row order.

    `rows` and `doc_rows` (n,) are rows within the shard; `begins` says whether each
    chunk begins its document.
    """

    rows: Ints
    doc_rows: Ints
    texts: list[str]
    begins: list[bool]


def iter_chunk_texts(
    documents: Path, chunks: Path, rows: Ints | None = None
) -> Iterator[ChunkTexts]:
    """Stream the texts of a shard's chunks by record batches of documents.

    Of all chunks, or of the given sorted chunk rows.
    """
    table = _chunk_table(file_version(chunks))
    selected = np.arange(len(table["doc_row"])) if rows is None else rows
    first_docs = _first_documents(file_version(documents))
    bounds = np.searchsorted(table["doc_row"][selected], first_docs)
    source = pa.memory_map(str(documents))
    with pa.ipc.open_file(source, options=_TEXTS) as reader:
        # The texts of batches without selected chunks stay compressed.
        for number in np.flatnonzero(np.diff(bounds)).tolist():
            yield _texts_of_batch(
                reader.get_batch(number),
                table,
                selected[bounds[number] : bounds[number + 1]],
                first_doc=int(first_docs[number]),
            )


@lru_cache(maxsize=1024)
def _first_documents(documents: FileVersion) -> Ints:
    """Return the first document of each record batch, and their number at the end."""
    # From one narrow column, so that texts stay compressed.
    batches = record_batches(documents.path, options=_HASHES)
    return np.cumsum([0, *(batch.num_rows for _, batch in batches)])


def _texts_of_batch(
    batch: pa.RecordBatch, table: dict[str, _Column], rows: Ints, *, first_doc: int
) -> ChunkTexts:
    """Return the texts of some chunk rows, all of documents of a record batch.

    `table` is that of all chunks, `first_doc` the row of the batch's first document.
    """
    doc_rows = table["doc_row"][rows]
    # (n,) the document of each chunk among the distinct ones; only documents with
    # selected chunks become Python strings.
    distinct, document = np.unique(doc_rows - first_doc, return_inverse=True)
    column = batch.column("text")
    if len(distinct) < batch.num_rows:
        column = column.take(pa.array(distinct))
    docs = column.to_pylist()
    starts = table["start"][rows].tolist()
    ends = table["end"][rows].tolist()
    texts = [
        docs[index][start:end]
        for index, start, end in zip(document.tolist(), starts, ends, strict=True)
    ]
    return ChunkTexts(
        rows=rows,
        doc_rows=doc_rows.astype(np.int64),
        texts=texts,
        begins=[start == 0 for start in starts],
    )


def record_batches(
    path: Path, *, options: pa.ipc.IpcReadOptions | None = None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the record batches of an Arrow file, each with the rows before it."""
    first = 0
    with pa.ipc.open_file(pa.memory_map(str(path)), options=options) as reader:
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            yield first, batch
            first += batch.num_rows


def read_content_hashes(documents: Path) -> Hashes:
    """Return the content hash of each document of a shard, shape (documents,).

    Its texts stay compressed.
    """
    hashes = [np.empty(0, np.uint64)]
    for _, batch in record_batches(documents, options=_HASHES):
        hashes.append(batch.column(0).to_numpy())
    return np.concatenate(hashes)


def sample_texts(
    documents: Sequence[Path], chunks: Sequence[Path], *, fraction: float, seed: int
) -> list[str]:
    """Return the texts of about this fraction of the chunks of all shards.

    They are sampled and ordered by keyed hash.
    """
    keys: list[Hashes] = [np.empty(0, np.uint64)]
    texts: list[str] = []
    for documents_path, chunks_path in zip(documents, chunks, strict=True):
        keys_of_shard = chunk_keys(
            documents_path, chunks_path, seed=seed, stage="embed.fit"
        )
        rows = np.arange(len(keys_of_shard))
        if fraction < 1:
            rows = np.flatnonzero(keys_of_shard < threshold_for(fraction))
        keys.append(keys_of_shard[rows])
        for batch in iter_chunk_texts(documents_path, chunks_path, rows):
            texts += batch.texts
    # By key, so that the order does not depend on how documents lie in shards.
    order = np.argsort(np.concatenate(keys), kind="stable")
    return [texts[index] for index in order]


def chunk_keys(documents: Path, chunks: Path, *, seed: int, stage: str) -> Hashes:
    """Return a random key for each chunk, shape (rows,).

    From its document's content and its position there, never from its shard.
    """
    doc_rows = read_chunks(chunks)["doc_row"]
    content_hashes = read_content_hashes(documents)[doc_rows]
    firsts = np.searchsorted(doc_rows, doc_rows)
    positions = np.arange(len(doc_rows)) - firsts
    position_hashes = keyed_hash(
        positions.astype(np.uint64), seed=seed, stage="embed.number"
    )
    return keyed_hash(content_hashes ^ position_hashes, seed=seed, stage=stage)


def read_chunks(
    chunks: Path, names: Sequence[str] = schemas.CHUNKS.names
) -> dict[str, _Column]:
    """Return the named columns of a CHUNKS shard as arrays, shape (rows,) each."""
    with pa.ipc.open_file(pa.memory_map(str(chunks))) as reader:
        table = reader.read_all()
    return {name: table.column(name).to_numpy() for name in names}


def chunk_rows(chunks: Path, doc_id: int) -> range:
    """Return the rows of the chunks of a document in its CHUNKS shard."""
    row = doc_id & schemas.ROW_MASK
    # Ascending: the chunks of a document are neighbors.
    doc_rows = read_chunks(chunks, ("doc_row",))["doc_row"]
    first, last = np.searchsorted(doc_rows, [row, row + 1]).tolist()
    return range(first, last)


def count_chunks(chunks: Path) -> int:
    """Return how many chunks a shard has."""
    return sum(batch.num_rows for _, batch in record_batches(chunks))


def write_header(sink: BinaryIO, dtype: np.dtype[Any], *shape: int) -> None:
    """Write the header of a `.npy`.

    Its size does not depend on the numbers, so it can be overwritten at the end.
    """
    header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(sink, header)


def opened(path: Path) -> AnyArray:
    """Memory-map a `.npy` file read-only.

    In a twentieth of the time of `np.load` if the file was opened before. Only headers
    are cached; the map, its memory and its file are released with the array.
    """
    dtype, shape, start = _header(file_version(path))
    if not all(shape):
        return np.empty(shape, dtype)
    with path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(memory, dtype, offset=start).reshape(shape)


@lru_cache(maxsize=4096)
def _header(file: FileVersion) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Return dtype, shape and data offset of an array in C order."""
    array = np.load(file.path, mmap_mode="r")
    assert array.flags.c_contiguous, f"{file.path} is not in C order"
    return array.dtype, array.shape, array.offset


@dataclass(frozen=True)
class CorpusFiles:
    """The files of the text: DOCUMENTS and CHUNKS, one per shard, in shard order."""

    documents: Sequence[Path]
    chunks: Sequence[Path]

    def texts(self, chunk_ids: Ints) -> Objects:
        """Return the text of each chunk, shape (n,)."""
        shards, back = by_shard(chunk_ids)
        texts: list[str] = []
        for shard, rows in shards:
            batches = iter_chunk_texts(self.documents[shard], self.chunks[shard], rows)
            for batch in batches:
                texts += batch.texts
        return np.array(texts, object)[back]

    def text(self, chunk_id: int) -> str:
        """Return the text of one chunk."""
        return str(self.texts(np.array([chunk_id]))[0])

    def begins(self, chunk_ids: Ints) -> Bools:
        """Return whether each chunk begins its document, shape (n,)."""
        (start,) = chunk_columns(chunk_ids, self.chunks, ("start",))
        return np.asarray(start == 0)


def sequence_corpus(done: Artifacts) -> CorpusFiles:
    """Return the files of all text in sequences: the corpus, and inserted tasks."""
    return CorpusFiles(
        documents=with_inserted(IngestFiles.documents, done["ingest"], done),
        chunks=with_inserted(ChunkFiles.chunks, chunks_of(done), done),
    )


def corpus(done: Artifacts) -> CorpusFiles:
    """Return the files of the text of a run."""
    return CorpusFiles(
        documents=IngestFiles.of(done).documents,
        chunks=chunk_files(done).chunks,
    )
