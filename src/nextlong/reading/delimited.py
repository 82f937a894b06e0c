"""Delimited text: CSV and TSV files → records; the first row names the columns, and quoting follows RFC 4180.

A malformed row is one reject. An unclosed quote stops the run, because it would include the rest of the file in one field.
"""

from __future__ import annotations

import codecs
import csv
import io
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from nextlong.errors import CorpusError
from nextlong.reading.files import InputFile
from nextlong.reading.records import InputFormat, Items, ReadRequest, Reject, RejectKind

_MIN_FIELD_LIMIT_CHARS: Final = 64_000_000  # a longer field is treated as an unclosed quote
_HEAD_BYTES: Final = 512
_BYTE_ORDER_MARKS: Final = {  # UTF-32's begins with UTF-16's
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


class _Delimited(InputFormat):
    def __init__(self, name: str, delimiter: str) -> None:
        self.name, self.suffixes = name, (f".{name}",)
        self._delimiter = delimiter

    def read(self, stream: pa.NativeFile, request: ReadRequest) -> Items:
        """Yield the record or reject of each row, with the line on which it begins; empty fields except the text are None."""
        file, source = request.part.file, request.source
        rows = self._rows(stream, file, max_field_chars=2 * request.max_document_chars)
        _, header = next(rows, (1, None))
        if header is None:
            return
        if isinstance(header, str):
            raise CorpusError(f"{file.path}:1: the header row is invalid ({header}); correct the row")
        names = [name.strip() for name in header]
        if names.count(source.text) != 1 and len(names) == 1:
            self._refuse_delimiter(names[0], file)
        for name, key in request.required():
            if names.count(name) != 1:
                request.refuse_column(name, names, key=key)
        id_index = names.index(source.id) if names.count(source.id) == 1 else None
        text_index, *indexes = (names.index(name) for name, _ in request.required())
        for line, row in rows:
            if isinstance(row, str):
                yield Reject(file.name, line, RejectKind.BROKEN_ROW, row)
            elif len(row) != len(header):
                detail = f"{len(row)} fields, the first row has {len(header)}"
                yield Reject(file.name, line, RejectKind.BROKEN_ROW, detail)
            elif with_nul := [name for name, field in zip(header, row, strict=True) if "\0" in field]:
                yield Reject(file.name, line, RejectKind.BROKEN_ROW, f"a NUL byte in the column {with_nul[0]!r}")
            elif any(not field.isascii() and any("\udc80" <= char <= "\udcff" for char in field) for field in row):
                yield Reject(file.name, line, RejectKind.INVALID_UTF8)
            else:
                own_id = None if id_index is None else row[id_index]
                yield request.record(row[text_index], own_id, line, tuple(row[index] or None for index in indexes))

    def head(self, stream: pa.NativeFile, file: InputFile) -> Iterator[Mapping[str, Any]]:
        """Yield the first rows. Raises CorpusError if the file uses another delimiter."""
        rows = (row for _, row in self._rows(stream, file) if isinstance(row, list))
        header = next(rows, [])
        if len(header) == 1:
            self._refuse_delimiter(header[0], file)
        yield from (dict(zip(header, row, strict=False)) for row in rows)

    def _rows(
        self, stream: pa.NativeFile, file: InputFile, *, max_field_chars: int = 0
    ) -> Iterator[tuple[int, list[str] | str]]:
        """Yield (first line, fields or error) of each row; blank lines are skipped.

        Bytes that are not UTF-8 become lone surrogates. Raises CorpusError for an unclosed quote, and for UTF-16 and UTF-32,
        which editors and spreadsheets call Unicode text.
        """
        # A setting of the whole process; Python's default is 131,072 characters.
        csv.field_size_limit(max(_MIN_FIELD_LIMIT_CHARS, max_field_chars))
        binary = io.BufferedReader(stream)
        head = binary.peek(_HEAD_BYTES)[:_HEAD_BYTES]
        encoding = next((name for mark, name in _BYTE_ORDER_MARKS.items() if head.startswith(mark)), None)
        first_row, _, _ = head.partition(b"\n")
        if encoding is None and (nul := first_row.find(b"\0")) >= 0:
            if first_row.count(b"\0") < len(first_row) // 3:
                problem = f"byte {nul + 1} is NUL, which is not allowed in CSV and TSV files"
                raise CorpusError(f"{file.path}:1: {problem}; correct or replace the file")
            encoding = "UTF-16LE" if nul % 2 else "UTF-16BE"
        if encoding is not None:
            cure = f"iconv -f {encoding} -t UTF-8 {shlex.quote(file.name)} > utf8.csv, or save it as CSV UTF-8"
            raise CorpusError(f"{file.path} is {encoding}, but CSV and TSV files must be UTF-8; convert it: {cure}")
        text = io.TextIOWrapper(binary, "utf-8-sig", errors="surrogateescape", newline="")
        rows = csv.reader(text, delimiter=self._delimiter, strict=True)
        while True:
            line = rows.line_num + 1
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                reason = str(error)
                if "unexpected end" in reason or "field limit" in reason:
                    problem = f"the row that begins here has an unclosed quote (read up to line {rows.line_num:,})"
                    cure = "close it, and double quotes inside a quoted field"
                    raise CorpusError(f"{file.path}:{line}: {problem}; {cure}") from None
                yield line, reason
                continue
            if row:
                yield line, row

    def _refuse_delimiter(self, header: str, file: InputFile) -> None:
        other = next((char for char in ";|\t," if char != self._delimiter and char in header), None)
        if other is not None:
            fixes = {",": "set the source's format: csv", "\t": "set the source's format: tsv"}
            fix = fixes.get(other, "rewrite it with commas, as in RFC 4180")
            raise CorpusError(f"{file.path}: the delimiter is {other!r} instead of {self._delimiter!r}; {fix}")


FORMAT: Final = (_Delimited("csv", ","), _Delimited("tsv", "\t"))
