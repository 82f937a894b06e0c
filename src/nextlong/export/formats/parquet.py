"""Parquet: one row per sequence.

It suits Hugging Face `datasets`, TRL, torchtitan and axolotl. Row groups are sized for
streaming readers. In compressed files, ids are stored as four streams of bytes
(BYTE_STREAM_SPLIT, for integers since Parquet 2.11), which codecs compress 1.5 times as
fast and readers decode faster as well; a dictionary of ids costs time and saves no
space.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from nextlong.artifacts.blocks import Resolved
from nextlong.artifacts.results import ShardResult
from nextlong.export.formats.base import (
    COLUMNS,
    Format,
    LoadingCode,
    Options,
    rows_of,
    schema_of,
    to_table,
)
from nextlong.text import Rows

_DICTIONARIES: Final = (
    "sequence_id",
    "method",
    "domain",
    "spans.list.element.source_id",
    "spans.list.element.metadata",
    "spans.list.element.role",
)
_ROWS_AT_ONCE: Final = 8  # rows read at a time


def _write(
    out: Path,
    blocks: Iterable[Resolved],
    options: Options,
    *,
    columns: Sequence[str] = COLUMNS,
) -> ShardResult:
    """Write blocks of rows to `{out}.parquet`.

    Row groups have about `export.row_group_mb` MB of ids.
    """
    schema = schema_of(columns, options.keys)
    settings = _settings(schema, options.keys["compression"])
    group_bytes = int(options.keys["row_group_mb"] * 1_000_000)
    rows = 0
    unwritten = schema.empty_table()
    with pq.ParquetWriter(f"{out}.parquet", schema, **settings) as writer:
        for block in blocks:
            rows += len(block)
            row_bytes = max(1, block.input_ids.nbytes // len(block))
            group_rows = max(1, group_bytes // row_bytes)
            table = to_table(block, schema.names, options)
            unwritten = pa.concat_tables([unwritten, table])
            while unwritten.num_rows >= group_rows:
                group = unwritten.slice(0, group_rows)
                writer.write_table(group, row_group_size=group_rows)
                unwritten = unwritten.slice(group_rows)
        if unwritten.num_rows:
            writer.write_table(unwritten, row_group_size=unwritten.num_rows)
    return ShardResult(rows=rows)


def _settings(schema: pa.Schema, compression: str) -> dict[str, Any]:
    """Return the settings of pyarrow's writer for these columns."""
    settings: dict[str, Any] = {
        "compression": compression,
        "compression_level": 1 if compression == "zstd" else None,
        "use_dictionary": [
            path for path in _DICTIONARIES if path.partition(".")[0] in schema.names
        ],
        "write_statistics": False,
    }
    if compression != "none":
        ids = [name for name in ("input_ids", "labels") if name in schema.names]
        settings["column_encoding"] = {
            f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in ids
        }
    return settings


def _read(folder: Path, files: Sequence[str]) -> Rows:
    """Yield the rows of the files."""
    for name in files:
        with pq.ParquetFile(folder / name) as file:
            for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE):
                yield from rows_of(batch)


FORMAT = Format(
    name="parquet",
    layout="parquet",
    suffixes=(".parquet",),
    write=_write,
    read=_read,
    wanted="spans",
    keys=frozenset({"row_group_mb", "compression", "boundaries", "pad_documents_to"}),
    compressions=("zstd", "lz4", "snappy", "none"),
    columns=COLUMNS,
    reader_takes="*.parquet",
    hub="loads",
    snippet=LoadingCode(
        "from datasets import load_dataset",
        "load_dataset(folder, split={split})  # streaming=True: without a copy in the "
        "cache",
        "len(rows[0]['input_ids'])",
    ),
    # Measured on English.
    bytes_per_token=lambda compression, _chars_per_token: (
        4.0 if compression == "none" else 2.2
    ),
)


def _narrow(name: str, columns: tuple[str, ...], **more: Any) -> Format:
    """Return Parquet with only these columns.

    Their readers pad documents themselves or need no padding.
    """
    keys = FORMAT.keys - {"pad_documents_to"}
    write = partial(_write, columns=columns)
    return replace(
        FORMAT, name=name, write=write, wanted="ids", keys=keys, columns=columns, **more
    )


# axolotl recognizes tokenized rows by these columns. It pads rows itself and expects no
# padding within a row.
FORMAT_AXOLOTL = _narrow(
    "axolotl",
    ("input_ids", "attention_mask", "labels"),
    no_packing="takes a packed row for one document",
)

# torchtitan needs sequences of one more token, the last label. Its flex attention
# accepts documents of any length.
FORMAT_TORCHTITAN = _narrow("torchtitan", ("input_ids", "seq_lengths"), extra_tokens=1)
