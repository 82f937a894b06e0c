"""Data: the user's files, by the names under which their publishers release them, and what of them can be downloaded.

`--data` names a folder; each file has one documented place in it (`docs/evaluate/data.md`), and a missing file is named
together with its source. A record of another form is reported by file, line, field and value; fields that are not read are not
checked. Nothing is downloaded unless the user runs `nextlong evaluate data`.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, TypeAlias

import typing_extensions
import yaml
from annotated_types import Len
from pyarrow import ArrowException, parquet
from pydantic import AfterValidator, StringConstraints, TypeAdapter, ValidationError
from rich.console import Console

from nextlong.engine import store
from nextlong.errors import EvaluateError
from nextlong.evaluate import required
from nextlong.report import tables
from nextlong.text import Json, first_sentence

# A type that pydantic checks a record against, made at run time; the files of the tasks declare the shapes that they read.
Shape: TypeAlias = Any
_types: Shape = typing_extensions
TEXT: Final[Shape] = _types.Annotated[str, StringConstraints(min_length=1)]
NAME: Final[Shape] = str | int
_adapter = cache(TypeAdapter)


def record(check: Callable[[Json], Json] | None = None, /, **fields: Shape) -> Shape:
    """Return the shape of an object with these fields; `check` may raise ValueError for a record of that shape."""
    # Keys that are not declared are ignored: published files have many that no task reads.
    shape = _types.TypedDict("Record", fields)
    return shape if check is None else _types.Annotated[shape, AfterValidator(check)]


def several(shape: Shape, *, least: int = 1) -> Shape:
    """Return the shape of a list of `least` values or more."""
    return _types.Annotated[_types.List[shape], Len(least)]


def optional(shape: Shape) -> Shape:
    """Return the shape of a field that may be missing, or null."""
    return _types.NotRequired[shape | None]


TEXTS: Final[Shape] = several(str)


class _HubFile(NamedTuple):
    repo: str
    path: str
    revision: str = "main"
    sha256: str | None = None
    licence: str = ""


SOURCES: Final = yaml.safe_load(
    (files(__package__) / "data.yaml").read_text(encoding="utf-8")
)
_HUB: Final = {name: _HubFile(**fields) for name, fields in SOURCES["hub"].items()}
ESSAYS: Final = "ruler/PaulGrahamEssays.json"
HAYSTACK: Final = "needle/haystack.txt"
_STAND_INS: Final = {
    ESSAYS: "ruler/essays.txt",
    HAYSTACK: ESSAYS,
}  # what is read in place of a missing file


@dataclass(frozen=True)
class DataFiles:
    """The folder of the user's files; None where he named none."""

    folder: Path | None

    def __post_init__(self) -> None:
        """Raise EvaluateError for a path that is not a folder."""
        if self.folder is not None and not self.folder.is_dir():
            raise EvaluateError(
                f"--data {self.folder} is not a folder; docs/evaluate/data.md lists its files"
            )

    def path(self, name: str) -> Path:
        """Return where a file is, as itself or compressed (.gz). Raises EvaluateError if it is missing."""
        if place := self._place(name):
            return place
        raise self.missing([name])

    def has(self, name: str) -> bool:
        return self._place(name) is not None

    def _place(self, name: str) -> Path | None:
        places = (
            [self.folder / one for one in (name, f"{name}.gz")] if self.folder else []
        )
        return next((place for place in places if place.is_file()), None)

    def source(self, name: str) -> str:
        """Return the name of the file that is read: the stand-in if only that exists, else the file itself."""
        stand_in = _STAND_INS.get(name, name)
        return stand_in if self.has(stand_in) and not self.has(name) else name

    def missing(self, names: Sequence[str]) -> EvaluateError:
        """Return the error that these files are missing, with one line per origin."""
        of_origin: dict[str, list[str]] = {}
        for name in names:
            place = (
                str(self.folder / name)
                if self.folder
                else f"{name} (in the folder that --data names)"
            )
            of_origin.setdefault(origin(name), []).append(place)
        lines = []
        for source, places in of_origin.items():
            are, cure = (
                ("are", source.replace("it comes", "they come", 1))
                if places[1:]
                else ("is", source)
            )
            lines.append(f"{', '.join(places)} {are} missing; {cure}")
        return EvaluateError("\n".join(lines))

    def error(self, name: str, what: str) -> EvaluateError:
        """Return the error of a file that cannot be used, with its source."""
        return EvaluateError(
            f"{self.path(name)}{what}; fix it, or download it again: {origin(name)}"
        )

    def text(self, name: str) -> str:
        """Return a file's text, UTF-8 or else Latin-1. Raises EvaluateError if it cannot be read."""
        path = self.path(name)
        try:
            raw = (
                gzip.decompress(path.read_bytes())
                if path.suffix == ".gz"
                else path.read_bytes()
            )
        except (OSError, EOFError, zlib.error) as error:
            raise self.error(name, f" cannot be read ({error})") from None
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            # Latin-1 has a character for every byte, so this cannot fail.
            return raw.decode("latin-1")

    def json(self, name: str, shape: Shape = None) -> Any:
        """Return a file's JSON value, checked for a shape. Raises EvaluateError if it is another."""
        return self._checked(self._loaded(self.text(name), name), shape, name)

    def json_lines(self, name: str, shape: Shape = None) -> Iterator[Json]:
        """Yield each line's value (a Parquet file's rows), checked for a shape; a JSON list, or one in `data`, gives its items."""
        if name.endswith(".parquet"):
            try:
                # Small batches: a conversation of a million tokens is several megabytes in one cell.
                for batch in parquet.ParquetFile(self.path(name)).iter_batches(
                    batch_size=16
                ):
                    for row in batch.to_pylist():
                        yield self._checked(row, shape, name)
            except (OSError, ValueError, ArrowException) as error:
                raise self.error(
                    name, f" cannot be read as Parquet ({error})"
                ) from None
            return
        first = (text := self.text(name)).lstrip()[:1]
        # One JSON value over the whole file, rather than one a line: such an object is the only one.
        if first == "[" or (first == "{" and "\n{" not in text.strip()):
            value = self._loaded(text, name)
            items = value.get("data", [value]) if isinstance(value, dict) else value
            if not isinstance(items, list):
                raise self.error(
                    name, f": data is {items!r:.60}, which is not a list of records"
                )
            for number, item in enumerate(items, start=1):
                yield self._checked(item, shape, name, place=f", record {number}")
            return
        lines = (
            (f", line {number}", line)
            for number, line in enumerate(text.split("\n"), start=1)
            if line.strip()
        )
        for place, line in lines:
            yield self._checked(
                self._loaded(line, name, place), shape, name, place=place
            )

    def rows(self, name: str, columns: Sequence[str]) -> list[dict[str, str]]:
        """Return columns of a CSV file with a header; a quoted field may hold line breaks.

        Raises EvaluateError if a column is missing, in any row.
        """
        # `newline=""` leaves line breaks inside quoted fields to the CSV reader.
        reader, rows = (
            csv.DictReader(io.StringIO(self.text(name), newline=""), strict=True),
            list[dict[str, str]](),
        )
        try:
            for row in reader:
                if missing := [column for column in columns if row.get(column) is None]:
                    present = ", ".join(
                        str(key) for key, value in row.items() if value is not None
                    )
                    raise self.error(
                        name,
                        f", line {reader.line_num}: no {missing[0]!r} (it has {present})",
                    )
                rows.append({column: row[column] for column in columns})
        except csv.Error as error:
            raise self.error(
                name, f", line {reader.line_num}: not valid CSV ({error})"
            ) from None
        if not rows:
            raise self.error(name, " holds no row below its header")
        return rows

    def _loaded(self, text: str, name: str, place: str = "") -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.error(name, f"{place}: not JSON ({error})") from None

    def _checked(self, value: Any, shape: Shape, name: str, *, place: str = "") -> Any:
        """Return a value of a shape. Raises EvaluateError with the first field that is wrong, and what it holds."""
        try:
            return value if shape is None else _adapter(shape).validate_python(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
        # pydantic's path also names the member of a union, which is no field.
        named = [
            part
            for part in first["loc"]
            if isinstance(part, int) or part.isidentifier()
        ]
        path = [
            f"[{part}]" if isinstance(part, int) else f".{part}"
            for part in named
            if part not in ("str", "int")
        ]
        where, held = "".join(path).removeprefix("."), f"{first['input']!r:.60}"
        if first["type"] == "missing":
            fields = (
                ", ".join(map(str, first["input"]))
                if isinstance(first["input"], dict)
                else held
            )
            parent = where.rpartition(".")[0] or "the record"
            mistake = (
                f"{parent} has no {str(first['loc'][-1])!r} (it has {fields:.200})"
            )
        elif first["type"] == "value_error":
            mistake = f"{where or 'the record'}: {first['ctx']['error']}"
        else:
            message = (first["msg"][0].lower() + first["msg"][1:]).replace(
                "input ", "it "
            )
            mistake = f"{where or 'the record'} is {held}, but {message}"
        raise self.error(name, f"{place}: {mistake}")


def origin(name: str) -> str:
    """Return a sentence that says where a file comes from."""
    if file := _HUB.get(name):
        place = (
            f"{file.path}; its license: {file.licence}" if file.licence else file.path
        )
        return f"it comes from {file.repo} on the Hugging Face hub ({place}); nextlong evaluate data SUITE downloads it"
    if source := SOURCES["elsewhere"].get(name):
        return (
            f"give {source}" if source.startswith("any") else f"it comes from {source}"
        )
    helmet = "HELMET's data (`princeton-nlp/HELMET`: scripts/download_data.sh, 34 GB); give the folder with its `data`"
    return f"it comes with {helmet}" if name.startswith("helmet/") else "add the file"


def download(names: Sequence[str], out: Path, console: Console) -> list[Json]:
    """Download files into a folder; return a record of each: downloaded, present already, or to be downloaded manually."""
    with store.explained(out):
        out.mkdir(parents=True, exist_ok=True)
    done, folder = list[Json](), DataFiles(out)
    for name in names:
        if folder.has(folder.source(name)):
            one: Json = {"state": "present"}
        elif name in _HUB:
            one = {
                "state": "downloaded",
                "sha256": _download(_HUB[name], out / name),
                "from": _HUB[name].repo,
            }
        else:
            one = {"state": "manual", "from": origin(name)}
        done.append({"file": name, **one})
        tables.say(
            ": ".join(
                [f"{one['state']:<10} {out / name}", *filter(None, [one.get("from")])]
            ),
            console,
        )
    return done


def _download(file: _HubFile, place: Path) -> str:
    """Download a file and return its SHA-256. Raises EvaluateError if that fails, or if the hash is not the publisher's."""
    hub = required("huggingface_hub")
    # The library reads HF_ENDPOINT when it is imported; here it is read at each call.
    where = {
        "repo_type": "dataset",
        "revision": file.revision,
        "endpoint": os.environ.get("HF_ENDPOINT"),
    }
    place.parent.mkdir(parents=True, exist_ok=True)
    # Into a temporary folder beside the destination, so that an interrupted download leaves no half file there.
    with TemporaryDirectory(dir=place.parent, prefix=".fetching-") as temporary:
        try:
            etag = hub.get_hf_file_metadata(
                hub.hf_hub_url(file.repo, file.path, **where)
            ).etag
            fetched = Path(
                hub.hf_hub_download(file.repo, file.path, local_dir=temporary, **where)
            )
        except (
            OSError,
            ValueError,
        ) as error:  # the library's errors are both, and requests' are OSError
            raise EvaluateError(
                f"{file.path} of {file.repo} cannot be downloaded ({first_sentence(error)}); try again, or put your copy at {place}"
            ) from None
        with fetched.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        # The ETag of a file in Git LFS is its SHA-256, of any other file a shorter hash.
        published = file.sha256 or (etag if etag and len(etag) == len(digest) else None)
        if published is not None and digest != published:
            raise EvaluateError(
                f"{file.path} of {file.repo} has the SHA-256 {digest}, not {published}: it is damaged or was changed; try again"
            )
        fetched.replace(place)
    return digest
