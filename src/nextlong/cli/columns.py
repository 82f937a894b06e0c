"""Columns: judge the columns of the files of a source, and describe the source for `init`."""

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

MAX_FILES: Final = (
    8  # read per suffix; a folder with no more files may become one source per file
)

_KINDS: Final = (
    (bool, "a boolean"),
    (int | float, "a number"),
    (list, "a list"),
    (dict, "an object"),
)
_ENCODED_FILES: Final = 64  # of which the encoding is judged
_ENCODED_BYTES: Final = 64 << 10  # of each
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
    has_columns: bool = True  # plain text and pages are documents as they are
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
        return (
            posixpath.splitext(stem)[1] + last if last.lower() in COMPRESSIONS else last
        )


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
    """Inspect some files of each suffix of a source; return none if it is remote or has no file."""
    try:
        files = () if "://" in path else files_of(path)
    except CorpusError:
        return []
    by_suffix: dict[str, list[InputFile]] = {}
    for file in files:
        by_suffix.setdefault(FileLook(file).suffix, []).append(file)
    chosen = [file for of_suffix in by_suffix.values() for file in _spread(of_suffix)]
    max_bytes = _SAMPLE_BYTES // max(1, len(chosen))
    encoding = _encoding_of(files).name
    looks = [_look_at(file, max_bytes, encoding) for file in chosen]
    if all(look.is_empty for look in looks):
        looks = [replace(look, problem="it holds no records") for look in looks]
    return _agreed(looks)


def _spread(files: Sequence[InputFile], most: int = MAX_FILES) -> list[InputFile]:
    """Return at most `most` of the files, spread over them."""
    count = min(len(files), most)
    return [files[number * len(files) // count] for number in range(count)]


@dataclass(frozen=True)
class _Encoding:
    """The encoding of a source's text files, None for UTF-8 or several encodings.

    `example` is some text in it, `others` are files that are not UTF-8 beside some that are.
    """

    name: str | None = None
    example: str = ""
    others: tuple[InputFile, ...] = ()


@lru_cache(maxsize=64)
def _encoding_of(files: tuple[InputFile, ...]) -> _Encoding:
    """Judge the encoding of files by the heads of some of them."""
    text_files = [file for file in files if _is_plain_text(file)]
    others: list[InputFile] = []
    heads: list[bytes] = []
    has_utf8 = False
    for file in _spread(text_files, _ENCODED_FILES) if text_files else ():
        try:
            head = _telling_bytes(file)
        except UNREADABLE:
            continue
        if unicode_encoding_of(head):
            heads.append(head)
            others.append(file)
        elif not head.isascii() and not compression_in(head):
            if is_mostly_utf8(head):
                has_utf8 = True
            else:
                heads.append(head)
                others.append(file)
    if not others or has_utf8:
        return _Encoding(others=tuple(others))
    name = guess_encoding(max(heads, key=len))
    text = heads[0].decode(name, "replace")
    words = [word for word in text.split() if not word.isascii()] or text.split()
    words = list(dict.fromkeys(words))
    return _Encoding(name, " ".join(words[:_EXAMPLE_WORDS])[:_EXAMPLE_CHARS])


def _telling_bytes(file: InputFile) -> bytes:
    """Return bytes of a file that tell its encoding: its head, or later ones that are not ASCII."""
    head, read_bytes = read_head(file, _ENCODED_BYTES)
    if read_bytes == file.bytes:
        return head
    # The characters at the edges may be cut.
    head = head.rstrip(_NOT_ASCII)
    if not head.isascii() or compression_of(file.name):
        return head
    with open_binary(file.path) as stream:
        for start in (file.bytes // 2, max(0, file.bytes - _ENCODED_BYTES)):
            stream.seek(start)
            later = stream.read(_ENCODED_BYTES).strip(_NOT_ASCII)
            if not later.isascii():
                return bytes(later)
    return head


def _is_plain_text(file: InputFile) -> bool:
    file_format = format_of(file.name, Source(path=file.path))
    return file_format.is_text and file_format.extractor is None


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
    """Return the jq path of several objects in a record that may be documents, "" for none.

    JSON of a whole data set is `{"data": [{…}, …]}`, or an object for each id.
    """
    sizes = {
        name: sum(isinstance(item, dict) for item in value)
        for name, value in record.items()
        if isinstance(value, list)
    }
    largest = max(sizes, key=lambda name: sizes[name], default="")
    if largest and sizes[largest] > 1:
        return f".[{json.dumps(largest, ensure_ascii=False)}][]"
    are_objects = all(isinstance(value, dict) for value in record.values())
    return ".[]" if are_objects and len(record) > 1 else ""


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
    yield from _encoding_notes(source)
    yield from _size_notes(source, looks)
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


def _size_notes(source: Source, looks: Sequence[FileLook]) -> Iterator[str]:
    """Yield which files hold no records, and that a file holds its documents in one record."""
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
            f"{source.label}: the text is not UTF-8; encoding {encoding.name!r} was guessed, in which it "
            f"reads “{encoding.example}”; if that is wrong, set another encoding"
        )
    elif encoding.others:
        names = first_few([file.name for file in encoding.others], most=_NAMED_FILES)
        cure = "convert them, or make them a source of their own with an encoding"
        yield f"{source.label}: some files are not UTF-8: {names}; {cure}"


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
    title = columns.title(chosen.name)
    if title is not None:
        joined = f"text: [{title}, {chosen.name}]"
        yield f"column {title!r} is not used; {joined} joins both"


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
