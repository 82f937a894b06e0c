"""Tables: the rows of Parquet, Arrow, CSV and TSV files → records.

Columns are converted to Python objects a few rows at a time, so that memory does not depend on the size of a row group. Several
tasks share a large Parquet file by its row groups. In CSV and TSV, the first row names the columns, and quoting follows RFC
4180: a malformed row is one reject; an unclosed quote stops the run, because it would include the rest of the file in one field.
"""

from __future__ import annotations

import codecs
import csv
import io
import shlex
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nextlong.errors import CorpusError
from nextlong.reading import records
from nextlong.reading.files import FilePart, InputFile, open_file
from nextlong.reading.records import (
    InputFormat,
    Items,
    ReadRequest,
    Reject,
    RejectKind,
    SplittableFormat,
)
from nextlong.recipe import Source

_HEAD_ROWS: Final = 20
_SLICE_ROWS: Final = (
    64  # converted to Python strings at a time: few, because each may have megabytes
)
_BATCH_TEXT_BYTES: Final = 4 << 20
_BUFFER_BYTES: Final = 1 << 20
_SAMPLE_ROWS: Final = 256  # read at a time from a position
_MIN_FIELD_LIMIT_CHARS: Final = (
    64_000_000  # a longer field is treated as an unclosed quote
)
_HEAD_BYTES: Final = 512
_BYTE_ORDER_MARKS: Final = {  # UTF-32's begins with UTF-16's
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}

_STRING_KINDS: Final = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
)
_Path = tuple[str, ...]  # of a column or a struct field; () if there is none


