"""axolotl: Parquet with the columns by which it recognises tokenized rows, one sequence per row."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from nextlong.export.formats import parquet

_COLUMNS = ("input_ids", "attention_mask", "labels")

FORMAT = replace(
    parquet.FORMAT,
    name="axolotl",
    write=partial(parquet.write, columns=_COLUMNS),
    wanted="ids",
    keys=parquet.FORMAT.keys - {"pad_documents_to"},  # it pads by itself, and expects no padding within a row
    columns=_COLUMNS,
    no_packing="takes a packed row for one document",
)
