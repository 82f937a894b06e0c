"""axolotl: Parquet with the columns by which it knows rows that are tokenized already, one sequence a row."""

from __future__ import annotations

from dataclasses import replace

from nextlong.export.formats import parquet

_COLUMNS = ("input_ids", "attention_mask", "labels")

FORMAT = replace(
    parquet.FORMAT,
    name="axolotl",
    write=parquet.writer(_COLUMNS),
    wanted="ids",
    columns=_COLUMNS,
    no_packing="takes a packed row for one document",
)
