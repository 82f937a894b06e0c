"""Delimited: CSV and TSV files → records.

The first row names the columns. Fields may be quoted, and then hold delimiters and newlines (RFC 4180). A row that does not
fit costs that row; a quote that is never closed would swallow what follows, so it stops the run.
"""

from __future__ import annotations

import codecs
import csv
import io
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import pyarrow as pa

from nextlong.errors import CorpusError
from nextlong.inputs.file_format import FileFormat, Items
from nextlong.inputs.files import InputFile, Part, read_head
from nextlong.inputs.record import Record, Reject, RejectKind, refuse_column, source_id
from nextlong.recipe import Source

_LEAST_FIELD_CHARS: Final = 64_000_000  # a longer field is taken for one whose quote is not closed
_HEAD_BYTES: Final = 512
_MARKS: Final = {  # UTF-32's begins with UTF-16's
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_OTHER_DELIMITERS: Final = ";|\t,"


def read(
    stream: Any, part: Part, source: Source, max_document_chars: int, wanted: Sequence[str], *, delimiter: str
) -> Items:
    """Yield each row's record or reject; its line is that on which it begins. Empty fields are None but for the text."""
    file = part.file
    rows = rows_of(stream, delimiter, file, max_field_chars=2 * max_document_chars)
    _, header = next(rows, (1, None))
    if header is None:
        return
    if isinstance(header, str):
        raise CorpusError(f"{file.path}:1: the row that should name the columns cannot be read ({header}); mend it")
    places = _places(header, file, source, wanted, delimiter=delimiter)
    for line, row in rows:
        if isinstance(row, str):
            yield Reject(file.name, line, RejectKind.BROKEN_ROW, row)
        elif len(row) != len(header):
            yield Reject(file.name, line, RejectKind.BROKEN_ROW, f"{len(row)} fields, the first row has {len(header)}")
        elif (nul := next((name for name, field in zip(header, row, strict=True) if "\0" in field), None)) is not None:
            yield Reject(file.name, line, RejectKind.BROKEN_ROW, f"a NUL byte in the column {nul!r}")
        elif any(not _is_text(field) for field in row):
            yield Reject(file.name, line, RejectKind.INVALID_UTF8)
        else:
            text, own_id, *values = (None if place is None else row[place] for place in places)
            fields = tuple(value or None for value in values)
            yield Record(text or "", source_id(own_id, file.name, line), line, fields)


def rows_of(
    stream: Any, delimiter: str, file: InputFile, *, max_field_chars: int = 0
) -> Iterator[tuple[int, list[str] | str]]:
    """Yield the line on which each row begins and its fields, or what is wrong with it; blank lines are passed over.

    Bytes that are no UTF-8 come as lone surrogates. Raises CorpusError where a quote is not closed.
    """
    limit = max(_LEAST_FIELD_CHARS, max_field_chars)
    csv.field_size_limit(limit)  # of the whole process; the module's own is 131,072 characters
    binary = io.BufferedReader(stream)
    _refuse_encoding(binary.peek(_HEAD_BYTES)[:_HEAD_BYTES], file)
    text = io.TextIOWrapper(binary, "utf-8-sig", errors="surrogateescape", newline="")
    rows = csv.reader(text, delimiter=delimiter, strict=True)
    while True:
        line = rows.line_num + 1
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            reason = str(error)
            if "unexpected end" in reason or "field limit" in reason:
                raise CorpusError(
                    f"{file.path}:{line}: a quote in the row that begins here is not closed (read up to line {rows.line_num:,}); "
                    "close it, or write a quote inside a quoted field twice"
                ) from None
            yield line, reason
            continue
        if row:
            yield line, row


def _places(
    header: list[str], file: InputFile, source: Source, wanted: Sequence[str], *, delimiter: str
) -> list[int | None]:
    """Return where the text, the id (None if there is none) and the wanted columns stand in a row."""
    names = [name.strip() for name in header]
    if names.count(source.text) != 1 and len(names) == 1:
        _refuse_delimiter(names[0], file, delimiter)
    for name, asked_by in ((source.text, "text"), *((name, "keep or where") for name in wanted)):
        if names.count(name) != 1:
            refuse_column(file, name, names, asked_by=asked_by)
    own_id = names.index(source.id) if names.count(source.id) == 1 else None
    return [names.index(source.text), own_id, *map(names.index, wanted)]


def _refuse_delimiter(header: str, file: InputFile, delimiter: str) -> None:
    other = next((char for char in _OTHER_DELIMITERS if char != delimiter and char in header), None)
    if other is not None:
        cure = {",": "set the source's format: csv", "\t": "set the source's format: tsv"}.get(other)
        raise CorpusError(
            f"{file.path}: its first row has no {delimiter!r} but {other!r} between the names of columns; "
            f"{cure or 'rewrite it with commas, as in RFC 4180'}"
        )


def _refuse_encoding(head: bytes, file: InputFile) -> None:
    """Raise CorpusError for a file of two or four bytes a character: what editors and spreadsheets call Unicode text."""
    name = next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
    first_row, _, _ = head.partition(b"\n")
    if name is None and b"\0" in first_row:
        is_little = first_row.find(b"\0") % 2
        name = "UTF-16LE" if is_little else "UTF-16BE"
        if first_row.count(b"\0") < len(first_row) // 3:
            at = first_row.find(b"\0") + 1
            raise CorpusError(
                f"{file.path}:1: byte {at} is NUL, which no CSV or TSV file holds; mend or replace the file"
            )
    if name is not None:
        raise CorpusError(
            f"{file.path} is {name}, but CSV and TSV files are read as UTF-8; convert it: iconv -f {name} -t UTF-8 "
            f"{shlex.quote(file.name)} > utf8.csv, or save it as CSV UTF-8"
        )


def _is_text(field: str) -> bool:
    return field.isascii() or not any("\udc80" <= char <= "\udcff" for char in field)


def head(stream: Any, file: InputFile, *, delimiter: str) -> Iterator[Mapping[str, Any]]:
    """Yield the first rows, by the names in the first of all. Raises CorpusError if another delimiter stands between these."""
    rows = (row for _, row in rows_of(stream, delimiter, file) if isinstance(row, list))
    header = next(rows, [])
    if len(header) == 1:
        _refuse_delimiter(header[0], file, delimiter)
    yield from (dict(zip(header, row, strict=False)) for row in rows)


def text_bytes(file: InputFile, source: Source, head_bytes: int, *, delimiter: str) -> tuple[int, int]:
    """Return (bytes of text, bytes on disk) of a file's head, as if the rows that it cuts went on alike."""
    head, raw_bytes = read_head(file, head_bytes)
    whole = head[: head.rfind(b"\n") + 1] or head
    text_bytes = read_bytes = 0
    place = -1
    with suppress(CorpusError):  # the head may end within a quoted field
        for _, row in rows_of(pa.BufferReader(whole), delimiter, file):
            if place < 0:
                place = row.index(source.text) if source.text in row else len(row)
            elif place < len(row):
                text_bytes += len(row[place].encode("utf-8", "surrogateescape"))
                read_bytes += sum(len(field) + 1 for field in row)
    return (len(head) * text_bytes // read_bytes if text_bytes else len(head)), raw_bytes


def _format(name: str, delimiter: str) -> FileFormat:
    return FileFormat(
        name=name,
        suffixes=(f".{name}",),
        read=partial(read, delimiter=delimiter),
        head=partial(head, delimiter=delimiter),
        text_bytes=partial(text_bytes, delimiter=delimiter),
    )


CSV: Final = _format("csv", ",")
TSV: Final = _format("tsv", "\t")
