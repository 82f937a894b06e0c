"""JSON lines: one object per line → records; an invalid line is one reject."""

from __future__ import annotations

import codecs
import io
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final, NoReturn

import orjson
import pyarrow as pa

from nextlong.errors import CorpusError
from nextlong.reading.compression import DECOMPRESS, compression_of
from nextlong.reading.document_text import (
    ABSENT,
    document_text,
    field_at,
    paths_of,
    value_at,
)
from nextlong.reading.files import FilePart, InputFile
from nextlong.reading.records import (
    Items,
    ReadRequest,
    Reject,
    RejectKind,
    SplittableFormat,
)
from nextlong.text import Json, counted

_MAX_HEAD_BYTES: Final = 10_000_000  # of a line that is read to find the columns
_MAX_HEAD_LINES: Final = 10_000  # without an object
_BUFFER_BYTES: Final = 1 << 20
_COLUMN_CHECK_RECORDS: Final = 100
# Limits the length of a line: JSON may escape a character as two times six bytes, and
# other columns need space.
_ESCAPED_CHAR_BYTES: Final = 12
_OTHER_COLUMNS_BYTES: Final = 64_000_000
# The start of an array of objects, or of one over several lines.
_ARRAY_START: Final = re.compile(rb"\s*\[\s*(?:\{|$)")
# Before each value of a JSON text sequence (RFC 7464).
_RECORD_SEPARATOR: Final = b"\x1e"
_JQ_OBJECTS: Final = "jq -c '.'"
_OVER_LINES: Final = "one JSON object over several lines, not JSON lines"


