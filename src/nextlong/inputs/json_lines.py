"""JSON lines: one object a line → records; a line that cannot be read costs one line."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
import pyarrow as pa

from nextlong.errors import CorpusError
from nextlong.inputs.columns import ABSENT, lookup
from nextlong.inputs.conversation import as_text
from nextlong.inputs.file_format import FileFormat, Items, Stretch
from nextlong.inputs.files import InputFile, Part, check_unchanged, compression_of, read_head
from nextlong.inputs.record import BOM, Record, Reject, RejectKind, explained, refuse_column, source_id
from nextlong.plain_data import Json
from nextlong.recipe import Source

_LONGEST_HEAD_LINE_BYTES: Final = 10_000_000
BUFFER_BYTES: Final = 1 << 20
_COLUMN_CHECK_RECORDS: Final = 100
# The longest line read: JSON may write a character as two escapes of six bytes; and room for the other columns.
_ESCAPED_CHAR_BYTES: Final = 12
_OTHER_COLUMNS_BYTES: Final = 64_000_000


class Counted(NamedTuple):
    """What a part holds: `lines` that end in it, its bytes (of zstd, those inside), and whether a line ends with the last."""

    lines: int
    bytes: int
    ends_line: bool


def count_lines(part: Part) -> Counted:
    """Return what a part of a local file holds. Raises CorpusError if that cannot be read."""
    lines, size, last = 0, 0, b""
    compression = compression_of(part.file.name)
    with explained(part.file), Path(part.file.path).open("rb", buffering=0) as file:
        file.seek(part.start)
        stop = part.file.bytes if part.stop is None else part.stop
        stream: Any = _Stretch(file, stop - part.start)
        if compression:
            stream = pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), compression)
        while block := stream.read(BUFFER_BYTES):
            lines, size, last = lines + block.count(b"\n"), size + len(block), block[-1:]
        check_unchanged(part.file)
    return Counted(lines, size, last == b"\n")


class _Stretch(io.RawIOBase):
    """The next `size` bytes of a file, read and not mapped: one that is cut meanwhile would kill the process."""

    def __init__(self, file: io.FileIO, size: int) -> None:
        self._file, self._left = file, size

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        block = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(block)
        return block


def read(stream: Any, part: Part, source: Source, max_document_chars: int, wanted: Sequence[str]) -> Items:
    """Yield each line's record or reject; a line too long to hold a document is never held whole."""
    file, is_head = part.file, not part.start  # a later part may be nothing but rejects
    with_column = without_column = 0
    keys: list[str] = []
    max_line_bytes = _OTHER_COLUMNS_BYTES + _ESCAPED_CHAR_BYTES * max_document_chars
    for number, line in _lines(stream, part, max_line_bytes):
        value, problem = (
            _parse(line, source.text) if len(line) <= max_line_bytes else ({}, (RejectKind.LINE_TOO_LONG, ""))
        )
        if problem:
            if number == 1:
                _refuse_array(file, line)
            yield Reject(file.name, number, *problem)
            continue
        text = _text_of(value, source)
        if text is ABSENT:
            without_column += 1
            keys = keys or _key_names(value)
            if without_column >= _COLUMN_CHECK_RECORDS and not with_column and is_head:
                refuse_column(file, source.text, keys)
        else:
            with_column += 1
        if isinstance(text, str):
            values = tuple(None if (field := lookup(value, name)) is ABSENT else field for name in wanted)
            yield Record(text, source_id(lookup(value, source.id), file.name, number), number, values)
        else:
            yield Reject(file.name, number, _why_no_text(text))
    if without_column and not with_column and is_head and part.stop is None:
        refuse_column(file, source.text, keys)


