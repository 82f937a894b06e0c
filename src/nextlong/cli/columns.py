"""Columns: judge the columns of a source's files, and describe it for `init`."""

from __future__ import annotations

import json
import posixpath
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

from nextlong.cli.common import first_few
from nextlong.errors import CorpusError
from nextlong.reading.charset import guess_encoding, is_mostly_utf8
from nextlong.reading.choose_columns import ColumnChoice, choose_columns
from nextlong.reading.compression import COMPRESSIONS, compression_in, compression_of
from nextlong.reading.document_text import EACH, paths_of
from nextlong.reading.encoding import unicode_encoding_of
from nextlong.reading.files import InputFile, open_binary, read_head
from nextlong.reading.formats import UNREADABLE, format_of, sample_records
from nextlong.reading.listing import list_files
from nextlong.recipe import Source
from nextlong.text import first_sentence

# Read per suffix; a folder with no more files may become one source per file.
MAX_FILES: Final = 8

_KINDS: Final = (
    (bool, "a boolean"),
    (int | float, "a number"),
    (list, "a list"),
    (dict, "an object"),
)
# The encoding of a source is judged by so many files, and by so many bytes of each.
_ENCODED_FILES: Final = 64
_ENCODED_BYTES: Final = 64 << 10
_NOT_ASCII: Final = bytes(range(128, 256))
_EXAMPLE_WORDS: Final = 6
_EXAMPLE_CHARS: Final = 40
_SAMPLE_BYTES: Final = 64_000_000  # read of a source; takes about a second
_SHOWN_RIVALS: Final = 3
_NAMED_FILES: Final = 3  # in a sentence


@dataclass(frozen=True)
class FileLook:
    """The columns of a file according to a sample of its records."""

    file: InputFile
    # Plain text and pages have none: they are documents as they are.
    has_columns: bool = True
    problem: str = ""  # why it cannot be read
    columns: ColumnChoice = field(default_factory=ColumnChoice)
    # Of each column, how a value begins.
    examples: Mapping[str, str] = field(default_factory=dict)
    encoding: str | None = None  # of text that is not UTF-8
    is_empty: bool = False  # a table without records
    # Of a file with one record, the path of its lists or objects that may be documents.
    documents_at: str = ""

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
        if last.lower() not in COMPRESSIONS:
            return last
        _, inner = posixpath.splitext(stem)
        return inner + last


@lru_cache(maxsize=64)
def files_of(path: str) -> tuple[InputFile, ...]:
    """Return the files of a local source as `list_files` does.

    They are remembered, because a folder may have 100,000, until `forget_files`.
    """
    return tuple(list_files(Source(path=path), where="FILE"))


def forget_files() -> None:
    """List the files of sources again when they are next needed."""
    files_of.cache_clear()


def looks_into(path: str) -> list[FileLook]:
    """Inspect some files of each suffix of a source.

    Returns none if it is remote or has no file.
    """
    if "://" in path:
        return []
    try:
        files = files_of(path)
    except CorpusError:
        return []
    by_suffix: dict[str, list[InputFile]] = {}
    for file in files:
        by_suffix.setdefault(FileLook(file).suffix, []).append(file)
    chosen: list[InputFile] = []
    for files_of_suffix in by_suffix.values():
        chosen += _spread(files_of_suffix, MAX_FILES)
    max_bytes = _SAMPLE_BYTES // max(1, len(chosen))
    encoding = _encoding_of(files).name
    looks = [_look_at(file, max_bytes, encoding) for file in chosen]
    if all(look.is_empty for look in looks):
        looks = [replace(look, problem="it holds no records") for look in looks]
    return _agreed(looks)


