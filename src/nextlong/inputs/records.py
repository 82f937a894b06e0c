"""Records: one file of any known format → a stream of documents as the user gave them.

In:  JSON lines, Parquet, Arrow or plain text, from any fsspec file system, compressed or not.
Out: a `Record` (text and the user's own id) or a `Reject` for each line or row, in file order.
A line that cannot be read costs one line. A file that cannot be read to its end stops the run: half a file must never
pass for a whole one.
"""

from __future__ import annotations

import difflib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from enum import StrEnum
from typing import Any, Final, NamedTuple, NoReturn

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from nextlong.errors import CorpusError
from nextlong.inputs.columns import (
    ABSENT,
    arrow_batches,
    arrow_reader,
    column_at,
    is_string,
    lookup,
    parquet_text_bytes,
    resolve,
    strings,
)
from nextlong.inputs.files import InputFile, Part, check_unchanged, format_of, open_file
from nextlong.recipe import Source

_BOM: Final = b"\xef\xbb\xbf"
_BUFFER_BYTES: Final = 1 << 20
_COLUMN_CHECK_RECORDS: Final = 100
_BATCH_TEXT_BYTES: Final = 4 << 20
# Rows turned into Python strings at once: few, because each may hold megabytes.
_SLICE_ROWS: Final = 64
# The longest line read: each character as two \uXXXX escapes, and room for the other columns.
_ESCAPED_CHAR_BYTES: Final = 12
_OTHER_COLUMNS_BYTES: Final = 64_000_000


class Record(NamedTuple):
    """One document as the user gave it; `line` is the 1-based line or row of its file."""

    text: str
    source_id: str
    line: int


class RejectKind(StrEnum):
    """Why a line or row holds no document, as counts and users are told it."""

    BROKEN_JSON = "broken JSON"
    NOT_AN_OBJECT = "not a JSON object"
    LINE_TOO_LONG = "line too long"
    INVALID_UTF8 = "invalid UTF-8"
    LONE_SURROGATE = "lone surrogate in the text"
    NO_COLUMN = "no text column"
    NULL = "text is null"
    NOT_A_STRING = "text is not a string"
    EMPTY = "empty"
    TOO_LONG = "too long"


class Reject(NamedTuple):
    """One line or row that holds no document."""

    file: str
    line: int
    kind: RejectKind
    detail: str = ""

    @property
    def reason(self) -> str:
        """The kind, and what there is to say of this very line."""
        return f"{self.kind}: {self.detail}" if self.detail else self.kind.value


def count_lines(part: Part) -> int:
    """Return how many lines end in a part of a local file. Raises CorpusError if that cannot be read."""
    ended, left = 0, (part.file.bytes if part.stop is None else part.stop) - part.start
    with _explained(part.file), open(part.file.path, "rb", buffering=0) as stream:
        stream.seek(part.start)
        while block := stream.read(min(_BUFFER_BYTES, left)):
            ended += block.count(b"\n")
            left -= len(block)
        check_unchanged(part.file)
    return ended


def read_records(part: Part, source: Source, *, max_document_chars: int) -> Iterator[Record | Reject]:
    """Stream a file's records and rejects, in file order; memory holds one line, or one record batch.

    Lines too long to hold a document of `max_document_chars` characters are rejects and never held whole.
    Raises CorpusError if the file lacks the text column, cannot be read to its end, or changed since it was listed.
    """
    readers: dict[str, Callable[..., Iterator[Record | Reject]]] = {
        "jsonl": _read_jsonl,
        "parquet": _read_parquet,
        "arrow": _read_arrow,
        "text": _read_text,
    }
    reader = readers[format_of(part.file.name, source)]
    with _explained(part.file):
        with closing(open_file(part.file, source)) as stream:
            yield from reader(stream, part, source, max_document_chars)
        check_unchanged(part.file)


@contextmanager
def _explained(file: InputFile) -> Iterator[None]:
    """Turn errors of the file system and of decoders into a CorpusError that names the file and the cure."""
    try:
        yield
    except FileNotFoundError:
        raise CorpusError(
            f"{file.path} has vanished since it was listed; put it back, or run again without it"
        ) from None
    except PermissionError as error:
        raise CorpusError(f"{file.path} cannot be read ({error.strerror}); change its permissions") from None
    except (OSError, pa.ArrowException) as error:
        check_unchanged(file)
        reason = " ".join(str(error).split())
        raise CorpusError(
            f"{file.path} ends early or is damaged ({reason}); re-download it, or rename it if "
            "it is of another kind than its name says"
        ) from None


# JSON lines


def _read_jsonl(stream: Any, part: Part, source: Source, max_document_chars: int) -> Iterator[Record | Reject]:
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
        text = lookup(value, source.text)
        if text is ABSENT:
            without_column += 1
            keys = keys or _key_names(value)
            if without_column >= _COLUMN_CHECK_RECORDS and not with_column and is_head:
                _refuse_column(file, source.text, keys)
        else:
            with_column += 1
        if isinstance(text, str):
            yield Record(text, _source_id(lookup(value, source.id), file.name, number), number)
        else:
            yield Reject(file.name, number, _why_no_text(text))
    if without_column and not with_column and part.stop is None:
        _refuse_column(file, source.text, keys)


