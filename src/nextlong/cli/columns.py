"""Columns: find the text and id columns of a file by their names and values, and describe a source for `init`."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from nextlong.cli.common import first_few
from nextlong.errors import CorpusError
from nextlong.reading.document_text import conversation_text
from nextlong.reading.files import COMPRESSIONS, InputFile
from nextlong.reading.formats import UNREADABLE, format_of, head_columns
from nextlong.reading.listing import list_files
from nextlong.recipe import Source
from nextlong.text import first_sentence

MAX_FILES: Final = (
    8  # read per suffix; a folder with no more files may become one source per file
)

# As data sets on the Hugging Face hub name them, the most specific first.
_TEXTS: Final = (
    "text", "content", "contents", "body", "document", "raw_content", "markdown", "article", "full_text", "page_content",
    "maintext", "story", "passage", "transcript", "code", "abstract",
)  # fmt: skip
_IDS: Final = (
    "id", "doc_id", "docid", "document_id", "_id", "uid", "doc_uid", "uuid", "guid", "warc-record-id", "record_id", "blob_id",
    "key", "url", "uri",
)  # fmt: skip
_CONVERSATIONS: Final = (
    "messages",
    "conversations",
    "conversation",
    "turns",
    "dialogue",
    "dialog",
    "chat",
)
_KINDS: Final = (
    (bool, "a boolean"),
    (int | float, "a number"),
    (list, "a list"),
    (dict, "an object"),
)
_EXAMPLE_CHARS: Final = 40
_MIN_MEAN_CHARS: Final = 40  # of a column with an unknown name that may be the text
_NAMED_FILES: Final = 3  # in a sentence


@dataclass(frozen=True)
class _FileLook:
    """The columns of a file according to its first records; `text` and `id` are None if no column qualifies."""

    file: InputFile
    has_columns: bool = True  # plain text and pages are documents as they are
    problem: str = ""  # why it cannot be read
    text: str | None = None
    id: str | None = None
    examples: Mapping[str, str] = field(
        default_factory=dict
    )  # of each column, how a value begins
    repeating: tuple[str, Any] | None = (
        None  # a column with the name of an id, and a value that it has twice
    )

    @property
    def suffix(self) -> str:
        """The suffix of the file, with that of its compression."""
        stem, last = posixpath.splitext(self.file.name)
        return (
            posixpath.splitext(stem)[1] + last if last.lower() in COMPRESSIONS else last
        )


def looks_into(path: str) -> list[_FileLook]:
    """Inspect the first files of each suffix of a source; return none if it is remote or has no file."""
    try:
        files = [] if "://" in path else list_files(Source(path=path), where="FILE")
    except CorpusError:
        return []
    by_suffix: dict[str, list[InputFile]] = {}
    for file in files:
        by_suffix.setdefault(_FileLook(file).suffix, []).append(file)
    return [
        _look_at(file)
        for of_suffix in by_suffix.values()
        for file in of_suffix[:MAX_FILES]
    ]


@lru_cache(maxsize=1024)
def _look_at(file: InputFile) -> _FileLook:
    source = Source(path=file.path)
    file_format = format_of(file.name, source)
    has_columns = file_format.has_columns and file_format.extractor is None
    try:
        columns = head_columns(file, source, unreadable="raise")
    except UNREADABLE as error:
        return _FileLook(file, has_columns, first_sentence(error))
    if not has_columns or not columns:
        return _FileLook(
            file, has_columns, "it holds no records" if has_columns else ""
        )
    examples = {}  # in one line, with the type of what is no string
    for name, values in columns.items():
        kind = next(
            (kind for types, kind in _KINDS if values and isinstance(values[0], types)),
            None,
        )
        text = (
            "null"
            if not values
            else f"{kind}, {values[0]}"
            if kind
            else " ".join(str(values[0]).split())
        )
        examples[name] = (
            text if len(text) <= _EXAMPLE_CHARS else f"{text[:_EXAMPLE_CHARS]} …"
        )
    own_id, repeating = id_column(columns)
    return _FileLook(
        file,
        text=text_column(columns),
        id=own_id,
        examples=examples,
        repeating=repeating,
    )


def text_column(columns: Mapping[str, Sequence[Any]]) -> str | None:
    """Return the column with a usual name of a text, else one of conversations, else the one with the longest strings."""
    strings = {
        name: [value for value in values if isinstance(value, str)]
        for name, values in columns.items()
    }
    strings = {
        name: values
        for name, values in strings.items()
        if 2 * len(values) > len(columns[name])
    }  # most of them
    if named := _first_named(strings, _TEXTS):
        return named
    if conversations := [
        name
        for name, values in columns.items()
        if values and all(map(conversation_text, values))
    ]:
        return _first_named(conversations, _CONVERSATIONS) or conversations[0]
    lengths = {
        name: sum(map(len, values)) / len(values) for name, values in strings.items()
    }
    longest = max(lengths, key=lambda name: lengths[name], default=None)
    return (
        longest if longest is not None and lengths[longest] >= _MIN_MEAN_CHARS else None
    )


def id_column(
    columns: Mapping[str, Sequence[Any]],
) -> tuple[str | None, tuple[str, Any] | None]:
    """Return the column with a usual name of an id and distinct values, and one with duplicates and the first of these."""
    cells = {
        name: values
        for name, values in columns.items()
        if values and {*map(type, values)} <= {str, int, bool}
    }
    most = {
        name: Counter(values).most_common(1)[0] for name, values in cells.items()
    }  # value and count
    distinct = _first_named(
        [name for name, (_, count) in most.items() if count == 1], _IDS
    )
    repeated = _first_named(
        [name for name, (_, count) in most.items() if count > 1], _IDS
    )
    return distinct, None if repeated is None else (repeated, most[repeated][0])


def _first_named(columns: Collection[str], names: Sequence[str]) -> str | None:
    """Return the column with the first of these names, in any case; of nested columns the last part counts."""
    for candidates in (
        [name for name in columns if "." not in name],
        [name for name in columns if "." in name],
    ):
        by_last_part = {
            name.rpartition(".")[2].lower(): name for name in reversed(candidates)
        }
        if column := next(
            (by_last_part[name] for name in names if name in by_last_part), None
        ):
            return column
    return None


def source_notes(source: Source, looks: Sequence[_FileLook]) -> Iterator[str]:
    """Yield notes on a source from the inspected files: its columns first, then problems."""
    if "://" in source.path:
        yield f"{source.label}: remote, not read; text column {source.text!r} and id column {source.id!r} are guesses"
        return
    tables = [look for look in looks if look.has_columns]
    if not tables:
        yield f"{source.label}: each file or page is one document"
    elif all(look.problem for look in tables):
        yield f"{source.label}: no file could be read; text column {source.text!r} is a guess"
    else:
        is_known = any(look.text for look in tables)
        guess = "" if is_known else " is a guess, because no column looks like text"
        yield f"{source.label}: text column {source.text!r}{guess}, {_id_note(source, tables)}"
        examples = next((look.examples for look in tables if look.examples), {})
        has_ids = "id" in source.model_fields_set or any(
            look.repeating for look in tables
        )
        if not is_known or (len(examples) > 1 and not has_ids):
            yield f"{source.label}: columns: {', '.join(f'{name} ({value})' for name, value in examples.items())}"
    if 0 < len(tables) < len(looks):
        names = _file_names(look for look in looks if not look.has_columns)
        yield f"{source.label}: {names}: each file or page is one document"
    # By suffix and reason: one note for all files with the same problem.
    alike: dict[tuple[str, str], list[_FileLook]] = {}
    for look in looks:
        if look.problem:
            reason = look.problem.replace(look.file.path, "").replace(
                look.file.name, ""
            )
            alike.setdefault((look.suffix, reason), []).append(look)
    for first, *more in alike.values():
        message = first.problem
        if not message.startswith(first.file.path):
            message = (
                f"{first.file.path} cannot be read: {message}; repair or remove it"
            )
        yield f"{source.label}: {message}" + (
            f" (also {_file_names(more)})" if more else ""
        )
    others = [look for look in tables if look.text not in (None, source.text)]
    for column in dict.fromkeys(look.text for look in others):
        files = _file_names(look for look in others if look.text == column)
        yield f"{source.label}: {files}: the text seems to be in {column!r}; make them a separate source"


def _id_note(source: Source, tables: Sequence[_FileLook]) -> str:
    if "id" in source.model_fields_set:
        return f"id column {source.id!r}"
    repeating = next((look.repeating for look in tables if look.repeating), None)
    if repeating is None:
        return "no id column: documents are named file:line"
    column, value = repeating
    if column == source.id:
        return f"id column {column!r} with duplicates ({value!r} occurs twice): make the ids unique, or name another column"
    return f"no id column, because {column!r} has duplicates ({value!r} occurs twice): documents are named file:line"


def _file_names(looks: Iterable[_FileLook]) -> str:
    return first_few(
        [posixpath.basename(look.file.path) for look in looks], most=_NAMED_FILES
    )
