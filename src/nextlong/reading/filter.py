"""Filter: a source's condition on its columns, an SQL expression that DuckDB evaluates.

In:  `filter: language = 'en' AND score > 0.5`, and records with the values of the columns that it names.
Out: the same records, and `FilteredOut` for those for which it is false or NULL. The answer must depend on nothing but the row:
DuckDB reads no file; subqueries, random numbers and the present time are refused.
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
from nextlong.reading.records import FilteredItem, FilteredOut, Items, Record, Reject
from nextlong.recipe import Source
from nextlong.text import Json, first_sentence

_SETTINGS: Final[Json] = {"enable_external_access": "false", "threads": "1", "autoinstall_known_extensions": "false"}
_BATCH_RECORDS: Final = 1024
_BATCH_CHARS: Final = 8_000_000
_HEAD_CHARS: Final = 200
_ROW: Final = "nextlong row"
_ACROSS_ROWS: Final = (  # how DuckDB's errors begin; further on they repeat the condition
    "Binder Error: WHERE clause cannot contain aggregates",
    "Binder Error: UNNEST ",
    "Binder Error: GROUPING ",
    "Binder Error: Window functions ",  # without OVER; with it they are refused by their class
)
_REFUSED: Final = {
    "SUBQUERY": "a subquery", "STAR": "*", "POSITIONAL_REFERENCE": "#", "PARAMETER": "a parameter", "LAMBDA": "a lambda",
    "WINDOW": "a window",
}  # fmt: skip
# Without parentheses DuckDB's parser takes these for columns.
_TIME_KEYWORDS: Final = {"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"}
# Functions and their number of arguments that DuckDB declares CONSISTENT, though they read the clock or DuckDB's own version.
_FALSELY_CONSISTENT: Final = {("age", 1), ("current_localtime", 0), ("current_localtimestamp", 0), ("version", 0)}

_Path = tuple[str, ...]  # of a column, or of a field of a struct


class _RowFilter:
    """A parsed condition; `columns` are those that it names, dotted where it reaches into a struct."""

    def __init__(self, expression: str, *, key: str) -> None:
        """Parse a condition; `key` is the recipe's, for errors. Raises RecipeError if it cannot serve as one."""
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
            # A struct that is named as a whole brings its fields along.
            if not any(path[:depth] in paths for depth in range(1, len(path))):
                self._fields.setdefault(path[0], []).append((index, path[1:]))
        # What needs several rows, or makes several of one, DuckDB reports on an empty table.
        nothing = (None,) * len(paths)
        columns = {name: pa.array([_nested(nothing, fields)])[:0] for name, fields in self._fields.items()}
        try:
            self._select(pa.table({_ROW: pa.array([], pa.int64()), **columns}))
        except duckdb.CatalogException as error:
            raise RecipeError(f"{self._key}: {first_sentence(error)}; see the functions of DuckDB") from None
        except duckdb.Error as error:  # also errors about types, which nobody knows yet
            if first_sentence(error).startswith(_ACROSS_ROWS):
                raise RecipeError(
                    f"{self._key} contains what needs several rows, or makes several of one ({first_sentence(error)}); a condition "
                    "is evaluated on one document at a time; for lists use list_sum(x), list_contains(x, y), len(x) and similar"
                ) from None

    def apply(self, items: Items, *, first_value: int, file: InputFile) -> Iterator[FilteredItem]:
        """Yield the items in order; the values of the condition's columns, from index `first_value` on, are removed."""
        held: list[Record | Reject] = []
        chars = 0
        for item in items:
            held.append(item)
            chars += len(item.text) if isinstance(item, Record) else 0
            if len(held) >= _BATCH_RECORDS or chars >= _BATCH_CHARS:
                yield from self._apply_batch(held, first_value, file)
                held, chars = [], 0
        yield from self._apply_batch(held, first_value, file)

    def _apply_batch(
        self, items: Sequence[Record | Reject], first_value: int, file: InputFile
    ) -> Iterator[FilteredItem]:
        import duckdb

        records = [item for item in items if isinstance(item, Record)]
        values = [record.values[first_value:] for record in records]
        # A column of several types would be compared as JSON, and a row decided by the rows that happen to be read with it.
        # So rows of the same types are evaluated together; whole and other numbers count as one type.
        columns_of = zip(*values, strict=True)
        types = [[float if type(value) is int else type(value) for value in column] for column in columns_of]
        mixed = [column for column in types if len({*column} - {type(None)}) > 1]
        alike: dict[tuple[type, ...], list[int]] = {}
        for row in range(len(values)):
            alike.setdefault(tuple(column[row] for column in mixed), []).append(row)
        matching: set[int] = set()  # the indexes of the records for which the condition is true
        try:
            for rows in alike.values():
                taken = [values[row] for row in rows]
                columns = {name: _array([_nested(row, of) for row in taken]) for name, of in self._fields.items()}
                matching.update(self._select(pa.table({_ROW: pa.array(rows), **columns})))
        except duckdb.Error as error:
            lines = f"{file.path}:{records[0].line} to {records[-1].line}"
            cure = "compare values of one type: CAST(x AS DOUBLE), or TRY_CAST where some values are of another type"
            raise CorpusError(f"{self._key} cannot be evaluated on {lines}: {first_sentence(error)}; {cure}") from None
        rows_so_far = itertools.count()
        for item in items:
            if isinstance(item, Reject):
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
        """Return the columns that the condition names. Raises RecipeError for what a condition may not hold."""
        parsed = self._syntax_tree(f"SELECT 1 WHERE ({self._expression}\n)")
        if parsed["error"]:
            problem = f"is not an SQL condition: {parsed['error_message']}"
            raise RecipeError(f"{self._key} {problem}; see the WHERE clause of DuckDB")
        nodes = [statement["node"] for statement in parsed["statements"]]
        if len(nodes) != 1 or nodes[0]["type"] != "SELECT_NODE":
            raise RecipeError(f"{self._key} is more than one condition; join conditions with AND and OR")
        paths: dict[_Path, None] = {}
        for node in _expressions(nodes[0]["where_clause"]):
            if (kind := node["class"]) in _REFUSED:
                problem = f"contains {_REFUSED[kind]}; a condition can use only the columns of one document"
                raise RecipeError(f"{self._key} {problem}")
            if name := self._varying(node):
                raise RecipeError(
                    f"{self._key}: {name} changes with every call, so the same files would give other documents; replace it "
                    "by a constant"
                )
            if kind == "COLUMN_REF":
                paths[tuple(node["column_names"])] = None
        if not paths:
            problem = "names no column, so it is the same for every document"
            raise RecipeError(f"{self._key} {problem}; name one, such as language = 'en'")
        known: dict[str, str] = {}
        for name in (".".join(path[:depth]) for path in paths for depth in range(1, len(path) + 1)):
            if (other := known.setdefault(name.lower(), name)) != name:
                cure = "write it as your files do, or rename one of two columns"
                raise RecipeError(f"{self._key} names {other!r} and {name!r}, which are one column in SQL; {cure}")
        return list(paths)

    def _varying(self, node: Mapping[str, Any]) -> str:
        """Return the function of an expression whose value depends on time, chance or the connection; "" if there is none."""
        if node["class"] == "COLUMN_REF":
            name = str(node["column_names"][0]).lower()
            return name if len(node["column_names"]) == 1 and name in _TIME_KEYWORDS else ""
        if node["class"] != "FUNCTION":
            return ""
        name = node["function_name"].lower()
        arguments = node.get("arguments") or node.get("children") or ()  # `children` in DuckDB 1
        if (name, len(arguments)) in _FALSELY_CONSISTENT:
            return f"{name}()"
        query = "SELECT stability, macro_definition FROM duckdb_functions() WHERE function_name = ?"
        for stability, definition in self._connection.execute(query, [name]).fetchall():
            if stability not in (None, "CONSISTENT"):
                return f"{name}()"
            used = _expressions(self._syntax_tree(f"SELECT {definition}").get("statements") if definition else None)
            # A macro of the same name as a function calls that function.
            if any(inner.get("function_name") != name and self._varying(inner) for inner in used):
                return f"{name}()"
        return ""

    def _syntax_tree(self, statement: str) -> Any:
        query = "SELECT json_serialize_sql(?::VARCHAR)"
        return json.loads(self._connection.execute(query, [statement]).fetchall()[0][0])


