"""Table: rows as an Arrow table, for the formats that have columns.

In:  blocks of rows. Out: their columns, of which a format takes those that it wants; ids and offsets are not copied.
`seq_lengths` (named as TRL names it) marks synthesised documents, never chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from nextlong import schemas
from nextlong.artefacts.resolved import Resolved

SPAN: Final = pa.struct(
    [
        ("chunk_id", pa.int64()),
        ("doc_id", pa.int64()),
        ("source_id", pa.string()),
        ("kept", pa.string()),
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

# What some trainers want to be given instead of making it themselves.
TRAINING: Final = pa.schema([("attention_mask", pa.list_(pa.int8())), ("labels", pa.list_(pa.int32()))])
IGNORED: Final = -100


def to_table(block: Resolved, columns: Sequence[str] = tuple(SCHEMA.names)) -> pa.Table:
    """Return the columns of a block; ids and offsets are handed over without a copy."""
    return pa.table({name: _COLUMNS[name](block) for name in columns})


def _ids(block: Resolved) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(block.token_offsets.astype("int32")), pa.array(block.input_ids))


def _lengths(block: Resolved) -> pa.Array:
    return pa.array(np.diff(block.token_offsets).astype("int32"))


def _seq_lengths(block: Resolved) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(block.document_offsets.astype("int32")), pa.array(block.document_lengths))


def _spans(block: Resolved) -> pa.Array:
    roles = pa.DictionaryArray.from_arrays(pa.array(block.roles), pa.array(schemas.ROLES)).cast(pa.string())
    columns = [
        block.chunk_ids,
        block.doc_ids,
        pa.array(block.source_ids, pa.string()),
        pa.array(block.kept, pa.string()),
        block.char_starts,
        block.char_ends,
        roles,
        block.token_starts,
        block.token_ends,
        block.scores,
    ]
    spans = pa.StructArray.from_arrays([pa.array(column) for column in columns], fields=list(SPAN))
    return pa.ListArray.from_arrays(pa.array(block.span_offsets.astype("int32")), spans)


def _attention_mask(block: Resolved) -> pa.Array:
    ones = pa.array(np.ones(len(block.input_ids), np.int8))
    return pa.ListArray.from_arrays(pa.array(block.token_offsets.astype("int32")), ones)


def _labels(block: Resolved) -> pa.Array:
    """Return the ids, and -100, which no trainer learns, where a document begins: nothing before it foretells it."""
    labels = block.input_ids.copy()
    labels[np.cumsum(block.document_lengths, dtype=np.int64) - block.document_lengths] = IGNORED
    return pa.ListArray.from_arrays(pa.array(block.token_offsets.astype("int32")), pa.array(labels))


_COLUMNS: Final[Mapping[str, Callable[[Resolved], pa.Array]]] = {
    "sequence_id": lambda block: pa.array(block.sequence_ids, pa.string()),
    "method": lambda block: pa.array(block.methods, pa.string()),
    "domain": lambda block: pa.array(block.domains, pa.string()),
    "input_ids": _ids,
    "length": _lengths,
    "seq_lengths": _seq_lengths,
    "spans": _spans,
    "attention_mask": _attention_mask,
    "labels": _labels,
}
