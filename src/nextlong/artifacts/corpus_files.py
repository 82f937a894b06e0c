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
from numpy.typing import ArrayLike, NDArray

from nextlong import schemas
from nextlong.artifacts.results import IngestFiles, chunk_files
from nextlong.engine.step import (
    Artifacts,
)
from nextlong.rng import keyed_hash, threshold_for
from nextlong.schemas import Ints

_Column = NDArray[Any]  # of a table, one value per row


# To read one column of DOCUMENTS, so that the others stay compressed.
_TEXTS = pa.ipc.IpcReadOptions(
    included_fields=[schemas.DOCUMENTS.get_field_index("text")]
)


_HASHES = pa.ipc.IpcReadOptions(
    included_fields=[schemas.DOCUMENTS.get_field_index("content_hash")]
)


_CACHED_BYTES = 1 << 25  # of DOCUMENTS columns cached per process


_cached_tables: dict[tuple[FileVersion, tuple[str, ...]], pa.Table] = {}


_cached_bytes = 0


def by_shard(ids: Ints) -> tuple[list[tuple[int, Ints]], Ints]:
    """Return the distinct rows of `ids`, shape (n,), by shard, each sorted; and for each id its place among all these rows.

    So each shard is opened once: read the rows shard after shard, concatenate them, and index the result by the places.
    """
    # Sorting by id sorts by shard, then row.
    distinct, back = np.unique(ids, return_inverse=True)
    shards, rows = schemas.shard_of(distinct), schemas.row_of(distinct)
    firsts = np.flatnonzero(np.diff(shards, prepend=-1))
    return [
        (int(shards[first]), rows[first:last])
        for first, last in pairwise([*firsts.tolist(), len(distinct)])
    ], back


def ranges(starts: Ints, sizes: Ints) -> Ints:
    """Return the integers of the ranges [starts[i], starts[i] + sizes[i]), one range after the other."""
    every: Ints = np.repeat(starts - np.cumsum(sizes) + sizes, sizes)
    every += np.arange(len(every))
    return every


def runs_within(sizes: ArrayLike, most: float) -> Iterator[tuple[int, int]]:
    """Yield bounds [first, last) of consecutive runs of `sizes`, shape (n,), each with a sum of at most `most` or one element."""
    ends, first = np.append(0, np.cumsum(sizes)), 0
    while first < len(ends) - 1:
        last = max(
            first + 1, int(np.searchsorted(ends, ends[first] + most, side="right")) - 1
        )
        yield first, last
        first = last


def chunk_columns(
    ids: Ints, chunks: Sequence[Path], names: Sequence[str]
) -> list[Ints]:
    """Return the named CHUNKS columns of the given chunk ids."""
    shards, back = by_shard(ids)
    tables = [
        (_chunk_table(file_version(chunks[shard])), rows) for shard, rows in shards
    ]
    return [
        np.concatenate([table[name][rows] for table, rows in tables])[back]
        for name in names
    ]


def documents_of(ids: Ints, chunks: Sequence[Path]) -> Ints:
    """Return the doc_id of each chunk, shape (n,)."""
    return (
        schemas.shard_of(ids) << schemas.SHARD_BITS
        | chunk_columns(ids, chunks, ("doc_row",))[0]
    )


def chunk_names(
    ids: Ints, *, documents: Sequence[Path], chunks: Sequence[Path]
) -> list[tuple[str, int]]:
    """Return a readable name for each chunk id: its document's `source_id` and its position in the document, from 1."""
    shards, back = by_shard(ids)
    ordinals = []
    for shard, rows in shards:
        doc_rows = _chunk_table(file_version(chunks[shard]))["doc_row"]
        ordinals.append(rows - np.searchsorted(doc_rows, doc_rows[rows]) + 1)
    names = source_ids(documents_of(ids, chunks), documents).tolist()
    return list(zip(names, np.concatenate(ordinals)[back].tolist(), strict=True))


def chunk_chars(ids: Ints, chunks: Sequence[Path]) -> Ints:
    """Return the length in characters of each chunk, shape (n,)."""
    start, end = chunk_columns(ids, chunks, ("start", "end"))
    return end - start


def source_ids(doc_ids: Ints, documents: Sequence[Path]) -> NDArray[np.object_]:
    """Return each document's `source_id`, shape (n,), without reading any text."""
    return document_columns(doc_ids, documents, ("source_id",))[0]


