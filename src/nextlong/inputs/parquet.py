"""Parquet: the rows of a file → records; a large file is shared by its row groups, and entered at any of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from nextlong.inputs.columns import parquet_text_bytes
from nextlong.inputs.file_format import FileFormat, Items, Stretch
from nextlong.inputs.files import InputFile, Part, open_file
from nextlong.inputs.tables import HEAD_ROWS, read_batches, resolve_columns, rows_to_take
from nextlong.recipe import Source

_BATCH_TEXT_BYTES: Final = 4 << 20
_BUFFER_BYTES: Final = 1 << 20
_SAMPLED_ROWS: Final = 256  # at a time


def read(stream: Any, part: Part, source: Source, max_document_chars: int, wanted: Sequence[str]) -> Items:
    """Yield each row's record or reject; memory holds one batch of rows, however large their row group."""
    del max_document_chars
    file = part.file
    parquet = _opened(stream)
    paths = resolve_columns(parquet.schema_arrow, file, source, wanted)
    rows = parquet.metadata.num_rows
    row_bytes = parquet_text_bytes(parquet.metadata, source.text) // max(rows, 1)
    batches = parquet.iter_batches(
        row_groups=None if part.row_groups is None else range(*part.row_groups),
        batch_size=min(max(_BATCH_TEXT_BYTES // (row_bytes + 1), 1), 4096),
        columns=list(dict.fromkeys(".".join(path) for path in paths if path)),
        use_threads=False,
    )
    yield from read_batches(batches, file, paths, rows_before=part.lines_before)


def head(stream: Any, file: InputFile) -> Iterator[Mapping[str, Any]]:
    """Yield the first rows."""
    batches = _opened(stream).iter_batches(HEAD_ROWS, use_threads=False)
    yield from next(batches).to_pylist() if file.bytes else ()


def text_bytes(file: InputFile, source: Source, head_bytes: int) -> tuple[int, int]:
    """Return (bytes of text, bytes on disk) of a file, from its footer."""
    del head_bytes
    with closing(open_file(file)) as stream:
        return parquet_text_bytes(pq.ParquetFile(stream).metadata, source.text), file.bytes


def split(file: InputFile, part_bytes: int) -> list[Part]:
    """Return consecutive row groups of about `part_bytes` together; the whole file if its footer cannot be read."""
    try:
        with closing(open_file(file)) as stream:
            groups = pq.read_metadata(stream)
    except (OSError, pa.ArrowException):
        return [Part(file)]  # reading it says what is wrong with it
    parts, first, rows, held, rows_before = [], 0, 0, 0, 0
    for number in range(groups.num_row_groups):
        group = groups.row_group(number)
        held += sum(group.column(column).total_compressed_size for column in range(group.num_columns))
        rows += group.num_rows
        if held >= part_bytes or number == groups.num_row_groups - 1:
            parts.append(Part(file, lines_before=rows_before, row_groups=(first, number + 1)))
            first, rows_before, held = number + 1, rows, 0
    return parts if len(parts) > 1 else [Part(file)]


def read_at(
    stream: Any,
    file: InputFile,
    source: Source,
    wanted: Sequence[str],
    *,
    place: float,
    stretch: int,
    max_document_chars: int,
) -> Stretch:
    """Read rows of the row group at a place."""
    del max_document_chars
    parquet = _opened(stream)
    groups = parquet.metadata.num_row_groups
    paths = resolve_columns(parquet.schema_arrow, file, source, wanted)
    if not groups:
        return Stretch(iter(()), 1.0)
    group = min(int(place * groups), groups - 1)
    rows = parquet.metadata.row_group(group).num_rows
    most, batches, taken = rows_to_take(rows, stretch, file.bytes / groups), [], 0
    for batch in parquet.iter_batches(
        batch_size=max(1, min(_SAMPLED_ROWS, most)),
        row_groups=[group],
        columns=list(dict.fromkeys(".".join(path) for path in paths if path)),
        use_threads=False,
    ):
        batches.append(batch.slice(0, most - taken))
        taken += batches[-1].num_rows
        if taken >= most:
            break
    return Stretch(read_batches(batches, file, paths), taken / rows / groups if taken else 1.0)


def _opened(stream: Any) -> pq.ParquetFile:
    # Buffered and not pre-buffered: a row group may hold gigabytes.
    return pq.ParquetFile(stream, pre_buffer=False, buffer_size=_BUFFER_BYTES)


FORMAT: Final = FileFormat(
    name="parquet",
    suffixes=(".parquet",),
    read=read,
    head=head,
    text_bytes=text_bytes,
    read_at=read_at,
    split=split,
    compression="inside",
)
