"""JSONL: one object per sequence, with its text and spans, for any reader of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import orjson

from nextlong.artifacts.blocks import Resolved
from nextlong.artifacts.results import ShardResult
from nextlong.export.formats.base import (
    SPAN,
    Format,
    LoadingCode,
    Options,
    span_columns,
)
from nextlong.text import Json, Rows

_KEYS: Final = (
    "sequence_id",
    "method",
    "domain",
    "length",
    "seq_lengths",
    "text",
    "spans",
)
_SPAN_KEYS: Final = tuple(field.name for field in SPAN.fields)
_OPTIONS: Final = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY


def _write(out: Path, blocks: Iterable[Resolved], _options: Options) -> ShardResult:
    """Write blocks of rows to `{out}.jsonl`."""
    count = 0
    with Path(f"{out}.jsonl").open("wb") as file:
        for block in blocks:
            count += len(block)
            for row in _objects(block):
                file.write(orjson.dumps(row, option=_OPTIONS))
    return ShardResult(rows=count)


def _objects(block: Resolved) -> Iterator[Json]:
    """Yield the object of each row of a block."""
    spans = [column.to_pylist() for column in span_columns(block)]
    # The last field is the score; float32 would be written with all of its digits.
    spans[-1] = [round(score, 6) for score in spans[-1]]
    # Offsets of the block delimit the spans and documents of each row.
    token_counts = np.diff(block.token_offsets).tolist()
    for row in range(len(block)):
        first_span, last_span = block.span_offsets[row : row + 2].tolist()
        first_document, last_document = block.document_offsets[row : row + 2].tolist()
        values_of_spans = zip(
            *(column[first_span:last_span] for column in spans), strict=True
        )
        yield {
            "sequence_id": block.sequence_ids[row],
            "method": block.methods[row],
            "domain": block.domains[row],
            "length": token_counts[row],
            "seq_lengths": block.document_lengths[first_document:last_document],
            "text": "".join(block.texts[first_span:last_span]),
            "spans": [
                dict(zip(_SPAN_KEYS, values, strict=True)) for values in values_of_spans
            ],
        }


def _read(folder: Path, files: Sequence[str]) -> Rows:
    """Yield one mapping per line."""
    for name in files:
        with (folder / name).open(encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                spans = row["spans"]
                yield {**row, "spans": _by_field(spans)}


def _by_field(spans: Sequence[Json]) -> Json:
    """Return one list per field of the spans."""
    by_field: Json = {}
    for key in _SPAN_KEYS:
        by_field[key] = [span[key] for span in spans]
    return by_field


FORMAT = Format(
    name="jsonl",
    layout="jsonl",
    suffixes=(".jsonl",),
    write=_write,
    read=_read,
    wanted="texts",
    keys=frozenset({"boundaries"}),
    columns=_KEYS,
    reader_takes="*.jsonl",
    hub="loads",
    snippet=LoadingCode(
        "from datasets import load_dataset",
        "load_dataset(folder, split={split})  # streaming=True: without a copy in the "
        "cache",
        "len(rows[0]['text'])",
    ),
    # JSON escapes and spans included.
    bytes_per_token=lambda _compression, chars_per_token: chars_per_token * 1.2,
)
