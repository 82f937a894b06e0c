"""Record: one document as the user gave it, or why a line or row holds none; what the readers of all formats share."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, Final, NamedTuple, NoReturn

import pyarrow as pa

from nextlong.errors import CorpusError
from nextlong.inputs.columns import ABSENT
from nextlong.inputs.files import InputFile, check_unchanged

BOM: Final = b"\xef\xbb\xbf"  # that a file of UTF-8 may begin with


class Record(NamedTuple):
    """One document as the user gave it; `line` is the 1-based line or row of its file.

    `values` are those of the columns that the source's `keep` and `where` name, None where it has none.
    """

    text: str
    source_id: str
    line: int
    values: tuple[Any, ...] = ()


class RejectKind(StrEnum):
    """Why a line or row holds no document, as counts and users are told it."""

    BROKEN_JSON = "broken JSON"
    BROKEN_ROW = "broken row"
    NOT_AN_OBJECT = "not a JSON object"
    LINE_TOO_LONG = "line too long"
    INVALID_UTF8 = "invalid UTF-8"
    LONE_SURROGATE = "lone surrogate in the text"
    NO_COLUMN = "no text column"
    NULL = "text is null"
    NOT_A_STRING = "text is not a string"
    EMPTY = "empty"
    TOO_LONG = "too long"


def problem(text: str, max_document_chars: int) -> tuple[RejectKind, str] | None:
    """Return why a text is no document, and what there is to say of it; None of one that is."""
    if len(text) > max_document_chars:
        return RejectKind.TOO_LONG, f"{len(text):,} characters"
    return (RejectKind.EMPTY, "") if not text or text.isspace() else None


class Reject(NamedTuple):
    """One line or row that holds no document."""

    file: str
    line: int
    kind: RejectKind
    detail: str = ""

    @property
    def reason(self) -> str:
        """The kind, and what there is to say of this very line."""
        return f"{self.kind}: {self.detail}" if self.detail else self.kind.value


@contextmanager
def explained(file: InputFile) -> Iterator[None]:
    """Turn errors of the file system and of decoders into a CorpusError that names the file and the cure."""
    try:
        yield
    except FileNotFoundError:
        raise CorpusError(
            f"{file.path} has vanished since it was listed; put it back, or run again without it"
        ) from None
    except PermissionError as error:
        raise CorpusError(f"{file.path} cannot be read ({error.strerror}); change its permissions") from None
    except (OSError, pa.ArrowException) as error:
        check_unchanged(file)
        reason = " ".join(str(error).split())
        raise CorpusError(
            f"{file.path} ends early or is damaged ({reason}); re-download it, or rename it if "
            "it is of another kind than its name says"
        ) from None


def source_id(value: Any, name: str, line: int) -> str:
    """Return the user's own id as a string, else file:line."""
    if value is None or value is ABSENT or value == "" or isinstance(value, dict | list):
        return f"{name}:{line}"
    return str(value).encode("utf-8", "replace").decode()


def refuse_column(file: InputFile, column: str, known: Sequence[str], *, asked_by: str = "text") -> NoReturn:
    """Raise CorpusError for a column that a file does not have, or has twice; `asked_by` is the key that names it."""
    if (count := known.count(column)) > 1:
        raise CorpusError(
            f"{file.path} has {count} columns {column!r}, so it is not clear which is meant by {asked_by}; rename one"
        )
    near = difflib.get_close_matches(column, known, n=1)
    cure = "the one that holds the text" if asked_by == "text" else "one of these"
    advice = f"did you mean {near[0]!r}?" if near else f"set the source's {asked_by} to {cure}"
    what = "for the text" if asked_by == "text" else f"that {asked_by} names"
    raise CorpusError(
        f"{file.path} has no column {column!r} {what}; it has {', '.join(known[:20]) or 'none'}; {advice}"
    )