class _Parquet(SplittableFormat):
    name = "parquet"
    suffixes = (".parquet",)
    compression = "inside"

    def read(self, stream: pa.NativeFile, request: ReadRequest) -> Items:
        """Yield the record or reject of each row; memory holds one batch of rows, for row groups of any size."""
        parquet, part = _open_parquet(stream), request.part
        paths = _resolve_columns(parquet.schema_arrow, request)
        row_bytes = _text_column_bytes(parquet.metadata, request.source.text) // max(
            parquet.metadata.num_rows, 1
        )
        size = min(max(_BATCH_TEXT_BYTES // (row_bytes + 1), 1), 4096)
        groups = None if part.row_groups is None else range(*part.row_groups)
        batches = parquet.iter_batches(
            size, row_groups=groups, columns=_dotted(paths), use_threads=False
        )
        yield from _read_batches(batches, request, paths)

    def head(
        self,
        stream: pa.NativeFile,
        file: InputFile,  # noqa: ARG002
    ) -> Iterator[Mapping[str, Any]]:
        batches = _open_parquet(stream).iter_batches(_HEAD_ROWS, use_threads=False)
        for batch in islice(batches, 1):  # none where the file has no row
            yield from batch.to_pylist()

    def text_bytes(
        self,
        file: InputFile,
        source: Source,
        head_bytes: int,  # noqa: ARG002
    ) -> tuple[int, int]:
        """Return (bytes of text, bytes on disk) of a file, from its footer."""
        with open_file(file) as stream:
            return _text_column_bytes(pq.read_metadata(stream), source.text), file.bytes

    def split(self, file: InputFile, part_bytes: int) -> list[FilePart]:
        """Return parts of consecutive row groups of about `part_bytes`; the whole file if its footer cannot be read."""
        try:
            with open_file(file) as stream:
                footer = pq.read_metadata(stream)
        except (OSError, pa.ArrowException):
            return [FilePart(file)]  # reading it reports the error
        parts, first, rows, held_bytes, rows_before = [], 0, 0, 0, 0
        for number, group in enumerate(
            map(footer.row_group, range(footer.num_row_groups))
        ):
            held_bytes += sum(
                group.column(column).total_compressed_size
                for column in range(group.num_columns)
            )
            rows += group.num_rows
            if held_bytes >= part_bytes or number == footer.num_row_groups - 1:
                share = held_bytes / max(1, file.bytes)
                parts.append(
                    FilePart(
                        file,
                        lines_before=rows_before,
                        row_groups=(first, number + 1),
                        share=share,
                    )
                )
                first, rows_before, held_bytes = number + 1, rows, 0
        return parts if len(parts) > 1 else [FilePart(file)]

    def read_at(
        self,
        stream: pa.NativeFile,
        request: ReadRequest,
        *,
        position: float,
        read_bytes: int,
    ) -> tuple[Items, float]:
        """Read rows of the row group at a position."""
        parquet, file = _open_parquet(stream), request.part.file
        groups = parquet.metadata.num_row_groups
        paths = _resolve_columns(parquet.schema_arrow, request)
        if not groups:
            return iter(()), 1.0
        group = min(int(position * groups), groups - 1)
        rows = parquet.metadata.row_group(group).num_rows
        # The same fraction of each row group, so that all have the same weight.
        max_rows, batches, taken = (
            max(1, round(rows * min(1.0, read_bytes * groups / max(1, file.bytes)))),
            [],
            0,
        )
        size, columns = max(1, min(_SAMPLE_ROWS, max_rows)), _dotted(paths)
        for batch in parquet.iter_batches(
            size, row_groups=[group], columns=columns, use_threads=False
        ):
            batches.append(batch.slice(0, max_rows - taken))
            taken += batches[-1].num_rows
            if taken >= max_rows:
                break
        return _read_batches(
            batches, request, paths
        ), taken / rows / groups if taken else 1.0


class _Arrow(InputFormat):
    name = "arrow"
    suffixes = (".arrow",)
    compression = "inside"

    def read(self, stream: pa.NativeFile, request: ReadRequest) -> Items:
        """Yield the record or reject of each row of an Arrow file or stream."""
        paths = _resolve_columns(_open_arrow(stream).schema, request)
        reader = _open_arrow(stream, columns={path[0] for path in paths if path})
        yield from _read_batches(_arrow_batches(reader), request, paths)

    def head(
        self,
        stream: pa.NativeFile,
        file: InputFile,  # noqa: ARG002
    ) -> Iterator[Mapping[str, Any]]:
        for batch in islice(_arrow_batches(_open_arrow(stream)), 1):
            yield from batch.slice(0, _HEAD_ROWS).to_pylist()

    def text_bytes(
        self,
        file: InputFile,
        source: Source,
        head_bytes: int,  # noqa: ARG002
    ) -> tuple[int, int]:
        """Return (bytes of text, bytes) of the first record batch; only its text column is read from a file."""
        with open_file(file) as stream:
            path, _ = _resolve(_open_arrow(stream).schema, source.text)
            reader = _open_arrow(stream, columns=path[:1])
            for batch in _arrow_batches(reader) if path else ():
                count = getattr(reader, "num_record_batches", None)
                return _column(
                    batch, path
                ).nbytes, batch.nbytes if count is None else file.bytes // count
            return (0, 0)


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
            raise CorpusError(
                f"{file.path}:1: the header row is invalid ({header}); correct the row"
            )
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
            elif with_nul := [
                name for name, field in zip(header, row, strict=True) if "\0" in field
            ]:
                yield Reject(
                    file.name,
                    line,
                    RejectKind.BROKEN_ROW,
                    f"a NUL byte in the column {with_nul[0]!r}",
                )
            elif any(
                not field.isascii()
                and any("\udc80" <= char <= "\udcff" for char in field)
                for field in row
            ):
                yield Reject(file.name, line, RejectKind.INVALID_UTF8)
            else:
                own_id = None if id_index is None else row[id_index]
                yield request.record(
                    row[text_index],
                    own_id,
                    line,
                    tuple(row[index] or None for index in indexes),
                )

    def head(
        self, stream: pa.NativeFile, file: InputFile
    ) -> Iterator[Mapping[str, Any]]:
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
        encoding = next(
            (name for mark, name in _BYTE_ORDER_MARKS.items() if head.startswith(mark)),
            None,
        )
        first_row, _, _ = head.partition(b"\n")
        if encoding is None and (nul := first_row.find(b"\0")) >= 0:
            if first_row.count(b"\0") < len(first_row) // 3:
                problem = (
                    f"byte {nul + 1} is NUL, which is not allowed in CSV and TSV files"
                )
                raise CorpusError(
                    f"{file.path}:1: {problem}; correct or replace the file"
                )
            encoding = "UTF-16LE" if nul % 2 else "UTF-16BE"
        if encoding is not None:
            cure = f"iconv -f {encoding} -t UTF-8 {shlex.quote(file.name)} > utf8.csv, or save it as CSV UTF-8"
            raise CorpusError(
                f"{file.path} is {encoding}, but CSV and TSV files must be UTF-8; convert it: {cure}"
            )
        text = io.TextIOWrapper(
            binary, "utf-8-sig", errors="surrogateescape", newline=""
        )
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
                    raise CorpusError(
                        f"{file.path}:{line}: {problem}; {cure}"
                    ) from None
                yield line, reason
                continue
            if row:
                yield line, row

    def _refuse_delimiter(self, header: str, file: InputFile) -> None:
        other = next(
            (char for char in ";|\t," if char != self._delimiter and char in header),
            None,
        )
        if other is not None:
            fixes = {
                ",": "set the source's format: csv",
                "\t": "set the source's format: tsv",
            }
            fix = fixes.get(other, "rewrite it with commas, as in RFC 4180")
            raise CorpusError(
                f"{file.path}: the delimiter is {other!r} instead of {self._delimiter!r}; {fix}"
            )


FORMAT: Final = (_Delimited("csv", ","), _Delimited("tsv", "\t"), _Parquet(), _Arrow())


def _open_parquet(stream: pa.NativeFile) -> pq.ParquetFile:
    # Buffered and not pre-buffered: a row group may hold gigabytes.
    return pq.ParquetFile(stream, pre_buffer=False, buffer_size=_BUFFER_BYTES)


def _open_arrow(stream: pa.NativeFile, *, columns: Container[str] | None = None) -> Any:
    """Return a reader of an Arrow IPC file or stream, whichever it is; it reads only `columns`, if given."""
    names = [] if columns is None else _open_arrow(stream).schema.names
    fields = (
        None
        if columns is None
        else [index for index, name in enumerate(names) if name in columns]
    )
    stream.seek(0)
    is_file = stream.read(6) == b"ARROW1"
    stream.seek(0)
    options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=fields)
    return (
        pa.ipc.open_file(stream, options=options)
        if is_file
        else pa.ipc.open_stream(stream, options=options)
    )


def _arrow_batches(reader: pa.ipc.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    count = getattr(reader, "num_record_batches", None)  # None for a stream
    return iter(reader) if count is None else map(reader.get_batch, range(count))


def _read_batches(
    batches: Iterable[pa.RecordBatch], request: ReadRequest, paths: Sequence[_Path]
) -> Items:
    """Yield the record or reject of each row; `paths` are those of `_resolve_columns`."""
    text_path, id_path, *others = paths
    name, line = request.part.file.name, request.part.lines_before
    for batch in batches:
        # Columns become Python objects a few rows at a time: `ids` and each of `columns` have one value per row.
        for start in range(0, batch.num_rows, _SLICE_ROWS):
            rows = batch.slice(start, _SLICE_ROWS)
            ids = (
                _column(rows, id_path).to_pylist()
                if id_path
                else [None] * rows.num_rows
            )
            columns = [_column(rows, path).to_pylist() for path in others]
            values = zip(*columns, strict=True) if columns else [()] * rows.num_rows
            for text, own_id, row_values in zip(
                _texts(_column(rows, text_path)), ids, values, strict=True
            ):
                line += 1
                if isinstance(text, str):
                    yield request.record(text, own_id, line, row_values)
                elif isinstance(text, bytes):
                    yield Reject(name, line, RejectKind.INVALID_UTF8)
                else:
                    yield Reject(
                        name,
                        line,
                        RejectKind.NULL if text is None else RejectKind.NOT_A_STRING,
                    )


def _texts(column: pa.Array) -> list[Any]:
    """Return the text of each row: None if it is null, bytes if it is not UTF-8, a list if it is not a conversation."""
    if _is_conversation(column.type):
        return [
            turns if (text := records.conversation_text(turns)) is None else text
            for turns in column.to_pylist()
        ]
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        texts: list[Any] = column.cast(pa.large_binary()).to_pylist()
        for row, raw in enumerate(texts):
            with suppress(UnicodeDecodeError):
                texts[row] = None if raw is None else raw.decode("utf-8")
        return texts


def _resolve_columns(schema: pa.Schema, request: ReadRequest) -> list[_Path]:
    """Return the paths of the text, the id (() if it is missing or not a scalar) and the other columns."""
    structs = [field for field in schema if pa.types.is_struct(field.type)]
    known = [
        *schema.names,
        *(f"{field.name}.{inner.name}" for field in structs for inner in field.type),
    ]
    paths = []
    for name, key in request.required():
        path, kind = _resolve(schema, name)
        if kind is None:
            request.refuse_column(name, known, key=key)
        paths.append(path)
        value_type = (
            kind.value_type if key == "text" and pa.types.is_dictionary(kind) else kind
        )
        if (
            key == "text"
            and not any(is_kind(value_type) for is_kind in _STRING_KINDS)
            and not _is_conversation(kind)
        ):
            problem = f"column {name!r} holds {kind}, not strings or conversations"
            raise CorpusError(
                f"{request.part.file.path}: {problem}; set text to another column"
            )
    id_path, id_type = _resolve(schema, request.source.id)
    is_scalar = (
        id_type is not None
        and not pa.types.is_nested(id_type)
        and not pa.types.is_binary(id_type)
    )
    return [paths[0], id_path if is_scalar else (), *paths[1:]]


def _resolve(schema: pa.Schema, column: str) -> tuple[_Path, pa.DataType | None]:
    """Return path and type of a column, or of the struct field with a dotted name; ((), None) if missing or duplicate."""
    path = (column,) if column in schema.names else tuple(column.split("."))
    kind: pa.DataType = (
        schema.field(path[0]).type if schema.names.count(path[0]) == 1 else None
    )
    for part in path[1:]:
        known = (
            kind is not None
            and pa.types.is_struct(kind)
            and kind.get_field_index(part) >= 0
        )
        kind = kind.field(part).type if known else None
    return (path, kind) if kind is not None else ((), None)


def _is_conversation(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is a list of turns."""
    if not (
        pa.types.is_list(kind) or pa.types.is_large_list(kind)
    ) or not pa.types.is_struct(kind.value_type):
        return False
    return any(
        all(kind.value_type.get_field_index(key) >= 0 for key in pair)
        for pair in records.TURN_KEYS
    )


def _column(batch: pa.RecordBatch, path: _Path) -> Any:
    return reduce(pc.struct_field, path[1:], batch.column(path[0]))


def _dotted(paths: Iterable[_Path]) -> list[str]:
    return list(dict.fromkeys(".".join(path) for path in paths if path))


def _text_column_bytes(metadata: pq.FileMetaData, column: str) -> int:
    """Return the uncompressed bytes of a column and its nested columns, from the footer; 0 if it is missing."""
    paths = [
        metadata.schema.column(index).path for index in range(metadata.num_columns)
    ]
    indexes = [
        index for index, path in enumerate(paths) if f"{path}.".startswith(f"{column}.")
    ]
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    return sum(
        group.column(index).total_uncompressed_size
        for group in groups
        for index in indexes
    )
