"""Where: a source's condition on its other columns, an SQL expression that DuckDB evaluates.

In:  `where: language = 'en' AND score > 0.5`, and records with the values of the columns that it names.
Out: the same records, and `LeftOut` for those for which it is false or NULL.
The expression must give the same answer every time and see nothing but its row, so DuckDB reads no file, and subqueries,
random numbers and the present time are refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, NamedTuple

import pyarrow as pa

from nextlong.errors import CorpusError, RecipeError
from nextlong.inputs.files import InputFile
from nextlong.inputs.record import Record, Reject
from nextlong.recipe import Source

_SETTINGS: Final[dict[str, str | bool | int | float | list[str]]] = {
    "enable_external_access": "false",
    "threads": "1",
    "autoinstall_known_extensions": "false",
}
_BATCH_RECORDS: Final = 1024
_BATCH_CHARS: Final = 8_000_000
_HEAD_CHARS: Final = 200
_ROW: Final = "nextlong row"
_OF_SEVERAL_ROWS: Final = (  # how DuckDB's error begins; further on it repeats the condition
    "Binder Error: WHERE clause cannot contain aggregates",
    "Binder Error: UNNEST ",
    "Binder Error: GROUPING ",
    "Binder Error: Window functions ",  # without OVER; with it they are refused by their kind
)
_REFUSED: Final = {
    "SUBQUERY": "a subquery",
    "STAR": "*",
    "POSITIONAL_REFERENCE": "#",
    "PARAMETER": "a parameter",
    "LAMBDA": "a lambda",
    "WINDOW": "a window",
}

# Without parentheses DuckDB's parser takes these for columns.
_KEYWORDS_OF_TIME: Final = frozenset(
    {"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"}
)
# DuckDB declares these CONSISTENT, by how many arguments they take, though they read the clock, or tell of DuckDB itself.
_DECLARED_CONSISTENT: Final = frozenset(
    {("age", 1), ("current_localtime", 0), ("current_localtimestamp", 0), ("version", 0)}
)


class LeftOut(NamedTuple):
    """A document for which the source's `where` does not hold; `head` is the beginning of its text."""

    line: int
    source_id: str
    head: str