class _JsonLines(SplittableFormat):
    name = "jsonl"
    suffixes = (".jsonl", ".ndjson", ".json")
    is_lines = True

    def read(self, stream: pa.NativeFile, request: ReadRequest) -> Items:
        """Yield the record or reject of each line.

        A line too long for a document is never held in memory as a whole.
        """
        part = request.part
        source = request.source
        text_columns = source.text_columns
        checker = _ColumnChecker(request)
        text_line_bytes = _ESCAPED_CHAR_BYTES * request.max_document_chars
        max_line_bytes = _OTHER_COLUMNS_BYTES + text_line_bytes
        for number, line in _lines(stream, part, max_line_bytes):
            record: Json | tuple[RejectKind, str]
            if len(line) <= max_line_bytes:
                record = _parse(line, text_columns)
            else:
                record = (RejectKind.LINE_TOO_LONG, "")
            if isinstance(record, tuple):
                if number == 1:
                    _refuse_whole_json(part.file, line)
                yield Reject(part.file.name, number, *record)
                continue
            parts = [value_at(record, column) for column in text_columns]
            if not checker.is_done:
                checker.see(record, parts)
            text = document_text(text_columns, parts)
            if isinstance(text, str):
                values = tuple(_lookup(record, name) for name in request.columns)
                own_id = _lookup(record, source.id)
                yield request.record(text, own_id, number, values)
            else:
                yield Reject(part.file.name, number, *text)
        if part.stop is None:
            checker.finish()

    def rows(self, stream: pa.NativeFile, part: FilePart) -> Iterator[Json]:
        """Yield the objects of a part.

        Raises CorpusError for a JSON array, ValueError if no line is an object.
        """
        problem = ""
        lines = 0
        has_objects = False
        head: list[bytes] = []
        for number, line in _lines(stream, part, _MAX_HEAD_BYTES):
            lines += 1
            if len(head) < 2:
                head.append(line)
            if len(line) > _MAX_HEAD_BYTES:
                # Its end may be far away.
                problem = problem or f"line {number}: {RejectKind.LINE_TOO_LONG}"
                break
            if number == 1 and part.begins_file:
                _refuse_whole_json(part.file, line)
            record = _parse(line, ())
            if isinstance(record, dict):
                has_objects = True
                yield record
            else:
                reject = Reject(part.file.name, number, *record)
                problem = problem or f"line {number}: {reject.reason}"
            if not has_objects and lines == _MAX_HEAD_LINES:
                break
        if lines and not has_objects:
            if part.begins_file:
                _refuse_objects_across_lines(part.file, head)
            counted_lines = counted(lines, "line")
            raise ValueError(
                f"{problem}; none of the first {counted_lines} is a JSON object"
            )

    def split(self, file: InputFile, part_bytes: int) -> list[FilePart]:
        """Return parts of equal size, which may end within a line."""
        count = -(-file.bytes // part_bytes)
        edges = [file.bytes * index // count for index in range(count + 1)]
        return [FilePart(file, start, stop) for start, stop in pairwise(edges)]

    def read_at(
        self,
        stream: pa.NativeFile,
        request: ReadRequest,
        *,
        position: float,
        read_bytes: int,
    ) -> tuple[Items, float]:
        file = request.part.file
        start = min(int(position * file.bytes), max(0, file.bytes - read_bytes))
        stop = min(file.bytes, start + read_bytes)
        items = self.read(stream, replace(request, part=FilePart(file, start, stop)))
        return items, (stop - start) / max(1, file.bytes)


FORMAT: Final = _JsonLines()


class _ColumnChecker:
    """Refuses a file none of whose first records has a text column.

    Only the part at the beginning of a file is judged: a later one may contain rejects
    only. `is_done` once each column was seen.
    """

    def __init__(self, request: ReadRequest) -> None:
        self._request = request
        self._unseen = set(request.source.text_columns)
        if request.part.start:
            self._unseen = set()
        self._records = 0
        self._keys: list[str] = []
        self.is_done = not self._unseen

    def see(self, record: Json, parts: Sequence[Any]) -> None:
        """Note which columns a record has; raise CorpusError if one is never there."""
        self._records += 1
        self._unseen -= _present(self._request.source.text_columns, parts)
        if not self._keys:
            self._keys = [path for path, _ in paths_of(record)]
        self.is_done = not self._unseen
        if self._records >= _COLUMN_CHECK_RECORDS:
            self.finish()

    def finish(self) -> None:
        """Raise CorpusError if a column was in no record, unless there was none."""
        if self._records and self._unseen:
            self._request.refuse_column(min(self._unseen), self._keys)


def _lines(
    stream: pa.NativeFile, part: FilePart, max_line_bytes: int
) -> Iterator[tuple[int, bytes]]:
    """Yield the 1-based number and content of each non-blank line of a part.

    Of an overlong line, only its head.
    """
    reader, number, offset = _at_first_line(stream, part)
    stop = part.stop if part.inside_bytes is None else part.inside_bytes
    while stop is None or offset < stop:
        line = reader.readline(max_line_bytes + 1)
        if not line:
            return
        number += 1
        offset += len(line)
        is_whole = len(line) <= max_line_bytes or line.endswith(b"\n")
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if line and not line.isspace():
            yield number, line
        # The rest of an overlong line is read, but never held as a whole.
        if not is_whole and (stop is None or offset < stop):
            offset += _skip_line(reader)


def _at_first_line(
    stream: pa.NativeFile, part: FilePart
) -> tuple[io.BufferedReader, int, int]:
    """Return a reader at the first line that begins in a part.

    Also returns the number of lines before it, and where it begins: in bytes of the
    file, or of the part's zstd frames.
    """
    number = part.lines_before
    if part.skips and part.start:
        # The last line that begins before the part ends inside it, and counts as a line
        # before the part.
        number += 1 + _skip_bytes(stream, part.start - 1)
    reader = io.BufferedReader(stream, _BUFFER_BYTES)
    if part.inside_bytes is not None:
        if part.begins_line:
            return reader, number, 0
        return reader, number + 1, _skip_line(reader)
    if not part.start:
        return reader, number, 0
    # From the byte before the part: if it ends a line, the part begins one.
    if not part.skips:
        reader.seek(part.start - 1)
    offset = part.start - 1 + _skip_line(reader)
    if not part.skips and offset > part.start:
        number += 1  # a line that begins in the previous part
    return reader, number, offset


def _skip_bytes(stream: pa.NativeFile, count: int) -> int:
    """Read so many bytes; return the number of lines that end in them."""
    lines = 0
    left = count
    while left:
        block = stream.read(min(left, _BUFFER_BYTES))
        if not block:
            break
        lines += block.count(b"\n")
        left -= len(block)
    return lines


def _skip_line(reader: io.BufferedReader) -> int:
    """Read to the end of the line; return the number of bytes."""
    skipped = 0
    while block := reader.readline(_BUFFER_BYTES):
        skipped += len(block)
        if block.endswith(b"\n"):
            break
    return skipped


def _lookup(record: Json, path: str) -> Any:
    """Return the value of a column or nested field; None if the record lacks it."""
    value = field_at(record, path)
    return None if value is ABSENT else value


def _present(columns: Sequence[str], values: Sequence[Any]) -> set[str]:
    pairs = zip(columns, values, strict=True)
    return {column for column, value in pairs if value is not ABSENT}


def _parse(line: bytes, text_columns: Sequence[str]) -> Json | tuple[RejectKind, str]:
    """Return the object of a line, or kind and detail of the error."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        try:
            # Python's parser also accepts common deviations outside the text: NaN as a
            # score, half a surrogate pair in a title.
            value = json.loads(line.decode("utf-8"))
            if isinstance(value, dict):
                parts = [value_at(value, column) for column in text_columns]
                text = document_text(text_columns, parts)
                if isinstance(text, str):
                    text.encode("utf-8")
        except UnicodeDecodeError:
            return RejectKind.INVALID_UTF8, ""
        except UnicodeEncodeError:
            return RejectKind.LONE_SURROGATE, ""
        except (ValueError, RecursionError):
            # The parser's own "line 1" would contradict the line number of the reject.
            # At the end of a truncated line it counts columns from 1 again.
            column = min(error.pos, len(error.doc.rstrip("\r\n"))) + 1
            return RejectKind.BROKEN_JSON, f"{error.msg} at column {column}"
    if isinstance(value, dict):
        return value
    return RejectKind.NOT_AN_OBJECT, ""


def _refuse_whole_json(file: InputFile, line: bytes) -> None:
    """Raise CorpusError if the first line begins one value of several lines."""
    if _ARRAY_START.match(line):
        _refuse(file, "one JSON array, not JSON lines", jq="jq -c '.[]'")
    if line.strip() == b"{":
        _refuse(file, _OVER_LINES, jq=_JQ_OBJECTS)
    if line.startswith(_RECORD_SEPARATOR):
        _refuse(file, "a JSON text sequence, not JSON lines", jq="jq --seq -c '.'")


def _refuse_objects_across_lines(file: InputFile, head: Sequence[bytes]) -> None:
    """Raise CorpusError if objects share a line, or if one goes on in the next line.

    `head` are the first two lines of a file in which no line is an object.
    """
    text = head[0].decode("utf-8", "replace").strip()
    if not text.startswith("{"):
        return
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except RecursionError:
        return
    except json.JSONDecodeError as error:
        is_cut = error.pos >= len(text)
        if is_cut and len(head) > 1:
            second = _parse(head[1], ())
            if isinstance(second, tuple) and second[0] is RejectKind.BROKEN_JSON:
                _refuse(file, _OVER_LINES, jq=_JQ_OBJECTS)
        return
    if text[end:].lstrip().startswith("{"):
        content = "several JSON objects in one line, not JSON lines"
        _refuse(file, content, jq=_JQ_OBJECTS)


def _refuse(file: InputFile, content: str, *, jq: str) -> NoReturn:
    """Raise CorpusError with the command that converts a file to JSON lines."""
    name = shlex.quote(file.name)
    compression = compression_of(file.name)
    is_json = file.name.lower().endswith(".json")
    target = shlex.quote(f"{file.name}l" if is_json else f"{file.name}.jsonl")
    command = f"{jq} {name} > {target}"
    if compression:
        command = f"{DECOMPRESS[compression]} {name} | {jq} > {target}"
    raise CorpusError(
        where=file.path, problem=f"it is {content}", fix=f"convert it: {command}"
    )
