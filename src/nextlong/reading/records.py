"""Records: one document as read from a file, or why a line or row is none.

In:  an open file and a `ReadRequest`.
Out: `Record`, `Reject` and `Skip` objects in file order.

An input format is one subclass of `InputFormat`; the rest of the package never depends
on a particular format.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, NamedTuple, NoReturn

import pyarrow as pa

from nextlong.errors import CorpusError
from nextlong.reading.encoding import bytes_as_utf8
from nextlong.reading.files import FilePart, InputFile, check_unchanged, read_head
from nextlong.recipe import Source
from nextlong.text import Rows


class Record(NamedTuple):
    """One document; `line` is its 1-based line or row in the file."""

    text: str
    source_id: str
    line: int
    # Of the columns in `metadata` and `filter`; None for a missing value.
    values: tuple[Any, ...] = ()


class RejectKind(StrEnum):
    """Why a line or row was rejected, as in statistics and messages."""

    BROKEN_JSON = "broken JSON"
    BROKEN_ROW = "broken row"
    NOT_AN_OBJECT = "not a JSON object"
    LINE_TOO_LONG = "line too long"
    INVALID_UTF8 = "invalid UTF-8"
    INVALID_ENCODING = "invalid in the encoding of its source"
    NOT_TEXT = "not text"
    LONE_SURROGATE = "lone surrogate in the text"
    NO_COLUMN = "no text column"
    NULL = "text is null"
    NOT_A_STRING = "text is not a string"
    EMPTY = "empty"
    TOO_LONG = "too long"
    BROKEN_RECORD = "broken WARC record"
    BROKEN_RESPONSE = "broken HTTP response"
    BROKEN_PAGE = "broken HTML"
    OTHER_IDS = "the text of token ids has other ids"


class Reject(NamedTuple):
    """A rejected line or row."""

    file: str
    line: int
    kind: RejectKind
    detail: str = ""

    @property
    def reason(self) -> str:
        """The kind, with details of this line."""
        return f"{self.kind}: {self.detail}" if self.detail else self.kind.value


class Skip(NamedTuple):
    """A record that is no document by its kind, such as an image in a web archive.

    Unlike a `Reject`, it is no fault: it does not count for `ingest.max_reject_share`.
    """

    file: str
    line: int
    reason: str


class FilteredOut(NamedTuple):
    """A document removed by the source's `filter`; `head` begins its text."""

    line: int
    source_id: str
    head: str


Item = Record | Reject | Skip
Items = Iterator[Item]
FilteredItem = Item | FilteredOut


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What to read: a part of a file, and the columns besides text and id."""

    part: FilePart
    source: Source
    columns: Sequence[str]
    max_document_chars: int  # longer texts may be read in part or not at all

    def required(self) -> list[tuple[str, str]]:
        """Return the required columns, text first, each with the key that names it."""
        texts = [(name, "text") for name in self.source.text_columns]
        others = [(name, "metadata or filter") for name in self.columns]
        return [*texts, *others]

    def record(
        self, text: str, own_id: Any, line: int, values: tuple[Any, ...] = ()
    ) -> Record:
        """Return the record of a line or row, with the user's own id, or file:line."""
        if own_id is None or own_id == "" or isinstance(own_id, dict | list):
            return Record(text, f"{self.part.file.name}:{line}", line, values)
        source_id = str(own_id).encode("utf-8", "replace").decode()
        return Record(text, source_id, line, values)

    def refuse_column(
        self, column: str, known: Sequence[str], *, key: str = "text"
    ) -> NoReturn:
        """Raise CorpusError for a column that the file lacks or has twice.

        `key` is the recipe key that names it.
        """
        path = self.part.file.path
        count = known.count(column)
        if count > 1:
            raise CorpusError(
                where=path,
                problem=f"it has {count} columns {column!r}, so {key} is ambiguous",
                fix="rename one of them",
            )
        purpose = f"that {key} names"
        fix = f"set the source's {key} to one of these"
        if key == "text":
            purpose = "for the text"
            fix = "set the source's text to the one that holds the text"
        near = difflib.get_close_matches(column, known, n=1)
        if near:
            fix = f"did you mean {near[0]!r}?"
        shown = "nor any other"
        if known:
            shown = f"only {', '.join(known[:20])}"
        raise CorpusError(
            where=path,
            problem=f"it has no column {column!r} {purpose}, {shown}",
            fix=fix,
        )


