"""JSONL: one object per sequence, with its text and the spans that tile it, for any reader of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

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


def _write(out: Path, blocks: Iterable[Resolved], _options: Options) -> ShardResult:
    """Write blocks of rows to `{out}.jsonl`."""
    count = 0
    with Path(f"{out}.jsonl").open("wb") as file:
        for block in blocks:
            count += len(block)
            spans = [column.to_pylist() for column in span_columns(block)]
            spans[-1] = [round(score, 6) for score in spans[-1]]
            for row in range(len(block)):
                first, last = block.span_offsets[row : row + 2].tolist()
                fields = zip(*(column[first:last] for column in spans), strict=True)
                plain = {
                    "sequence_id": block.sequence_ids[row],
                    "method": block.methods[row],
                    "domain": block.domains[row],
                    "length": int(
                        block.token_offsets[row + 1] - block.token_offsets[row]
                    ),
                    "seq_lengths": block.document_lengths[
                        slice(*block.document_offsets[row : row + 2])
                    ],
                    "text": "".join(block.texts[first:last]),
                    "spans": [
                        dict(zip(_SPAN_KEYS, values, strict=True)) for values in fields
                    ],
                }
                file.write(
                    orjson.dumps(
                        plain,
                        option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY,
                    )
                )
    return ShardResult(rows=count)


def _read(folder: Path, files: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Yield one mapping per line."""
    for name in files:
        with (folder / name).open(encoding="utf-8") as lines:
            for row in map(json.loads, lines):
                yield row | {
                    "spans": {
                        key: [span[key] for span in row["spans"]] for key in _SPAN_KEYS
                    }
                }


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
        "load_dataset(folder, split={split})  # streaming=True: without a copy in the cache",
        "len(rows[0]['text'])",
    ),
    bytes_per_token=lambda _compression, chars_per_token: (
        chars_per_token * 1.2
    ),  # JSON escapes and spans included
)
