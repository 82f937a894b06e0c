"""Filter: evaluate a source's SQL condition on its columns, with DuckDB.

In:  `filter: language = 'en' AND score > 0.5`, and records with the values of its columns.
Out: the matching records, and `FilteredOut` for those for which the condition is false or NULL. The result must depend only on
the row, so DuckDB has no file access, and subqueries, random numbers and the current time are rejected.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from nextlong.errors import CorpusError, RecipeError
from nextlong.reading.files import InputFile
from nextlong.reading.records import FilteredItem, FilteredOut, Items, Record
from nextlong.recipe import Source
from nextlong.text import Json, first_sentence

_SETTINGS: Final[Json] = {
    "enable_external_access": "false",
    "threads": "1",
    "autoinstall_known_extensions": "false",
}
_BATCH_RECORDS: Final = 1024
_BATCH_CHARS: Final = 8_000_000
_HEAD_CHARS: Final = 200
_ROW: Final = "nextlong row"
_ACROSS_ROWS: Final = (  # prefixes of DuckDB's errors; the rest repeats the condition
    "Binder Error: WHERE clause cannot contain aggregates",
    "Binder Error: UNNEST ",
    "Binder Error: GROUPING ",
    "Binder Error: Window functions ",  # without OVER; those with it are rejected by their class
)
_REFUSED: Final = {
    "SUBQUERY": "a subquery", "STAR": "*", "POSITIONAL_REFERENCE": "#", "PARAMETER": "a parameter", "LAMBDA": "a lambda",
    "WINDOW": "a window",
}  # fmt: skip
# DuckDB's parser takes these for columns if they have no parentheses.
_TIME_KEYWORDS: Final = {
    "current_date",
    "current_time",
    "current_timestamp",
    "localtime",
    "localtimestamp",
}
# Functions, with their number of arguments, that DuckDB wrongly declares CONSISTENT: they read the clock or DuckDB's version.
_FALSELY_CONSISTENT: Final = {
    ("age", 1),
    ("current_localtime", 0),
    ("current_localtimestamp", 0),
    ("version", 0),
}

_Path = tuple[str, ...]  # of a column or a struct field


class _RowFilter:
    """A parsed condition; `columns` are the columns it uses, dotted for struct fields."""

    def __init__(self, expression: str, *, key: str) -> None:
        """Parse a condition; `key` is its recipe key, for errors. Raises RecipeError if it is invalid."""
        try:
            import duckdb
        except ImportError:
            problem = "needs the package duckdb, which is not installed; pip install 'nextlong[filter]'"
            raise RecipeError(f"{key} {problem}") from None
        self._expression, self._key = expression, f"{key}={expression!r}"
        self._connection = duckdb.connect(config=_SETTINGS)
        paths = self._parse()
        self.columns = tuple(".".join(path) for path in paths)
        # Top-level column → the index of each of its values in a record, and its path below the column.
        self._fields: dict[str, list[tuple[int, _Path]]] = {}
        for index, path in enumerate(paths):
            # A struct that is used as a whole includes its fields.
            if not any(path[:depth] in paths for depth in range(1, len(path))):
                self._fields.setdefault(path[0], []).append((index, path[1:]))
        # DuckDB reports conditions that need or produce several rows on an empty table, too.
        columns = {
            name: pa.array([_nested((None,) * len(paths), fields)])[:0]
            for name, fields in self._fields.items()
        }
        try:
            self._select(pa.table({_ROW: pa.array([], pa.int64()), **columns}))
        except duckdb.CatalogException as error:
            raise RecipeError(
                f"{self._key}: {first_sentence(error)}; see the functions of DuckDB"
            ) from None
        except duckdb.Error as error:  # includes type errors, which are ignored here because types are not known yet
            if first_sentence(error).startswith(_ACROSS_ROWS):
                raise RecipeError(
                    f"{self._key} needs or produces several rows ({first_sentence(error)}); a condition "
                    "is evaluated on one document at a time; for lists use list_sum(x), list_contains(x, y), len(x) and similar"
                ) from None

    def apply(
        self, items: Items, *, first_value: int, file: InputFile
    ) -> Iterator[FilteredItem]:
        """Yield the items in order, without the values of the condition's columns, which begin at index `first_value`."""
        held: list[FilteredItem] = []
        chars = 0
        for item in items:
            held.append(item)
            chars += len(item.text) if isinstance(item, Record) else 0
            if len(held) >= _BATCH_RECORDS or chars >= _BATCH_CHARS:
                yield from self._apply_batch(held, first_value, file)
                held, chars = [], 0
        yield from self._apply_batch(held, first_value, file)

    def _apply_batch(
        self, items: Sequence[FilteredItem], first_value: int, file: InputFile
    ) -> Iterator[FilteredItem]:
        import duckdb

        records = [item for item in items if isinstance(item, Record)]
        values = [record.values[first_value:] for record in records]
        # A column of mixed types would be compared as JSON, so a row's result would depend on the other rows of its batch.
        # Therefore rows of the same types are evaluated together; integers and floats count as one type.
        types = [
            [float if type(value) is int else type(value) for value in of]
            for of in zip(*values, strict=True)
        ]
        mixed = [column for column in types if len({*column} - {type(None)}) > 1]
        alike: dict[tuple[type, ...], list[int]] = {}
        for row in range(len(values)):
            alike.setdefault(tuple(column[row] for column in mixed), []).append(row)
        matching: set[int] = (
            set()
        )  # indexes of the records for which the condition is true
        try:
            for rows in alike.values():
                taken = [values[row] for row in rows]
                columns = {
                    name: _array([_nested(row, of) for row in taken])
                    for name, of in self._fields.items()
                }
                matching.update(
                    self._select(pa.table({_ROW: pa.array(rows), **columns}))
                )
        except duckdb.Error as error:
            lines = f"{file.path}:{records[0].line} to {records[-1].line}"
            cure = "compare values of one type: CAST(x AS DOUBLE), or TRY_CAST where some values are of another type"
            raise CorpusError(
                f"{self._key} cannot be evaluated on {lines}: {first_sentence(error)}; {cure}"
            ) from None
        rows_so_far = itertools.count()
        for item in items:
            if not isinstance(item, Record):
                yield item
            elif next(rows_so_far) in matching:
                yield item._replace(values=item.values[:first_value])
            else:
                yield FilteredOut(item.line, item.source_id, item.text[:_HEAD_CHARS])

    def _select(self, records: pa.Table) -> list[int]:
        self._connection.register("record", records)
        try:
            query = f'SELECT "{_ROW}" FROM record WHERE ({self._expression}\n)'
            return [row for (row,) in self._connection.execute(query).fetchall()]
        finally:
            self._connection.unregister("record")

    def _parse(self) -> list[_Path]:
        """Return the columns in the condition. Raises RecipeError for syntax that a condition may not contain."""
        parsed = self._syntax_tree(f"SELECT 1 WHERE ({self._expression}\n)")
        if parsed["error"]:
            problem = f"is not an SQL condition: {parsed['error_message']}"
            raise RecipeError(f"{self._key} {problem}; see the WHERE clause of DuckDB")
        nodes = [statement["node"] for statement in parsed["statements"]]
        if len(nodes) != 1 or nodes[0]["type"] != "SELECT_NODE":
            raise RecipeError(
                f"{self._key} is more than one condition; join them with AND or OR"
            )
        paths: dict[_Path, None] = {}
        for node in _expressions(nodes[0]["where_clause"]):
            if (kind := node["class"]) in _REFUSED:
                problem = f"contains {_REFUSED[kind]}; a condition can use only the columns of one document"
                raise RecipeError(f"{self._key} {problem}")
            if name := self._varying(node):
                why = "changes with every call, so the same files would give different documents"
                raise RecipeError(
                    f"{self._key}: {name} {why}; replace it with a constant"
                )
            if kind == "COLUMN_REF":
                paths[tuple(node["column_names"])] = None
        if not paths:
            problem = "uses no column, so it is the same for every document"
            raise RecipeError(
                f"{self._key} {problem}; use one, such as language = 'en'"
            )
        known: dict[str, str] = {}
        for name in (
            ".".join(path[:depth])
            for path in paths
            for depth in range(1, len(path) + 1)
        ):
            if (other := known.setdefault(name.lower(), name)) != name:
                cure = "spell it as in your files, or rename one of two columns"
                raise RecipeError(
                    f"{self._key} uses {other!r} and {name!r}, which are the same column in SQL; {cure}"
                )
        return list(paths)

    def _varying(self, node: Mapping[str, Any]) -> str:
        """Return a function in an expression that depends on time, chance or the connection; "" if there is none."""
        if node["class"] == "COLUMN_REF":
            name = str(node["column_names"][0]).lower()
            return (
                name
                if len(node["column_names"]) == 1 and name in _TIME_KEYWORDS
                else ""
            )
        if node["class"] != "FUNCTION":
            return ""
        name = node["function_name"].lower()
        arguments = (
            node.get("arguments") or node.get("children") or ()
        )  # `children` in DuckDB 1
        if (name, len(arguments)) in _FALSELY_CONSISTENT:
            return f"{name}()"
        query = "SELECT stability, macro_definition FROM duckdb_functions() WHERE function_name = ?"
        for stability, definition in self._connection.execute(query, [name]).fetchall():
            if stability not in (None, "CONSISTENT"):
                return f"{name}()"
            used = _expressions(
                self._syntax_tree(f"SELECT {definition}").get("statements")
                if definition
                else None
            )
            # A macro with the name of a function calls that function.
            if any(
                inner.get("function_name") != name and self._varying(inner)
                for inner in used
            ):
                return f"{name}()"
        return ""

    def _syntax_tree(self, statement: str) -> Any:
        query = "SELECT json_serialize_sql(?::VARCHAR)"
        return json.loads(self._connection.execute(query, [statement]).fetchall()[0][0])