def _lines(stream: Any, part: Part, max_line_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield each line of a part that is not blank with its 1-based number; of one over the limit only its head."""
    number, at, stop = part.lines_before, part.start, part.stop
    if part.skips and part.start:
        number += _skip_bytes(stream, part.start - 1) + 1  # and the line that ends next
    reader = io.BufferedReader(stream, BUFFER_BYTES)
    if part.inside is not None:
        at, stop = 0, part.inside.bytes
        if not part.inside.begins_line:
            at, number = _skip_line(reader), number + 1
    elif part.skips and part.start:
        at = part.start - 1 + _skip_line(reader)
    elif part.start:
        at = reader.seek(part.start - 1) + _skip_line(reader)
        number += at > part.start  # the end of a line that begins in the part before
    while (stop is None or at < stop) and (line := reader.readline(max_line_bytes + 1)):
        number += 1
        at += len(line)
        if len(line) > max_line_bytes and not line.endswith(b"\n"):
            at += _skip_line(reader)
        if number == 1:
            line = line.removeprefix(BOM)
        if line and not line.isspace():
            yield number, line


def _skip_bytes(stream: Any, size: int) -> int:
    """Read so many bytes, or all there are; return how many lines end in them."""
    lines = 0
    while size and (block := stream.read(min(size, BUFFER_BYTES))):
        lines += block.count(b"\n")
        size -= len(block)
    return lines


def _skip_line(reader: io.BufferedReader) -> int:
    """Read to the end of the line; return how many bytes that was."""
    skipped = 0
    while piece := reader.readline(BUFFER_BYTES):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped


def _parse(line: bytes, text_column: str) -> tuple[Json, tuple[RejectKind, str] | None]:
    """Return (object, None) or ({}, (kind, detail))."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as strict:
        try:
            value = _parse_leniently(line, text_column)
        except UnicodeDecodeError:
            return {}, (RejectKind.INVALID_UTF8, "")
        except UnicodeEncodeError:
            return {}, (RejectKind.LONE_SURROGATE, "")
        except (ValueError, RecursionError):
            return {}, (RejectKind.BROKEN_JSON, str(strict))
    return (value, None) if isinstance(value, dict) else ({}, (RejectKind.NOT_AN_OBJECT, ""))


def _parse_leniently(line: bytes, text_column: str) -> Any:
    """Parse what orjson refuses and people write outside the text: NaN in a score, half a surrogate pair in a title."""
    value = json.loads(line.decode("utf-8"))
    text = lookup(value, text_column)
    if isinstance(text, str):
        text.encode("utf-8")
    return value


def _refuse_array(file: InputFile, line: bytes) -> None:
    if file.name.lower().endswith(".json") and line.lstrip().startswith(b"["):
        raise CorpusError(
            f"{file.path} is one JSON array, not JSON lines; convert it: jq -c '.[]' {file.name} > {file.name}l"
        )


def _text_of(value: Any, source: Source) -> Any:
    """Return what the text column holds, a conversation as its text, or ABSENT."""
    found = lookup(value, source.text)
    text = as_text(found)
    return found if text is None else text


def _key_names(record: Json) -> list[str]:
    nested = [f"{key}.{inner}" for key, value in record.items() if isinstance(value, dict) for inner in value]
    return [*record, *nested]


def _why_no_text(value: Any) -> RejectKind:
    if value is ABSENT:
        return RejectKind.NO_COLUMN
    return RejectKind.NULL if value is None else RejectKind.NOT_A_STRING


def head(stream: Any, file: InputFile) -> Iterator[Json]:
    """Yield the first objects; a line that is none costs itself.

    Raises CorpusError for a file that is one array, ValueError if no line is an object.
    """
    problem: ValueError | None = None
    has_objects = False
    for number, line in enumerate(_first_lines(stream)):
        if number == 0:
            _refuse_array(file, line)
        try:
            value = orjson.loads(line.removeprefix(BOM) if number == 0 else line)
        except orjson.JSONDecodeError as error:
            problem = problem or error
            continue
        if isinstance(value, dict):
            has_objects = True
            yield value
    if problem and not has_objects:
        raise problem


def _first_lines(stream: Any) -> Iterator[bytes]:
    held = b""
    while len(held) < _LONGEST_HEAD_LINE_BYTES and (piece := stream.read(1 << 16)):
        *lines, held = (held + piece).split(b"\n")
        yield from filter(bytes.strip, lines)
    if held.strip():
        yield held


def text_bytes(file: InputFile, source: Source, head_bytes: int) -> tuple[int, int]:
    """Return (bytes of text, bytes on disk) of a file's head, as if the line that it cuts went on alike."""
    head, raw_bytes = read_head(file, head_bytes)
    lines = head.split(b"\n")[: None if raw_bytes == file.bytes else -1]
    text_bytes = sum(_line_text_bytes(line, source) for line in lines)
    line_bytes = sum(len(line) + 1 for line in lines)
    return (round(len(head) * text_bytes / line_bytes) if text_bytes else len(head)), raw_bytes


def _line_text_bytes(line: bytes, source: Source) -> int:
    try:
        text = _text_of(orjson.loads(line), source)
    except orjson.JSONDecodeError:
        return 0
    return len(text.encode()) if isinstance(text, str) else 0


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
    """Read the lines that begin in a stretch of the file."""
    start = min(int(place * file.bytes), max(0, file.bytes - stretch))
    stop = min(file.bytes, start + stretch)
    items = read(stream, Part(file, start, stop), source, max_document_chars, wanted)
    return Stretch(items, (stop - start) / max(1, file.bytes))


FORMAT: Final = FileFormat(
    name="jsonl",
    suffixes=(".jsonl", ".ndjson", ".json"),
    read=read,
    head=head,
    text_bytes=text_bytes,
    read_at=read_at,
    is_lines=True,
)
