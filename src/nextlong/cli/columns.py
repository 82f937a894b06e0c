"""Columns: judge the columns of the files of a source, and describe the source for `init`."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

from nextlong.cli.common import first_few
from nextlong.errors import CorpusError
from nextlong.reading.choose_columns import ColumnChoice, choose_columns
from nextlong.reading.compression import COMPRESSIONS
from nextlong.reading.document_text import EACH, paths_of
from nextlong.reading.files import InputFile
from nextlong.reading.formats import UNREADABLE, format_of, sample_records
from nextlong.reading.listing import list_files
from nextlong.recipe import Source
from nextlong.text import first_sentence

MAX_FILES: Final = (
    8  # read per suffix; a folder with no more files may become one source per file
)

_KINDS: Final = (
    (bool, "a boolean"),
    (int | float, "a number"),
    (list, "a list"),
    (dict, "an object"),
)
_EXAMPLE_CHARS: Final = 40
_SAMPLE_BYTES: Final = 64_000_000  # read of a source; takes about a second
_SHOWN_RIVALS: Final = 3
_NAMED_FILES: Final = 3  # in a sentence


@dataclass(frozen=True)
class FileLook:
    """The columns of a file according to a sample of its records."""

    file: InputFile
    has_columns: bool = True  # plain text and pages are documents as they are
    problem: str = ""  # why it cannot be read
    columns: ColumnChoice = field(default_factory=ColumnChoice)
    # Of each column, how a value begins.
    examples: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str | None:
        """The column that holds the text, None if no column qualifies."""
        return self.columns.text

    @property
    def id(self) -> str | None:
        """The column with ids, None if no column qualifies."""
        return self.columns.id

    @property
    def suffix(self) -> str:
        """The suffix of the file, with that of its compression."""
        stem, last = posixpath.splitext(self.file.name)
        return (
            posixpath.splitext(stem)[1] + last if last.lower() in COMPRESSIONS else last
        )


def looks_into(path: str) -> list[FileLook]:
    """Inspect some files of each suffix of a source; return none if it is remote or has no file."""
    try:
        files = [] if "://" in path else list_files(Source(path=path), where="FILE")
    except CorpusError:
        return []
    by_suffix: dict[str, list[InputFile]] = {}
    for file in files:
        by_suffix.setdefault(FileLook(file).suffix, []).append(file)
    chosen = [file for of_suffix in by_suffix.values() for file in _spread(of_suffix)]
    max_bytes = _SAMPLE_BYTES // max(1, len(chosen))
    return _agreed([_look_at(file, max_bytes) for file in chosen])


def _spread(files: Sequence[InputFile]) -> list[InputFile]:
    """Return at most `MAX_FILES` of the files, spread over them."""
    count = min(len(files), MAX_FILES)
    return [files[number * len(files) // count] for number in range(count)]


def _agreed(looks: Sequence[FileLook]) -> list[FileLook]:
    """Return the looks with the most frequent text column first, where it can be the text.

    Files of one source may differ by chance in which of two columns is longer.
    """
    texts = Counter(look.text for look in looks if look.text)
    if len(texts) < 2:
        return list(looks)
    common = texts.most_common(1)[0][0]
    return [replace(look, columns=look.columns.preferring(common)) for look in looks]


@lru_cache(maxsize=1024)
def _look_at(file: InputFile, max_bytes: int) -> FileLook:
    source = Source(path=file.path)
    file_format = format_of(file.name, source)
    has_columns = file_format.has_columns and file_format.extractor is None
    try:
        records = sample_records(file, source, max_bytes=max_bytes)
    except UNREADABLE as error:
        return FileLook(file, has_columns, first_sentence(error))
    if not has_columns or not records:
        problem = "it holds no records" if has_columns else ""
        return FileLook(file, has_columns, problem)
    return FileLook(file, columns=choose_columns(records), examples=_examples(records))


def _examples(records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return how a value of each column begins, in one line, with the type of what is no string."""
    values: dict[str, Any] = {}
    for record in records:
        for path, value in paths_of(record):
            if values.get(path) is None and EACH not in path:
                values[path] = value
    return {name: _example(value) for name, value in values.items()}


def _example(value: Any) -> str:
    kind = next((kind for types, kind in _KINDS if isinstance(value, types)), None)
    if value is None:
        text = "null"
    elif kind is not None:
        text = f"{kind}, {value}"
    else:
        text = " ".join(str(value).split())
    return text if len(text) <= _EXAMPLE_CHARS else f"{text[:_EXAMPLE_CHARS]} …"


def source_notes(source: Source, looks: Sequence[FileLook]) -> Iterator[str]:
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
        first = next((look for look in tables if look.text), tables[0])
        for note in _text_notes(first.columns):
            yield f"{source.label}: {note}"
        examples = next((look.examples for look in tables if look.examples), {})
        has_ids = "id" in source.model_fields_set or any(
            look.columns.repeating for look in tables
        )
        if not is_known or (len(examples) > 1 and not has_ids):
            yield f"{source.label}: columns: {', '.join(f'{name} ({value})' for name, value in examples.items())}"
    if 0 < len(tables) < len(looks):
        names = _file_names(look for look in looks if not look.has_columns)
        yield f"{source.label}: {names}: each file or page is one document"
    # By suffix and reason: one note for all files with the same problem.
    alike: dict[tuple[str, str], list[FileLook]] = {}
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


def _text_notes(columns: ColumnChoice) -> Iterator[str]:
    """Yield what the chosen column holds if not strings, which columns compete, and which cannot be the text."""
    for name, kind in columns.not_text:
        yield f"column {name!r} cannot be the text: it holds {kind}"
    if columns.text is None:
        return
    chosen, *_ = columns.candidates
    if chosen.holds:
        yield f"{chosen.name!r} {chosen.holds}"
    rivals = columns.rivals(chosen.name)[:_SHOWN_RIVALS]
    if rivals:
        others = ", ".join(f"{one.name!r} ({one.mean_chars:,.0f})" for one in rivals)
        other = rivals[0].name
        yield (
            f"{chosen.name!r} ({chosen.mean_chars:,.0f} characters on average) was preferred to {others}; "
            f"to change that, set text: {other}, or join columns with text: [{other}, {chosen.name}]"
        )


def _id_note(source: Source, tables: Sequence[FileLook]) -> str:
    if "id" in source.model_fields_set:
        return f"id column {source.id!r}"
    repeated = (look.columns.repeating for look in tables)
    repeating = next(filter(None, repeated), None)
    if repeating is None:
        return "no id column: documents are named file:line"
    column, value = repeating
    if column == source.id:
        return f"id column {column!r} with duplicates ({value!r} occurs twice): make the ids unique, or name another column"
    return f"no id column, because {column!r} has duplicates ({value!r} occurs twice): documents are named file:line"


def _file_names(looks: Iterable[FileLook]) -> str:
    return first_few(
        [posixpath.basename(look.file.path) for look in looks], most=_NAMED_FILES
    )