class Where:
    """A condition that was understood; `columns` are those that it names, dotted where it reaches into a struct."""

    def __init__(self, expression: str, *, key: str) -> None:
        """`key` is the recipe's, for errors. Raises RecipeError if it is no condition that can serve."""
        self.expression = expression
        self._key = f"{key}={expression!r}"
        self._connection = _connect(key)
        self._paths = self._understood()
        self.columns = tuple(".".join(path) for path in self._paths)

    def sorted_out(
        self, items: Iterator[Record | Reject], *, beside: int, file: InputFile
    ) -> Iterator[Record | Reject | LeftOut]:
        """Yield the items in their order; the condition's columns are a record's values from `beside` on, and taken off."""
        held: list[Record | Reject] = []
        chars = 0
        for item in items:
            held.append(item)
            chars += len(item.text) if isinstance(item, Record) else 0
            if len(held) >= _BATCH_RECORDS or chars >= _BATCH_CHARS:
                yield from self._decided(held, beside, file)
                held, chars = [], 0
        yield from self._decided(held, beside, file)

    def _decided(
        self, items: Sequence[Record | Reject], beside: int, file: InputFile
    ) -> Iterator[Record | Reject | LeftOut]:
        records = [item for item in items if isinstance(item, Record)]
        holding = self._rows_holding([record.values[beside:] for record in records], file, records)
        row = 0
        for item in items:
            if isinstance(item, Reject):
                yield item
                continue
            if row in holding:
                yield item._replace(values=item.values[:beside])
            else:
                yield LeftOut(item.line, item.source_id, item.text[:_HEAD_CHARS])
            row += 1

    def _rows_holding(
        self, values: Sequence[tuple[Any, ...]], file: InputFile, records: Sequence[Record]
    ) -> frozenset[int]:
        if not values:
            return frozenset()
        import duckdb

        try:
            return frozenset(row for rows in _alike(values) for row in self._holding(rows, values))
        except duckdb.Error as error:
            lines = f"{file.path}:{records[0].line} to {records[-1].line}"
            raise CorpusError(
                f"{self._key} cannot be evaluated on {lines}: {_first_line(error)}; compare like with like: CAST(x AS DOUBLE), or "
                "TRY_CAST where some values are of another kind"
            ) from None

    def _holding(self, rows: Sequence[int], values: Sequence[tuple[Any, ...]]) -> list[int]:
        columns = {
            name: _array([_nested(values[row], places) for row in rows]) for name, places in self._of_names().items()
        }
        return self._rows_of(pa.table({_ROW: pa.array(rows), **columns}))

    def _rows_of(self, records: pa.Table) -> list[int]:
        self._connection.register("record", records)
        try:
            query = f'SELECT "{_ROW}" FROM record WHERE ({self.expression}\n)'
            return [row for (row,) in self._connection.execute(query).fetchall()]
        finally:
            self._connection.unregister("record")

    def _of_names(self) -> dict[str, list[tuple[int, tuple[str, ...]]]]:
        """Return for each column of the table the places of its values in a row, and the path of each below it."""
        places_of: dict[str, list[tuple[int, tuple[str, ...]]]] = {}
        for place, path in enumerate(self._paths):
            places_of.setdefault(path[0], []).append((place, path[1:]))
        return {name: _without_fields_of_wholes(places) for name, places in places_of.items()}

    def _understood(self) -> list[tuple[str, ...]]:
        parsed = json.loads(
            _ask(self._connection, "SELECT json_serialize_sql(?::VARCHAR)", f"SELECT 1 WHERE ({self.expression}\n)")
        )
        if parsed["error"]:
            raise RecipeError(
                f"{self._key} is not an SQL condition: {parsed['error_message']}; see the WHERE clause of DuckDB"
            )
        nodes = [statement["node"] for statement in parsed["statements"]]
        if len(nodes) != 1 or nodes[0]["type"] != "SELECT_NODE":
            raise RecipeError(f"{self._key} is more than one condition; join conditions by AND and OR")
        paths: dict[tuple[str, ...], None] = {}
        for node in _nodes(nodes[0]["where_clause"]):
            if (kind := node["class"]) in _REFUSED:
                raise RecipeError(
                    f"{self._key} holds {_REFUSED[kind]}; a condition sees the columns of one document and no more"
                )
            if name := self._of_the_moment(node):
                raise RecipeError(
                    f"{self._key}: {name} is another value every time, so the same files would give other documents; write the "
                    "value out"
                )
            if kind == "COLUMN_REF":
                paths[tuple(node["column_names"])] = None
        if not paths:
            raise RecipeError(
                f"{self._key} names no column, so it is the same for every document; name one, such as language = 'en'"
            )
        self._check_case(paths)
        self._check_row_by_row(paths)
        return list(paths)

    def _check_row_by_row(self, paths: Iterable[tuple[str, ...]]) -> None:
        """Refuse what is decided by several rows, or makes several of one; DuckDB says so without any row."""
        import duckdb

        fields: dict[str, Any] = {}
        for path in paths:
            below = fields
            for part in path:
                below = below.setdefault(part, {})
        columns = {name: pa.array([], _type_of(below)) for name, below in fields.items()}
        try:
            self._rows_of(pa.table({_ROW: pa.array([], pa.int64()), **columns}))
        except duckdb.CatalogException as error:
            raise RecipeError(f"{self._key}: {_first_line(error)}; see the functions of DuckDB") from None
        except duckdb.Error as error:  # of the kinds of values, which nobody knows yet, too
            if _first_line(error).startswith(_OF_SEVERAL_ROWS):
                raise RecipeError(
                    f"{self._key} holds what is decided by several rows, or makes several of one ({_first_line(error)}); a "
                    "condition sees one document at a time: of a list, list_sum(x), list_contains(x, y), len(x) and their like"
                ) from None

    def _check_case(self, paths: Iterable[tuple[str, ...]]) -> None:
        known: dict[str, str] = {}
        for name in (".".join(path[:depth]) for path in paths for depth in range(1, len(path) + 1)):
            if (other := known.setdefault(name.lower(), name)) != name:
                raise RecipeError(
                    f"{self._key} names {other!r} and {name!r}, which SQL takes for one column; write it as your files "
                    "do, or rename one of two columns"
                )

    def _of_the_moment(self, node: Mapping[str, Any]) -> str:
        """Return what an expression calls by itself whose value the time, chance or the connection decides; "" if nothing."""
        if node["class"] == "COLUMN_REF":
            name = str(node["column_names"][0]).lower()
            return name if len(node["column_names"]) == 1 and name in _KEYWORDS_OF_TIME else ""
        if node["class"] != "FUNCTION":
            return ""
        name = node["function_name"].lower()
        arguments = node.get("arguments") or node.get("children") or ()  # `children` in DuckDB 1
        if (name, len(arguments)) in _DECLARED_CONSISTENT or self._is_unstable(name):
            return f"{name}()"
        return ""

    def _is_unstable(self, name: str) -> bool:
        """Say whether DuckDB does not call a function CONSISTENT, or it is a macro that uses what is not."""
        query = "SELECT stability, macro_definition FROM duckdb_functions() WHERE function_name = ?"
        for stability, definition in self._connection.execute(query, [name]).fetchall():
            if stability not in (None, "CONSISTENT"):
                return True
            if definition is not None:
                parsed = json.loads(
                    _ask(self._connection, "SELECT json_serialize_sql(?::VARCHAR)", f"SELECT {definition}")
                )
                # A macro of the same name as a function calls that one.
                if any(
                    node.get("function_name") != name and self._of_the_moment(node)
                    for node in _nodes(parsed.get("statements"))
                ):
                    return True
        return False


