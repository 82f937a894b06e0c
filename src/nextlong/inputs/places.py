"""Places: some records from a random place of a file, without reading what lies before it where the format allows that.

In:  a file, a place in it (0 is its beginning, 1 its end) and how much to read there.
Out: the texts, and which share of the file they stand for, so that what a file holds can be estimated from several places.

Plain JSON lines are entered at any byte, Parquet at a row group, Arrow at a record batch. Compressed files, CSV and TSV cannot be
entered: they are read through from their beginning, so far as a bound allows, and a share of what was read is kept.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final, NamedTuple

import pyarrow as pa

from nextlong.inputs.files import InputFile, Part, compression_of, open_file
from nextlong.inputs.formats import format_of
from nextlong.inputs.record import Record, Reject, RejectKind, explained, problem
from nextlong.inputs.records import read_records
from nextlong.inputs.retries import open_binary
from nextlong.inputs.sizes import estimate_text_bytes
from nextlong.inputs.where import where_of
from nextlong.recipe import Source

_BLOCK_BYTES: Final = 1 << 20


class Sampled(NamedTuple):
    """Texts of a file, UTF-8, which share of the file they stand for, and why records among them are no documents."""

    texts: list[bytes]
    share: float
    rejects: Counter[RejectKind]


def can_be_entered(file: InputFile, source: Source) -> bool:
    """Say whether a place of a file is read without what lies before it."""
    return not compression_of(file.name) and format_of(file.name, source).read_at is not None


def sample_at(file: InputFile, source: Source, *, place: float, stretch: int, max_document_chars: int) -> Sampled:
    """Return the texts of about `stretch` bytes on disk from a place of a file that can be entered there.

    Raises CorpusError if the file cannot be read, or lacks a column.
    """
    kind = format_of(file.name, source)
    assert kind.read_at is not None, "a file that cannot be entered"
    with explained(file), closing(open_file(file)) as stream:
        items, share = kind.read_at(
            stream, file, source, _wanted(source), place=place, stretch=stretch, max_document_chars=max_document_chars
        )
        texts, rejects = _sorted(_holding(items, file, source), max_document_chars)
        return Sampled(texts, share, rejects)


def sample_through(
    file: InputFile, source: Source, *, share: float, most_through: int, max_document_chars: int, draw: random.Random
) -> Sampled:
    """Return about a `share` of the texts in the first `most_through` bytes of a file, from all over these.

    Raises CorpusError as `sample_at` does.
    """
    if format_of(file.name, source).is_lines:
        return _from_lines(file, source, share, most_through, max_document_chars, draw)
    whole = max(1, estimate_text_bytes([file], source))
    texts, read, rejects = [], 0, Counter[RejectKind]()
    for item in read_records(Part(file), source, max_document_chars=max_document_chars):
        kind = rejected(item, max_document_chars)
        if kind is not None:
            rejects[kind] += draw.random() < share
        elif isinstance(item, Record):
            read += len(item.text)
            if draw.random() < share:
                texts.append(item.text.encode())
        if read > most_through:
            return Sampled(texts, sum(map(len, texts)) / whole, +rejects)
    return Sampled(texts, sum(map(len, texts)) / read if read else share, +rejects)


def _from_lines(
    file: InputFile, source: Source, share: float, most_through: int, max_document_chars: int, draw: random.Random
) -> Sampled:
    kept: list[bytes] = []
    seen, through = 0, 1.0
    with explained(file):
        for line, through in _lines(file, most_through):  # noqa: B007 - the last one counts
            seen += len(line)
            if draw.random() < share:
                kept.append(line)
    stream = pa.BufferReader(b"\n".join(kept))
    items = format_of(file.name, source).read(stream, Part(file), source, max_document_chars, _wanted(source))
    texts, rejects = _sorted(_holding(items, file, source), max_document_chars)
    return Sampled(texts, through * sum(map(len, kept)) / max(1, seen), rejects)


def _lines(file: InputFile, most_through: int) -> Iterator[tuple[bytes, float]]:
    """Yield the lines of a compressed file's first bytes on disk, each with the share of the file that is read by then."""
    with open_binary(file.path) as raw:
        stream = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), compression_of(file.name))
        rest = b""
        while block := stream.read(_BLOCK_BYTES):
            *lines, rest = (rest + block).split(b"\n")
            at = raw.tell()
            yield from ((line, min(1.0, at / max(1, file.bytes))) for line in lines)
            if most_through <= at < file.bytes:
                return
        if rest:
            yield rest, 1.0


def _wanted(source: Source) -> tuple[str, ...]:
    where = where_of(source)
    return (*source.keep, *(where.columns if where else ()))


def _holding(items: Iterator[Record | Reject], file: InputFile, source: Source) -> Iterator[Any]:
    where = where_of(source)
    return items if where is None else where.sorted_out(items, beside=len(source.keep), file=file)


def _sorted(items: Iterator[Any], max_document_chars: int) -> tuple[list[bytes], Counter[RejectKind]]:
    texts, rejects = [], Counter[RejectKind]()
    for item in items:
        kind = rejected(item, max_document_chars)
        if kind is not None:
            rejects[kind] += 1
        elif isinstance(item, Record):
            texts.append(item.text.encode())
    return texts, rejects


def rejected(item: Any, max_document_chars: int) -> RejectKind | None:
    """Return why what a reader yields is no document; None of a document, and of one for which `where` does not hold."""
    if isinstance(item, Reject):
        return item.kind
    wrong = problem(item.text, max_document_chars) if isinstance(item, Record) else None
    return wrong and wrong[0]
