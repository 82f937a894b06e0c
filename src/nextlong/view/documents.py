"""Documents: those of the corpus that hold a text or have a name, looked through batch by batch; and the chunks of one.

In:  DOCUMENTS and CHUNKS, and a query. Out: documents, and where to continue. A search box asks for all of its words, and for
phrases in quotes (`supply "market price"`); case does not matter.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts import lookup
from nextlong.artifacts.finished import CorpusFiles
from nextlong.artifacts.lookup import read_chunks
from nextlong.text import Json

_TERM: Final = re.compile(r'"([^"]+)"?|(\S+)')
_BEFORE, _AFTER = 60, 160  # characters of a snippet around the first term


def parse(text: str) -> list[str]:
    """Return the words and quoted phrases of a search box."""
    return [phrase or word for phrase, word in _TERM.findall(text)]


def contain(texts: NDArray[Any] | Sequence[str] | pa.Array, text: str) -> NDArray[np.bool_]:
    """Return which of n texts contain every term, shape (n,)."""
    column = texts if isinstance(texts, pa.Array) else pa.array(texts, pa.large_string())
    found = np.ones(len(column), np.bool_)
    for term in parse(text):
        found &= pc.match_substring(column, term, ignore_case=True).to_numpy(zero_copy_only=False)
    return found


def snippet(text: str, wanted: str) -> list[tuple[str, bool]]:
    """Return the text around the first term, else its beginning, in pieces, with whether each is a term."""
    parsed = sorted(parse(wanted), key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, parsed)), re.IGNORECASE) if parsed else None
    first = pattern.search(text) if pattern else None
    start = max(0, first.start() - _BEFORE) if first else 0
    end = (first.end() if first else 0) + _AFTER
    shown = ("…" if start else "") + " ".join(text[start:end].split()) + ("…" if end < len(text) else "")
    pieces: list[tuple[str, bool]] = []
    done = 0
    for found in pattern.finditer(shown) if pattern else ():
        pieces += [(shown[done : found.start()], False), (found[0], True)]
        done = found.end()
    return [*pieces, (shown[done:], False)]


@dataclass(frozen=True, kw_only=True)
class DocumentQuery:
    """What a document has to contain; "" matches everything, case does not matter. `text` holds words and quoted phrases."""

    text: str = ""
    name: str = ""
    source: str = ""


class ListedDocument(NamedTuple):
    """A document as a list shows it; `snippet` is a part of its text in pieces, with whether each is a search term."""

    doc_id: int
    source: str
    source_id: str
    snippet: list[tuple[str, bool]]


class Place(NamedTuple):
    """Where to continue: shard, batch, row of the batch."""

    shard: int = 0
    batch: int = 0
    row: int = 0


class MatchingDocuments(NamedTuple):
    """Documents that fit, and where to continue; None: there are no more. `share` of the corpus was looked at."""

    documents: list[ListedDocument]
    next: Place | None
    share: float


def search(corpus: CorpusFiles, query: DocumentQuery, *, first: Place, most: int, seconds: float) -> MatchingDocuments:
    """Return at most `most` documents from `first` on that fit, found in about so many seconds."""
    until = time.monotonic() + seconds
    documents: list[ListedDocument] = []
    shards = len(corpus.documents)
    for shard in range(first.shard, shards):
        with _Shard(corpus.documents[shard]) as reader:
            for number in range(first.batch if shard == first.shard else 0, reader.batches):
                is_first = (shard, number) == (first.shard, first.batch)
                share = (shard + number / reader.batches) / shards
                if not is_first and time.monotonic() > until:
                    return MatchingDocuments(documents, Place(shard, number), share)
                for row in _fitting(reader.narrow(number, query), query, first.row if is_first else 0):
                    if len(documents) == most:
                        return MatchingDocuments(documents, Place(shard, number, row), share)
                    doc_id = shard << schemas.SHARD_BITS | (reader.first_row(number) + row)
                    columns = (reader.whole(number).column(name) for name in ("source", "source_id", "text"))
                    source, source_id, text = (column[row].as_py() for column in columns)
                    documents.append(ListedDocument(doc_id, source, source_id, snippet(text, query.text)))
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

    def narrow(self, number: int, query: DocumentQuery) -> pa.RecordBatch:
        return self.whole(number) if query.text else self._names.get_batch(number)

    def first_row(self, number: int) -> int:
        while len(self._firsts) <= number:
            self._firsts.append(self._firsts[-1] + self._hashes.get_batch(len(self._firsts) - 1).num_rows)
        return self._firsts[number]


def _fitting(batch: pa.RecordBatch, query: DocumentQuery, skip: int) -> list[int]:
    # Whether each row of the batch matches; the cheap columns first.
    fits = np.arange(batch.num_rows) >= skip
    if query.name:
        fits &= pc.match_substring(batch.column("source_id"), query.name, ignore_case=True).to_numpy(
            zero_copy_only=False
        )
    if query.text:
        fits &= contain(batch.column("text"), query.text)
    if query.source:
        fits &= pc.equal(batch.column("source"), query.source).to_numpy(zero_copy_only=False)
    rows: list[int] = np.flatnonzero(fits).tolist()
    return rows


class Chunks(NamedTuple):
    """A document: its name, what its source keeps beside the text, and its chunks with their texts."""

    source: str
    source_id: str
    metadata: Json
    chunk_ids: NDArray[np.int64]
    texts: list[str]


def read(corpus: CorpusFiles, doc_id: int) -> Chunks | None:
    """Return a document; None if there is none of that number."""
    shard, row = doc_id >> schemas.SHARD_BITS, doc_id & schemas.ROW_MASK
    if not 0 <= shard < len(corpus.documents):
        return None
    # The row of each chunk's document, ascending: the chunks of a document are neighbours.
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
    (metadata,) = lookup.document_metadata(np.array([doc_id]), corpus.documents).tolist()
    return Chunks(source, source_id, json.loads(metadata) if metadata else {}, ids, texts)


def sources(corpus: CorpusFiles, *, most: int) -> Iterator[str]:
    """Yield names of sources, from the first batch of each of the first shards."""
    seen: set[str] = set()
    for path in corpus.documents[:most]:
        options = pa.ipc.IpcReadOptions(included_fields=[schemas.DOCUMENTS.get_field_index("source")])
        with pa.ipc.open_file(pa.memory_map(str(path)), options=options) as reader:
            if reader.num_record_batches:
                seen.update(reader.get_batch(0).column("source").unique().to_pylist())
    yield from sorted(seen)
