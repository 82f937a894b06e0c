"""Tables: the rows of Parquet, Arrow, CSV and TSV files → records.

Columns are converted to Python objects a few rows at a time, so that memory does not
depend on the size of a row group. Several tasks share a large Parquet file by its row
groups. In CSV and TSV, the first row names the columns, and quoting follows RFC 4180: a
malformed row is one reject; an unclosed quote stops the run, because it would include
the rest of the file in one field.
"""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nextlong.errors import CorpusError
from nextlong.reading.document_text import (
    EACH,
    TURN_KEYS,
    document_text,
    splits_of,
    values_inside,
)
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
from nextlong.text import Rows

# Converted to Python strings at a time: few, because each may have megabytes.
_SLICE_ROWS: Final = 64
_BATCH_TEXT_BYTES: Final = 4 << 20
_BUFFER_BYTES: Final = 1 << 20
_SAMPLE_ROWS: Final = 256  # read at a time from a position
# A longer field is treated as an unclosed quote.
_MIN_FIELD_LIMIT_CHARS: Final = 64_000_000
_DELIMITERS: Final = ";|\t,"
# What a user runs to replace a delimiter. Bytes that are not UTF-8 stay what they are.
_REWRITE: Final = (
    "import csv, sys; csv.field_size_limit(2**30); "
    "coding = dict(newline='', encoding='utf-8', errors='surrogateescape'); "
    "sys.stdout.reconfigure(**coding); csv.writer(sys.stdout).writerows("
    "csv.reader(open(sys.argv[1], **coding), delimiter='{delimiter}'))"
)
_HEAD_BYTES: Final = 512
_MAX_NAME_CHARS: Final = 500  # of a column; a longer one is a text

# Values of these types can be text. A column that is null in every row has its own
# type.
_TEXT_KINDS: Final = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
    pa.types.is_null,
)
_LIST_KINDS: Final = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)
_NOT_UTF8: Final = b"\xff"  # stands for a value with a string that is not UTF-8
_Path = tuple[str, ...]  # of a column or a struct field; () if there is none


@dataclass(frozen=True)
class _TextColumn:
    """A column of the text, and the path inside the items of its list: `.text`."""

    path: _Path
    inside: str | None = None
    # Why its values are no text, unless all of them are null.
    error: CorpusError | None = None


@dataclass(frozen=True)
class _Columns:
    """The columns that are read of a file; the path of the id is () if it has none."""

    texts: tuple[_TextColumn, ...]
    id: _Path
    others: tuple[_Path, ...]

    @property
    def dotted(self) -> list[str]:
        """The names of the columns, each once; the parts of a path joined by dots."""
        return list(dict.fromkeys(".".join(path) for path in self._paths))

    @property
    def top_level(self) -> set[str]:
        """The columns that contain them."""
        return {path[0] for path in self._paths}

    @property
    def _paths(self) -> list[_Path]:
        paths = [*(text.path for text in self.texts), self.id, *self.others]
        return [path for path in paths if path]


