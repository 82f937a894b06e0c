"""Documents: search the corpus for documents by text or name, batch by batch, read the chunks of one, and mark bad ones.

In:  DOCUMENTS and CHUNKS, and a query. Out: documents, and where to continue. A document matches if it contains all words and
quoted phrases of the query (`supply "market price"`); case is ignored.

Marks are in `RUN/marks.jsonl`, one JSON object per line: `source`, and `id` unless the whole source is marked; `note`;
`sequence` if a sequence was marked, which means the document that it is about. `ingest.exclude: RUN/marks.jsonl` in a recipe
excludes these documents from the next run.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts import corpus_files
from nextlong.artifacts.corpus_files import CorpusFiles
from nextlong.engine import store
from nextlong.errors import RunError
from nextlong.text import Json

_TERM: Final = re.compile(r'"([^"]+)"?|(\S+)')
MARKS_FILE: Final = "marks.jsonl"
_BEFORE, _AFTER = 60, 160  # characters of a snippet around the first term


def parse(text: str) -> list[str]:
    """Return the words and quoted phrases of a search box."""
    return [phrase or word for phrase, word in _TERM.findall(text)]


def contain(
    texts: NDArray[Any] | Sequence[str] | pa.Array, text: str
) -> NDArray[np.bool_]:
    """Return which of n texts contain every term, shape (n,)."""
    column = (
        texts if isinstance(texts, pa.Array) else pa.array(texts, pa.large_string())
    )
    contains = np.ones(len(column), np.bool_)
    for term in parse(text):
        contains &= np.asarray(pc.match_substring(column, term, ignore_case=True))
    return contains


def snippet(text: str, query: str) -> list[tuple[str, bool]]:
    """Return the text around the first term, else its beginning, in pieces, with whether each is a term."""
    terms = sorted(parse(query), key=len, reverse=True)
    pattern = (
        re.compile(f"({'|'.join(map(re.escape, terms))})", re.IGNORECASE)
        if terms
        else None
    )
    first = pattern.search(text) if pattern else None
    start = max(0, first.start() - _BEFORE) if first else 0
    end = (first.end() if first else 0) + _AFTER
    shown = (
        ("…" if start else "")
        + " ".join(text[start:end].split())
        + ("…" if end < len(text) else "")
    )
    # `re.split` with a group returns the texts between terms and the terms in turn.
    return [
        (piece, place % 2 == 1)
        for place, piece in enumerate(pattern.split(shown) if pattern else [shown])
    ]


@dataclass(frozen=True, kw_only=True)
class Query:
    """Conditions on a sequence, a document or a chunk; None and "" match everything, and case is ignored.

    `text` has the words and quoted phrases that a document, or a chunk of a sequence, must contain. For a sequence, `least` and
    `most` limit its mean cosine, `source` and `name` apply to its meta-document or first document, `document` is one that it
    takes text from, and `about` is its meta-document or one of its documents. For a chunk, they apply to its cosine and document.
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


class _MatchingDocuments(NamedTuple):
    """Documents (doc_id, source, source_id, result of `snippet`), where to continue (None: no more), the searched share."""

    documents: list[Json]
    next: Place | None
    share: float


def search(
    corpus: CorpusFiles, query: Query, *, first: Place, most: int, seconds: float
) -> _MatchingDocuments:
    """Return at most `most` matching documents from `first` on, searching for about `seconds`."""
    until = time.monotonic() + seconds
    documents: list[Json] = []
    shards = len(corpus.documents)
    for shard in range(first.shard, shards):
        with ExitStack() as files:
            # Texts are decompressed only if the query needs them, because that takes longer than everything else.
            whole = _open(files, corpus.documents[shard])
            searched = (
                whole
                if query.text
                else _open(files, corpus.documents[shard], "source", "source_id")
            )
            counted = _open(files, corpus.documents[shard], "content_hash")
            before = 0  # documents of the batches before
            for number in range(whole.num_record_batches):
                start, before = before, before + counted.get_batch(number).num_rows
                if (shard, number) < (first.shard, first.batch):
                    continue
                is_first = (shard, number) == (first.shard, first.batch)
                share = (shard + number / whole.num_record_batches) / shards
                if not is_first and time.monotonic() > until:
                    return _MatchingDocuments(documents, Place(shard, number), share)
                batch = searched.get_batch(number)
                # Whether each row of the batch matches; the cheap columns first.
                fits = np.arange(batch.num_rows) >= (first.row if is_first else 0)
                if query.name:
                    fits &= np.asarray(
                        pc.match_substring(
                            batch.column("source_id"), query.name, ignore_case=True
                        )
                    )
                if query.text:
                    fits &= contain(batch.column("text"), query.text)
                if query.source:
                    fits &= np.asarray(pc.equal(batch.column("source"), query.source))
                rows = np.flatnonzero(fits).tolist()
                if rows and not query.text and len(documents) < most:
                    batch = whole.get_batch(number)
                for row in rows:
                    if len(documents) == most:
                        return _MatchingDocuments(
                            documents, Place(shard, number, row), share
                        )
                    document = {
                        name: batch.column(name)[row].as_py()
                        for name in ("source", "source_id", "text")
                    }
                    document["doc_id"] = shard << schemas.SHARD_BITS | (start + row)
                    documents.append(
                        document | {"snippet": snippet(document["text"], query.text)}
                    )
    return _MatchingDocuments(documents, None, 1.0)


