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
    """Return (bytes of text, bytes) of the first record batch; nothing but its text is read of a file."""
    del head_bytes
    with closing(open_file(file)) as stream:
        path, _ = resolve(arrow_reader(stream).schema, source.text)
        if not path:
            return (0, 0)
        reader = arrow_reader(stream, columns=path[:1])
        batch = next(arrow_batches(reader))
        whole = file.bytes // reader.num_record_batches if _is_file(reader) else batch.nbytes
        return column_at(batch, path).nbytes, whole


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
    paths = resolve_columns(reader.schema, file, source, wanted)
    if _is_file(reader):
        reader = arrow_reader(stream, columns={path[0] for path in paths if path})
        count = reader.num_record_batches
        batch = reader.get_batch(min(int(place * count), count - 1)) if count else None
    else:
        batch = next((batch for batch in reader if stream.tell() >= place * file.bytes), None)
        count = max(1, round(file.bytes / max(1, batch.nbytes))) if batch is not None else 0
    if batch is None or not batch.num_rows:
        return Stretch(iter(()), 1.0)
    part = batch.slice(0, rows_to_take(batch.num_rows, stretch, file.bytes / count))
    return Stretch(read_batches([part], file, paths), part.num_rows / batch.num_rows / count)


def _is_file(reader: Any) -> bool:
    """Say whether a reader is of a file, whose batches are found by a footer, and not of a stream."""
    return isinstance(reader, pa.ipc.RecordBatchFileReader)


FORMAT: Final = FileFormat(
    name="arrow",
    suffixes=(".arrow",),
    read=read,
    head=head,
    text_bytes=text_bytes,
    read_at=read_at,
    compression="inside",
)