@lru_cache(maxsize=64)
def filter_of(source: Source) -> _RowFilter | None:
    """Return a source's condition, None if it has none. Raises RecipeError."""
    return None if source.filter is None else _RowFilter(source.filter, key=f"ingest.sources ({source.label}): filter")


def named_columns(source: Source) -> tuple[str, ...]:
    """Return the columns that a source's `metadata` and `filter` name, in this order."""
    row_filter = filter_of(source)
    return (*source.metadata, *(row_filter.columns if row_filter else ()))


def apply_filter(items: Items, source: Source, file: InputFile) -> Iterator[FilteredItem]:
    """Return the items of a file that were read with `named_columns`, after the source's filter."""
    row_filter = filter_of(source)
    return items if row_filter is None else row_filter.apply(items, first_value=len(source.metadata), file=file)


def _expressions(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every expression of a syntax tree."""
    if isinstance(value, dict):
        if "class" in value:
            yield value
        for below in value.values():
            yield from _expressions(below)
    elif isinstance(value, list):
        for below in value:
            yield from _expressions(below)


def _nested(row: tuple[Any, ...], fields: Sequence[tuple[int, _Path]]) -> Any:
    """Return the value of a column, or a struct of the fields that are named."""
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
    """Return values as an array of their common type, numbers as float64; values without a common type as JSON."""
    is_number = {type(value) for value in values} - {type(None)} == {int, float}
    try:
        return pa.array(values, pa.float64() if is_number else None)
    except (pa.ArrowException, OverflowError):
        texts = (value if isinstance(value, str | None) else json.dumps(value, default=str) for value in values)
        return pa.array(list(texts))
