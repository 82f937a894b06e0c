"""Parquet: one row a sequence, for Hugging Face `datasets`, TRL, torchtitan, axolotl.

`seq_lengths` (named as TRL names it) marks synthesised documents, never chunks. Row groups are sized for readers that
stream. Ids are stored plain: a dictionary of them costs time and saves nothing, and the encoding that would make zstd half as
fast again (BYTE_STREAM_SPLIT) is one that DuckDB 1.4 cannot read of integers.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from nextlong import schemas
from nextlong.schemas import Resolved

Compression = Literal["zstd", "lz4", "snappy", "none"]

SPAN: Final = pa.struct(
    [
        ("chunk_id", pa.int64()),
        ("doc_id", pa.int64()),
        ("source_id", pa.string()),
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


def write(path: Path, blocks: Iterable[Resolved], *, row_group_bytes: int, compression: Compression = "zstd") -> int:
    """Write blocks of sequences to one file, row groups of about `row_group_bytes` of ids; return the number of sequences."""
    options: dict[str, Any] = {
        "compression": compression,
        "compression_level": 1 if compression == "zstd" else None,
        "use_dictionary": [
            "sequence_id",
            "method",
            "domain",
            "spans.list.element.source_id",
            "spans.list.element.role",
        ],
        "write_statistics": False,
    }
    rows, held = 0, SCHEMA.empty_table()
    with pq.ParquetWriter(path, SCHEMA, **options) as writer:
        for block in blocks:
            rows += len(block)
            rows_per_group = max(1, row_group_bytes // max(1, block.input_ids.nbytes // len(block)))
            held = pa.concat_tables([held, to_table(block)])
            while held.num_rows >= rows_per_group:
                writer.write_table(held.slice(0, rows_per_group), row_group_size=rows_per_group)
                held = held.slice(rows_per_group)
        if held.num_rows:
            writer.write_table(held, row_group_size=held.num_rows)
    return rows


def to_table(block: Resolved) -> pa.Table:
    """Return a block as a table of SCHEMA; ids and offsets are handed over without a copy."""
    roles = pa.DictionaryArray.from_arrays(pa.array(block.roles), pa.array(schemas.ROLES)).cast(pa.string())
    columns = [
        block.chunk_ids,
        block.doc_ids,
        pa.array(block.source_ids, pa.string()),
        block.char_starts,
        block.char_ends,
        roles,
        block.token_starts,
        block.token_ends,
        block.scores,
    ]
    spans = pa.StructArray.from_arrays([pa.array(column) for column in columns], fields=list(SPAN))
    lengths = pa.array((block.token_offsets[1:] - block.token_offsets[:-1]).astype("int32"))
    return pa.Table.from_arrays(
        [
            pa.array(block.sequence_ids, pa.string()),
            pa.array(block.methods, pa.string()),
            pa.array(block.domains, pa.string()),
            pa.ListArray.from_arrays(pa.array(block.token_offsets.astype("int32")), pa.array(block.input_ids)),
            lengths,
            pa.ListArray.from_arrays(
                pa.array(block.document_offsets.astype("int32")), pa.array(block.document_lengths)
            ),
            pa.ListArray.from_arrays(pa.array(block.span_offsets.astype("int32")), spans),
        ],
        schema=SCHEMA,
    )
