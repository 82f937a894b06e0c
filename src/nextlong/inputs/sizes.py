"""Sizes: how much text a source's files hold, before any is read, and how big a shard to make of it.

In:  the files of a source. Out: an estimate of its text in bytes, from the heads of a few files (Parquet: the footers).
The shard size follows from it, so the estimate is a function of the files alone and the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from nextlong.errors import CorpusError
from nextlong.inputs.columns import arrow_batches, arrow_reader, column_at, lookup, parquet_text_bytes, resolve
from nextlong.inputs.delimited import DELIMITERS, rows_of
from nextlong.inputs.files import InputFile, Part, compression_of, format_of, open_file
from nextlong.inputs.pages import PAGES, read_html, read_warc
from nextlong.inputs.record import Record
from nextlong.inputs.retries import open_binary
from nextlong.recipe import Source

_HEAD_BYTES: Final = 256 << 10
_PIECE_BYTES: Final = 64 << 10
_HEAD_FILES: Final = 4
_MB: Final = 1_000_000


def estimate_text_bytes(files: Sequence[InputFile], source: Source, *, head_bytes: int = _HEAD_BYTES) -> int:
    """Estimate the UTF-8 bytes of all text in a source's files from the heads of a few of them; the same every time.

    The end of a compressed head is lost: measured, the estimate is 4 to 28 % too low with the default, 3 % with 4 MB.
    """
    kinds: dict[tuple[str, str], list[InputFile]] = {}
    for file in files:
        kinds.setdefault((format_of(file.name, source), compression_of(file.name)), []).append(file)
    return sum(int(sum(f.bytes for f in group) * _text_share(group, source, head_bytes)) for group in kinds.values())


def auto_shard_bytes(total_text_bytes: int) -> int:
    """Return the shard size that `ingest.shard_mb: auto` stands for: total / 32, between 1 MB and 128 MB."""
    return min(max(total_text_bytes // 32, _MB), 128 * _MB)


def _text_share(group: Sequence[InputFile], source: Source, head_bytes: int) -> float:
    """Return text bytes per byte on disk, measured on a few files spread over the group; 1 where none can be read."""
    step = max(1, len(group) // _HEAD_FILES)
    text_bytes = raw_bytes = 0
    for file in group[::step][:_HEAD_FILES]:
        try:
            text, raw = _measure_head(file, source, head_bytes)
        except (OSError, StopIteration, ValueError, pa.ArrowException):
            continue  # reading it later says what is wrong with it
        text_bytes += text
        raw_bytes += raw
    return text_bytes / raw_bytes if text_bytes and raw_bytes else 1.0


def _measure_head(file: InputFile, source: Source, head_bytes: int) -> tuple[int, int]:
    """Return (text bytes, bytes on disk) of a file's head."""
    kind = format_of(file.name, source)
    if kind == "parquet":
        with closing(open_file(file)) as stream:
            return parquet_text_bytes(pq.ParquetFile(stream).metadata, source.text), file.bytes
    if kind == "arrow":
        with closing(open_file(file)) as stream:
            batch = next(arrow_batches(arrow_reader(stream)))
            path, _ = resolve(batch.schema, source.text)
            return (column_at(batch, path).nbytes, batch.nbytes) if path else (0, 0)
    head, raw_bytes = _head(file, head_bytes)
    if kind == "text":
        return len(head), raw_bytes
    if kind in PAGES:
        return _pages_text_bytes(head, kind, file, source), raw_bytes
    if kind in DELIMITERS:
        return _delimited_text_bytes(head, kind, file, source), raw_bytes
    lines = head.split(b"\n")[: None if raw_bytes == file.bytes else -1]
    text_bytes = sum(_line_text_bytes(line, source) for line in lines)
    line_bytes = sum(len(line) + 1 for line in lines)
    return (round(len(head) * text_bytes / line_bytes) if text_bytes else len(head)), raw_bytes


def _head(file: InputFile, head_bytes: int) -> tuple[bytes, int]:
    """Return the first bytes of lines or plain text, decompressed, and how many bytes on disk held them."""
    with open_binary(file.path) as stream:
        raw = stream.read(head_bytes)
    if not compression_of(file.name):
        return raw, len(raw)
    pieces = []
    decompressed = pa.CompressedInputStream(pa.BufferReader(raw), compression_of(file.name))
    with suppress(OSError):  # the head of a compressed file ends early by nature
        while piece := decompressed.read(_PIECE_BYTES):
            pieces.append(piece)
    return b"".join(pieces), len(raw)


def _pages_text_bytes(head: bytes, kind: str, file: InputFile, source: Source) -> int:
    """Return the bytes of text in the head of an archive or of a page."""
    text_bytes = 0
    read = read_warc if kind == "warc" else read_html
    with suppress(CorpusError, OSError, EOFError):  # the head may end within a record
        for item in read(pa.BufferReader(head), Part(file), source, len(head), ()):
            text_bytes += len(item.text.encode()) if isinstance(item, Record) else 0
    return text_bytes or len(head)


def _delimited_text_bytes(head: bytes, kind: str, file: InputFile, source: Source) -> int:
    """Return the bytes of text in the head of a CSV or TSV file, as if the rows that it cuts went on alike."""
    whole = head[: head.rfind(b"\n") + 1] or head
    text_bytes = read_bytes = 0
    place = -1
    with suppress(CorpusError):  # the head may end within a quoted field
        for _, row in rows_of(pa.BufferReader(whole), kind, file):
            if place < 0:
                place = row.index(source.text) if source.text in row else len(row)
            elif place < len(row):
                text_bytes += len(row[place].encode("utf-8", "surrogateescape"))
                read_bytes += sum(len(field) + 1 for field in row)
    return len(head) * text_bytes // read_bytes if text_bytes else len(head)


def _line_text_bytes(line: bytes, source: Source) -> int:
    try:
        text = lookup(orjson.loads(line), source.text)
    except orjson.JSONDecodeError:
        return 0
    return len(text.encode()) if isinstance(text, str) else 0
