"""Table: rows as Arrow tables, for the formats that have columns, and back.

In:  blocks of rows. Out: the columns that a format asks for; ids and offsets are not copied unless documents are
padded.

`seq_lengths` (named as TRL names it) are the lengths of synthesised documents, never of chunks. With
`export.pad_documents_to` each document is followed by padding up to a multiple of that many tokens (2 · the ranks of
context parallelism): `seq_lengths` stay the true lengths, `seq_lengths_padded` include the padding, and `labels` mask
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts.resolve import Resolved
from nextlong.export.formats.base import PADDED_COLUMNS, Options

SPAN: Final = pa.struct(
    [
        ("chunk_id", pa.int64()),
        ("doc_id", pa.int64()),
        ("source_id", pa.string()),
        ("metadata", pa.string()),
        ("char_start", pa.int64()),
        ("char_end", pa.int64()),
        ("role", pa.string()),
        ("token_start", pa.int32()),
        ("token_end", pa.int32()),
        ("score", pa.float32()),
    ]
)
SCHEMA: Final = pa.schema(
    [
        ("sequence_id", pa.string()),
        ("method", pa.string()),
        ("domain", pa.string()),
        ("input_ids", pa.list_(pa.int32())),
        ("length", pa.int32()),
        ("seq_lengths", pa.list_(pa.int32())),
        ("spans", pa.list_(SPAN)),
    ]
)
_TYPES: Final = pa.schema(
    [
        *SCHEMA,
        ("attention_mask", pa.list_(pa.int8())),
        ("labels", pa.list_(pa.int32())),
        ("seq_lengths_padded", pa.list_(pa.int32())),
    ]
)
_IGNORED: Final = -100  # a label that cross entropy ignores
_ARRAYS: Final = frozenset({"input_ids", "attention_mask", "labels"})


def padded_columns(options: Options) -> tuple[str, ...]:
    """Return the further columns of padded rows, none where documents are not padded."""
    return PADDED_COLUMNS if options.keys.get("pad_documents_to") else ()


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Return the schema of these columns."""
    return pa.schema([_TYPES.field(name) for name in columns])


def to_table(block: Resolved, columns: Sequence[str], options: Options) -> pa.Table:
    """Return columns of a block, padded where `options` ask for it."""
    room = block.document_lengths
    if multiple := options.keys.get("pad_documents_to"):
        block, room = _padded(block, multiple, pad_id=options.eos_id or 0)
    return pa.table({name: _COLUMNS[name](block, room) for name in columns})


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch: columns with one value per token as arrays, spans as one list per field."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    for row in range(batch.num_rows):
        plain: dict[str, Any] = {}
        for name, column in columns.items():
            if name in _ARRAYS:
                plain[name] = column[row].values.to_numpy()
            elif name == "spans":
                plain[name] = {key: column[row].values.field(key).to_pylist() for key in (one.name for one in SPAN)}
            else:
                plain[name] = column[row].as_py()
        yield plain


def span_columns(block: Resolved) -> list[pa.Array]:
    """Return the fields of SPAN for every span of a block, shape (P,) each."""
    roles = pa.DictionaryArray.from_arrays(pa.array(block.roles), pa.array(schemas.ROLES)).cast(pa.string())
    return [
        *map(pa.array, (block.chunk_ids, block.doc_ids)),
        pa.array(block.source_ids, pa.string()),
        pa.array(block.metadata, pa.string()),
        *map(pa.array, (block.char_starts, block.char_ends)),
        roles,
        *map(pa.array, (block.token_starts, block.token_ends, block.scores)),
    ]


def _padded(block: Resolved, multiple: int, *, pad_id: int) -> tuple[Resolved, NDArray[np.int32]]:
    """Return the block with padding behind each document, and the tokens that each then occupies, shape (D,)."""
    lengths = block.document_lengths.astype(np.int64)
    room = -(-lengths // multiple) * multiple
    # (D,) where each document starts among all tokens of the block, before and after padding.
    starts, new_starts = np.cumsum(lengths) - lengths, np.cumsum(room) - room
    ids = np.full(room.sum(), pad_id, np.int32)
    ids[np.arange(lengths.sum()) + np.repeat(new_starts - starts, lengths)] = block.input_ids
    token_offsets = np.append(0, np.cumsum(room))[block.document_offsets]
    # Spans move with their document; places count the tokens of all rows.
    row_of_span = np.repeat(np.arange(len(block)), np.diff(block.span_offsets))
    places = block.token_offsets[row_of_span] + block.token_starts
    document = np.searchsorted(starts, places, side="right") - 1
    moved = places + (new_starts - starts)[document] - token_offsets[row_of_span]
    token_starts = moved.astype(np.int32)
    block = replace(
        block,
        input_ids=ids,
        token_offsets=token_offsets,
        token_starts=token_starts,
        token_ends=token_starts + (block.token_ends - block.token_starts),
    )
    return block, room.astype(np.int32)


def _labels(block: Resolved, room: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the ids, (S,), with -100 at padding and at the first token of each document, which no context predicts."""
    labels = block.input_ids.copy()
    starts = np.cumsum(room, dtype=np.int64) - room
    labels[starts] = _IGNORED
    gaps = room - block.document_lengths
    if gaps.any():
        within = np.arange(gaps.sum()) - np.repeat(np.cumsum(gaps) - gaps, gaps)
        labels[np.repeat(starts + block.document_lengths, gaps) + within] = _IGNORED
    return labels


def _lists(offsets: NDArray[np.int64], values: Any) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(offsets.astype("int32")), pa.array(values))


# Each takes a block and the tokens that each document occupies, shape (D,): its length, or more where it is padded.
_COLUMNS: Final[Mapping[str, Callable[[Resolved, NDArray[np.int32]], pa.Array]]] = {
    "sequence_id": lambda block, _room: pa.array(block.sequence_ids, pa.string()),
    "method": lambda block, _room: pa.array(block.methods, pa.string()),
    "domain": lambda block, _room: pa.array(block.domains, pa.string()),
    "input_ids": lambda block, _room: _lists(block.token_offsets, block.input_ids),
    "length": lambda block, _room: pa.array(np.diff(block.token_offsets).astype("int32")),
    "seq_lengths": lambda block, _room: _lists(block.document_offsets, block.document_lengths),
    "seq_lengths_padded": lambda block, room: _lists(block.document_offsets, room),
    "spans": lambda block, _room: _lists(
        block.span_offsets, pa.StructArray.from_arrays(span_columns(block), fields=list(SPAN))
    ),
    "attention_mask": lambda block, _room: _lists(block.token_offsets, np.ones(len(block.input_ids), np.int8)),
    "labels": lambda block, room: _lists(block.token_offsets, _labels(block, room)),
}
