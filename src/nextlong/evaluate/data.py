"""Data: the user's files, by the names under which their publishers release them.

`--data` names a folder; each file has one documented place in it
(`docs/evaluate/data.md`), and a missing file is named together with its source. A
record of another form is reported by file, line, field and value; fields that are not
read are not checked. Nothing is downloaded unless the user runs `nextlong evaluate
data`.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import typing_extensions
import yaml
from annotated_types import Len
from pyarrow import ArrowException, parquet
from pydantic import AfterValidator, StringConstraints, TypeAdapter, ValidationError

from nextlong.engine import store
from nextlong.errors import EvaluateError
from nextlong.python_documentation import documentation_rows
from nextlong.text import Json, first_mistake

# A type that pydantic checks a record against, made at run time; the files of the tasks
# declare the shapes that they read.
Shape: TypeAlias = Any
_types: Shape = typing_extensions
TEXT: Final[Shape] = _types.Annotated[str, StringConstraints(min_length=1)]
NAME: Final[Shape] = str | int
_adapter = cache(TypeAdapter)


def record(check: Callable[[Json], Json] | None = None, /, **fields: Shape) -> Shape:
    """Return the shape of an object with these fields.

    `check` may raise ValueError for a record of that shape.
    """
    # Keys that are not declared are ignored: published files have many that no task
    # reads.
    shape = _types.TypedDict("Record", fields)
    return shape if check is None else _types.Annotated[shape, AfterValidator(check)]


def several(shape: Shape, *, min_items: int = 1) -> Shape:
    """Return the shape of a list of `min_items` values or more."""
    return _types.Annotated[_types.List[shape], Len(min_items)]


def optional(shape: Shape) -> Shape:
    """Return the shape of a field that may be missing, or null."""
    return _types.NotRequired[shape | None]


TEXTS: Final[Shape] = several(str)


class HubFile(NamedTuple):
    """A file of a data set on the Hugging Face hub."""

    repo: str
    path: str
    revision: str = "main"
    sha256: str | None = None
    licence: str = ""


class OtherFile(NamedTuple):
    """A file that its publisher offers elsewhere.

    url: where it is downloaded from; without one it is fetched by hand, with `command`
    """

    source: str
    url: str = ""
    command: str = ""


_YAML: Final = (files(__package__) / "data.yaml").read_text(encoding="utf-8")
SOURCES: Final = yaml.safe_load(_YAML)
HUB: Final = {name: HubFile(**fields) for name, fields in SOURCES["hub"].items()}
ELSEWHERE: Final = {
    name: OtherFile(**fields) for name, fields in SOURCES["elsewhere"].items()
}
# Files of HELMET's archive, unless they are named above.
ARCHIVED: Final = "helmet/"
ESSAYS: Final = "ruler/PaulGrahamEssays.json"
HAYSTACK: Final = "needle/haystack.txt"
# What is read in place of a missing file.
_STAND_INS: Final = {ESSAYS: "ruler/essays.txt", HAYSTACK: ESSAYS}
SQUAD: Final = "ruler/squad.json"
HOTPOTQA: Final = "ruler/hotpotqa.json"
# What stands for these files where the user names no folder: nobody else's scores are
# of it.
DEMO: Final = "Python's documentation"
_WITHOUT_FOLDER: Final = (ESSAYS, HAYSTACK, SQUAD, HOTPOTQA)
# Rows in memory: a conversation of a million tokens is several megabytes in one cell.
_PARQUET_ROWS: Final = 16


@dataclass(frozen=True)
class DataFiles:
    """The folder of the user's files; None where he named none."""

    folder: Path | None

    def __post_init__(self) -> None:
        """Raise EvaluateError for a path that is not a folder."""
        if self.folder is not None and not self.folder.is_dir():
            raise EvaluateError(
                where=f"--data {self.folder}",
                problem="it is not a folder",
                fix="give a folder with the files that docs/evaluate/data.md lists",
            )

    def path(self, name: str) -> Path:
        """Return where a file is, as itself or compressed (.gz).

        Raises EvaluateError if it is missing.
        """
        path = self._existing_path(name)
        if path is None:
            raise self.missing([name])
        return path

    def has(self, name: str) -> bool:
        return name == DEMO or self._existing_path(name) is not None

    def _existing_path(self, name: str) -> Path | None:
        if self.folder is None:
            return None
        for path in (self.folder / name, self.folder / f"{name}.gz"):
            if path.is_file():
                return path
        return None

    def source(self, name: str) -> str:
        """Return the name of the file that is read.

        The stand-in if only that exists, else the file itself; Python's documentation
        where the user named no folder.
        """
        if self.folder is None and name in _WITHOUT_FOLDER:
            return DEMO
        stand_in = _STAND_INS.get(name, name)
        return stand_in if self.has(stand_in) and not self.has(name) else name

    def missing(self, names: Sequence[str]) -> EvaluateError:
        """Return the error that these files are missing, with one line per origin."""
        paths_of_origin: dict[str, list[str]] = {}
        for name in names:
            if self.folder is None:
                path = f"{name} (in the folder that --data names)"
            else:
                path = str(self.folder / name)
            paths = paths_of_origin.setdefault(origin(name), [])
            paths.append(path)
        first, *more = [
            _missing(paths, source) for source, paths in paths_of_origin.items()
        ]
        fixes = [first.fix, *map(str, more)]
        return EvaluateError(
            where=first.where, problem=first.problem, fix="\n".join(fixes)
        )

    def error(self, name: str, problem: str, *, place: str = "") -> EvaluateError:
        """Return the error of a file that cannot be used, with its source.

        place: of the mistake within the file, such as ", line 3"
        """
        return EvaluateError(
            where=f"{self.path(name)}{place}",
            problem=problem,
            fix=f"fix it, or download it again: {origin(name)}",
        )

    def text(self, name: str) -> str:
        """Return a file's text, UTF-8 or else Latin-1.

        Raises EvaluateError if it cannot be read.
        """
        if name == DEMO:
            return "\n\n".join(row["text"] for row in demo_documents())
        path = self.path(name)
        try:
            content = path.read_bytes()
            if path.suffix == ".gz":
                content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise self.error(name, f"it cannot be read ({error})") from None
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError:
            # Latin-1 has a character for every byte, so this cannot fail.
            return content.decode("latin-1")

    def hash(self, name: str) -> str:
        """Return a hash of a file's content."""
        if name == DEMO:
            content = self.text(DEMO).encode()
            return hashlib.blake2b(content, digest_size=16).hexdigest()
        return store.hash_file(self.path(name))

    def json(self, name: str, shape: Shape = None) -> Any:
        """Return a file's JSON value, checked for a shape.

        Raises EvaluateError if it is another.
        """
        value = self._loaded(self.text(name), name)
        return self._checked(value, shape, name)

    def json_lines(self, name: str, shape: Shape = None) -> Iterator[Json]:
        """Yield each line's value (the rows of Parquet and CSV), checked for a shape.

        A JSON list, or one in `data`, gives its items.
        """
        for place, value in self._records(name):
            yield self._checked(value, shape, name, place=place)

    def _records(self, name: str) -> Iterator[tuple[str, Any]]:
        """Yield the records of a file, each with its place in it."""
        if name.endswith(".parquet"):
            for row in self._parquet_rows(name):
                yield "", row
            return
        if name.endswith(".csv"):
            yield from self._csv_rows(name)
            return
        text = self.text(name)
        first = text.lstrip()[:1]
        # One JSON value over the whole file, rather than one per line: such an object
        # is the only one.
        is_one_object = first == "{" and "\n{" not in text.strip()
        if first == "[" or is_one_object:
            for number, item in enumerate(self._items(text, name), start=1):
                yield f", record {number}", item
            return
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                place = f", line {number}"
                yield place, self._loaded(line, name, place)

    def _parquet_rows(self, name: str) -> Iterator[Json]:
        try:
            file = parquet.ParquetFile(self.path(name))
            for batch in file.iter_batches(batch_size=_PARQUET_ROWS):
                yield from batch.to_pylist()
        except (OSError, ValueError, ArrowException) as error:
            raise self.error(name, f"it cannot be read as Parquet ({error})") from None

    def _items(self, text: str, name: str) -> list[Any]:
        """Return the records of one JSON value: a list, one in `data`, or itself."""
        items = self._loaded(text, name)
        if isinstance(items, dict):
            items = items.get("data", [items])
        if not isinstance(items, list):
            problem = f"data is {items!r:.60}, which is not a list of records"
            raise self.error(name, problem)
        return items

    def _csv_rows(self, name: str) -> Iterator[tuple[str, Json]]:
        # `newline=""` leaves line breaks inside quoted fields to the CSV reader.
        content = io.StringIO(self.text(name), newline="")
        reader = csv.DictReader(content, strict=True)
        place = ""
        try:
            for row in reader:
                place = f", line {reader.line_num}"
                # A row that is too short has None in its last columns.
                yield place, {key: row[key] for key in row if row[key] is not None}
        except csv.Error as error:
            problem = f"not valid CSV ({error})"
            place = f", line {reader.line_num}"
            raise self.error(name, problem, place=place) from None
        if not place:
            raise self.error(name, "it holds no row below its header")

    def _loaded(self, text: str, name: str, place: str = "") -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.error(name, f"not JSON ({error})", place=place) from None

    def _checked(self, value: Any, shape: Shape, name: str, *, place: str = "") -> Any:
        """Return a value of a shape.

        Raises EvaluateError with the first field that is wrong, and what it holds.
        """
        if shape is None:
            return value
        try:
            return _adapter(shape).validate_python(value)
        except ValidationError as error:
            raise self.error(name, first_mistake(error), place=place) from None


@cache
def demo_documents() -> tuple[dict[str, str], ...]:
    """Return the documents of `nextlong demo`: `id` and `text` of each."""
    return tuple(documentation_rows())


def _missing(paths: Sequence[str], source: str) -> EvaluateError:
    """Return the error that files of one origin are missing."""
    if len(paths) == 1:
        return EvaluateError(where=paths[0], problem="it is missing", fix=source)
    return EvaluateError(
        where=", ".join(paths),
        problem="they are missing",
        fix=source.replace("it comes", "they come", 1),
    )


def origin(name: str) -> str:
    """Return a sentence that says where a file comes from."""
    file = HUB.get(name)
    if file is not None:
        path = file.path
        if file.licence:
            path += f"; its license: {file.licence}"
        source = f"{file.repo} on the Hugging Face Hub ({path})"
    elif name in ELSEWHERE:
        source = ELSEWHERE[name].source
    elif name.startswith(ARCHIVED):
        source = "HELMET's archive (34 GB)"
    else:
        return "add the file"
    fetched_by = "nextlong evaluate data --suite NAME --out FOLDER"
    return f"it comes from {source}: see {fetched_by}"
