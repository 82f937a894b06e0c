"""Parquet: one row a sequence, for Hugging Face `datasets`, TRL, torchtitan, axolotl.

`seq_lengths` (named as TRL names it) marks synthesised documents, never chunks. Row groups are sized for readers that
stream. Where files are compressed, ids are stored as four streams of bytes (BYTE_STREAM_SPLIT, of integers since Parquet
2.11), which codecs take in half as fast again and readers faster too; a dictionary of ids costs time and saves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nextlong import schemas
from nextlong.artefacts.resolved import Resolved
from nextlong.export.formats.base import Format, Options, Snippet, Write
from nextlong.results import ShardResult

Compression = Literal["zstd", "lz4", "snappy", "none"]

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
_COMPRESSED_BYTES, _PLAIN_BYTES = 2.2, 4.0  # a token, its id compressed (measured on English) or as it is
_IDS: Final = ("input_ids", "labels")
_DICTIONARIES: Final = (
    *("sequence_id", "method", "domain"),
    *(f"spans.list.element.{name}" for name in ("source_id", "kept", "role")),
)


def write(
    path: Path,
    blocks: Iterable[Resolved],
    *,
    row_group_bytes: int,
    columns: Sequence[str] = tuple(SCHEMA.names),
    compression: Compression = "zstd",
) -> int:
    """Write blocks of rows to one file, row groups of about `row_group_bytes` of ids; return the number of rows.

    `columns` are those of SCHEMA and of TRAINING.
    """
    options: dict[str, Any] = {
        "compression": compression,
        "compression_level": 1 if compression == "zstd" else None,
        "use_dictionary": [name for name in _DICTIONARIES if name.partition(".")[0] in columns],
        "write_statistics": False,
    }
    if compression != "none":
        options["column_encoding"] = {f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in _IDS if name in columns}
    schema = pa.schema([(*SCHEMA, *TRAINING)[place] for place in map([*SCHEMA.names, *TRAINING.names].index, columns)])
    rows, held = 0, schema.empty_table()
    with pq.ParquetWriter(path, schema, **options) as writer:
        for block in blocks:
            rows += len(block)
            rows_per_group = max(1, row_group_bytes // max(1, block.input_ids.nbytes // len(block)))
            held = pa.concat_tables([held, to_table(block, columns)])
            while held.num_rows >= rows_per_group:
                writer.write_table(held.slice(0, rows_per_group), row_group_size=rows_per_group)
                held = held.slice(rows_per_group)
        if held.num_rows:
            writer.write_table(held, row_group_size=held.num_rows)
    return rows


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


def writer(columns: Sequence[str]) -> Write:
    """Return what writes a shard with these columns."""
    return partial(_write_shard, columns=columns)


def _write_shard(out: Path, rows: Iterable[Resolved], options: Options, *, columns: Sequence[str]) -> ShardResult:
    count = write(
        Path(f"{out}.parquet"),
        rows,
        columns=columns,
        row_group_bytes=int(options.keys["row_group_mb"] * 1_000_000),
        compression=options.keys["compression"],
    )
    return ShardResult(rows=count)


def _bytes_per_token(compression: str, chars_per_token: float) -> float:
    del chars_per_token
    return _PLAIN_BYTES if compression == "none" else _COMPRESSED_BYTES


FORMAT = Format(
    name="parquet",
    layout="parquet",
    suffixes=(".parquet",),
    write=writer(tuple(SCHEMA.names)),
    wanted="spans",
    keys=frozenset({"row_group_mb", "compression"}),
    compressions=("zstd", "lz4", "snappy", "none"),
    columns=tuple(SCHEMA.names),
    reader_takes="*.parquet",
    hub="loads",
    snippet=Snippet(
        "from datasets import load_dataset",
        "load_dataset(folder, split={split}, streaming=True)",
        "len(next(iter(rows))['input_ids'])",
    ),
    bytes_per_token=_bytes_per_token,
)
