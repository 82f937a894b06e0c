"""Filter: evaluate a source's SQL condition on its columns, with DuckDB.

In:  `filter: language = 'en' AND score > 0.5`, and records with the values of its
     columns.
Out: the matching records, and `FilteredOut` for those for which the condition is false
     or NULL.

The result must depend only on the row, so DuckDB has no file access, and subqueries,
random numbers and the current time are rejected.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from nextlong.errors import CorpusError, RecipeError
from nextlong.reading.files import InputFile
from nextlong.reading.records import FilteredItem, FilteredOut, Items, Record
from nextlong.recipe import Source
from nextlong.text import Json, first_sentence

# No files and no network, so that the result depends only on the row; and one thread,
# as in every worker (docs/decisions/0004-processes-with-one-thread.md).
_SETTINGS: Final[Json] = {
    "enable_external_access": "false",
    "threads": "1",
    "autoinstall_known_extensions": "false",
}
# Evaluated at once, up to either limit.
_BATCH_RECORDS: Final = 1024
_BATCH_CHARS: Final = 8_000_000
_HEAD_CHARS: Final = 200
_ROW: Final = "nextlong row"
# Prefixes of DuckDB's errors; the rest repeats the condition. Window functions are
# those without OVER; those with it are rejected by their class.
_ACROSS_ROWS: Final = (
    "Binder Error: WHERE clause cannot contain aggregates",
    "Binder Error: UNNEST ",
    "Binder Error: GROUPING ",
    "Binder Error: Window functions ",
)
_REFUSED: Final = {
    "SUBQUERY": "a subquery",
    "STAR": "*",
    "POSITIONAL_REFERENCE": "#",
    "PARAMETER": "a parameter",
    "LAMBDA": "a lambda",
    "WINDOW": "a window",
}
# DuckDB's parser takes these for columns if they have no parentheses.
_TIME_KEYWORDS: Final = {
    "current_date",
    "current_time",
    "current_timestamp",
    "localtime",
    "localtimestamp",
}
# Functions, with their number of arguments, that DuckDB wrongly declares CONSISTENT:
# they read the clock or DuckDB's version.
_FALSELY_CONSISTENT: Final = {
    ("age", 1),
    ("current_localtime", 0),
    ("current_localtimestamp", 0),
    ("version", 0),
}

_Path = tuple[str, ...]  # of a column or a struct field


class RowFilter:
    """A parsed condition; `columns` are those it uses, dotted for struct fields."""

    def __init__(self, expression: str, *, key: str) -> None:
        """Parse a condition; `key` is its recipe key, for errors.

        Raises RecipeError if it is invalid.
        """
        try:
            import duckdb
        except ImportError:
            raise RecipeError(
                where=key,
                problem="it needs the package duckdb, which is not installed",
                fix="pip install 'nextlong[filter]'",
            ) from None
        self._expression = expression
        self._key = key
        self._connection = duckdb.connect(config=_SETTINGS)
        paths = self._parse()
        self.columns = tuple(".".join(path) for path in paths)
        # Top-level column → the index of each of its values in a record, and its path
        # below the column.
        self._fields: dict[str, list[tuple[int, _Path]]] = {}
        for index, path in enumerate(paths):
            # A struct that is used as a whole includes its fields.
            if not any(path[:depth] in paths for depth in range(1, len(path))):
                self._fields.setdefault(path[0], []).append((index, path[1:]))
        # DuckDB reports conditions that need or produce several rows on an empty table
        # too.
        no_values = (None,) * len(paths)
        columns = {_ROW: pa.array([], pa.int64())}
        for name, fields in self._fields.items():
            columns[name] = pa.array([_nested(no_values, fields)])[:0]
        try:
            self._select(pa.table(columns))
        except duckdb.CatalogException as error:
            raise RecipeError(
                where=f"{key}={expression!r}",
                problem=first_sentence(error),
                fix="see the functions of DuckDB",
            ) from None
        # Type errors are ignored here, because types are not known yet.
        except duckdb.Error as error:
            reason = first_sentence(error)
            if reason.startswith(_ACROSS_ROWS):
                raise self._invalid(
                    f"needs or produces several rows ({reason})",
                    fix="a condition is evaluated on one document at a time; for lists "
                    "use list_sum(x), list_contains(x, y), len(x) and similar",
                ) from None

    def _invalid(self, problem: str, *, fix: str) -> RecipeError:
        """Return the error for this condition; `problem` is a predicate of it."""
        return RecipeError(
            where=self._key, value=repr(self._expression), problem=problem, fix=fix
        )

    def apply(
        self, items: Items, *, first_value: int, file: InputFile
    ) -> Iterator[FilteredItem]:
        """Yield the items in order, without the values of the condition's columns.

        These begin at index `first_value`.
        """
        batch: list[FilteredItem] = []
        chars = 0
        for item in items:
            batch.append(item)
            if isinstance(item, Record):
                chars += len(item.text)
            if len(batch) >= _BATCH_RECORDS or chars >= _BATCH_CHARS:
                yield from self._apply_batch(batch, first_value, file)
                batch = []
                chars = 0
        yield from self._apply_batch(batch, first_value, file)

    def _apply_batch(
        self, items: Sequence[FilteredItem], first_value: int, file: InputFile
    ) -> Iterator[FilteredItem]:
        import duckdb

        records = [item for item in items if isinstance(item, Record)]
        values = [record.values[first_value:] for record in records]
        try:
            matching = self._matching(values)
        except duckdb.Error as error:
            lines = f"{file.path}:{records[0].line} to {records[-1].line}"
            raise CorpusError(
                where=self._key,
                value=repr(self._expression),
                problem=f"cannot be evaluated on {lines}: {first_sentence(error)}",
                fix="compare values of one type: CAST(x AS DOUBLE), or TRY_CAST where "
                "some values are of another type",
            ) from None
        record_indexes = itertools.count()
        for item in items:
            if not isinstance(item, Record):
                yield item
            elif next(record_indexes) in matching:
                yield item._replace(values=item.values[:first_value])
            else:
                yield FilteredOut(item.line, item.source_id, item.text[:_HEAD_CHARS])

    def _matching(self, values: Sequence[tuple[Any, ...]]) -> set[int]:
        """Return the indexes of the rows for which the condition is true."""
        matching: set[int] = set()
        for indexes in _indexes_by_types(values):
            columns = {_ROW: pa.array(indexes)}
            for name, fields in self._fields.items():
                column = [_nested(values[index], fields) for index in indexes]
                columns[name] = _array(column)
            matching.update(self._select(pa.table(columns)))
        return matching

    def _select(self, records: pa.Table) -> list[int]:
        self._connection.register("record", records)
        try:
            query = f'SELECT "{_ROW}" FROM record WHERE ({self._expression}\n)'
            rows = self._connection.execute(query).fetchall()
            return [index for (index,) in rows]
        finally:
            self._connection.unregister("record")

    def _parse(self) -> list[_Path]:
        """Return the columns in the condition.

        Raises RecipeError for syntax that a condition may not contain.
        """
        parsed = self._syntax_tree(f"SELECT 1 WHERE ({self._expression}\n)")
        if parsed["error"]:
            raise self._invalid(
                f"is not an SQL condition: {parsed['error_message']}",
                fix="see the WHERE clause of DuckDB",
            )
        nodes = [statement["node"] for statement in parsed["statements"]]
        if len(nodes) != 1 or nodes[0]["type"] != "SELECT_NODE":
            raise self._invalid(
                "is more than one condition", fix="join them with AND or OR"
            )
        paths: dict[_Path, None] = {}
        for node in _expressions(nodes[0]["where_clause"]):
            kind = node["class"]
            if kind in _REFUSED:
                raise self._invalid(
                    f"contains {_REFUSED[kind]}",
                    fix="a condition can use only the columns of one document",
                )
            varying = self._varying(node)
            if varying:
                raise self._invalid(
                    f"uses {varying}, which changes with every call, so the same files "
                    "would give different documents",
                    fix="replace it with a constant",
                )
            if kind == "COLUMN_REF":
                paths[tuple(node["column_names"])] = None
        if not paths:
            raise self._invalid(
                "uses no column, so it is the same for every document",
                fix="use one, such as language = 'en'",
            )
        self._check_spellings(paths)
        return list(paths)

    def _check_spellings(self, paths: Iterable[_Path]) -> None:
        """Refuse two spellings of a column: SQL ignores case, files do not."""
        spellings: dict[str, str] = {}
        for path in paths:
            for depth in range(1, len(path) + 1):
                name = ".".join(path[:depth])
                other = spellings.setdefault(name.lower(), name)
                if other != name:
                    raise self._invalid(
                        f"uses {other!r} and {name!r}, which are the same column in "
                        "SQL",
                        fix="spell it as in your files, or rename one of two columns",
                    )

    def _varying(self, node: Mapping[str, Any]) -> str:
        """Return a function in an expression that may give another result next time.

        It depends on time, chance or the connection; "" if there is none.
        """
        if node["class"] == "COLUMN_REF":
            names = [str(name).lower() for name in node["column_names"]]
            is_keyword = len(names) == 1 and names[0] in _TIME_KEYWORDS
            return names[0] if is_keyword else ""
        if node["class"] != "FUNCTION":
            return ""
        name = node["function_name"].lower()
        # `children` in DuckDB 1.
        arguments = node.get("arguments") or node.get("children") or ()
        if (name, len(arguments)) in _FALSELY_CONSISTENT:
            return f"{name}()"
        query = (
            "SELECT stability, macro_definition FROM duckdb_functions() "
            "WHERE function_name = ?"
        )
        for stability, definition in self._connection.execute(query, [name]).fetchall():
            if stability not in (None, "CONSISTENT"):
                return f"{name}()"
            if definition and self._macro_varies(name, definition):
                return f"{name}()"
        return ""

    def _macro_varies(self, name: str, definition: str) -> bool:
        """Return whether a macro calls a function that varies."""
        tree = self._syntax_tree(f"SELECT {definition}")
        expressions = _expressions(tree.get("statements"))
        # A macro with the name of a function calls that function.
        others = (node for node in expressions if node.get("function_name") != name)
        return any(map(self._varying, others))

    def _syntax_tree(self, statement: str) -> Any:
        query = "SELECT json_serialize_sql(?::VARCHAR)"
        [[tree]] = self._connection.execute(query, [statement]).fetchall()
        return json.loads(tree)


@lru_cache(maxsize=64)
def filter_of(source: Source) -> RowFilter | None:
    """Return the parsed filter of a source, None if it has none. Raises RecipeError."""
    if source.filter is None:
        return None
    return RowFilter(source.filter, key=f"ingest.sources ({source.label}): filter")


def named_columns(source: Source) -> tuple[str, ...]:
    """Return the columns in a source's `metadata` and `filter`, in this order."""
    row_filter = filter_of(source)
    if row_filter is None:
        return source.metadata
    return (*source.metadata, *row_filter.columns)


