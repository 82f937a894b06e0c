"""Schemas: what travels between stations, as Arrow schemas and the two packed ids.

A document is `doc_id = document shard << 32 | row`, a chunk `chunk_id = document shard << 32 | chunk row`: both say where
their data lies, so that nothing needs a lookup table. Text is stored once (DOCUMENTS); everything later refers to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Ints = NDArray[np.int64]
SHARD_BITS: Final = 32
ROW_MASK: Final = (1 << SHARD_BITS) - 1


def _schema(columns: Mapping[str, pa.DataType]) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns.items()])


# One row a document; row i of shard s is doc_id s << 32 | i. `source` is the source's name in the recipe, `source_id` the
# user's own id, else "file:line".
_OF_DOCUMENT = {"text": pa.large_string(), "content_hash": pa.uint64(), "source": pa.string(), "source_id": pa.string()}
DOCUMENTS: Final = _schema(_OF_DOCUMENT)

# Where a source's `metadata` names columns: their values of each document, as a JSON object.
DOCUMENTS_WITH_METADATA: Final = _schema({**_OF_DOCUMENT, "metadata": pa.string()})

REJECTS: Final = pa.schema([("file", pa.string()), ("line", pa.int64()), ("reason", pa.string())])

# One row a chunk, grouped by document, in reading order; text is document text[start:end] in characters. `separator` says
# that the slice does not end in a newline, so that composing must add one.
CHUNKS: Final = _schema({"doc_row": pa.int32(), "start": pa.int64(), "end": pa.int64(), "separator": pa.bool_()})

# One row a meta-chunk (query): its neighbours, descending by cosine, own document removed.
_IDS, _SCORES = pa.list_(pa.int64()), pa.list_(pa.float32())
CANDIDATES: Final = _schema({"chunk_id": pa.int64(), "neighbour_ids": _IDS, "scores": _SCORES})

# One row a draft; the lists but the last run in parallel. `key` is the content hash of the meta-document or first document,
# `layout` a Layout; `group` counts meta-chunks (extended) or documents. `near_duplicates` lists chunk ids two by two: the two
# repeat each other, so that only one of them may be a negative.
_OF_SPAN = {"chunk_id": _IDS, "role": pa.list_(pa.int8()), "group": pa.list_(pa.int32())}
DRAFTS: Final = _schema(
    {"sequence_id": pa.string(), "key": pa.uint64(), "layout": pa.string()}
    | _OF_SPAN
    | {"score": _SCORES, "near_duplicates": _IDS}
)

# One row a sequence; the lists run in parallel and tile [0, T): span j holds tokens [skip_j, skip_j + length_j) of its
# chunk's tokens. Separators and special tokens are spans with chunk_id -1.
SEQUENCES: Final = _schema(
    {"sequence_id": pa.string(), "key": pa.uint64(), "method": pa.string(), "layout": pa.string()}
    | _OF_SPAN
    | {"token_start": pa.list_(pa.int32()), "token_end": pa.list_(pa.int32()), "score": _SCORES}
)

# Those of SEQUENCES that run in parallel, one value a span.
SPAN_COLUMNS: Final = tuple(field.name for field in SEQUENCES if pa.types.is_list(field.type))


class Layout(StrEnum):
    """How the documents of a sequence stand in it."""

    EXTENDED = "extended"  # the chunks of one, with the chunks of others between them
    CONCATENATED = "concatenated"  # one after the other
    INTERLEAVED = "interleaved"  # in parts, those of each document in their order


ROLES: Final = ("meta", "negative", "document", "separator", "bos", "eos")
META, NEGATIVE, DOCUMENT, SEPARATOR, BOS, EOS = range(len(ROLES))
NO_CHUNK: Final = -1


def pack_ids(shard: int | Ints, rows: Ints) -> Ints:
    """Return the ids, shape (n,), of rows (n,) of a shard, or of a shard each."""
    return np.int64(shard) << np.int64(SHARD_BITS) | rows.astype(np.int64)


def shard_of(ids: Ints) -> Ints:
    """Return the shard, shape (n,), that each id (n,) lies in."""
    return ids >> np.int64(SHARD_BITS)


def row_of(ids: Ints) -> Ints:
    """Return the row, shape (n,), of each id (n,) within its shard."""
    return ids & np.int64(ROW_MASK)


# One row a drawn meta-document; its chunks are first_chunk … first_chunk + chunks - 1.
META_DOCUMENTS = np.dtype(
    [("key", "u8"), ("content_hash", "u8"), ("first_chunk", "i8"), ("chunks", "i8"), ("chars", "i8")]
)


# Row `place` of the run's SEQUENCES file `part`; `key` is the content hash of the meta-document or first document.
SEQUENCE_INDEX: Final = np.dtype([("run", "i4"), ("part", "i4"), ("place", "i4"), ("length", "i8"), ("key", "u8")])


class DropReason(StrEnum):
    """Why a draft becomes no sequence, as counts and users are told it."""

    TOO_LONG = "the meta-document alone fills target_tokens"
    TOO_LITTLE_ROOM = "too little room for compose.min_gap_tokens of negatives between its chunks"
    NO_NEGATIVES = "too few negatives for compose.min_gap_tokens between its chunks"
    TOO_FEW_NEGATIVES = "too few negatives to reach target_tokens"
    TOO_FEW_DOCUMENTS = "too few documents to reach target_tokens"


@dataclass(frozen=True)
class Span:
    """Tokens [token_start, token_end) of a sequence and the characters of a document that they came from.

    `role` is meta, negative, document, separator, bos or eos. The last three belong to no document: their ids and
    character offsets are -1 and their `source_id` is empty. `metadata` holds the columns that the source names as metadata;
    {} if it keeps none. `score` is the cosine to the meta-chunk of the same `group`.
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
