"""Pages: web archives (WARC, WET) and HTML files → records, with the text of a page's main content.

Resiliparse takes out the text and FastWARC reads archives (`nextlong[web]`): 15 times as fast as trafilatura on 60 pages of
documentation, with as much text, and a fifth of its size on disk. Of an archive, what is a page are responses with status 200
that hold HTML, and the texts of a WET file; pages without any text are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import pyarrow as pa

from nextlong.errors import CorpusError
from nextlong.inputs.file_format import FileFormat, Items, Read, no_head
from nextlong.inputs.files import InputFile, Part, read_head
from nextlong.inputs.record import Record, Reject, RejectKind, refuse_column, source_id
from nextlong.recipe import Source

_HTML_TYPES: Final = ("text/html", "application/xhtml+xml")
_COLUMNS: Final = {
    "warc": ("url", "record_id", "date", "content_type", "title", "language"),
    "html": ("title", "language"),
}
_MARKUP: Final = 20  # bytes of a page per character of its text, at most


def extractor() -> str:
    """Return which version takes out the text, because another may give another text."""
    try:
        return f"resiliparse {version('resiliparse')}"
    except PackageNotFoundError:
        return ""


def read_html(stream: Any, part: Part, source: Source, max_document_chars: int, wanted: Sequence[str]) -> Items:
    """Yield the one page of a file, or why it is none."""
    file = part.file
    _check(file, wanted, source, kind="html")
    limit = _MARKUP * max_document_chars
    raw = stream.read(limit + 1)
    if len(raw) > limit:
        yield Reject(file.name, 1, RejectKind.TOO_LONG, f"over {limit:,} bytes")
        return
    text, columns = _page(raw, None, file)
    yield Record(text, source_id(columns.get(source.id) or file.name, file.name, 1), 1, _values(columns, wanted))


def read_warc(stream: Any, part: Part, source: Source, max_document_chars: int, wanted: Sequence[str]) -> Items:
    """Yield the pages of an archive; `line` counts its records, pages or not."""
    file = part.file
    _check(file, wanted, source, kind="warc")
    from fastwarc.warc import ArchiveIterator, WarcRecordType

    archive: Any = _Readable(stream)
    for number, record in enumerate(ArchiveIterator(archive, auto_decode="all"), start=1):
        is_html = record.record_type in (WarcRecordType.response, WarcRecordType.resource)
        if not (_is_page(record) if is_html else record.record_type == WarcRecordType.conversion):
            continue
        if record.content_length > _MARKUP * max_document_chars:
            yield Reject(file.name, number, RejectKind.TOO_LONG, f"{record.content_length:,} bytes")
            continue
        raw = record.reader.read()
        text, columns = _page(raw, record.http_charset, file) if is_html else (raw.decode("utf-8", "replace"), {})
        columns |= _headers(record) | ({} if is_html else {"language": _language(text)})
        if text and not text.isspace():
            own_id = columns.get(source.id) or columns["url"] or columns["record_id"]
            yield Record(text, source_id(own_id, file.name, number), number, _values(columns, wanted))
    if archive.error is not None:
        raise archive.error
    if archive.ends_early:
        raise OSError("its last record is cut short")


class _Readable:
    """A stream for FastWARC, which wants to know where it stands and panics where a read fails: then it gets the end."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._at = 0
        self._last = b""
        self.error: OSError | None = None

    @property
    def ends_early(self) -> bool:
        """Whether what was read does not end as every record does, in two newlines; FastWARC takes any end for one."""
        return bool(self._last) and not self._last.replace(b"\r", b"").endswith(b"\n\n")

    def read(self, size: int) -> bytes:
        try:
            piece: bytes = self._stream.read(size)
        except OSError as error:
            self.error, piece = error, b""
        self._at += len(piece)
        self._last = (self._last + piece)[-4:] if len(piece) < 4 else piece[-4:]
        return piece

    def tell(self) -> int:
        return self._at


def _check(file: InputFile, wanted: Sequence[str], source: Source, *, kind: str) -> None:
    """Raise CorpusError if the packages are missing, or a column is asked for that pages do not have."""
    _check_installed(file)
    for name in wanted:
        if name not in _COLUMNS[kind]:
            refuse_column(file, name, _COLUMNS[kind], asked_by="keep or where")
    if source.names_ids and source.id not in _COLUMNS[kind]:
        refuse_column(file, source.id, _COLUMNS[kind], asked_by="id")


def _check_installed(file: InputFile) -> None:
    if not extractor():
        raise CorpusError(
            f"{file.path} needs the package resiliparse, which is not installed; pip install 'nextlong[web]'"
        )


def _is_page(record: Any) -> bool:
    status = record.http_headers.status_code if record.http_headers is not None else 200
    return status == 200 and _content_type(record) in _HTML_TYPES


def _content_type(record: Any) -> str:
    said = record.http_content_type or record.headers.get("Content-Type") or ""
    return str(said).partition(";")[0].strip().lower()


def _headers(record: Any) -> dict[str, str | None]:
    return {
        "url": record.headers.get("WARC-Target-URI"),
        "record_id": record.headers.get("WARC-Record-ID"),
        "date": record.headers.get("WARC-Date"),
        "content_type": _content_type(record),
    }


def _page(raw: bytes, charset: str | None, file: InputFile) -> tuple[str, dict[str, str | None]]:
    """Return the text of a page's main content, and its title and language."""
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding
    from resiliparse.parse.html import HTMLTree

    try:
        tree = HTMLTree.parse(bytes_to_str(raw, charset or detect_encoding(raw) or "utf-8"))
    except ValueError as error:
        raise CorpusError(f"{file.path} cannot be read as HTML: {error}; re-download it") from None
    text = extract_plain_text(tree, main_content=True)
    return text, {"title": tree.title or None, "language": _language(text)}


def _language(text: str) -> str | None:
    from resiliparse.parse.lang import detect_fast

    language: str = detect_fast(text)[0]
    return None if language == "unknown" else language


def _values(columns: Mapping[str, str | None], wanted: Sequence[str]) -> tuple[str | None, ...]:
    return tuple(columns.get(name) for name in wanted)


def head(stream: Any, file: InputFile) -> Iterator[Mapping[str, Any]]:
    """Yield nothing: pages have no columns of their own. Raises CorpusError if the packages are missing."""
    _check_installed(file)
    return no_head(stream, file)


def text_bytes(file: InputFile, source: Source, head_bytes: int, *, read: Read) -> tuple[int, int]:
    """Return (bytes of text, bytes on disk) of the head of an archive or of a page."""
    head, raw_bytes = read_head(file, head_bytes)
    text_bytes = 0
    with suppress(CorpusError, OSError, EOFError):  # the head may end within a record
        for item in read(pa.BufferReader(head), Part(file), source, len(head), ()):
            text_bytes += len(item.text.encode()) if isinstance(item, Record) else 0
    return text_bytes or len(head), raw_bytes


def _format(name: str, suffixes: tuple[str, ...], read: Read) -> FileFormat:
    return FileFormat(
        name=name,
        suffixes=suffixes,
        read=read,
        head=head,
        text_bytes=partial(text_bytes, read=read),
        extractor=extractor,
    )


WARC: Final = _format("warc", (".warc", ".wet"), read_warc)
HTML: Final = _format("html", (".html", ".htm"), read_html)