class _Parquet(SplittableFormat):
    name = "parquet"
    is_text = False
    suffixes = (".parquet",)
    compression = "inside"

    def read(self, stream: pa.NativeFile, request: ReadRequest) -> Items:
        """Yield the record or reject of each row.

        Memory holds one batch of rows, for row groups of any size.
        """
        parquet = _open_parquet(stream)
        columns = _resolve_columns(parquet.schema_arrow, request)
        text_bytes = _text_column_bytes(parquet.metadata, request.source)
        row_bytes = text_bytes // max(parquet.metadata.num_rows, 1)
        # Few rows of long texts, so that memory holds about _BATCH_TEXT_BYTES.
        batch_rows = min(max(_BATCH_TEXT_BYTES // (row_bytes + 1), 1), 4096)
        batches = parquet.iter_batches(
            batch_rows,
            row_groups=_row_groups(request.part),
            columns=columns.dotted,
            use_threads=False,
        )
        yield from _read_batches(batches, request, columns)

    def rows(self, stream: pa.NativeFile, part: FilePart) -> Rows:
        batches = _open_parquet(stream).iter_batches(
            _SLICE_ROWS, row_groups=_row_groups(part), use_threads=False
        )
        for batch in batches:
            yield from _python_rows(batch)

    def text_bytes(
        self,
        file: InputFile,
        source: Source,
        head_bytes: int,  # noqa: ARG002
    ) -> tuple[int, int]:
        """Return (bytes of text, bytes on disk) of a file, from its footer."""
        with open_file(file) as stream:
            return _text_column_bytes(pq.read_metadata(stream), source), file.bytes

    def split(self, file: InputFile, part_bytes: int) -> list[FilePart]:
        """Return parts of consecutive row groups of about `part_bytes`.

        The whole file if its footer cannot be read.
        """
        try:
            with open_file(file) as stream:
                footer = pq.read_metadata(stream)
        except (OSError, pa.ArrowException):
            return [FilePart(file)]  # reading it reports the error
        parts = []
        first_group = 0
        rows_before = 0
        rows = 0
        collected_bytes = 0
        for index in range(footer.num_row_groups):
            group = footer.row_group(index)
            collected_bytes += _compressed_bytes(group)
            rows += group.num_rows
            is_last = index == footer.num_row_groups - 1
            if collected_bytes >= part_bytes or is_last:
                part = FilePart(
                    file,
                    lines_before=rows_before,
                    row_groups=(first_group, index + 1),
                    share=collected_bytes / max(1, file.bytes),
                )
                parts.append(part)
                first_group = index + 1
                rows_before = rows
                collected_bytes = 0
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
        parquet = _open_parquet(stream)
        groups = parquet.metadata.num_row_groups
        columns = _resolve_columns(parquet.schema_arrow, request)
        if groups == 0:
            return iter(()), 1.0
        group = min(int(position * groups), groups - 1)
        rows = parquet.metadata.row_group(group).num_rows
        # The same fraction of each row group, so that all have the same weight.
        fraction = min(1.0, read_bytes * groups / max(1, request.part.file.bytes))
        max_rows = max(1, round(rows * fraction))
        batch_rows = max(1, min(_SAMPLE_ROWS, max_rows))
        batches: list[pa.RecordBatch] = []
        rows_read = 0
        for batch in parquet.iter_batches(
            batch_rows, row_groups=[group], columns=columns.dotted, use_threads=False
        ):
            batches.append(batch.slice(0, max_rows - rows_read))
            rows_read += batches[-1].num_rows
            if rows_read >= max_rows:
                break
        share = rows_read / rows / groups if rows_read else 1.0
        return _read_batches(batches, request, columns), share


class _Arrow(InputFormat):
    name = "arrow"
    is_text = False
    suffixes = (".arrow",)
    compression = "inside"

    def read(self, stream: pa.NativeFile, request: ReadRequest) -> Items:
        """Yield the record or reject of each row of an Arrow file or stream."""
        columns = _resolve_columns(_open_arrow(stream).schema, request)
        # Opened again, because the columns to read must be known before.
        reader = _open_arrow(stream, columns=columns.top_level)
        yield from _read_batches(_arrow_batches(reader), request, columns)

    def rows(
        self,
        stream: pa.NativeFile,
        part: FilePart,  # noqa: ARG002
    ) -> Rows:
        for batch in _arrow_batches(_open_arrow(stream)):
            for start in range(0, batch.num_rows, _SLICE_ROWS):
                yield from _python_rows(batch.slice(start, _SLICE_ROWS))

    def text_bytes(
        self,
        file: InputFile,
        source: Source,
        head_bytes: int,  # noqa: ARG002
    ) -> tuple[int, int]:
        """Return (bytes of text, bytes) of the first record batch.

        Of an Arrow file, only the text columns are read.
        """
        with open_file(file) as stream:
            schema = _open_arrow(stream).schema
            texts = [_resolve_text(schema, name) for name in source.text_columns]
            paths = [text.path for text, kind in texts if kind is not None]
            if not paths:
                return (0, 0)
            reader = _open_arrow(stream, columns={path[0] for path in paths})
            count = getattr(reader, "num_record_batches", None)
            for batch in _arrow_batches(reader):
                text_bytes = sum(_column(batch, path).nbytes for path in paths)
                # A stream has all columns of its batches in memory.
                batch_bytes = batch.nbytes if count is None else file.bytes // count
                return text_bytes, batch_bytes
            return (0, 0)


class _Delimited(InputFormat):
    def __init__(self, name: str, delimiter: str) -> None:
        self.name = name
        self.suffixes = (f".{name}",)
        self._delimiter = delimiter

    def read(self, stream: pa.NativeFile, request: ReadRequest) -> Items:
        """Yield the record or reject of each row, with the line on which it begins.

        Empty fields except the text are None.
        """
        file = request.part.file
        source = request.source
        binary, first_row = _first_row(stream, file)
        rows = self._rows(binary, file, max_field_chars=2 * request.max_document_chars)
        _, header = next(rows, (1, None))
        if header is None:
            return
        if isinstance(header, str):
            self._refuse_other_delimiter(first_row, file)
            raise CorpusError(
                where=f"{file.path}:1",
                problem=f"the header row is invalid ({header})",
                fix="correct the row",
            )
        names = [name.strip() for name in header]
        self._check_names(names, first_row, request)
        id_index = names.index(source.id) if names.count(source.id) == 1 else None
        text_indexes = [names.index(name) for name in source.text_columns]
        indexes = [names.index(name) for name in request.columns]
        for line, row in rows:
            # A row that the parser refuses is its message.
            if isinstance(row, str):
                yield Reject(file.name, line, RejectKind.BROKEN_ROW, row)
                continue
            problem = _row_problem(row, header)
            if problem is not None:
                yield Reject(file.name, line, *problem)
                continue
            own_id = None if id_index is None else row[id_index]
            fields = [row[index] for index in text_indexes]
            text = document_text(source.text_columns, fields)
            assert isinstance(text, str), text  # fields are strings
            values = tuple(row[index] or None for index in indexes)
            yield request.record(text, own_id, line, values)

    def _check_names(
        self, names: Sequence[str], first_row: bytes, request: ReadRequest
    ) -> None:
        """Raise CorpusError unless each column of a request is there once."""
        file = request.part.file
        if len(names) == 1 and request.source.text_columns != tuple(names):
            self._refuse_single_name(names[0], file)
        for name, key in request.required():
            count = names.count(name)
            if count == 0:
                self._refuse_other_delimiter(first_row, file, wanted=name)
            if count != 1:
                request.refuse_column(name, names, key=key)

    def rows(self, stream: pa.NativeFile, part: FilePart) -> Rows:
        """Yield the rows; empty fields are None.

        Raises CorpusError if the file uses another delimiter, or has no header.
        """
        file = part.file
        binary, first_row = _first_row(stream, file)
        header: list[str] | None = None
        problem = ""
        has_rows = False
        for line, row in self._rows(binary, file):
            if isinstance(row, str):
                problem = problem or f"line {line}: {row}"
            elif header is None:
                header = [name.strip() for name in row]
                self._check_header(header, file)
            elif len(row) != len(header):
                # A run rejects it too.
                problem = problem or f"line {line}: {_count_problem(row, header)}"
            else:
                has_rows = True
                fields = zip(header, row, strict=True)
                yield {name: field or None for name, field in fields}
        if problem and not has_rows:
            self._refuse_other_delimiter(first_row, file)
            raise ValueError(
                f"{problem}; no row is valid; quote fields that contain the delimiter, "
                "and double quotes inside them"
            )

    def _check_header(self, header: list[str], file: InputFile) -> None:
        if len(header) == 1:
            self._refuse_single_name(header[0], file)
        if any(len(name) > _MAX_NAME_CHARS for name in header):
            raise CorpusError(
                where=f"{file.path}:1",
                problem="the first row holds a text instead of the names of columns",
                fix="insert a row with their names, such as id and text",
            )

    def _rows(
        self, binary: io.BufferedReader, file: InputFile, *, max_field_chars: int = 0
    ) -> Iterator[tuple[int, list[str] | str]]:
        """Yield (first line, fields or error) of each row; blank lines are skipped.

        Bytes that are not UTF-8 become lone surrogates. Raises CorpusError for an
        unclosed quote.
        """
        # A setting of the whole process; Python's default is 131,072 characters.
        csv.field_size_limit(max(_MIN_FIELD_LIMIT_CHARS, max_field_chars))
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
                    raise CorpusError(
                        where=f"{file.path}:{line}",
                        problem="the row that begins here has an unclosed quote (read "
                        f"up to line {rows.line_num:,})",
                        fix="close it, and double quotes inside a quoted field",
                    ) from None
                yield line, reason
                continue
            if row:
                yield line, row

    def _refuse_single_name(self, name: str, file: InputFile) -> None:
        """Raise CorpusError if the only name of a header contains another delimiter."""
        for char in _DELIMITERS:
            if char != self._delimiter and char in name:
                raise self._wrong_delimiter(char, file)

    def _refuse_other_delimiter(
        self, first_row: bytes, file: InputFile, *, wanted: str | None = None
    ) -> None:
        """Raise CorpusError if another delimiter parts the first row into more names.

        If a column is `wanted`, it must be one of them.
        """
        text = first_row.decode("utf-8-sig", "replace").strip()
        own_names = _split_by(self._delimiter, text)
        for char in _DELIMITERS:
            names = _split_by(char, text)
            has_wanted = wanted is None or wanted in names
            if len(names) > len(own_names) and has_wanted:
                raise self._wrong_delimiter(char, file)

    def _wrong_delimiter(self, other: str, file: InputFile) -> CorpusError:
        code = _REWRITE.format(delimiter=other)
        name = shlex.quote(file.path)
        fix = f'rewrite it with commas: python -c "{code}" {name} > NEW.csv'
        if other == ",":
            fix = "set the source's format: csv"
        elif other == "\t":
            fix = "set the source's format: tsv"
        return CorpusError(
            where=file.path,
            problem=f"the delimiter is {other!r} instead of {self._delimiter!r}",
            fix=fix,
        )


FORMAT: Final = (_Delimited("csv", ","), _Delimited("tsv", "\t"), _Parquet(), _Arrow())


def _first_row(
    stream: pa.NativeFile, file: InputFile
) -> tuple[io.BufferedReader, bytes]:
    """Return a reader of a file from its beginning, and the head of its first row.

    Raises CorpusError if the row contains a NUL byte.
    """
    binary = io.BufferedReader(stream)
    first_row, _, _ = binary.peek(_HEAD_BYTES)[:_HEAD_BYTES].partition(b"\n")
    nul = first_row.find(b"\0")
    if nul >= 0:
        raise CorpusError(
            where=f"{file.path}:1",
            problem=f"byte {nul + 1} is NUL, which is not allowed in CSV and TSV files",
            fix="correct or replace the file",
        )
    return binary, first_row


def _split_by(delimiter: str, row: str) -> list[str]:
    """Return the names in a row with this delimiter; it may be cut."""
    try:
        names = next(csv.reader([row], delimiter=delimiter), [])
    except csv.Error:
        return []
    return [name.strip() for name in names]


def _row_problem(
    row: Sequence[str], header: Sequence[str]
) -> tuple[RejectKind, str] | None:
    """Return why a row is rejected, as kind and detail; None if it is accepted."""
    if len(row) != len(header):
        return RejectKind.BROKEN_ROW, _count_problem(row, header)
    for name, field in zip(header, row, strict=True):
        if "\0" in field:
            return RejectKind.BROKEN_ROW, f"a NUL byte in the column {name!r}"
    for field in row:
        # `surrogateescape` has read each byte that is not UTF-8 as one of these.
        if not field.isascii() and any("\udc80" <= char <= "\udcff" for char in field):
            return RejectKind.INVALID_UTF8, ""
    return None


def _count_problem(row: Sequence[str], header: Sequence[str]) -> str:
    return f"{len(row)} fields, the first row has {len(header)}"


def _open_parquet(stream: pa.NativeFile) -> pq.ParquetFile:
    # Buffered and not pre-buffered: a row group may hold gigabytes.
    return pq.ParquetFile(stream, pre_buffer=False, buffer_size=_BUFFER_BYTES)


def _row_groups(part: FilePart) -> range | None:
    """Return the row groups of a part, None for all."""
    return None if part.row_groups is None else range(*part.row_groups)


def _compressed_bytes(group: pq.RowGroupMetaData) -> int:
    columns = map(group.column, range(group.num_columns))
    return sum(column.total_compressed_size for column in columns)


def _open_arrow(stream: pa.NativeFile, *, columns: Container[str] | None = None) -> Any:
    """Return a reader of an Arrow IPC file or stream, whichever it is.

    It reads only `columns`, if given.
    """
    field_indexes = None
    if columns is not None:
        names = _open_arrow(stream).schema.names
        field_indexes = [index for index, name in enumerate(names) if name in columns]
    stream.seek(0)
    is_file = stream.read(6) == b"ARROW1"
    stream.seek(0)
    options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=field_indexes)
    if is_file:
        return pa.ipc.open_file(stream, options=options)
    return pa.ipc.open_stream(stream, options=options)


def _arrow_batches(reader: pa.ipc.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    count = getattr(reader, "num_record_batches", None)  # None for a stream
    return iter(reader) if count is None else map(reader.get_batch, range(count))


def _read_batches(
    batches: Iterable[pa.RecordBatch], request: ReadRequest, columns: _Columns
) -> Items:
    """Yield the record or reject of each row."""
    file_name = request.part.file.name
    line = request.part.lines_before
    for batch in batches:
        # Columns become Python objects a few rows at a time; each of these lists has
        # one entry per row.
        for start in range(0, batch.num_rows, _SLICE_ROWS):
            rows = batch.slice(start, _SLICE_ROWS)
            ids = [None] * rows.num_rows
            if columns.id:
                ids = _column(rows, columns.id).to_pylist()
            others = [_column(rows, path).to_pylist() for path in columns.others]
            values = zip(*others, strict=True) if others else [()] * rows.num_rows
            texts = zip(*(_values(rows, text) for text in columns.texts), strict=True)
            for parts, own_id, row_values in zip(texts, ids, values, strict=True):
                line += 1
                text = document_text(request.source.text_columns, parts)
                if isinstance(text, str):
                    yield request.record(text, own_id, line, row_values)
                else:
                    yield Reject(file_name, line, *text)


def _python_rows(batch: pa.RecordBatch) -> Rows:
    """Yield the rows as dictionaries; values that Python cannot hold are their text."""
    names = batch.schema.names
    columns = [_python_values(column) for column in batch.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def _python_values(column: pa.Array) -> list[Any]:
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):  # not UTF-8, or a time outside Python's range
        return [_value_or_bytes(scalar) for scalar in column]


def _values(rows: pa.RecordBatch, text: _TextColumn) -> list[Any]:
    """Return the value of each row in a text column.

    Bytes for a string that is not UTF-8. Raises CorpusError for a column of a type that
    is no text, such as numbers.
    """
    column = _column(rows, text.path)
    if text.error is not None:
        # A shard without any text has some type: null, or that of pandas' NaN.
        if column.null_count < len(column):
            raise text.error
        return [None] * len(column)
    try:
        values = column.to_pylist()
    except UnicodeDecodeError:
        values = [_value_or_bytes(scalar) for scalar in column]
    if text.inside is None:
        return list(values)
    return [
        value if value is _NOT_UTF8 else values_inside(value, text.inside)
        for value in values
    ]


def _value_or_bytes(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return _NOT_UTF8


def _resolve_columns(schema: pa.Schema, request: ReadRequest) -> _Columns:
    """Return where the columns of a request are.

    Raises CorpusError for one that is missing.
    """
    texts = []
    for name in request.source.text_columns:
        text, kind = _resolve_text(schema, name)
        if kind is None:
            request.refuse_column(name, _paths_in(schema))
        if not _is_text(kind):
            text = replace(text, error=_not_text(request.part.file, name, kind))
        texts.append(text)
    others = []
    for name in request.columns:
        path, kind = _resolve(schema, name)
        if kind is None:
            request.refuse_column(name, _paths_in(schema), key="metadata or filter")
        others.append(path)
    id_path, id_type = _resolve(schema, request.source.id)
    is_nested_or_binary = id_type is not None and (
        pa.types.is_nested(id_type) or pa.types.is_binary(id_type)
    )
    if is_nested_or_binary:
        id_path = ()  # such values are no ids
    return _Columns(tuple(texts), id_path, tuple(others))


def _resolve_text(
    schema: pa.Schema, name: str
) -> tuple[_TextColumn, pa.DataType | None]:
    """Return a text column, which may be inside a list (`a[].b`), and its type.

    The type is None if the column is missing.
    """
    path, kind = _resolve(schema, name)
    if kind is not None or EACH not in name:
        return _TextColumn(path), kind
    column, _, inside = name.partition(EACH)
    path, kind = _resolve(schema, column)
    return _TextColumn(path, inside), _type_inside(kind, f"{EACH}{inside}")


def _type_inside(kind: pa.DataType | None, inside: str) -> pa.DataType | None:
    """Return the type at a path such as `[].text` inside a type; None for none."""
    while inside and kind is not None and not pa.types.is_null(kind):
        if inside.startswith(EACH):
            kind = kind.value_type if _is_list(kind) else None
            inside = inside.removeprefix(EACH)
        else:
            part, mark, rest = inside.removeprefix(".").partition(EACH)
            _, kind = _resolve_inside(kind, part)
            inside = mark + rest
    return kind


def _field_type(kind: pa.DataType | None, name: str) -> pa.DataType | None:
    if kind is None or not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
        return None
    return kind.field(name).type


def _paths_in(schema: pa.Schema) -> list[str]:
    """Return the names of columns, and the paths of fields inside them.

    These are fields of structs and of lists of structs.
    """
    paths = list(schema.names)
    for field in schema:
        paths += _field_paths(field.name, field.type)
    return paths


def _field_paths(name: str, kind: pa.DataType) -> list[str]:
    if _is_list(kind) and pa.types.is_struct(kind.value_type):
        return [f"{name}{EACH}.{field.name}" for field in kind.value_type]
    if pa.types.is_struct(kind):
        return [f"{name}.{field.name}" for field in kind]
    return []


def _not_text(file: InputFile, name: str, kind: pa.DataType) -> CorpusError:
    """Return the error for a column of a type that holds no text."""
    fields = _field_paths(name, kind)
    better = f"one of its fields: {', '.join(fields)}" if fields else "another column"
    return CorpusError(
        where=file.path,
        problem=f"column {name!r} holds {kind}, not text",
        fix=f"set text to {better}",
    )


def _resolve(schema: pa.Schema, column: str) -> tuple[_Path, pa.DataType | None]:
    """Return path and type of a column, or of the struct field with a dotted name.

    ((), None) if it is missing, or there are two.
    """
    if schema.names.count(column) > 1:
        return (), None
    if column in schema.names:
        return (column,), schema.field(column).type
    for name, inside in splits_of(column):
        if schema.names.count(name) == 1:
            path, kind = _resolve_inside(schema.field(name).type, inside)
            if kind is not None:
                return (name, *path), kind
    return (), None


def _resolve_inside(kind: pa.DataType, field: str) -> tuple[_Path, pa.DataType | None]:
    """Return path and type of a field inside a type; ((), None) if there is none."""
    if pa.types.is_null(kind):
        # A struct that is null in every row: so are its fields.
        return (), kind
    whole = _field_type(kind, field)
    if whole is not None:
        return (field,), whole
    for name, inside in splits_of(field):
        outer = _field_type(kind, name)
        if outer is not None:
            path, found = _resolve_inside(outer, inside)
            if found is not None:
                return (name, *path), found
    return (), None


def _is_text(kind: pa.DataType) -> bool:
    """Return whether values of an Arrow type can be text.

    Such are strings, bytes, conversations and lists of these.
    """
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    if _is_list(kind):
        return _is_turn(kind.value_type) or _is_text(kind.value_type)
    return any(is_kind(kind) for is_kind in _TEXT_KINDS)


def _is_list(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in _LIST_KINDS)


def _is_turn(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is a turn of a conversation."""
    if not pa.types.is_struct(kind):
        return False
    for role_key, content_key in TURN_KEYS:
        has_role = kind.get_field_index(role_key) >= 0
        if has_role and kind.get_field_index(content_key) >= 0:
            return True
    return False


def _column(batch: pa.RecordBatch, path: _Path) -> Any:
    return reduce(pc.struct_field, path[1:], batch.column(path[0]))


def _text_column_bytes(metadata: pq.FileMetaData, source: Source) -> int:
    """Return the uncompressed bytes of the text columns, from the footer; 0 if missing.

    Columns inside a text column count too.
    """
    # Of `a[].b`, all of `a` is counted: the footer names the lists inside in several
    # ways.
    starts = [f"{name.partition(EACH)[0]}." for name in source.text_columns]
    indexes = []
    for index in range(metadata.num_columns):
        path = f"{metadata.schema.column(index).path}."
        if path.startswith(tuple(starts)):
            indexes.append(index)
    text_bytes = 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for index in indexes:
            text_bytes += group.column(index).total_uncompressed_size
    return text_bytes
