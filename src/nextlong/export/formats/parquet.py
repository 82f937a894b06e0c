"""Parquet: one row per sequence, for Hugging Face `datasets`, TRL, torchtitan and axolotl.

Row groups are sized for streaming readers. In compressed files, ids are stored as four streams of bytes (BYTE_STREAM_SPLIT,
for integers since Parquet 2.11), which codecs compress 1.5 times as fast and readers decode faster as well; a dictionary of
ids costs time and saves no space.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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

_DICTIONARIES: Final = (
    *("sequence_id", "method", "domain"),
    *(f"spans.list.element.{name}" for name in ("source_id", "metadata", "role")),
)
_ROWS_AT_ONCE: Final = 8  # rows read at a time


def _write(
    out: Path,
    blocks: Iterable[Resolved],
    options: Options,
    *,
    columns: Sequence[str] = COLUMNS,
) -> ShardResult:
    """Write blocks of rows to `{out}.parquet`, in row groups of about `export.row_group_mb` MB of ids."""
    compression, schema = options.keys["compression"], schema_of(columns, options.keys)
    settings: dict[str, Any] = {
        "compression": compression,
        "compression_level": 1 if compression == "zstd" else None,
        "use_dictionary": [
            name for name in _DICTIONARIES if name.partition(".")[0] in schema.names
        ],
        "write_statistics": False,
    }
    if compression != "none":
        ids = [name for name in ("input_ids", "labels") if name in schema.names]
        settings["column_encoding"] = {
            f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in ids
        }
    rows, held = 0, schema.empty_table()
    with pq.ParquetWriter(f"{out}.parquet", schema, **settings) as writer:
        for block in blocks:
            rows += len(block)
            row_bytes = max(1, block.input_ids.nbytes // len(block))
            rows_per_group = max(
                1, int(options.keys["row_group_mb"] * 1_000_000) // row_bytes
            )
            held = pa.concat_tables([held, to_table(block, schema.names, options)])
            while held.num_rows >= rows_per_group:
                writer.write_table(
                    held.slice(0, rows_per_group), row_group_size=rows_per_group
                )
                held = held.slice(rows_per_group)
        if held.num_rows:
            writer.write_table(held, row_group_size=held.num_rows)
    return ShardResult(rows=rows)


def _read(folder: Path, files: Sequence[str]) -> Iterator[Mapping[str, Any]]:
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
        "load_dataset(folder, split={split})  # streaming=True: without a copy in the cache",
        "len(rows[0]['input_ids'])",
    ),
    bytes_per_token=lambda compression, _chars_per_token: (
        4.0 if compression == "none" else 2.2
    ),  # measured on English
)


def _narrow(name: str, columns: tuple[str, ...], **more: Any) -> Format:
    """Return Parquet with only these columns, for readers that pad documents themselves or need no padding."""
    keys = FORMAT.keys - {"pad_documents_to"}
    write = partial(_write, columns=columns)
    return replace(
        FORMAT, name=name, write=write, wanted="ids", keys=keys, columns=columns, **more
    )


# axolotl recognizes tokenized rows by these columns. It pads rows itself and expects no padding within a row.
FORMAT_AXOLOTL = _narrow(
    "axolotl",
    ("input_ids", "attention_mask", "labels"),
    no_packing="takes a packed row for one document",
)

# torchtitan needs sequences of one more token, the last label. Its flex attention accepts documents of any length.
FORMAT_TORCHTITAN = _narrow("torchtitan", ("input_ids", "seq_lengths"), extra_tokens=1)
