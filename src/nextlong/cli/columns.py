"""Columns: which of a file's columns holds the text and which the id, told by their names and values.

In:  the columns of the first records of some files (`inputs/head.py`). Out: a `Look` a file.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nextlong.inputs.conversation import as_text
from nextlong.inputs.files import COMPRESSIONS, InputFile
from nextlong.inputs.formats import format_of
from nextlong.inputs.head import UNREADABLE, read_columns
from nextlong.inputs.listing import list_files
from nextlong.model_names import first_sentence
from nextlong.recipe import Source

LOOKED_AT: Final = 8  # files of a suffix; so few of a folder may be sources of their own

# As data sets on the Hugging Face hub call them, the more telling first.
_TEXTS: Final = (
    "text", "content", "contents", "body", "document", "raw_content", "markdown", "article", "full_text", "page_content",
    "maintext", "story", "passage", "transcript", "code", "abstract",
)  # fmt: skip
_IDS: Final = (
    "id", "doc_id", "docid", "document_id", "_id", "uid", "doc_uid", "uuid", "guid", "warc-record-id", "record_id", "blob_id",
    "key", "url", "uri",
)  # fmt: skip
_CONVERSATIONS: Final = ("messages", "conversations", "conversation", "turns", "dialogue", "dialog", "chat")
_EXAMPLE_CHARS: Final = 40
_LEAST_MEAN_CHARS: Final = 40  # of a column of an unknown name that may be the text


@dataclass(frozen=True)
class Look:
    """What the first records of a file say: its columns of text and ids, None where there is nothing to go by."""

    file: InputFile
    has_columns: bool = True  # files of text and pages are documents as they are
    problem: str = ""  # why it cannot be read
    text: str | None = None
    id: str | None = None
    examples: Mapping[str, str] = field(default_factory=dict)  # of each column, how a value begins
    repeating: tuple[str, Any] | None = None  # a column that is called as ids are, and a value that stands there twice

    @property
    def suffix(self) -> str:
        """The end of its name that says what it is, with what compresses it."""
        stem, last = posixpath.splitext(self.file.name)
        return posixpath.splitext(stem)[1] + last if last.lower() in COMPRESSIONS else last


def look_into(path: str) -> list[Look]:
    """Return a look at the first files of each suffix of a local source. Raises CorpusError if there is none."""
    source = Source(path=path)
    looks: dict[str, list[Look]] = {}
    for file in list_files(source, where="FILE"):
        of_its_kind = looks.setdefault(Look(file).suffix, [])
        if len(of_its_kind) < LOOKED_AT:
            of_its_kind.append(_look_at(file, source))
    return [look for of_its_kind in looks.values() for look in of_its_kind]


def _look_at(file: InputFile, source: Source) -> Look:
    kind = format_of(file.name, source)
    has_columns = kind.has_columns and kind.extractor is None
    try:
        columns = read_columns(file, source)
    except UNREADABLE as error:
        return Look(file, has_columns=has_columns, problem=first_sentence(error))
    if not has_columns:
        return Look(file, has_columns=False)
    if not columns:
        return Look(file, problem="it holds no records")
    return Look(
        file,
        text=text_column(columns),
        id=id_column(columns),
        examples={name: _example(values) for name, values in columns.items()},
        repeating=_repeating(columns),
    )


def _example(values: Sequence[Any]) -> str:
    text = " ".join(str(values[0]).split()) if values else "null"
    return text if len(text) <= _EXAMPLE_CHARS else f"{text[:_EXAMPLE_CHARS]} …"


def text_column(columns: Mapping[str, Sequence[Any]]) -> str | None:
    """Return the column that is called as texts are, else one of conversations, else the one with the longest strings."""
    strings = {
        name: values for name, values in columns.items() if values and all(isinstance(value, str) for value in values)
    }
    named = _named(strings, _TEXTS)
    if named is not None:
        return named
    conversations = {
        name: values for name, values in columns.items() if values and all(as_text(value) for value in values)
    }
    if conversations:
        return _named(conversations, _CONVERSATIONS) or next(iter(conversations))
    lengths = {name: sum(map(len, values)) / len(values) for name, values in strings.items()}
    longest = max(lengths, key=lambda name: lengths[name], default=None)
    return longest if longest is not None and lengths[longest] >= _LEAST_MEAN_CHARS else None


def id_column(columns: Mapping[str, Sequence[Any]]) -> str | None:
    """Return the column that is called as ids are and whose values differ."""
    distinct = {
        name: values
        for name, values in columns.items()
        if values and all(isinstance(value, str | int) for value in values) and len(set(values)) == len(values)
    }
    return _named(distinct, _IDS)


def _repeating(columns: Mapping[str, Sequence[Any]]) -> tuple[str, Any] | None:
    counts = {
        name: Counter(values).most_common(1)[0]
        for name, values in columns.items()
        if values and all(isinstance(value, str | int) for value in values)
    }
    name = _named({name: value for name, (value, count) in counts.items() if count > 1}, _IDS)
    return None if name is None else (name, counts[name][0])


def _named(columns: Mapping[str, Any], wanted: Sequence[str]) -> str | None:
    """Return the column with the first of these names, in any case; of nested ones the last part counts."""
    for candidates in ([name for name in columns if "." not in name], [name for name in columns if "." in name]):
        lasts = {name.rpartition(".")[2].lower(): name for name in reversed(candidates)}
        if column := next((lasts[name] for name in wanted if name in lasts), None):
            return column
    return None
