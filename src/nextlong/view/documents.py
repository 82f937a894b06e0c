"""Documents: search the corpus by text or name, read the chunks of a document, mark it.

In:  DOCUMENTS and CHUNKS, and a query. Out: documents, and where to continue: batches
are searched one by one. A document matches if it contains all words and quoted phrases
of the query (`supply "market price"`); case is ignored.

Marks are in `RUN/marks.jsonl`, one JSON object per line: `source`, and `id` unless the
whole source is marked; `note`; `sequence` if a sequence was marked, which means the
document that it is about. `ingest.exclude: RUN/marks.jsonl` in a recipe excludes these
documents from the next run.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nextlong import schemas
from nextlong.arrays import AnyArray, Bools
from nextlong.artifacts import corpus_files
from nextlong.artifacts.corpus_files import CorpusFiles
from nextlong.engine import store
from nextlong.errors import RunError
from nextlong.text import Json

_TERM: Final = re.compile(r'"([^"]+)"?|(\S+)')
MARKS_FILE: Final = "marks.jsonl"
# Characters of a snippet around the first term.
_BEFORE: Final = 60
_AFTER: Final = 160


def parse(text: str) -> list[str]:
    """Return the words and quoted phrases of a search box."""
    return [phrase or word for phrase, word in _TERM.findall(text)]


def contain(texts: AnyArray | Sequence[str] | pa.Array, text: str) -> Bools:
    """Return which of n texts contain every term, shape (n,)."""
    if not isinstance(texts, pa.Array):
        texts = pa.array(texts, pa.large_string())
    contains = np.ones(len(texts), np.bool_)
    for term in parse(text):
        contains &= contain_term(texts, term)
    return contains


def contain_term(column: pa.Array, term: str) -> Bools:
    """Return which of n texts contain a term, shape (n,)."""
    return np.asarray(pc.match_substring(column, term, ignore_case=True))


def snippet(text: str, query: str) -> list[tuple[str, bool]]:
    """Return the text around the first term, else its beginning, in pieces.

    With each piece comes whether it is a term.
    """
    # The longest first, so that a phrase is marked as a whole.
    terms = sorted(parse(query), key=len, reverse=True)
    if not terms:
        return [(_cut(text, 0, _AFTER), False)]
    alternatives = "|".join(map(re.escape, terms))
    pattern = re.compile(f"({alternatives})", re.IGNORECASE)
    start = 0
    end = _AFTER
    first = pattern.search(text)
    if first is not None:
        start = max(0, first.start() - _BEFORE)
        end = first.end() + _AFTER
    # `re.split` with a group returns the texts between terms and the terms in turn.
    pieces = pattern.split(_cut(text, start, end))
    return [(piece, index % 2 == 1) for index, piece in enumerate(pieces)]


def _cut(text: str, start: int, end: int) -> str:
    """Return a part of a text on one line, with ellipses where it was cut."""
    shown = " ".join(text[start:end].split())
    before = "…" if start else ""
    after = "…" if end < len(text) else ""
    return f"{before}{shown}{after}"


@dataclass(frozen=True, kw_only=True)
class Query:
    """Conditions on a sequence, a document or a chunk.

    None and "" match everything, and case is ignored. `text` has the words and quoted
    phrases that a document, or a chunk of a sequence, must contain.

    For a sequence, `least` and `most` limit its mean cosine, `source` and `name` apply
    to its meta-document or first document, `document` is one that it takes text from,
    and `about` is its meta-document or one of its documents. For a chunk, they apply to
    its cosine and document.
    """

    text: str = ""
    name: str = ""
    source: str = ""
    role: str = ""  # of a chunk
    least: float | None = None
    most: float | None = None
    document: int | None = None
    about: int | None = None


EVERY: Final = Query()  # matches every sequence or document


class Place(NamedTuple):
    """Where to continue: shard, batch, row of the batch."""

    shard: int = 0
    batch: int = 0
    row: int = 0


class MatchingDocuments(NamedTuple):
    """Documents that match, where to continue (None: no more), and the searched share.

    A document has doc_id, source, source_id, text, and what `snippet` returns.
    """

    documents: list[Json]
    next: Place | None
    share: float


def search(
    corpus: CorpusFiles, query: Query, *, first: Place, limit: int, seconds: float
) -> MatchingDocuments:
    """Return at most `limit` matching documents, searching for about `seconds`.

    The search begins at `first`.
    """
    until = time.monotonic() + seconds
    documents: list[Json] = []
    for place, share, batches in _batches(corpus, query, first=first):
        # One batch is searched however short the time is, so that each request goes on.
        if place != first and time.monotonic() > until:
            return MatchingDocuments(documents, place, share)
        is_shown = len(documents) < limit
        batch, rows, first_doc_id = batches.search(place, is_shown=is_shown)
        for row in rows:
            if len(documents) == limit:
                return MatchingDocuments(documents, place._replace(row=row), share)
            document = _document(batch, row, query)
            documents.append(document | {"doc_id": first_doc_id + row})
    return MatchingDocuments(documents, None, 1.0)


def _batches(
    corpus: CorpusFiles, query: Query, *, first: Place
) -> Iterator[tuple[Place, float, _ShardBatches]]:
    """Yield where each batch begins from `first` on, and the share before it."""
    shards = len(corpus.documents)
    for shard in range(first.shard, shards):
        with ExitStack() as files:
            batches = _ShardBatches(files, corpus.documents[shard], query)
            for index in range(batches.count):
                if (shard, index) < (first.shard, first.batch):
                    batches.skip(index)
                    continue
                # The first batch is searched from a row on.
                place = max(first, Place(shard, index))
                yield place, (shard + index / batches.count) / shards, batches


class _ShardBatches:
    """The batches of a DOCUMENTS file, searched in their order.

    Texts are decompressed only if the query needs them, because that takes longer than
    everything else.
    """

    def __init__(self, files: ExitStack, path: Path, query: Query) -> None:
        self._query = query
        self._whole = _open(files, path)
        self._searched = self._whole
        if not query.text:
            self._searched = _open(files, path, "source", "source_id")
        self._hashes = _open(files, path, "content_hash")  # the cheapest to count
        self._documents_before = 0
        self.count: int = self._whole.num_record_batches

    def skip(self, index: int) -> int:
        """Count a batch; return the number of documents before it."""
        before = self._documents_before
        self._documents_before += self._hashes.get_batch(index).num_rows
        return before

    def search(
        self, place: Place, *, is_shown: bool
    ) -> tuple[pa.RecordBatch, list[int], int]:
        """Return a batch, its matching rows, and the doc_id of its first row.

        Rows before the place do not match. The batch has texts only if a document of it
        `is_shown`.
        """
        before = self.skip(place.batch)
        query = self._query
        batch = self._searched.get_batch(place.batch)
        # Whether each row of the batch matches; the cheap columns first.
        fits = np.arange(batch.num_rows) >= place.row
        if query.name:
            fits &= contain_term(batch.column("source_id"), query.name)
        if query.text:
            fits &= contain(batch.column("text"), query.text)
        if query.source:
            equal = pc.equal(batch.column("source"), query.source)
            fits &= np.asarray(equal)
        rows = np.flatnonzero(fits).tolist()
        if rows and not query.text and is_shown:
            batch = self._whole.get_batch(place.batch)
        return batch, rows, (place.shard << schemas.SHARD_BITS) + before


def _document(batch: pa.RecordBatch, row: int, query: Query) -> Json:
    """Return a row of a batch with all columns as a list shows it."""
    document: Json = {}
    for name in ("source", "source_id", "text"):
        document[name] = batch.column(name)[row].as_py()
    document["snippet"] = snippet(document["text"], query.text)
    return document


def _open(files: ExitStack, path: Path, *names: str) -> pa.RecordBatchFileReader:
    """Return a reader of the named columns of a DOCUMENTS file, or of all."""
    fields = [schemas.DOCUMENTS.get_field_index(name) for name in names] or None
    options = pa.ipc.IpcReadOptions(included_fields=fields)
    # Of a mapped file, only the columns that are read come from the disk.
    mapped = pa.memory_map(str(path))
    reader = pa.ipc.open_file(mapped, options=options)
    return files.enter_context(reader)


def read(corpus: CorpusFiles, doc_id: int) -> Json | None:
    """Return a document: source, source_id, metadata, and the texts of its chunks.

    None if it does not exist.
    """
    shard = doc_id >> schemas.SHARD_BITS
    if not 0 <= shard < len(corpus.documents):
        return None
    rows = corpus_files.chunk_rows(corpus.chunks[shard], doc_id)
    try:
        columns = corpus_files.document_columns(
            np.array([doc_id]), corpus.documents, ("source", "source_id", "metadata")
        )
    except pa.ArrowIndexError:
        return None
    ids = schemas.pack_ids(shard, np.array(rows, np.int64))
    source, source_id, metadata = (column[0] for column in columns)
    return {
        "source": str(source),
        "source_id": str(source_id),
        "texts": corpus.texts(ids).tolist() if len(ids) else [],
        "metadata": json.loads(metadata) if metadata else {},
    }


def sources(corpus: CorpusFiles, *, max_shards: int) -> list[str]:
    """Return the names of sources in the first batch of each of the first shards."""
    seen: set[str] = set()
    for path in corpus.documents[:max_shards]:
        with ExitStack() as files:
            reader = _open(files, path, "source")
            if reader.num_record_batches:
                names = reader.get_batch(0).column("source")
                seen.update(names.unique().to_pylist())
    return sorted(seen)


@dataclass(frozen=True)
class Mark:
    """One mark; `id` is "" for a whole source, `sequence` is VARIANT/NUMBER or ""."""

    source: str
    id: str = ""
    note: str = ""
    sequence: str = ""

    @property
    def kind(self) -> str:
        """What was marked."""
        if self.sequence:
            return "sequence"
        return "document" if self.id else "source"

    def as_form(self) -> str:
        """Return the mark without its note as ASCII JSON.

        It survives forms and pages whatever an id contains.
        """
        values = {
            "kind": self.kind,
            "source": self.source,
            "id": self.id,
            "sequence": self.sequence,
        }
        return json.dumps(values)


def read_marks(run_dir: Path) -> list[Mark]:
    """Return the marks of a run directory, the oldest first.

    Raises RunError for a line that is no mark.
    """
    path = run_dir / MARKS_FILE
    if not path.is_file():
        return []
    marks = []
    # Not `splitlines`: JSON strings may contain an unescaped U+2028, at which that
    # splits.
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            mark = Mark(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise RunError(
                where=f"{path}:{number}",
                problem=f"it is not a mark ({error})",
                fix="correct or delete the line",
            ) from None
        marks.append(mark)
    return marks


def change_mark(run_dir: Path, mark: Mark, *, is_set: bool) -> None:
    """Add a mark, or replace the note of the same one; or remove it."""
    path = run_dir / MARKS_FILE
    # Other viewers wait; a run is not affected.
    with store.alone(path), store.explained(path):
        marks = [
            other
            for other in read_marks(run_dir)
            if replace(other, note="") != replace(mark, note="")
        ]
        if is_set:
            marks.append(mark)
        lines = []
        for one_mark in marks:
            values = {key: value for key, value in asdict(one_mark).items() if value}
            lines.append(json.dumps(values, ensure_ascii=False) + "\n")
        store.write_file(path, "".join(lines))
