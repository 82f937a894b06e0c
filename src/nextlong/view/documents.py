"""Documents: those of the corpus that hold a text or have a name, looked through batch by batch; and the chunks of one.

In:  DOCUMENTS and CHUNKS, and what is asked for. Out: documents, and where to go on.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artefacts import lookup
from nextlong.artefacts.chunks import read_chunks
from nextlong.artefacts.resolve import Corpus
from nextlong.plain_data import Json

_BEFORE, _BEHIND = 60, 140  # characters of a text around what was looked for


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a document has to hold; "" asks for nothing. Upper and lower case are the same."""

    text: str = ""
    name: str = ""
    source: str = ""


class Document(NamedTuple):
    """A document as a list shows it; `around` is the text before what was looked for, it, and behind it."""

    doc_id: int
    source: str
    source_id: str
    around: tuple[str, str, str]


class Place(NamedTuple):
    """Where to go on: shard, batch, row of the batch."""

    shard: int = 0
    batch: int = 0
    row: int = 0


class MatchingDocuments(NamedTuple):
    """Documents that fit, and where to go on; None: there are no more. `share` of the corpus was looked at."""

    documents: list[Document]
    go_on: Place | None
    share: float


def search(corpus: Corpus, wanted: Wanted, *, first: Place, most: int, seconds: float) -> MatchingDocuments:
    """Return at most `most` documents from `first` on that fit, found in about so many seconds."""
    until = time.monotonic() + seconds
    documents: list[Document] = []
    shards = len(corpus.documents)
    for shard in range(first.shard, shards):
        with _Shard(corpus.documents[shard]) as reader:
            for number in range(first.batch if shard == first.shard else 0, reader.batches):
                is_first = (shard, number) == (first.shard, first.batch)
                share = (shard + number / reader.batches) / shards
                if not is_first and time.monotonic() > until:
                    return MatchingDocuments(documents, Place(shard, number), share)
                for row in _fitting(reader.narrow(number, wanted), wanted, first.row if is_first else 0):
                    if len(documents) == most:
                        return MatchingDocuments(documents, Place(shard, number, row), share)
                    doc_id = shard << schemas.SHARD_BITS | (reader.first_row(number) + row)
                    documents.append(_document(reader.whole(number), row, doc_id, wanted.text))
    return MatchingDocuments(documents, None, 1.0)


class _Shard:
    """A DOCUMENTS file; texts are decompressed only where they are asked for, for that takes longer than all else."""

    def __init__(self, path: Path) -> None:
        self._stack = ExitStack()
        self._all = self._open(path, None)
        self._names = self._open(path, ("source", "source_id"))
        self._hashes = self._open(path, ("content_hash",))
        self.batches: int = self._all.num_record_batches
        self._held: tuple[int, pa.RecordBatch] | None = None
        self._firsts = [0]

    def _open(self, path: Path, names: tuple[str, ...] | None) -> pa.RecordBatchFileReader:
        fields = None if names is None else [schemas.DOCUMENTS.get_field_index(name) for name in names]
        options = pa.ipc.IpcReadOptions(included_fields=fields)
        return self._stack.enter_context(pa.ipc.open_file(pa.memory_map(str(path)), options=options))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def whole(self, number: int) -> pa.RecordBatch:
        if self._held is None or self._held[0] != number:
            self._held = number, self._all.get_batch(number)
        return self._held[1]

    def narrow(self, number: int, wanted: Wanted) -> pa.RecordBatch:
        return self.whole(number) if wanted.text else self._names.get_batch(number)

    def first_row(self, number: int) -> int:
        while len(self._firsts) <= number:
            self._firsts.append(self._firsts[-1] + self._hashes.get_batch(len(self._firsts) - 1).num_rows)
        return self._firsts[number]


def _fitting(batch: pa.RecordBatch, wanted: Wanted, skip: int) -> list[int]:
    fits = np.arange(batch.num_rows) >= skip
    for column, text in (("source_id", wanted.name), ("text", wanted.text)):
        if text:
            fits &= pc.match_substring(batch.column(column), text, ignore_case=True).to_numpy(zero_copy_only=False)
    if wanted.source:
        fits &= pc.equal(batch.column("source"), wanted.source).to_numpy(zero_copy_only=False)
    rows: list[int] = np.flatnonzero(fits).tolist()
    return rows


def _document(batch: pa.RecordBatch, row: int, doc_id: int, looked_for: str) -> Document:
    text = batch.column("text")[row].as_py()
    there = re.search(re.escape(looked_for), text, re.IGNORECASE) if looked_for else None
    at, behind = there.span() if there else (0, 0)
    around = text[max(0, at - _BEFORE) : at], text[at:behind], text[behind : behind + _BEHIND]
    return Document(doc_id, batch.column("source")[row].as_py(), batch.column("source_id")[row].as_py(), around)


class Chunks(NamedTuple):
    """A document: its name, what its source keeps beside the text, and its chunks with their texts."""

    source: str
    source_id: str
    kept: Json
    chunk_ids: NDArray[np.int64]
    texts: list[str]


def read(corpus: Corpus, doc_id: int) -> Chunks | None:
    """Return a document; None if there is none of that number."""
    shard, row = doc_id >> schemas.SHARD_BITS, doc_id & schemas.ROW_MASK
    if not 0 <= shard < len(corpus.documents):
        return None
    doc_rows = read_chunks(corpus.chunks[shard], ("doc_row",))["doc_row"]
    first, last = np.searchsorted(doc_rows, [row, row + 1]).tolist()
    try:
        names: list[NDArray[Any]] = lookup.document_columns(
            np.array([doc_id]), corpus.documents, ("source", "source_id")
        )
    except pa.ArrowIndexError:
        return None
    ids = schemas.pack_ids(shard, np.arange(first, last))
    texts = corpus.texts(ids).tolist() if len(ids) else []
    source, source_id = (str(column[0]) for column in names)
    (kept,) = lookup.kept_values(np.array([doc_id]), corpus.documents).tolist()
    return Chunks(source, source_id, json.loads(kept) if kept else {}, ids, texts)


def sources(corpus: Corpus, *, most: int) -> Iterator[str]:
    """Yield names of sources, from the first batch of each of the first shards."""
    seen: set[str] = set()
    for path in corpus.documents[:most]:
        options = pa.ipc.IpcReadOptions(included_fields=[schemas.DOCUMENTS.get_field_index("source")])
        with pa.ipc.open_file(pa.memory_map(str(path)), options=options) as reader:
            if reader.num_record_batches:
                seen.update(reader.get_batch(0).column("source").unique().to_pylist())
    yield from sorted(seen)
