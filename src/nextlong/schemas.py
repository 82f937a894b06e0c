"""Schemas: the Arrow schemas of the data between steps, and two kinds of packed ids.

A document id is `document shard << 32 | row`, a chunk id is `document shard << 32 |
chunk row`: both contain the location of their data, so that no lookup table is needed.
Text is stored once, in DOCUMENTS; all later data refers to it by id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
import pyarrow as pa

from nextlong.arrays import Ints

SHARD_BITS: Final = 32
ROW_MASK: Final = (1 << SHARD_BITS) - 1


def _schema(columns: Mapping[str, pa.DataType]) -> pa.Schema:
    fields = [pa.field(name, kind, nullable=False) for name, kind in columns.items()]
    return pa.schema(fields)


# One row per document; row i of shard s is doc_id s << 32 | i. `source` is the source's
# name in the recipe, `source_id` the user's own id, or "file:line".
_OF_DOCUMENT = {
    "text": pa.large_string(),
    "content_hash": pa.uint64(),
    "source": pa.string(),
    "source_id": pa.string(),
}
DOCUMENTS: Final = _schema(_OF_DOCUMENT)

# For a source with `metadata` columns: their values for each document, as a JSON
# object.
DOCUMENTS_WITH_METADATA: Final = _schema({**_OF_DOCUMENT, "metadata": pa.string()})

REJECTS: Final = pa.schema(
    [("file", pa.string()), ("line", pa.int64()), ("reason", pa.string())]
)

# One row per chunk, grouped by document, in reading order; its text is document
# text[start:end] in characters. `separator` is True if the slice does not end in a
# newline, so that composing must add a separator.
CHUNKS: Final = _schema(
    {
        "doc_row": pa.int32(),
        "start": pa.int64(),
        "end": pa.int64(),
        "separator": pa.bool_(),
    }
)

# One row per meta-chunk (query): its neighbours, descending by cosine, without those of
# its own document.
_IDS = pa.list_(pa.int64())
_SCORES = pa.list_(pa.float32())
CANDIDATES: Final = _schema(
    {"chunk_id": pa.int64(), "neighbour_ids": _IDS, "scores": _SCORES}
)

# One row per draft; all lists but `near_duplicates` have one value per span. `key` is
# the content hash of the meta-document or first document, `layout` a Layout; `group`
# numbers meta-chunks (extended) or documents. `near_duplicates` lists pairs of chunk
# ids one after the other: the two chunks of a pair repeat each other, so only one of
# them may be a negative. `shortage`: the DropReason, should the candidates not suffice,
# of a draft whose candidates ran out; else empty.
_OF_SPAN = {
    "chunk_id": _IDS,
    "role": pa.list_(pa.int8()),
    "group": pa.list_(pa.int32()),
}
DRAFTS: Final = _schema(
    {"sequence_id": pa.string(), "key": pa.uint64(), "layout": pa.string()}
    | _OF_SPAN
    | {"score": _SCORES, "near_duplicates": _IDS, "shortage": pa.string()}
)

# One row per sequence; the lists have one value per span, and the spans tile [0, T):
# span j holds the first token_end_j - token_start_j tokens of its chunk. Separators and
# special tokens are spans with chunk_id -1.
SEQUENCES: Final = _schema(
    {
        "sequence_id": pa.string(),
        "key": pa.uint64(),
        "method": pa.string(),
        "layout": pa.string(),
    }
    | _OF_SPAN
    | {
        "token_start": pa.list_(pa.int32()),
        "token_end": pa.list_(pa.int32()),
        "score": _SCORES,
    }
)

# The columns of SEQUENCES with one value per span.
SPAN_COLUMNS: Final = tuple(
    field.name for field in SEQUENCES if pa.types.is_list(field.type)
)


class Layout(StrEnum):
    """How the documents of a sequence are arranged."""

    # The chunks of one document, with chunks of other documents between them.
    EXTENDED = "extended"
    # Documents one after the other.
    CONCATENATED = "concatenated"
    # Parts of documents, those of each document in order.
    INTERLEAVED = "interleaved"
    # Documents, each behind chunks of others that were chosen for it.
    SUPPORTED = "supported"


# A context is a chunk that helps to predict the document behind it.
ROLES: Final = (
    "meta",
    "negative",
    "document",
    "separator",
    "bos",
    "eos",
    "task",
    "context",
)
META, NEGATIVE, DOCUMENT, SEPARATOR, BOS, EOS, TASK, CONTEXT = range(len(ROLES))
# The source of inserted tasks, which are documents of their own.
TASK_SOURCE: Final = "tasks"
NO_CHUNK: Final = -1


def pack_ids(shard: int | Ints, rows: Ints) -> Ints:
    """Return the ids (n,) of rows (n,) of one shard, or of one shard per row."""
    return np.int64(shard) << np.int64(SHARD_BITS) | rows.astype(np.int64)


def shard_of(ids: Ints) -> Ints:
    """Return the shard of each id, shape (n,)."""
    return ids >> np.int64(SHARD_BITS)


def row_of(ids: Ints) -> Ints:
    """Return the row of each id within its shard, shape (n,)."""
    return ids & np.int64(ROW_MASK)


# One row per sampled meta-document; its chunks are first_chunk … first_chunk + chunks -
# 1.
META_DOCUMENTS = np.dtype(
    [
        ("key", "u8"),
        ("content_hash", "u8"),
        ("first_chunk", "i8"),
        ("chunks", "i8"),
        ("chars", "i8"),
    ]
)


# Row `place` of the run's SEQUENCES file `part`; `key` is the content hash of the
# meta-document or first document.
SEQUENCE_INDEX: Final = np.dtype(
    [("run", "i4"), ("part", "i4"), ("place", "i4"), ("length", "i8"), ("key", "u8")]
)


class DropReason(StrEnum):
    """Why a draft was dropped, as in counts and messages."""

    TOO_LONG = "longer than a sequence"
    TOO_LITTLE_ROOM = (
        "too little room for compose.min_gap_tokens of negatives between its chunks"
    )
    NO_NEGATIVES = "too few negatives for compose.min_gap_tokens between its chunks"
    TOO_FEW_NEGATIVES = "too few negatives to reach target_tokens"
    TOO_FEW_CANDIDATES = "too few negatives among the mine.candidates of its chunks"
    NEAR_DUPLICATES = "most of its candidates repeat it or each other"
    NO_DEPENDENCE = "its meta-chunks do not need the earlier ones"
    OVER_HALF = "longer than half a sequence"
    NO_CONTEXTS = "no candidate lowers the model's entropy in it enough"
    TOO_FEW_DOCUMENTS = "too few documents to reach target_tokens"


@dataclass(frozen=True)
class Span:
    """Tokens [token_start, token_end) of a sequence, and the characters they came from.

    `role` is one of ROLES. Separators, bos and eos have
    no document: their ids and character offsets are -1 and their `source_id` is empty.
    `metadata` holds the metadata columns of the source; {} if it has none. `score` is
    the cosine to the meta-chunk of the same `group`.
    """

    chunk_id: int
    doc_id: int
    source_id: str
    metadata: dict[str, Any]
    char_start: int
    char_end: int
    role: str
    group: int
    token_start: int
    token_end: int
    score: float

    @property
    def length(self) -> int:
        return self.token_end - self.token_start
