"""Head: the columns of a file's first records, with some of their values, as they are.

In:  a file of any known format. Out: name → values, nested ones under dotted names too; nothing where it cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from nextlong.errors import CorpusError
from nextlong.inputs.files import InputFile, open_file
from nextlong.inputs.formats import format_of
from nextlong.inputs.tables import HEAD_ROWS
from nextlong.recipe import Source

UNREADABLE: Final = (OSError, ValueError, pa.ArrowException, CorpusError)


def head_columns(file: InputFile, source: Source) -> dict[str, list[Any]]:
    """Return the columns of the first records, in the order in which they come, with the values that are not null."""
    try:
        return read_columns(file, source)
    except UNREADABLE:
        return {}  # reading it in a run says what is wrong with it


def read_columns(file: InputFile, source: Source) -> dict[str, list[Any]]:
    """Return the same. Raises one of `UNREADABLE` for a file that cannot be read."""
    kind = format_of(file.name, source)
    with closing(open_file(file)) as stream:
        return _columns(islice(kind.head(stream, file), HEAD_ROWS))


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