def evaluator() -> str:
    """Return which version decides, because another may decide otherwise."""
    try:
        return f"duckdb {version('duckdb')}"
    except PackageNotFoundError:
        return ""


def where_of(source: Source) -> Where | None:
    """Return a source's condition, None if it has none. Raises RecipeError."""
    return None if source.where is None else _where(source.where, f"ingest.sources ({source.label}): where")


@lru_cache(maxsize=64)
def _where(expression: str, key: str) -> Where:
    return Where(expression, key=key)


def _connect(key: str) -> Any:
    try:
        import duckdb
    except ImportError:
        raise RecipeError(
            f"{key} needs the package duckdb, which is not installed; pip install 'nextlong[where]'"
        ) from None
    return duckdb.connect(config=_SETTINGS)


def _ask(connection: Any, query: str, value: str) -> Any:
    return connection.execute(query, [value]).fetchall()[0][0]


def _nodes(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every expression of a parsed condition."""
    if isinstance(value, dict):
        if "class" in value:
            yield value
        for below in value.values():
            yield from _nodes(below)
    elif isinstance(value, list):
        for below in value:
            yield from _nodes(below)


def _type_of(fields: Mapping[str, Any]) -> pa.DataType:
    """Return a struct of the fields, each a struct of its own; NULL where there are none."""
    return pa.struct([(name, _type_of(below)) for name, below in fields.items()]) if fields else pa.null()


def _without_fields_of_wholes(places: Sequence[tuple[int, tuple[str, ...]]]) -> list[tuple[int, tuple[str, ...]]]:
    """Return the places but for those within a struct that is named as a whole, which holds them."""
    wholes = {path for _, path in places}
    return [(place, path) for place, path in places if not any(path[:depth] in wholes for depth in range(len(path)))]


def _nested(row: tuple[Any, ...], places: Sequence[tuple[int, tuple[str, ...]]]) -> Any:
    if not places[0][1]:
        return row[places[0][0]]
    struct: dict[str, Any] = {}
    for place, path in places:
        below = struct
        for part in path[:-1]:
            below = below.setdefault(part, {})
        below[path[-1]] = row[place]
    return struct


def _alike(values: Sequence[tuple[Any, ...]]) -> Iterable[list[int]]:
    """Return the places of rows, those together whose values are of the same kinds.

    A column of several kinds would be compared as JSON, and a row decided by those that happen to be read with it.
    """
    kinds = [[_kind(value) for value in column] for column in zip(*values, strict=True)]
    mixed = [column for column in kinds if len({*column} - {type(None)}) > 1]
    alike: dict[tuple[type, ...], list[int]] = {}
    for row in range(len(values)):
        alike.setdefault(tuple(column[row] for column in mixed), []).append(row)
    return alike.values()


def _kind(value: Any) -> type:
    return float if type(value) is int else type(value)


def _array(values: list[Any]) -> pa.Array:
    """Return values as a column of their common type: whole and other numbers as such, what does not go together as JSON."""
    kinds = {type(value) for value in values} - {type(None)}
    try:
        if kinds == {int, float}:
            return pa.array(values, pa.float64())
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        return pa.array(
            [value if isinstance(value, str | None) else json.dumps(value, default=str) for value in values]
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
