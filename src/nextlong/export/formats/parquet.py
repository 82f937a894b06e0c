"""Parquet: one row a sequence, for Hugging Face `datasets`, TRL, torchtitan, axolotl.

Row groups are sized for readers that stream. Where files are compressed, ids are stored as four streams of bytes
(BYTE_STREAM_SPLIT, of integers since Parquet 2.11), which codecs take in half as fast again and readers faster too; a
dictionary of ids costs time and saves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from nextlong.artefacts.resolved import Resolved
from nextlong.export.formats.base import Format, Options, Snippet, Write
from nextlong.export.table import SCHEMA, TRAINING, to_table
from nextlong.results import ShardResult

Compression = Literal["zstd", "lz4", "snappy", "none"]

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
    keys=frozenset({"row_group_mb", "compression", "boundaries"}),
    compressions=("zstd", "lz4", "snappy", "none"),
    columns=tuple(SCHEMA.names),
    reader_takes="*.parquet",
    hub="loads",
    snippet=Snippet(
        "from datasets import load_dataset",
        "load_dataset(folder, split={split})  # streaming=True: without a copy in the cache",
        "len(rows[0]['input_ids'])",
    ),
    bytes_per_token=_bytes_per_token,
)
