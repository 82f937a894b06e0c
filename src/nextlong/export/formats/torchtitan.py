"""torchtitan: Parquet with the columns that its loader reads, of sequences one token longer, which is the last
label."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from nextlong.export.formats import parquet

_COLUMNS = ("input_ids", "seq_lengths")

FORMAT = replace(
    parquet.FORMAT,
    name="torchtitan",
    write=partial(parquet.write, columns=_COLUMNS),
    wanted="ids",
    keys=parquet.FORMAT.keys - {"pad_documents_to"},  # its flex attention accepts documents of any length
    columns=_COLUMNS,
    extra_tokens=1,
)