def _spread(files: Sequence[InputFile], max_files: int) -> list[InputFile]:
    """Return at most so many of the files, spread over them."""
    count = min(len(files), max_files)
    return [files[index * len(files) // count] for index in range(count)]


@dataclass(frozen=True)
class _Encoding:
    """The encoding of a source's text files, None for UTF-8 or several encodings.

    `example` is some text in it; `others` are files that are not UTF-8 beside some that
    are.
    """

    name: str | None = None
    example: str = ""
    others: tuple[InputFile, ...] = ()


@lru_cache(maxsize=64)
def _encoding_of(files: tuple[InputFile, ...]) -> _Encoding:
    """Judge the encoding of files by the heads of some of them."""
    others: list[InputFile] = []
    heads: list[bytes] = []
    has_utf8 = False
    text_files = [file for file in files if _is_plain_text(file)]
    for file in _spread(text_files, _ENCODED_FILES):
        try:
            head = _telling_bytes(file)
        except UNREADABLE:
            continue
        if not _tells_encoding(head):
            continue
        if not unicode_encoding_of(head) and is_mostly_utf8(head):
            has_utf8 = True
        else:
            heads.append(head)
            others.append(file)
    if not others or has_utf8:
        return _Encoding(others=tuple(others))
    name = guess_encoding(max(heads, key=len))
    return _Encoding(name, example=_example_text(heads[0].decode(name, "replace")))


def _tells_encoding(head: bytes) -> bool:
    """Return whether bytes say something about the encoding of a text file."""
    if unicode_encoding_of(head):
        return True
    # ASCII fits every encoding, and compressed bytes are no text.
    return not head.isascii() and not compression_in(head)


def _example_text(text: str) -> str:
    """Return words of a text by which a reader sees whether its encoding is right."""
    words = text.split()
    # Words of ASCII look right in every encoding.
    telling = [word for word in words if not word.isascii()] or words
    distinct = list(dict.fromkeys(telling))
    return " ".join(distinct[:_EXAMPLE_WORDS])[:_EXAMPLE_CHARS]


def _telling_bytes(file: InputFile) -> bytes:
    """Return bytes of a file that tell its encoding.

    Its head, or later bytes that are not ASCII.
    """
    head, read_bytes = read_head(file, _ENCODED_BYTES)
    if read_bytes == file.bytes:
        return head
    # The characters at the edges may be cut.
    head = head.rstrip(_NOT_ASCII)
    if not head.isascii() or compression_of(file.name):
        return head
    middle = file.bytes // 2
    last = max(0, file.bytes - _ENCODED_BYTES)
    with open_binary(file.path) as stream:
        for start in (middle, last):
            stream.seek(start)
            later = stream.read(_ENCODED_BYTES).strip(_NOT_ASCII)
            if not later.isascii():
                return bytes(later)
    return head


def _is_plain_text(file: InputFile) -> bool:
    file_format = format_of(file.name, Source(path=file.path))
    return file_format.is_text and file_format.extractor is None


def _agreed(looks: Sequence[FileLook]) -> list[FileLook]:
    """Return the looks with the most frequent text column first.

    Where it can be the text. Files of one source may differ by chance in which of two
    columns is longer.
    """
    texts = Counter(look.text for look in looks if look.text)
    if len(texts) < 2:
        return list(looks)
    [(common, _)] = texts.most_common(1)
    return [replace(look, columns=look.columns.preferring(common)) for look in looks]


@lru_cache(maxsize=1024)
def _look_at(file: InputFile, max_bytes: int, encoding: str | None) -> FileLook:
    encoding = encoding if _is_plain_text(file) else None
    source = Source(path=file.path, encoding=encoding)
    file_format = format_of(file.name, source)
    has_columns = file_format.has_columns and file_format.extractor is None
    try:
        records = sample_records(file, source, max_bytes=max_bytes)
    except UNREADABLE as error:
        return FileLook(file, has_columns, first_sentence(error), encoding=encoding)
    if not has_columns or not records:
        return FileLook(file, has_columns, encoding=encoding, is_empty=has_columns)
    return FileLook(
        file,
        columns=choose_columns(records),
        examples=_examples(records),
        encoding=encoding,
        documents_at=_documents_in(records[0]) if len(records) == 1 else "",
    )


def _documents_in(record: Mapping[str, Any]) -> str:
    """Return the jq path of objects in a record that may be documents, "" for none.

    JSON of a whole data set is `{"data": [{…}, …]}`, or an object for each id.
    """
    sizes = {}
    for name, value in record.items():
        if isinstance(value, list):
            objects = [item for item in value if isinstance(item, dict)]
            sizes[name] = len(objects)
    largest = max(sizes, key=lambda name: sizes[name], default="")
    if largest and sizes[largest] > 1:
        return f".[{json.dumps(largest, ensure_ascii=False)}][]"
    are_objects = all(isinstance(value, dict) for value in record.values())
    return ".[]" if are_objects and len(record) > 1 else ""


def _examples(records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return how a value of each column begins, in one line.

    A value that is no string has its type before it.
    """
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
    """Yield notes on a source from the inspected files: its columns, then problems."""
    if "://" in source.path:
        yield (
            f"{source.label}: remote, not read; text column {source.text!r} and id "
            f"column {source.id!r} are guesses"
        )
        return
    # First what is read, then what speaks against it.
    tables = [look for look in looks if look.has_columns]
    if not tables:
        yield f"{source.label}: each file or page is one document"
    elif all(look.problem for look in tables):
        yield (
            f"{source.label}: no file could be read; text column {source.text!r} is a "
            "guess"
        )
    else:
        yield from _column_notes(source, tables)
    yield from _encoding_notes(source)
    yield from _size_notes(source, looks)
    if 0 < len(tables) < len(looks):
        names = _file_names(look for look in looks if not look.has_columns)
        yield f"{source.label}: {names}: each file or page is one document"
    yield from _problem_notes(source, looks)
    yield from _other_text_notes(source, tables)


def _other_text_notes(source: Source, tables: Sequence[FileLook]) -> Iterator[str]:
    """Yield the files of a source whose text is in another column than its others."""
    others = [look for look in tables if look.text not in (None, source.text)]
    for column in dict.fromkeys(look.text for look in others):
        files = _file_names(look for look in others if look.text == column)
        yield (
            f"{source.label}: {files}: the text seems to be in {column!r}; make them a "
            "separate source"
        )


def _column_notes(source: Source, tables: Sequence[FileLook]) -> Iterator[str]:
    """Yield which columns hold the text and the ids, and what else they could be."""
    with_text = [look for look in tables if look.text]
    guess = "" if with_text else " is a guess, because no column looks like text"
    ids = _id_note(source, tables)
    yield f"{source.label}: text column {source.text!r}{guess}, {ids}"
    for note in _text_notes([*with_text, *tables][0].columns):
        yield f"{source.label}: {note}"
    # All columns are shown where the user may have to name another one.
    examples = next((look.examples for look in tables if look.examples), {})
    has_repeating = any(look.columns.repeating for look in tables)
    has_ids = "id" in source.model_fields_set or has_repeating
    if not with_text or (len(examples) > 1 and not has_ids):
        shown = ", ".join(f"{name} ({value})" for name, value in examples.items())
        yield f"{source.label}: columns: {shown}"


def _problem_notes(source: Source, looks: Sequence[FileLook]) -> Iterator[str]:
    """Yield why files cannot be read: one note for all files of a suffix alike."""
    alike: dict[tuple[str, str], list[FileLook]] = {}
    for look in looks:
        if look.problem:
            reason = look.problem.replace(look.file.path, "")
            reason = reason.replace(look.file.name, "")
            alike.setdefault((look.suffix, reason), []).append(look)
    for first, *more in alike.values():
        message = first.problem
        if not message.startswith(first.file.path):
            message = (
                f"{first.file.path} cannot be read: {message}; repair or remove it"
            )
        also = f" (also {_file_names(more)})" if more else ""
        yield f"{source.label}: {message}{also}"


def _size_notes(source: Source, looks: Sequence[FileLook]) -> Iterator[str]:
    """Yield which files hold no records, and which holds documents in one record."""
    empty = [look for look in looks if look.is_empty and not look.problem]
    if empty:
        yield f"{source.label}: no records in {_file_names(empty)}"
    # In a folder, each file may be a document.
    if len(looks) == 1 and looks[0].documents_at:
        name = shlex.quote(looks[0].file.name)
        command = f"jq -c '{looks[0].documents_at}' {name} > documents.jsonl"
        yield (
            f"{source.label}: {looks[0].file.name} holds one record, which is read as "
            f"one document; to make its parts documents: {command}"
        )


def _encoding_notes(source: Source) -> Iterator[str]:
    try:
        files = files_of(source.path)
    except CorpusError:
        return
    encoding = _encoding_of(files)
    if encoding.name is not None:
        yield (
            f"{source.label}: the text is not UTF-8; encoding {encoding.name!r} was "
            f"guessed, in which it reads “{encoding.example}”; if that is wrong, set "
            "another encoding"
        )
    elif encoding.others:
        names = [file.name for file in encoding.others]
        shown = first_few(names, max_names=_NAMED_FILES)
        yield (
            f"{source.label}: some files are not UTF-8: {shown}; convert them, or make "
            "them a source of their own with an encoding"
        )


def _text_notes(columns: ColumnChoice) -> Iterator[str]:
    """Yield which columns cannot be the text, and what speaks for the chosen one.

    What it holds if not strings, and which columns compete with it.
    """
    for name, kind in columns.not_text:
        yield f"column {name!r} cannot be the text: it holds {kind}"
    if columns.text is None:
        return
    chosen, *_ = columns.candidates
    if chosen.holds:
        yield f"{chosen.name!r} {chosen.holds}"
    rivals = columns.rivals(chosen.name)[:_SHOWN_RIVALS]
    if rivals:
        others = ", ".join(
            f"{rival.name!r} ({rival.mean_chars:,.0f})" for rival in rivals
        )
        other = rivals[0].name
        yield (
            f"{chosen.name!r} ({chosen.mean_chars:,.0f} characters on average) was "
            f"preferred to {others}; to change that, set text: {other}, or join "
            f"columns with text: [{other}, {chosen.name}]"
        )
    title = columns.title(chosen.name)
    if title is not None:
        joined = f"text: [{title}, {chosen.name}]"
        yield f"column {title!r} is not used; {joined} joins both"


def _id_note(source: Source, tables: Sequence[FileLook]) -> str:
    if "id" in source.model_fields_set:
        return f"id column {source.id!r}"
    for look in tables:
        if look.columns.repeating is not None:
            column, value = look.columns.repeating
            break
    else:
        return "no id column: documents are named file:line"
    if column == source.id:
        return (
            f"id column {column!r} with duplicates ({value!r} occurs twice): make the "
            "ids unique, or name another column"
        )
    return (
        f"no id column, because {column!r} has duplicates ({value!r} occurs twice): "
        "documents are named file:line"
    )


def _file_names(looks: Iterable[FileLook]) -> str:
    names = [posixpath.basename(look.file.path) for look in looks]
    return first_few(names, max_names=_NAMED_FILES)
