"""Arrow: the rows of an Arrow file or stream → records; a file is entered at any record batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

import pyarrow as pa

from nextlong.inputs.columns import arrow_batches, arrow_reader, column_at, resolve
from nextlong.inputs.file_format import FileFormat, Items, Stretch
from nextlong.inputs.files import InputFile, Part, open_file
from nextlong.inputs.tables import HEAD_ROWS, read_batches, resolve_columns, rows_to_take
from nextlong.recipe import Source


def read(stream: Any, part: Part, source: Source, max_document_chars: int, wanted: Sequence[str]) -> Items:
    """Yield each row's record or reject, of an Arrow file or stream."""
    del max_document_chars
    file = part.file
    paths = resolve_columns(arrow_reader(stream).schema, file, source, wanted)
    reader = arrow_reader(stream, columns={path[0] for path in paths if path})
    yield from read_batches(arrow_batches(reader), file, paths)


def head(stream: Any, file: InputFile) -> Iterator[Mapping[str, Any]]:
    """Yield the first rows."""
    del file
    yield from next(arrow_batches(arrow_reader(stream))).slice(0, HEAD_ROWS).to_pylist()


def text_bytes(file: InputFile, source: Source, head_bytes: int) -> tuple[int, int]:
    """Return (bytes of text, bytes) of the first record batch."""
    del head_bytes
    with closing(open_file(file)) as stream:
        batch = next(arrow_batches(arrow_reader(stream)))
        path, _ = resolve(batch.schema, source.text)
        return (column_at(batch, path).nbytes, batch.nbytes) if path else (0, 0)


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
    """Read rows of the record batch at a place; a stream is read up to there."""
    del max_document_chars
    reader = arrow_reader(stream)
    if isinstance(reader, pa.ipc.RecordBatchFileReader):
        count = reader.num_record_batches
        batch = reader.get_batch(min(int(place * count), count - 1)) if count else None
    else:
        batch = next((batch for batch in reader if stream.tell() >= place * file.bytes), None)
        count = max(1, round(file.bytes / max(1, batch.nbytes))) if batch is not None else 0
    if batch is None or not batch.num_rows:
        return Stretch(iter(()), 1.0)
    part = batch.slice(0, rows_to_take(batch.num_rows, stretch, file.bytes / count))
    paths = resolve_columns(reader.schema, file, source, wanted)
    return Stretch(read_batches([part], file, paths), part.num_rows / batch.num_rows / count)


FORMAT: Final = FileFormat(
    name="arrow",
    suffixes=(".arrow",),
    read=read,
    head=head,
    text_bytes=text_bytes,
    read_at=read_at,
    compression="inside",
)
