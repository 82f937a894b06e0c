"""Tables: the rows of record batches, as Parquet and Arrow files have them → records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from nextlong.errors import CorpusError
from nextlong.inputs.columns import column_at, is_string, resolve, strings
from nextlong.inputs.conversation import as_text, is_conversation
from nextlong.inputs.files import InputFile
from nextlong.inputs.record import Record, Reject, RejectKind, refuse_column, source_id
from nextlong.recipe import Source

# Rows turned into Python strings at once: few, because each may hold megabytes.
_SLICE_ROWS: Final = 64
HEAD_ROWS: Final = 20  # that are looked at to see what columns there are

Path = tuple[str, ...]  # of a column, or of a field of a struct


def read_batches(
    batches: Iterable[Any], file: InputFile, paths: Sequence[Path], *, rows_before: int = 0
) -> Iterator[Record | Reject]:
    """Yield the record or reject of each row; `paths` are those of `resolve_columns`."""
    text_path, id_path, *others = paths
    line = rows_before
    for batch in batches:
        for start in range(0, batch.num_rows, _SLICE_ROWS):
            rows = batch.slice(start, _SLICE_ROWS)
            texts = _texts(column_at(rows, text_path))
            ids = column_at(rows, id_path).to_pylist() if id_path else [None] * rows.num_rows
            columns = [column_at(rows, path).to_pylist() for path in others]
            values = zip(*columns, strict=True) if columns else [()] * rows.num_rows
            for text, own_id, row_values in zip(texts, ids, values, strict=True):
                line += 1
                if isinstance(text, str):
                    yield Record(text, source_id(own_id, file.name, line), line, row_values)
                elif isinstance(text, bytes):
                    yield Reject(file.name, line, RejectKind.INVALID_UTF8)
                else:
                    yield Reject(file.name, line, RejectKind.NULL if text is None else RejectKind.NOT_A_STRING)


def _texts(column: Any) -> list[Any]:
    """Return the text of each row; of one that has none None, bytes that are not UTF-8, or a list that is no conversation."""
    if not is_conversation(column.type):
        return strings(column)
    return [turns if (text := as_text(turns)) is None else text for turns in column.to_pylist()]


def resolve_columns(schema: Any, file: InputFile, source: Source, wanted: Sequence[str]) -> list[Path]:
    """Return the paths of the text, of the id, () if it is missing or no scalar, and of the columns wanted beside them."""
    text_path, text_type = resolve(schema, source.text)
    if text_type is None:
        refuse_column(file, source.text, _known(schema))
    if not is_string(text_type) and not is_conversation(text_type):
        raise CorpusError(
            f"{file.path}: column {source.text!r} holds {text_type}, not strings or conversations; name another as text"
        )
    id_path, id_type = resolve(schema, source.id)
    is_scalar = id_type is not None and not pa.types.is_nested(id_type) and not pa.types.is_binary(id_type)
    return [text_path, id_path if is_scalar else (), *(_other(schema, file, name) for name in wanted)]


def _other(schema: Any, file: InputFile, name: str) -> Path:
    path, kind = resolve(schema, name)
    if kind is None:
        refuse_column(file, name, _known(schema), asked_by="keep or where")
    return path


def _known(schema: Any) -> list[str]:
    structs = [field for field in schema if pa.types.is_struct(field.type)]
    return [*schema.names, *(f"{field.name}.{inner.name}" for field in structs for inner in field.type)]


def rows_to_take(rows: int, stretch: int, mean_bytes: float) -> int:
    """Return how many rows of a row group or batch to take: the same share of each, so that none counts for more."""
    return max(1, round(rows * min(1.0, stretch / max(1.0, mean_bytes))))