def document_columns(
    doc_ids: Ints, documents: Sequence[Path], names: Sequence[str]
) -> list[_Column]:
    """Return the named DOCUMENTS columns of the given documents; other columns are not even decompressed.

    `metadata` is JSON, or None for a document whose source has no metadata columns. The columns of the first shards stay in
    memory, for callers that look up block after block.
    """
    global _cached_bytes
    shards, back = by_shard(doc_ids)
    pieces: list[list[_Column]] = []
    for shard, rows in shards:
        key = (file_version(documents[shard]), tuple(names))
        if (table := _cached_tables.get(key)) is None:
            source = pa.memory_map(str(documents[shard]))
            with pa.ipc.open_file(source) as reader:
                fields = [
                    place
                    for place in map(reader.schema.get_field_index, names)
                    if place >= 0
                ]  # [] would be all
            options = pa.ipc.IpcReadOptions(
                included_fields=fields or [0], use_threads=False
            )
            with pa.ipc.open_file(source, options=options) as reader:
                table = reader.read_all().combine_chunks()
            if _cached_bytes + table.nbytes <= _CACHED_BYTES:
                _cached_tables[key] = table
                _cached_bytes += table.nbytes
        taken, present = table.take(pa.array(rows)), table.column_names
        absent = np.full(len(rows), None)
        pieces.append(
            [
                taken.column(name).to_numpy() if name in present else absent
                for name in names
            ]
        )
    return [np.concatenate(column)[back] for column in zip(*pieces, strict=True)]


@lru_cache(
    maxsize=1024
)  # memory maps, which use neither memory nor a file descriptor; opening one takes 0.2 ms
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


def array_rows(ids: Ints, paths: Sequence[Path]) -> NDArray[Any]:
    """Return the rows of ids (n,) from memory-mapped arrays, one file per shard."""
    shards, back = by_shard(ids)
    pieces = [
        opened(paths[shard])[rows]
        for shard, rows in shards or [(0, np.empty(0, np.int64))]
    ]
    return np.concatenate(pieces)[back]


def vectors(ids: Ints, paths: Sequence[Path]) -> NDArray[np.float32]:
    """Return the vectors, shape (n, dim), of chunks (n,)."""
    return array_rows(ids, paths).astype(np.float32)


class _ChunkTexts(NamedTuple):
    """The n chunks of one record batch of documents, in row order."""

    rows: Ints  # (n,) chunk rows within the shard
    doc_rows: Ints  # (n,) document rows within the shard
    texts: list[str]
    begins: list[bool]  # whether each chunk begins its document


def iter_chunk_texts(
    documents: Path, chunks: Path, rows: Ints | None = None
) -> Iterator[_ChunkTexts]:
    """Stream the texts of a shard's chunks, or of the given sorted chunk rows, by record batches of documents."""
    table = read_chunks(chunks)
    doc_row_of = table["doc_row"]
    selected = np.arange(len(doc_row_of)) if rows is None else rows
    docs_of_selected = doc_row_of[selected]
    first_doc = 0
    # The row counts come from one narrow column, so that the texts of batches without selected chunks stay compressed.
    source = pa.memory_map(str(documents))
    with (
        pa.ipc.open_file(source, options=_TEXTS) as reader,
        pa.ipc.open_file(source, options=_HASHES) as counter,
    ):
        for number in range(reader.num_record_batches):
            last_doc = first_doc + counter.get_batch(number).num_rows
            low, high = np.searchsorted(docs_of_selected, [first_doc, last_doc])
            if low < high:
                batch, these, doc_rows = (
                    reader.get_batch(number),
                    selected[low:high],
                    docs_of_selected[low:high],
                )
                # (n,) the document of each chunk; only documents with selected chunks become Python strings
                distinct, which = np.unique(doc_rows - first_doc, return_inverse=True)
                column = batch.column("text")
                docs = (
                    column.take(pa.array(distinct))
                    if len(distinct) < batch.num_rows
                    else column
                ).to_pylist()
                starts = table["start"][these].tolist()
                bounds = zip(
                    which.tolist(), starts, table["end"][these].tolist(), strict=True
                )
                texts = [docs[doc][start:end] for doc, start, end in bounds]
                begins = [start == 0 for start in starts]
                yield _ChunkTexts(these, doc_rows.astype(np.int64), texts, begins)
            first_doc = last_doc