class InputFormat(ABC):
    """A format of input files.

    To add one, assign an instance of a subclass to FORMAT in a module of this folder.
    """

    name: str  # as in the recipe's `format`
    suffixes: tuple[str, ...]
    # Around: .gz or another suffix of a compression may follow the format's own.
    compression: Literal["around", "inside"] = "around"
    has_columns = True
    # Whether its files are text, in the source's `encoding`.
    is_text = True
    # Whether its files may hold token ids, of the source's `tokenizer`.
    has_token_ids = False
    # Files that its writers put beside the data, by lower-case name.
    side_files: frozenset[str] = frozenset()
    # Whether each line is a record that can be read without the lines above.
    is_lines = False
    # Name and version of the library that extracts text; "" if it is not installed.
    extractor: str | None = None

    @abstractmethod
    def read(self, stream: pa.NativeFile, request: ReadRequest) -> Items:
        """Yield each record, reject or skip of an open file, in file order."""

    def rows(
        self,
        stream: pa.NativeFile,  # noqa: ARG002
        part: FilePart,  # noqa: ARG002
    ) -> Rows:
        """Yield the records of a part of a file as they are, to judge their columns."""
        return iter(())

    def text_bytes(
        self, file: InputFile, source: Source, head_bytes: int
    ) -> tuple[int, int]:
        """Estimate from the head of a file how much text it holds.

        Returns (bytes of text, bytes on disk that contain them).
        """
        head, raw_bytes = read_head(file, head_bytes)
        head = bytes_as_utf8(head, source.encoding)
        # The incomplete line at the end is assumed to be like the lines before it.
        whole_lines = head
        if raw_bytes != file.bytes:
            whole_lines = head[: head.rfind(b"\n") + 1] or head
        request = ReadRequest(FilePart(file), source, (), len(head))
        text_bytes = 0
        # The head may end within a record.
        with suppress(CorpusError, OSError, EOFError):
            for item in self.read(pa.BufferReader(whole_lines), request):
                if isinstance(item, Record):
                    text_bytes += len(item.text.encode())
        if text_bytes == 0:
            return len(head), raw_bytes
        return len(head) * text_bytes // len(whole_lines), raw_bytes


class SplittableFormat(InputFormat):
    """A format whose uncompressed files several tasks can share.

    Its records can be read from any position.
    """

    @abstractmethod
    def split(self, file: InputFile, part_bytes: int) -> list[FilePart]:
        """Return the parts of a file, of about `part_bytes` each."""

    @abstractmethod
    def read_at(
        self,
        stream: pa.NativeFile,
        request: ReadRequest,
        *,
        position: float,
        read_bytes: int,
    ) -> tuple[Items, float]:
        """Read about `read_bytes` on disk from a position in [0, 1).

        Returns the records and their fraction of the file.
        """


def text_problem(text: str, max_document_chars: int) -> tuple[RejectKind, str] | None:
    """Return why a text is rejected, as kind and detail; None if it is accepted."""
    if len(text) > max_document_chars:
        return RejectKind.TOO_LONG, f"{len(text):,} characters"
    if not text or text.isspace():
        return RejectKind.EMPTY, ""
    return None


def library(package: str) -> str:
    """Return name and version of a library, on which its results depend.

    "" if it is not installed.
    """
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return ""


@contextmanager
def explained(file: InputFile) -> Iterator[None]:
    """Turn errors of file systems and decoders into a CorpusError.

    It names the file and the fix.
    """
    try:
        yield
    except FileNotFoundError:
        raise CorpusError(
            where=file.path,
            problem="it was deleted after it was listed",
            fix="restore it, or run again without it",
        ) from None
    except PermissionError as error:
        raise CorpusError(
            where=file.path,
            problem=f"it cannot be read ({error.strerror})",
            fix="change its permissions",
        ) from None
    except (OSError, pa.ArrowException) as error:
        check_unchanged(file)
        reason = " ".join(str(error).split())
        raise CorpusError(
            where=file.path,
            problem=f"it is truncated or damaged ({reason})",
            fix="download it again, or rename it if its content has another format "
            "than its suffix",
        ) from None
