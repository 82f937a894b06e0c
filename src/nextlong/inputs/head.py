"""Head: the columns of a file's first records, with some of their values, as they are.

In:  a file of any known format. Out: name → values, nested ones under dotted names too; nothing where it cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import islice
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from nextlong.errors import CorpusError
from nextlong.inputs.columns import arrow_batches, arrow_reader
from nextlong.inputs.delimited import rows_of
from nextlong.inputs.files import InputFile, format_of, open_file
from nextlong.recipe import Source

_RECORDS: Final = 20
_LONGEST_LINE_BYTES: Final = 10_000_000


def head_columns(file: InputFile, source: Source) -> dict[str, list[Any]]:
    """Return the columns of the first records, in the order in which they come, with the values that are not null."""
    try:
        with closing(open_file(file)) as stream:
            return _columns(islice(_records(stream, file, source), _RECORDS))
    except (OSError, ValueError, pa.ArrowException, CorpusError):
        return {}  # reading it in a run says what is wrong with it


def _records(stream: Any, file: InputFile, source: Source) -> Iterator[Mapping[str, Any]]:
    kind = format_of(file.name, source)
    if kind == "parquet":
        batches = pq.ParquetFile(stream, pre_buffer=False, buffer_size=1 << 20).iter_batches(
            _RECORDS, use_threads=False
        )
        yield from next(batches).to_pylist() if file.bytes else ()
    elif kind == "arrow":
        yield from next(arrow_batches(arrow_reader(stream))).slice(0, _RECORDS).to_pylist()
    elif kind in ("csv", "tsv"):
        rows = (row for _, row in rows_of(stream, kind, file) if isinstance(row, list))
        header = next(rows, [])
        yield from (dict(zip(header, row, strict=False)) for row in rows)
    elif kind == "jsonl":
        for line in _lines(stream):
            value = orjson.loads(line)
            if isinstance(value, dict):
                yield value


def _lines(stream: Any) -> Iterator[bytes]:
    held = b""
    while len(held) < _LONGEST_LINE_BYTES and (piece := stream.read(1 << 16)):
        *lines, held = (held + piece).split(b"\n")
        yield from filter(bytes.strip, lines)
    if held.strip():
        yield held


def _columns(records: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for record in records:
        nested = {
            f"{key}.{inner}": inner_value
            for key, value in record.items()
            if isinstance(value, dict)
            for inner, inner_value in value.items()
        }
        for name, value in (*record.items(), *nested.items()):
            values = columns.setdefault(name, [])
            if value is not None:
                values.append(value)
    return columns