@lru_cache(maxsize=64)
def filter_of(source: Source) -> _RowFilter | None:
    """Return the parsed filter of a source, None if it has none. Raises RecipeError."""
    return (
        None
        if source.filter is None
        else _RowFilter(source.filter, key=f"ingest.sources ({source.label}): filter")
    )


def named_columns(source: Source) -> tuple[str, ...]:
    """Return the columns in a source's `metadata` and `filter`, in this order."""
    row_filter = filter_of(source)
    return (*source.metadata, *(row_filter.columns if row_filter else ()))


def apply_filter(
    items: Items, source: Source, file: InputFile
) -> Iterator[FilteredItem]:
    """Apply the source's filter to items that were read with `named_columns`."""
    row_filter = filter_of(source)
    return (
        items
        if row_filter is None
        else row_filter.apply(items, first_value=len(source.metadata), file=file)
    )


def _expressions(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, dict):
        if "class" in value:
            yield value
        for below in value.values():
            yield from _expressions(below)
    elif isinstance(value, list):
        for below in value:
            yield from _expressions(below)


def _nested(row: tuple[Any, ...], fields: Sequence[tuple[int, _Path]]) -> Any:
    """Return the value of a column, or a struct of the fields in use."""
    if not fields[0][1]:
        return row[fields[0][0]]
    struct: dict[str, Any] = {}
    for index, path in fields:
        below = struct
        for part in path[:-1]:
            below = below.setdefault(part, {})
        below[path[-1]] = row[index]
    return struct


def _array(values: list[Any]) -> pa.Array:
    """Return values as an array of their common type, mixed numbers as float64, other mixed types as JSON."""
    is_number = {type(value) for value in values} - {type(None)} == {int, float}
    try:
        return pa.array(values, pa.float64() if is_number else None)
    except (pa.ArrowException, OverflowError):
        texts = (
            value if isinstance(value, str | None) else json.dumps(value, default=str)
            for value in values
        )
        return pa.array(list(texts))
