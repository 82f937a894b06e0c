"""Columns: the string columns of Arrow and Parquet files, by names that may reach into structs.

In:  an open file, or its schema. Out: record batches, paths of columns, their values as Python strings, and their size.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc


def arrow_reader(stream: Any, *, columns: Container[str] | None = None) -> Any:
    """Return a reader of an Arrow IPC file or stream, whichever it is; `columns` are those to read, if not all."""
    stream.seek(0)
    is_file = stream.read(6) == b"ARROW1"
    stream.seek(0)
    fields = None
    if columns is not None:
        fields = [place for place, name in enumerate(arrow_reader(stream).schema.names) if name in columns]
        stream.seek(0)
    options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=fields)
    return pa.ipc.open_file(stream, options=options) if is_file else pa.ipc.open_stream(stream, options=options)


def arrow_batches(reader: Any) -> Iterator[Any]:
    """Iterate over the record batches of either kind of reader."""
    if isinstance(reader, pa.ipc.RecordBatchFileReader):
        return (reader.get_batch(index) for index in range(reader.num_record_batches))
    return iter(reader)


def resolve(schema: Any, column: str) -> tuple[tuple[str, ...], Any]:
    """Return path and type of a column, or of the struct field that a dotted name reaches; ((), None) if none, or two."""
    if column in schema.names:
        if schema.names.count(column) > 1:
            return (), None
        return (column,), schema.field(column).type
    path = tuple(column.split("."))
    kind: Any = schema.field(path[0]).type if schema.names.count(path[0]) == 1 else None
    for part in path[1:]:
        known = kind is not None and pa.types.is_struct(kind) and kind.get_field_index(part) >= 0
        kind = kind.field(part).type if known else None
    return (path, kind) if kind is not None else ((), None)


def is_string(kind: Any) -> bool:
    """Say whether a type is one of strings, whatever their layout."""
    if pa.types.is_dictionary(kind):
        return is_string(kind.value_type)
    return any(is_kind(kind) for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def column_at(batch: Any, path: tuple[str, ...]) -> Any:
    """Return the column, or the field of a struct column, that `resolve` found."""
    column = batch.column(path[0])
    for part in path[1:]:
        column = pc.struct_field(column, part)
    return column


def strings(column: Any) -> list[Any]:
    """Return the values of a string column: str, None, or bytes where they are not UTF-8."""
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        return [_decoded(raw) for raw in column.cast(pa.large_binary()).to_pylist()]


def _decoded(raw: bytes | None) -> str | bytes | None:
    try:
        return None if raw is None else raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw


def parquet_text_bytes(metadata: Any, column: str) -> int:
    """Return the uncompressed bytes of one column, or of what a nested one holds, from the footer; 0 if there is no such column."""
    paths = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    indexes = [index for index, path in enumerate(paths) if path == column or path.startswith(f"{column}.")]
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    return sum(group.column(index).total_uncompressed_size for group in groups for index in indexes)


class _Absent:
    """No such key; None is a value that JSON can hold."""


ABSENT: Final = _Absent()


def lookup(record: Any, column: str) -> Any:
    """Return record[column], or the field that a dotted name reaches, or ABSENT."""
    if not isinstance(record, dict):
        return ABSENT
    if column in record:
        return record[column]
    value: Any = record
    for part in column.split("."):
        if not isinstance(value, dict) or part not in value:
            return ABSENT
        value = value[part]
    return value
