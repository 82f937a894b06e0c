"""Documents: those of the corpus that hold a text or have a name, looked through batch by batch; and the chunks of one.

In:  DOCUMENTS and CHUNKS, and a query. Out: documents, and where to continue. A search box asks for all of its words, and for
phrases in quotes (`supply "market price"`); case does not matter.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

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
        found &= np.asarray(pc.match_substring(column, term, ignore_case=True))
    return found


def snippet(text: str, wanted: str) -> list[tuple[str, bool]]:
    """Return the text around the first term, else its beginning, in pieces, with whether each is a term."""
    terms = sorted(parse(wanted), key=len, reverse=True)
    pattern = re.compile(f"({'|'.join(map(re.escape, terms))})", re.IGNORECASE) if terms else None
    first = pattern.search(text) if pattern else None
    start = max(0, first.start() - _BEFORE) if first else 0
    end = (first.end() if first else 0) + _AFTER
    shown = ("…" if start else "") + " ".join(text[start:end].split()) + ("…" if end < len(text) else "")
    # Split at a group, texts between terms and terms stand by turns.
    return [(piece, place % 2 == 1) for place, piece in enumerate(pattern.split(shown) if pattern else [shown])]


@dataclass(frozen=True, kw_only=True)
class Query:
    """What a sequence, a document or a chunk has to be; None and "" match everything, and case does not matter.

    `text` holds words and quoted phrases that a document, or a chunk of a sequence, has to contain. Of a sequence, `least` and
    `most` bound its mean cosine, `source` and `name` are about its meta-document or first document, `document` is one that it
    takes text from, `about` one that it is about. Of a chunk, they are about its cosine and its document.
    """

    text: str = ""
    name: str = ""
    source: str = ""
    role: str = ""  # of a chunk
    least: float | None = None
    most: float | None = None
    document: int | None = None
    about: int | None = None

    @property
    def matches_all(self) -> bool:
        """Whether every sequence or document matches."""
        return self == Query()


class Place(NamedTuple):
    """Where to continue: shard, batch, row of the batch."""

    shard: int = 0
    batch: int = 0
    row: int = 0


class _MatchingDocuments(NamedTuple):
    """Documents that fit: doc_id, source, source_id and what `snippet` returns; where to continue, and the searched share.

    `next` is None where there are no more.
    """

    documents: list[Json]
    next: Place | None
    share: float


def search(corpus: CorpusFiles, query: Query, *, first: Place, most: int, seconds: float) -> _MatchingDocuments:
    """Return at most `most` documents from `first` on that fit, found in about so many seconds."""
    until = time.monotonic() + seconds
    documents: list[Json] = []
    shards = len(corpus.documents)
    for shard in range(first.shard, shards):
        with ExitStack() as files:
            # Texts are decompressed only where they are asked for, for that takes longer than all else.
            whole = _open(files, corpus.documents[shard])
            searched = whole if query.text else _open(files, corpus.documents[shard], "source", "source_id")
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
                    fits &= np.asarray(pc.match_substring(batch.column("source_id"), query.name, ignore_case=True))
                if query.text:
                    fits &= contain(batch.column("text"), query.text)
                if query.source:
                    fits &= np.asarray(pc.equal(batch.column("source"), query.source))
                rows = np.flatnonzero(fits).tolist()
                if rows and not query.text and len(documents) < most:
                    batch = whole.get_batch(number)
                for row in rows:
                    if len(documents) == most:
                        return _MatchingDocuments(documents, Place(shard, number, row), share)
                    told = {name: batch.column(name)[row].as_py() for name in ("source", "source_id", "text")}
                    told["doc_id"] = shard << schemas.SHARD_BITS | (start + row)
                    documents.append(told | {"snippet": snippet(told["text"], query.text)})
    return _MatchingDocuments(documents, None, 1.0)


def _open(files: ExitStack, path: Path, *names: str) -> pa.RecordBatchFileReader:
    """Return a reader of the named columns of a DOCUMENTS file, or of all."""
    fields = [schemas.DOCUMENTS.get_field_index(name) for name in names] or None
    options = pa.ipc.IpcReadOptions(included_fields=fields)
    return files.enter_context(pa.ipc.open_file(pa.memory_map(str(path)), options=options))


def read(corpus: CorpusFiles, doc_id: int) -> Json | None:
    """Return a document: source, source_id, metadata, and the texts of its chunks; None if there is none of that number."""
    shard, row = doc_id >> schemas.SHARD_BITS, doc_id & schemas.ROW_MASK
    if not 0 <= shard < len(corpus.documents):
        return None
    # The row of each chunk's document, ascending: the chunks of a document are neighbours.
    doc_rows = read_chunks(corpus.chunks[shard], ("doc_row",))["doc_row"]
    first, last = np.searchsorted(doc_rows, [row, row + 1]).tolist()
    try:
        columns = lookup.document_columns(np.array([doc_id]), corpus.documents, ("source", "source_id", "metadata"))
    except pa.ArrowIndexError:
        return None
    ids = schemas.pack_ids(shard, np.arange(first, last))
    source, source_id, metadata = (column[0] for column in columns)
    texts = corpus.texts(ids).tolist() if len(ids) else []
    told = {"source": str(source), "source_id": str(source_id), "texts": texts}
    return told | {"metadata": json.loads(metadata) if metadata else {}}


def sources(corpus: CorpusFiles, *, most: int) -> list[str]:
    """Return the names of sources in the first batch of each of the first `most` shards."""
    seen: set[str] = set()
    for path in corpus.documents[:most]:
        with ExitStack() as files:
            reader = _open(files, path, "source")
            if reader.num_record_batches:
                seen.update(reader.get_batch(0).column("source").unique().to_pylist())
    return sorted(seen)
