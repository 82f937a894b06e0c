"""Places: some records from a random place of a file, without reading what lies before it where the format allows that.

In:  a file, a place in it (0 is its beginning, 1 its end) and how much text to read there.
Out: the texts, and which share of the file they are, so that what a file holds can be estimated from several places.

Plain JSON lines are entered at any byte, Parquet at a row group, Arrow at a record batch. Compressed lines cannot be entered: they
are read through from their beginning, so far as `most_through` bytes go, and some of the lines are kept, from all that was read.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final, NamedTuple

import fsspec
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from nextlong.errors import CorpusError
from nextlong.inputs.columns import (
    arrow_reader,
    column_at,
    is_string,
    lookup,
    resolve,
    strings,
)
from nextlong.inputs.files import InputFile, Part, compression_of, format_of, open_file
from nextlong.inputs.records import Record, read_records
from nextlong.recipe import Source

_BLOCK_BYTES: Final = 1 << 20
_ROWS: Final = 256


class Sampled(NamedTuple):
    """Texts of a file, UTF-8, and which share of the file (of its bytes or rows) they stand for."""

    texts: list[bytes]
    share: float


def sample_at(file: InputFile, source: Source, *, place: float, stretch: int, max_document_chars: int) -> Sampled:
    """Return the texts of about `stretch` bytes on disk from a place of a file that can be entered there.

    Raises CorpusError if the file cannot be read, or lacks the text column.
    """
    kind = format_of(file.name, source)
    if kind in ("parquet", "arrow"):
        with _explained(file):
            sampled = (_from_row_group if kind == "parquet" else _from_batch)(file, source, place, stretch)
    else:
        sampled = _from_line(file, source, place, stretch, max_document_chars)
    return Sampled([text for text in sampled.texts if _counts(text, max_document_chars)], sampled.share)


def can_be_entered(file: InputFile, source: Source) -> bool:
    """Say whether a place of a file is read without what lies before it."""
    return not compression_of(file.name) and format_of(file.name, source) != "text"


def sample_through(
    file: InputFile, source: Source, *, share: float, most_through: int, max_document_chars: int, draw: random.Random
) -> Sampled:
    """Return about a `share` of the texts in a compressed file's first `most_through` bytes on disk, from all over these."""
    if format_of(file.name, source) == "text":
        texts = [record.text.encode() for record in _records(Part(file), source, max_document_chars)]
        return Sampled([text for text in texts if _counts(text, max_document_chars)], 1.0)
    lines: list[bytes] = []
    seen = 0
    through = 1.0
    with _explained(file):
        for line, through in _lines(file, most_through):  # noqa: B007 - the last one counts
            seen += len(line)
            if draw.random() < share:
                lines.append(line)
    texts = [text for line in lines if _counts(text := _text_of(line, source), max_document_chars)]
    return Sampled(texts, through * sum(map(len, lines)) / max(1, seen))


@contextmanager
def _explained(file: InputFile) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise CorpusError(
            f"{file.path} cannot be read ({' '.join(str(error).split())}); re-download it, or remove it"
        ) from None


def _counts(text: bytes, max_document_chars: int) -> bool:
    return bool(text.strip()) and len(text) <= 4 * max_document_chars


def _from_line(file: InputFile, source: Source, place: float, stretch: int, max_document_chars: int) -> Sampled:
    start = min(int(place * file.bytes), max(0, file.bytes - stretch))
    part = Part(file, start, min(file.bytes, start + stretch))
    texts = [record.text.encode() for record in _records(part, source, max_document_chars)]
    assert part.stop is not None
    return Sampled(texts, (part.stop - part.start) / max(1, file.bytes))


def _records(part: Part, source: Source, max_document_chars: int) -> Iterator[Record]:
    for record in read_records(part, source, max_document_chars=max_document_chars):
        if isinstance(record, Record):
            yield record


def _from_row_group(file: InputFile, source: Source, place: float, stretch: int) -> Sampled:
    with closing(open_file(file, source)) as stream:
        parquet = pq.ParquetFile(stream, pre_buffer=False, buffer_size=_BLOCK_BYTES)
        path, kind = resolve(parquet.schema_arrow, source.text)
        groups = parquet.metadata.num_row_groups
        if not groups or kind is None or not is_string(kind):
            return Sampled([], 1.0)
        group = min(int(place * groups), groups - 1)
        rows = parquet.metadata.row_group(group).num_rows
        wanted = _part_of(rows, stretch, file.bytes / groups)
        columns = [".".join(path)]
        batches = parquet.iter_batches(
            batch_size=max(1, min(_ROWS, wanted)), row_groups=[group], columns=columns, use_threads=False
        )
        texts, taken = [], 0
        for batch in batches:
            part = batch.slice(0, wanted - taken)
            texts += [text.encode() for text in strings(column_at(part, path)) if isinstance(text, str)]
            taken += part.num_rows
            if taken >= wanted:
                break
        return Sampled(texts, taken / max(1, rows) / groups)


def _from_batch(file: InputFile, source: Source, place: float, stretch: int) -> Sampled:
    with closing(open_file(file, source)) as stream:
        reader = arrow_reader(stream)
        path, kind = resolve(reader.schema, source.text)
        if kind is None or not is_string(kind):
            return Sampled([], 1.0)
        if isinstance(reader, pa.ipc.RecordBatchFileReader):
            count = reader.num_record_batches
            batch = reader.get_batch(min(int(place * count), count - 1)) if count else None
        else:  # a stream is read from its beginning
            at = place * file.bytes
            batch = next((batch for batch in reader if stream.tell() >= at), None)
            count = max(1, round(file.bytes / batch.nbytes)) if batch is not None else 0
        if batch is None or not batch.num_rows:
            return Sampled([], 1.0)
        part = batch.slice(0, _part_of(batch.num_rows, stretch, file.bytes / count))
        texts = [text.encode() for text in strings(column_at(part, path)) if isinstance(text, str)]
        return Sampled(texts, part.num_rows / batch.num_rows / count)


def _part_of(rows: int, stretch: int, mean_bytes: float) -> int:
    """Return how many rows of a row group or batch to take: the same share of each, so that none counts for more."""
    return max(1, round(rows * min(1.0, stretch / max(1.0, mean_bytes))))


def _lines(file: InputFile, most_through: int) -> Iterator[tuple[bytes, float]]:
    """Yield the lines of a compressed file's first bytes on disk, each with the share of the file that is read by then."""
    fs, path = fsspec.core.url_to_fs(file.path)
    with fs.open(path, "rb") as raw:
        stream = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), compression_of(file.name))
        rest = b""
        while block := stream.read(_BLOCK_BYTES):
            *lines, rest = (rest + block).split(b"\n")
            share = min(1.0, raw.tell() / max(1, file.bytes))
            yield from ((line, share) for line in lines)
            if raw.tell() >= most_through < file.bytes:
                return
        if rest:
            yield rest, 1.0


def _text_of(line: bytes, source: Source) -> bytes:
    try:
        text = lookup(orjson.loads(line), source.text)
    except orjson.JSONDecodeError:
        return b""
    return text.encode() if isinstance(text, str) else b""
