"""Schemas: what travels between stages, as Arrow schemas and the two packed ids.

A document is `doc_id = document shard << 32 | row`, a chunk `chunk_id = document shard << 32 | chunk row`: both say where
their data lies, so that nothing needs a lookup table. Text is stored once (DOCUMENTS); everything later refers to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

SHARD_BITS: Final = 32
ROW_MASK: Final = (1 << SHARD_BITS) - 1

# One row a document; row i of shard s is doc_id s << 32 | i. `source` is the source's name in the recipe, `source_id` the
# user's own id, else "file:line".
DOCUMENTS: Final = pa.schema(
    [
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("content_hash", pa.uint64(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("source_id", pa.string(), nullable=False),
    ]
)

REJECTS: Final = pa.schema(
    [pa.field("file", pa.string()), pa.field("line", pa.int64()), pa.field("reason", pa.string())]
)

# One row a chunk, grouped by document, in reading order; text is document text[start:end] in characters. `joint` says
# that the slice does not end in a newline, so that composing must add one.
CHUNKS: Final = pa.schema(
    [
        pa.field("doc_row", pa.int32(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("end", pa.int64(), nullable=False),
        pa.field("joint", pa.bool_(), nullable=False),
    ]
)

# One row a meta-chunk (query): its neighbours, descending by cosine, own document removed.
CANDIDATES: Final = pa.schema(
    [
        pa.field("chunk_id", pa.int64(), nullable=False),
        pa.field("neighbour_ids", pa.list_(pa.int64()), nullable=False),
        pa.field("scores", pa.list_(pa.float32()), nullable=False),
    ]
)

# One row a draft; the first four lists run in parallel. `group` counts meta-chunks (nextlong) or documents (other methods).
# `near_copies` lists chunk ids two by two: the two repeat each other, so that only one of them may be a negative.
DRAFTS: Final = pa.schema(
    [
        pa.field("sequence_id", pa.string(), nullable=False),
        pa.field("chunk_id", pa.list_(pa.int64()), nullable=False),
        pa.field("role", pa.list_(pa.int8()), nullable=False),
        pa.field("group", pa.list_(pa.int32()), nullable=False),
        pa.field("score", pa.list_(pa.float32()), nullable=False),
        pa.field("near_copies", pa.list_(pa.int64()), nullable=False),
    ]
)

# One row a sequence; the lists run in parallel and tile [0, T): span j holds tokens [skip_j, skip_j + length_j) of its
# chunk's tokens. Joints and special tokens are spans with chunk_id -1.
SEQUENCES: Final = pa.schema(
    [
        pa.field("sequence_id", pa.string(), nullable=False),
        pa.field("method", pa.string(), nullable=False),
        pa.field("chunk_id", pa.list_(pa.int64()), nullable=False),
        pa.field("role", pa.list_(pa.int8()), nullable=False),
        pa.field("group", pa.list_(pa.int32()), nullable=False),
        pa.field("token_start", pa.list_(pa.int32()), nullable=False),
        pa.field("token_end", pa.list_(pa.int32()), nullable=False),
        pa.field("score", pa.list_(pa.float32()), nullable=False),
    ]
)

ROLES: Final = ("meta", "negative", "document", "joint", "bos", "eos")
META, NEGATIVE, DOCUMENT, JOINT, BOS, EOS = range(len(ROLES))
NO_CHUNK: Final = -1


def pack_ids(shard: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the ids, shape (n,), of rows (n,) of a shard."""
    return np.int64(shard) << np.int64(SHARD_BITS) | rows.astype(np.int64)


def shard_of(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the shard, shape (n,), that each id (n,) lies in."""
    return ids >> np.int64(SHARD_BITS)


def row_of(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the row, shape (n,), of each id (n,) within its shard."""
    return ids & np.int64(ROW_MASK)


@dataclass(frozen=True)
class Resolved:
    """A block of n rows, looked up: S tokens, P spans, D synthesised documents in all; offsets have shape (n + 1,).

    A row is one sequence, its only synthesised document, or several packed together (`packed`).
    """

    sequence_ids: list[str]
    methods: list[str]
    domains: list[str]  # the source of each sequence's meta-document or first document
    token_offsets: NDArray[np.int64]
    input_ids: NDArray[np.int32]  # (S,)
    document_offsets: NDArray[np.int64]
    document_lengths: NDArray[np.int32]  # (D,) in tokens
    span_offsets: NDArray[np.int64]
    chunk_ids: NDArray[np.int64]  # (P,) as all below; -1 for joints and special tokens
    doc_ids: NDArray[np.int64]
    source_ids: NDArray[np.object_]
    char_starts: NDArray[np.int64]
    char_ends: NDArray[np.int64]
    roles: NDArray[np.int8]
    groups: NDArray[np.int32]
    token_starts: NDArray[np.int32]  # within its row
    token_ends: NDArray[np.int32]
    scores: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.sequence_ids)


def joined(blocks: Sequence[Resolved]) -> Resolved:
    """Return the rows of several blocks as one block."""
    columns: dict[str, Any] = {}
    for column in fields(Resolved):
        own = [getattr(block, column.name) for block in blocks]
        if column.name.endswith("_offsets"):
            firsts = np.cumsum([0, *(offsets[-1] for offsets in own)])
            moved = [offsets[1:] + first for offsets, first in zip(own, firsts, strict=False)]
            columns[column.name] = np.concatenate([own[0][:1], *moved])
        else:
            columns[column.name] = list(chain(*own)) if isinstance(own[0], list) else np.concatenate(own)
    return Resolved(**columns)


def sliced(block: Resolved, first: int, last: int) -> Resolved:
    """Return rows [first, last) of a block; what they hold is not copied."""
    within = {}
    for name in ("token", "document", "span"):
        offsets = getattr(block, f"{name}_offsets")[first : last + 1]
        within[name] = slice(*offsets[[0, -1]].tolist())
        within[f"{name}_offsets"] = offsets - offsets[0]
    columns: dict[str, Any] = {}
    for column in fields(Resolved):
        own = getattr(block, column.name)
        if column.name in within:
            columns[column.name] = within[column.name]
        elif isinstance(own, list):
            columns[column.name] = own[first:last]
        else:
            part = {"input_ids": "token", "document_lengths": "document"}.get(column.name, "span")
            columns[column.name] = own[within[part]]
    return Resolved(**columns)


def packed(block: Resolved, row_offsets: NDArray[np.int64]) -> Resolved:
    """Return the block's rows joined to r longer ones, rows row_offsets[i] to row_offsets[i + 1] to row i, shape (r + 1,).

    Names of several are joined: ids by a blank, methods and domains, each once, by a plus sign.
    """
    groups = [slice(first, last) for first, last in pairwise(row_offsets.tolist())]
    token_offsets = block.token_offsets[row_offsets]
    moved = block.token_offsets[:-1] - np.repeat(token_offsets[:-1], np.diff(row_offsets))
    moved_spans = np.repeat(moved, np.diff(block.span_offsets)).astype(np.int32)
    return replace(
        block,
        sequence_ids=[" ".join(block.sequence_ids[group]) for group in groups],
        methods=[joined_names(block.methods[group]) for group in groups],
        domains=[joined_names(block.domains[group]) for group in groups],
        token_offsets=token_offsets,
        document_offsets=block.document_offsets[row_offsets],
        span_offsets=block.span_offsets[row_offsets],
        token_starts=block.token_starts + moved_spans,
        token_ends=block.token_ends + moved_spans,
    )


def joined_names(names: Sequence[str]) -> str:
    """Return the names of several sequences, each once, as that of the row that they share."""
    return "+".join(dict.fromkeys(names))