def apply_filter(
    items: Items, source: Source, file: InputFile
) -> Iterator[FilteredItem]:
    """Apply the source's filter to items that were read with `named_columns`."""
    row_filter = filter_of(source)
    if row_filter is None:
        return items
    return row_filter.apply(items, first_value=len(source.metadata), file=file)


def _expressions(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, dict):
        if "class" in value:
            yield value
        for below in value.values():
            yield from _expressions(below)
    elif isinstance(value, list):
        for below in value:
            yield from _expressions(below)


def _indexes_by_types(values: Sequence[tuple[Any, ...]]) -> Iterable[list[int]]:
    """Return the indexes of rows in groups whose values have the same types.

    A column of mixed types would be compared as JSON, so a row's result would depend on
    the other rows of its batch. Integers and floats count as one type.
    """
    types_by_column = []
    for column in zip(*values, strict=True):
        types_by_column.append([_type_of(value) for value in column])
    mixed = [types for types in types_by_column if len({*types} - {type(None)}) > 1]
    groups: dict[tuple[type, ...], list[int]] = {}
    for index in range(len(values)):
        types_of_row = tuple(types[index] for types in mixed)
        groups.setdefault(types_of_row, []).append(index)
    return groups.values()


def _type_of(value: Any) -> type:
    return float if type(value) is int else type(value)


def _nested(row: tuple[Any, ...], fields: Sequence[tuple[int, _Path]]) -> Any:
    """Return the value of a column, or a struct of the fields in use."""
    first_index, first_path = fields[0]
    if not first_path:
        return row[first_index]
    struct: dict[str, Any] = {}
    for index, path in fields:
        below = struct
        for part in path[:-1]:
            below = below.setdefault(part, {})
        below[path[-1]] = row[index]
    return struct


def _array(values: list[Any]) -> pa.Array:
    """Return values as an array of their common type.

    Mixed numbers are float64, other mixed types JSON.
    """
    types = {type(value) for value in values} - {type(None)}
    array_type = pa.float64() if types == {int, float} else None
    try:
        return pa.array(values, array_type)
    except (pa.ArrowException, OverflowError):
        return pa.array([_as_json(value) for value in values])


def _as_json(value: Any) -> str | None:
    if isinstance(value, str | None):
        return value
    return json.dumps(value, default=str)
