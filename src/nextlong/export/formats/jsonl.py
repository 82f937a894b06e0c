"""JSONL: one object a sequence, with its text and the spans that tile it, for anything that reads JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import orjson

from nextlong import schemas
from nextlong.artefacts.resolved import Resolved
from nextlong.export.formats.base import Format, Options, Snippet
from nextlong.export.table import SPAN
from nextlong.plain_data import Json
from nextlong.results import ShardResult

KEYS: Final = ("sequence_id", "method", "domain", "length", "seq_lengths", "text", "spans")
_SPAN_KEYS: Final = tuple(field.name for field in SPAN.fields)
_BYTES_PER_CHAR: Final = 1.2  # JSON escapes and spans, beside the text


def write(path: Path, blocks: Iterable[tuple[Resolved, Sequence[str]]]) -> int:
    """Write blocks of rows, each with the text of its spans; return the number of rows."""
    rows = 0
    with path.open("wb") as file:
        for block, texts in blocks:
            for row in to_rows(block, texts):
                file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY))
                rows += 1
    return rows


def to_rows(block: Resolved, texts: Sequence[str]) -> Iterator[Json]:
    """Yield one dictionary a row, with KEYS."""
    for number in range(len(block)):
        first, last = block.span_offsets[number : number + 2].tolist()
        yield {
            "sequence_id": block.sequence_ids[number],
            "method": block.methods[number],
            "domain": block.domains[number],
            "length": int(block.token_offsets[number + 1] - block.token_offsets[number]),
            "seq_lengths": block.document_lengths[slice(*block.document_offsets[number : number + 2])],
            "text": "".join(texts[first:last]),
            "spans": span_rows(block, slice(first, last)),
        }


def span_rows(block: Resolved, places: slice) -> list[Json]:
    """Return the spans at `places` as dictionaries with the names of the Parquet columns."""
    columns = (
        block.chunk_ids[places].tolist(),
        block.doc_ids[places].tolist(),
        block.source_ids[places].tolist(),
        block.kept[places].tolist(),
        block.char_starts[places].tolist(),
        block.char_ends[places].tolist(),
        [schemas.ROLES[role] for role in block.roles[places].tolist()],
        block.token_starts[places].tolist(),
        block.token_ends[places].tolist(),
        [round(score, 6) for score in block.scores[places].tolist()],
    )
    return [dict(zip(_SPAN_KEYS, values, strict=True)) for values in zip(*columns, strict=True)]


def _write_shard(out: Path, rows: Iterable[tuple[Resolved, Sequence[str]]], options: Options) -> ShardResult:
    del options
    return ShardResult(rows=write(Path(f"{out}.jsonl"), rows))


def _bytes_per_token(compression: str, chars_per_token: float) -> float:
    del compression
    return chars_per_token * _BYTES_PER_CHAR


FORMAT = Format(
    name="jsonl",
    layout="jsonl",
    suffixes=(".jsonl",),
    write=_write_shard,
    wanted="texts",
    keys=frozenset({"boundaries"}),
    columns=KEYS,
    reader_takes="*.jsonl",
    hub="loads",
    snippet=Snippet(
        "from datasets import load_dataset",
        "load_dataset(folder, split={split})  # streaming=True: without a copy in the cache",
        "len(rows[0]['text'])",
    ),
    bytes_per_token=_bytes_per_token,
)
