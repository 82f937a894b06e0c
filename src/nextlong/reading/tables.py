"""Tables: the rows of Parquet and Arrow files → records.

Columns are converted to Python objects a few rows at a time, so that memory does not depend on the size of a row group. Several
tasks share a large Parquet file by its row groups.
"""

from __future__ import annotations

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
from nextlong.reading.records import InputFormat, Items, ReadRequest, Reject, RejectKind, SplittableFormat
from nextlong.recipe import Source

_HEAD_ROWS: Final = 20
_SLICE_ROWS: Final = 64  # converted to Python strings at a time: few, because each may have megabytes
_BATCH_TEXT_BYTES: Final = 4 << 20
_BUFFER_BYTES: Final = 1 << 20
_SAMPLE_ROWS: Final = 256  # read at a time from a position

_STRING_KINDS: Final = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_Path = tuple[str, ...]  # of a column or a struct field; () if there is none


class _Parquet(SplittableFormat):
    name = "parquet"
    suffixes = (".parquet",)
    compression = "inside"

    def read(self, stream: pa.NativeFile, request: ReadRequest) -> Items:
        """Yield the record or reject of each row; memory holds one batch of rows, for row groups of any size."""
        parquet, part = _open_parquet(stream), request.part
        paths = _resolve_columns(parquet.schema_arrow, request)
        row_bytes = _text_column_bytes(parquet.metadata, request.source.text) // max(parquet.metadata.num_rows, 1)
        size = min(max(_BATCH_TEXT_BYTES // (row_bytes + 1), 1), 4096)
        groups = None if part.row_groups is None else range(*part.row_groups)
        batches = parquet.iter_batches(size, row_groups=groups, columns=_dotted(paths), use_threads=False)
        yield from _read_batches(batches, request, paths)

    def head(self, stream: pa.NativeFile, file: InputFile) -> Iterator[Mapping[str, Any]]:  # noqa: ARG002
        batches = _open_parquet(stream).iter_batches(_HEAD_ROWS, use_threads=False)
        for batch in islice(batches, 1):  # none where the file has no row
            yield from batch.to_pylist()

    def text_bytes(self, file: InputFile, source: Source, head_bytes: int) -> tuple[int, int]:  # noqa: ARG002
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
        for number, group in enumerate(map(footer.row_group, range(footer.num_row_groups))):
            held_bytes += sum(group.column(column).total_compressed_size for column in range(group.num_columns))
            rows += group.num_rows
            if held_bytes >= part_bytes or number == footer.num_row_groups - 1:
                share = held_bytes / max(1, file.bytes)
                parts.append(FilePart(file, lines_before=rows_before, row_groups=(first, number + 1), share=share))
                first, rows_before, held_bytes = number + 1, rows, 0
        return parts if len(parts) > 1 else [FilePart(file)]

    def read_at(
        self, stream: pa.NativeFile, request: ReadRequest, *, position: float, read_bytes: int
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
        max_rows, batches, taken = max(1, round(rows * min(1.0, read_bytes * groups / max(1, file.bytes)))), [], 0
        size, columns = max(1, min(_SAMPLE_ROWS, max_rows)), _dotted(paths)
        for batch in parquet.iter_batches(size, row_groups=[group], columns=columns, use_threads=False):
            batches.append(batch.slice(0, max_rows - taken))
            taken += batches[-1].num_rows
            if taken >= max_rows:
                break
        return _read_batches(batches, request, paths), taken / rows / groups if taken else 1.0


class _Arrow(InputFormat):
    name = "arrow"
    suffixes = (".arrow",)
    compression = "inside"

    def read(self, stream: pa.NativeFile, request: ReadRequest) -> Items:
        """Yield the record or reject of each row of an Arrow file or stream."""
        paths = _resolve_columns(_open_arrow(stream).schema, request)
        reader = _open_arrow(stream, columns={path[0] for path in paths if path})
        yield from _read_batches(_arrow_batches(reader), request, paths)

    def head(self, stream: pa.NativeFile, file: InputFile) -> Iterator[Mapping[str, Any]]:  # noqa: ARG002
        for batch in islice(_arrow_batches(_open_arrow(stream)), 1):
            yield from batch.slice(0, _HEAD_ROWS).to_pylist()

    def text_bytes(self, file: InputFile, source: Source, head_bytes: int) -> tuple[int, int]:  # noqa: ARG002
        """Return (bytes of text, bytes) of the first record batch; only its text column is read from a file."""
        with open_file(file) as stream:
            path, _ = _resolve(_open_arrow(stream).schema, source.text)
            reader = _open_arrow(stream, columns=path[:1])
            for batch in _arrow_batches(reader) if path else ():
                count = getattr(reader, "num_record_batches", None)
                return _column(batch, path).nbytes, batch.nbytes if count is None else file.bytes // count
            return (0, 0)


FORMAT: Final = (_Parquet(), _Arrow())


def _open_parquet(stream: pa.NativeFile) -> pq.ParquetFile:
    # Buffered and not pre-buffered: a row group may hold gigabytes.
    return pq.ParquetFile(stream, pre_buffer=False, buffer_size=_BUFFER_BYTES)


def _open_arrow(stream: pa.NativeFile, *, columns: Container[str] | None = None) -> Any:
    """Return a reader of an Arrow IPC file or stream, whichever it is; it reads only `columns`, if given."""
    names = [] if columns is None else _open_arrow(stream).schema.names
    fields = None if columns is None else [index for index, name in enumerate(names) if name in columns]
    stream.seek(0)
    is_file = stream.read(6) == b"ARROW1"
    stream.seek(0)
    options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=fields)
    return pa.ipc.open_file(stream, options=options) if is_file else pa.ipc.open_stream(stream, options=options)


def _arrow_batches(reader: pa.ipc.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    count = getattr(reader, "num_record_batches", None)  # None for a stream
    return iter(reader) if count is None else map(reader.get_batch, range(count))


def _read_batches(batches: Iterable[pa.RecordBatch], request: ReadRequest, paths: Sequence[_Path]) -> Items:
    """Yield the record or reject of each row; `paths` are those of `_resolve_columns`."""
    text_path, id_path, *others = paths
    name, line = request.part.file.name, request.part.lines_before
    for batch in batches:
        # Columns become Python objects a few rows at a time: `texts`, `ids` and each of `columns` have one value per row.
        for start in range(0, batch.num_rows, _SLICE_ROWS):
            rows = batch.slice(start, _SLICE_ROWS)
            texts = _texts(_column(rows, text_path))
            ids = _column(rows, id_path).to_pylist() if id_path else [None] * rows.num_rows
            columns = [_column(rows, path).to_pylist() for path in others]
            values = zip(*columns, strict=True) if columns else [()] * rows.num_rows
            for text, own_id, row_values in zip(texts, ids, values, strict=True):
                line += 1
                if isinstance(text, str):
                    yield request.record(text, own_id, line, row_values)
                elif isinstance(text, bytes):
                    yield Reject(name, line, RejectKind.INVALID_UTF8)
                else:
                    yield Reject(name, line, RejectKind.NULL if text is None else RejectKind.NOT_A_STRING)


def _texts(column: pa.Array) -> list[Any]:
    """Return the text of each row: None if it is null, bytes if it is not UTF-8, a list if it is not a conversation."""
    if _is_conversation(column.type):
        return [turns if (text := records.conversation_text(turns)) is None else text for turns in column.to_pylist()]
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
    known = [*schema.names, *(f"{field.name}.{inner.name}" for field in structs for inner in field.type)]
    paths = []
    for name, key in request.required():
        path, kind = _resolve(schema, name)
        if kind is None:
            request.refuse_column(name, known, key=key)
        paths.append(path)
        value_type = kind.value_type if key == "text" and pa.types.is_dictionary(kind) else kind
        if key == "text" and not any(is_kind(value_type) for is_kind in _STRING_KINDS) and not _is_conversation(kind):
            problem = f"column {name!r} holds {kind}, not strings or conversations"
            raise CorpusError(f"{request.part.file.path}: {problem}; set text to another column")
    id_path, id_type = _resolve(schema, request.source.id)
    is_scalar = id_type is not None and not pa.types.is_nested(id_type) and not pa.types.is_binary(id_type)
    return [paths[0], id_path if is_scalar else (), *paths[1:]]


def _resolve(schema: pa.Schema, column: str) -> tuple[_Path, pa.DataType | None]:
    """Return path and type of a column, or of the struct field with a dotted name; ((), None) if missing or duplicate."""
    path = (column,) if column in schema.names else tuple(column.split("."))
    kind: pa.DataType = schema.field(path[0]).type if schema.names.count(path[0]) == 1 else None
    for part in path[1:]:
        known = kind is not None and pa.types.is_struct(kind) and kind.get_field_index(part) >= 0
        kind = kind.field(part).type if known else None
    return (path, kind) if kind is not None else ((), None)


def _is_conversation(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is a list of turns."""
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return False
    return any(all(kind.value_type.get_field_index(key) >= 0 for key in pair) for pair in records.TURN_KEYS)


def _column(batch: pa.RecordBatch, path: _Path) -> Any:
    return reduce(pc.struct_field, path[1:], batch.column(path[0]))


def _dotted(paths: Iterable[_Path]) -> list[str]:
    return list(dict.fromkeys(".".join(path) for path in paths if path))


def _text_column_bytes(metadata: pq.FileMetaData, column: str) -> int:
    """Return the uncompressed bytes of a column and its nested columns, from the footer; 0 if it is missing."""
    paths = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    indexes = [index for index, path in enumerate(paths) if f"{path}.".startswith(f"{column}.")]
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    return sum(group.column(index).total_uncompressed_size for group in groups for index in indexes)