def record_batches(
    path: Path, *, options: pa.ipc.IpcReadOptions | None = None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the record batches of an Arrow file, each with the number of rows before it."""
    first = 0
    with pa.ipc.open_file(pa.memory_map(str(path)), options=options) as reader:
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            yield first, batch
            first += batch.num_rows


def read_content_hashes(documents: Path) -> NDArray[np.uint64]:
    """Return the content hash of each document of a shard, shape (documents,); its texts stay compressed."""
    batches = (
        batch.column(0).to_numpy()
        for _, batch in record_batches(documents, options=_HASHES)
    )
    return np.concatenate([np.empty(0, np.uint64), *batches])


def sample_texts(
    documents: Sequence[Path], chunks: Sequence[Path], *, fraction: float, seed: int
) -> list[str]:
    """Return the texts of about this fraction of the chunks of all shards, sampled and ordered by keyed hash."""
    keys: list[NDArray[np.uint64]] = []
    texts: list[str] = []
    for documents_path, chunks_path in zip(documents, chunks, strict=True):
        key_of_row = chunk_keys(
            documents_path, chunks_path, seed=seed, stage="embed.fit"
        )
        rows = (
            np.flatnonzero(key_of_row < threshold_for(fraction))
            if fraction < 1
            else np.arange(len(key_of_row))
        )
        keys.append(key_of_row[rows])
        for batch in iter_chunk_texts(documents_path, chunks_path, rows):
            texts += batch.texts
    return [
        texts[place]
        for place in np.argsort(
            np.concatenate([np.empty(0, np.uint64), *keys]), kind="stable"
        )
    ]


def chunk_keys(
    documents: Path, chunks: Path, *, seed: int, stage: str
) -> NDArray[np.uint64]:
    """Return a random key for each chunk, shape (rows,), from its document's content and its position there, never its shard."""
    doc_rows = read_chunks(chunks)["doc_row"]
    content_hashes = read_content_hashes(documents)[doc_rows]
    numbers = (np.arange(len(doc_rows)) - np.searchsorted(doc_rows, doc_rows)).astype(
        np.uint64
    )
    return keyed_hash(
        content_hashes ^ keyed_hash(numbers, seed=seed, stage="embed.number"),
        seed=seed,
        stage=stage,
    )


def read_chunks(
    chunks: Path, names: Sequence[str] = schemas.CHUNKS.names
) -> dict[str, _Column]:
    """Return the named columns of a CHUNKS shard as arrays, shape (rows,) each."""
    with pa.ipc.open_file(pa.memory_map(str(chunks))) as reader:
        table = reader.read_all()
    return {name: table.column(name).to_numpy() for name in names}


def count_chunks(chunks: Path) -> int:
    """Return how many chunks a shard has."""
    return sum(batch.num_rows for _, batch in record_batches(chunks))


def write_header(sink: BinaryIO, dtype: np.dtype[Any], *shape: int) -> None:
    """Write the header of a `.npy`; its size does not depend on the numbers, so it can be overwritten at the end."""
    np.lib.format.write_array_header_1_0(
        sink, {"descr": dtype.str, "fortran_order": False, "shape": shape}
    )


def opened(path: Path) -> NDArray[Any]:
    """Memory-map a `.npy` file read-only, in a twentieth of the time of `np.load` if the file was opened before.

    Only headers are cached; the map, its memory and its file are released with the array.
    """
    dtype, shape, start = _header(file_version(path))
    if not all(shape):
        return np.empty(shape, dtype)
    with path.open("rb") as file:
        held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(held, dtype, offset=start).reshape(shape)


@lru_cache(maxsize=4096)
def _header(file: FileVersion) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Return dtype, shape and data offset of an array in C order."""
    array = np.load(file.path, mmap_mode="r")
    assert array.flags.c_contiguous, f"{file.path} is not in C order"
    return array.dtype, array.shape, array.offset


@dataclass(frozen=True)
class CorpusFiles:
    """The files of the text: DOCUMENTS and CHUNKS, one file per shard, in shard order."""

    documents: Sequence[Path]
    chunks: Sequence[Path]

    def texts(self, chunk_ids: Ints) -> NDArray[np.object_]:
        shards, back = by_shard(chunk_ids)
        texts: list[str] = []
        for shard, rows in shards:
            for batch in iter_chunk_texts(
                self.documents[shard], self.chunks[shard], rows
            ):
                texts += batch.texts
        return np.array(texts, object)[back]

    def text(self, chunk_id: int) -> str:
        return str(self.texts(np.array([chunk_id]))[0])

    def begins(self, chunk_ids: Ints) -> NDArray[np.bool_]:
        """Return whether each chunk begins its document, shape (n,)."""
        (start,) = chunk_columns(chunk_ids, self.chunks, ("start",))
        return np.asarray(start == 0)


def corpus(done: Artifacts) -> CorpusFiles:
    return CorpusFiles(
        documents=IngestFiles.of(done).documents,
        chunks=chunk_files(done).chunks,
    )