def _open(files: ExitStack, path: Path, *names: str) -> pa.RecordBatchFileReader:
    """Return a reader of the named columns of a DOCUMENTS file, or of all."""
    fields = [schemas.DOCUMENTS.get_field_index(name) for name in names] or None
    options = pa.ipc.IpcReadOptions(included_fields=fields)
    return files.enter_context(
        pa.ipc.open_file(pa.memory_map(str(path)), options=options)
    )


def read(corpus: CorpusFiles, doc_id: int) -> Json | None:
    """Return a document: source, source_id, metadata, and the texts of its chunks; None if it does not exist."""
    shard, row = doc_id >> schemas.SHARD_BITS, doc_id & schemas.ROW_MASK
    if not 0 <= shard < len(corpus.documents):
        return None
    # The row of each chunk's document, ascending: the chunks of a document are neighbours.
    doc_rows = corpus_files.read_chunks(corpus.chunks[shard], ("doc_row",))["doc_row"]
    first, last = np.searchsorted(doc_rows, [row, row + 1]).tolist()
    try:
        columns = corpus_files.document_columns(
            np.array([doc_id]), corpus.documents, ("source", "source_id", "metadata")
        )
    except pa.ArrowIndexError:
        return None
    ids = schemas.pack_ids(shard, np.arange(first, last))
    source, source_id, metadata = (column[0] for column in columns)
    texts = corpus.texts(ids).tolist() if len(ids) else []
    document = {"source": str(source), "source_id": str(source_id), "texts": texts}
    return document | {"metadata": json.loads(metadata) if metadata else {}}


def sources(corpus: CorpusFiles, *, most: int) -> list[str]:
    """Return the names of sources in the first batch of each of the first `most` shards."""
    seen: set[str] = set()
    for path in corpus.documents[:most]:
        with ExitStack() as files:
            reader = _open(files, path, "source")
            if reader.num_record_batches:
                seen.update(reader.get_batch(0).column("source").unique().to_pylist())
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
        return "sequence" if self.sequence else "document" if self.id else "source"

    def as_form(self) -> str:
        """Return the mark without its note as ASCII JSON, which survives forms and pages whatever an id contains."""
        return json.dumps(
            {
                "kind": self.kind,
                "source": self.source,
                "id": self.id,
                "sequence": self.sequence,
            }
        )


def read_marks(run_dir: Path) -> list[Mark]:
    """Return the marks of a run directory, the oldest first. Raises RunError for a line that is no mark."""
    path, marks = run_dir / MARKS_FILE, []
    # Not `splitlines`: JSON strings may contain an unescaped U+2028, at which that splits.
    for number, line in enumerate(
        path.read_text(encoding="utf-8").split("\n") if path.is_file() else (), start=1
    ):
        if not line.strip():
            continue
        try:
            marks.append(Mark(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise RunError(
                f"{path}:{number}: not a mark ({error}); correct or delete the line"
            ) from None
    return marks


def change_mark(run_dir: Path, mark: Mark, *, is_set: bool) -> None:
    """Add a mark, or replace the note of the same one; or remove it, whatever its note says."""
    with (
        store.alone(run_dir / MARKS_FILE),
        store.explained(run_dir / MARKS_FILE),
    ):  # other viewers wait; a run is not affected
        kept = [
            one
            for one in read_marks(run_dir)
            if replace(one, note="") != replace(mark, note="")
        ]
        lines = [
            {key: value for key, value in asdict(one).items() if value}
            for one in [*kept, *[mark] * is_set]
        ]
        store.write_file(
            run_dir / MARKS_FILE,
            "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines),
        )
