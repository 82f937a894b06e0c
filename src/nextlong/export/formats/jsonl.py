"""JSONL: one object a sequence, with its text and the spans that tile it, for anything that reads JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artefacts.resolved import Resolved
from nextlong.export.formats.parquet import SPAN

KEYS: Final = ("sequence_id", "method", "domain", "length", "seq_lengths", "text", "spans")
_SPAN_KEYS: Final = tuple(field.name for field in SPAN.fields)
TextOf = Callable[[NDArray[np.int64]], NDArray[np.object_]]


def write(path: Path, blocks: Iterable[tuple[Resolved, Sequence[str]]]) -> int:
    """Write blocks of rows, each with the text of its spans; return the number of rows."""
    rows = 0
    with path.open("wb") as file:
        for block, texts in blocks:
            for row in to_rows(block, texts):
                file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY))
                rows += 1
    return rows


def to_rows(block: Resolved, texts: Sequence[str]) -> Iterator[dict[str, Any]]:
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


def span_texts(
    block: Resolved, places: slice = slice(None), *, text_of: TextOf, special_text: dict[int, str]
) -> list[str]:
    """Return the text of the spans at `places`: a chunk's, up to the cut, or that of a joint or special token."""
    chunk_ids = block.chunk_ids[places]
    is_chunk = chunk_ids != schemas.NO_CHUNK
    found = iter(text_of(chunk_ids[is_chunk]).tolist())
    sizes = (block.char_ends[places] - block.char_starts[places]).tolist()
    return [
        next(found)[:size] if chunk else special_text[role]
        for chunk, size, role in zip(is_chunk.tolist(), sizes, block.roles[places].tolist(), strict=True)
    ]


def span_rows(block: Resolved, places: slice) -> list[dict[str, Any]]:
    """Return the spans at `places` as dictionaries with the names of the Parquet columns."""
    columns = (
        block.chunk_ids[places].tolist(),
        block.doc_ids[places].tolist(),
        block.source_ids[places].tolist(),
        block.char_starts[places].tolist(),
        block.char_ends[places].tolist(),
        [schemas.ROLES[role] for role in block.roles[places].tolist()],
        block.token_starts[places].tolist(),
        block.token_ends[places].tolist(),
        [round(score, 6) for score in block.scores[places].tolist()],
    )
    return [dict(zip(_SPAN_KEYS, values, strict=True)) for values in zip(*columns, strict=True)]