def _lines(stream: Any, part: Part, max_line_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield each line of a part that is not blank with its 1-based number; of one over the limit only its head."""
    reader = io.BufferedReader(stream, _BUFFER_BYTES)
    number, at = part.lines_before, part.start
    if part.start:
        at = reader.seek(part.start - 1) + _skip_line(reader)
        number += at > part.start  # the end of a line that begins in the part before
    while (part.stop is None or at < part.stop) and (line := reader.readline(max_line_bytes + 1)):
        number += 1
        at += len(line)
        if len(line) > max_line_bytes and not line.endswith(b"\n"):
            at += _skip_line(reader)
        if number == 1:
            line = line.removeprefix(_BOM)
        if line and not line.isspace():
            yield number, line


def _skip_line(reader: io.BufferedReader) -> int:
    """Read to the end of the line; return how many bytes that was."""
    skipped = 0
    while piece := reader.readline(_BUFFER_BYTES):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped


def _parse(line: bytes, text_column: str) -> tuple[dict[str, Any], tuple[RejectKind, str] | None]:
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


def _source_id(value: Any, name: str, line: int) -> str:
    """Return the user's own id as a string, else file:line."""
    if value is None or value is ABSENT or value == "" or isinstance(value, dict | list):
        return f"{name}:{line}"
    return str(value).encode("utf-8", "replace").decode()


def _key_names(record: dict[str, Any]) -> list[str]:
    nested = [f"{key}.{inner}" for key, value in record.items() if isinstance(value, dict) for inner in value]
    return [*record, *nested]


def _why_no_text(value: Any) -> RejectKind:
    if value is ABSENT:
        return RejectKind.NO_COLUMN
    return RejectKind.NULL if value is None else RejectKind.NOT_A_STRING


def _refuse_column(file: InputFile, column: str, known: Sequence[str]) -> NoReturn:
    if (count := known.count(column)) > 1:
        raise CorpusError(
            f"{file.path} has {count} columns {column!r}, so it is not clear which holds the text; rename one"
        )
    near = difflib.get_close_matches(column, known, n=1)
    advice = f"did you mean {near[0]!r}?" if near else "set the source's text to the one that holds the text"
    raise CorpusError(
        f"{file.path} has no column {column!r} for the text; it has {', '.join(known[:20]) or 'none'}; {advice}"
    )


# Plain text


def _read_text(stream: Any, part: Part, source: Source, max_document_chars: int) -> Iterator[Record | Reject]:
    del source  # a file of plain text has no columns
    file = part.file
    limit_bytes = 4 * max_document_chars + len(_BOM)
    raw = stream.read(limit_bytes + 1)
    if len(raw) > limit_bytes:
        yield Reject(file.name, 1, RejectKind.TOO_LONG, f"over {max_document_chars:,} characters")
        return
    try:
        yield Record(raw.removeprefix(_BOM).decode("utf-8"), file.name, 1)
    except UnicodeDecodeError:
        yield Reject(file.name, 1, RejectKind.INVALID_UTF8)


# Parquet and Arrow


def _read_parquet(stream: Any, part: Part, source: Source, max_document_chars: int) -> Iterator[Record | Reject]:
    del max_document_chars
    file = part.file
    # Buffered and not pre-buffered: a row group may hold gigabytes.
    parquet = pq.ParquetFile(stream, pre_buffer=False, buffer_size=_BUFFER_BYTES)
    text_path, id_path = _resolve_columns(parquet.schema_arrow, file, source)
    rows = parquet.metadata.num_rows
    row_bytes = parquet_text_bytes(parquet.metadata, source.text) // max(rows, 1)
    batches = parquet.iter_batches(
        batch_size=min(max(_BATCH_TEXT_BYTES // (row_bytes + 1), 1), 4096),
        columns=[".".join(path) for path in (text_path, id_path) if path],
        use_threads=False,
    )
    yield from _read_batches(batches, file, text_path, id_path)


def _read_arrow(stream: Any, part: Part, source: Source, max_document_chars: int) -> Iterator[Record | Reject]:
    del max_document_chars
    file = part.file
    reader = arrow_reader(stream)
    text_path, id_path = _resolve_columns(reader.schema, file, source)
    yield from _read_batches(arrow_batches(reader), file, text_path, id_path)


def _read_batches(
    batches: Iterable[Any], file: InputFile, text_path: tuple[str, ...], id_path: tuple[str, ...]
) -> Iterator[Record | Reject]:
    line = 0
    for batch in batches:
        for start in range(0, batch.num_rows, _SLICE_ROWS):
            rows = batch.slice(start, _SLICE_ROWS)
            texts = strings(column_at(rows, text_path))
            ids = column_at(rows, id_path).to_pylist() if id_path else [None] * rows.num_rows
            for text, own_id in zip(texts, ids, strict=True):
                line += 1
                if isinstance(text, str):
                    yield Record(text, _source_id(own_id, file.name, line), line)
                else:
                    yield Reject(file.name, line, RejectKind.NULL if text is None else RejectKind.INVALID_UTF8)


def _resolve_columns(schema: Any, file: InputFile, source: Source) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the paths of the text and of the id, () for an id that is missing or no scalar."""
    text_path, text_type = resolve(schema, source.text)
    if text_type is None:
        structs = [field for field in schema if pa.types.is_struct(field.type)]
        nested = [f"{field.name}.{inner.name}" for field in structs for inner in field.type]
        _refuse_column(file, source.text, [*schema.names, *nested])
    if not is_string(text_type):
        raise CorpusError(
            f"{file.path}: column {source.text!r} holds {text_type}, not strings; name a column of strings as text"
        )
    id_path, id_type = resolve(schema, source.id)
    is_scalar = id_type is not None and not pa.types.is_nested(id_type) and not pa.types.is_binary(id_type)
    return text_path, id_path if is_scalar else ()
