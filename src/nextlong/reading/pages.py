"""Pages: web archives (WARC, WET), HTML pages and plain text → records.

FastWARC reads archives and Resiliparse extracts the main content of a page (`nextlong[web]`), 15 times as fast as trafilatura.
The records of an archive are HTML responses with status 200 and the texts of a WET file; pages without text are skipped.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from nextlong.errors import CorpusError
from nextlong.reading.files import InputFile
from nextlong.reading.records import (
    InputFormat,
    Items,
    ReadRequest,
    Record,
    Reject,
    RejectKind,
    library,
)

_HTML_TYPES: Final = ("text/html", "application/xhtml+xml")
_MARKUP: Final = 20  # maximum bytes of a page per character of its text


class _Pages(InputFormat):
    """The base of archives and single pages; `columns` are the available metadata."""

    columns: tuple[str, ...]
    extractor = library("resiliparse")

    def head(
        self, stream: pa.NativeFile, file: InputFile
    ) -> Iterator[Mapping[str, Any]]:
        """Yield nothing. Raises CorpusError if the packages are missing."""
        if not self.extractor:
            problem = "needs the package resiliparse, which is not installed"
            raise CorpusError(f"{file.path} {problem}; pip install 'nextlong[web]'")
        return super().head(stream, file)

    def _check(self, stream: pa.NativeFile, request: ReadRequest) -> InputFile:
        """Return the file. Raises CorpusError for missing packages and for columns that pages do not have."""
        self.head(stream, request.part.file)
        named = [(name, key) for name, key in request.required() if key != "text"]
        for name, key in (
            [*named, (request.source.id, "id")] if request.source.names_ids else named
        ):
            if name not in self.columns:
                request.refuse_column(name, self.columns, key=key)
        return request.part.file


class _Html(_Pages):
    name = "html"
    suffixes = (".html", ".htm")
    columns = ("title", "language")

    def read(self, stream: pa.NativeFile, request: ReadRequest) -> Items:
        """Yield the page of a file, or why it is rejected."""
        file = self._check(stream, request)
        limit = _MARKUP * request.max_document_chars
        if len(raw := stream.read(limit + 1)) > limit:
            yield Reject(file.name, 1, RejectKind.TOO_LONG, f"over {limit:,} bytes")
            return
        text, values = _page(raw, None, file)
        own_id = values.get(request.source.id) or file.name
        yield request.record(
            text, own_id, 1, tuple(values.get(name) for name in request.columns)
        )


class _Warc(_Pages):
    name = "warc"
    suffixes = (".warc", ".wet")
    columns = ("url", "record_id", "date", "content_type", "title", "language")

    def read(self, stream: pa.NativeFile, request: ReadRequest) -> Items:
        """Yield the pages of an archive; `line` counts all of its records."""
        file = self._check(stream, request)
        from fastwarc.warc import ArchiveIterator, WarcRecordType

        archive: Any = _WarcStream(stream)
        for number, record in enumerate(
            ArchiveIterator(archive, auto_decode="all"), start=1
        ):
            content_type = str(
                record.http_content_type or record.headers.get("Content-Type") or ""
            )
            content_type = content_type.partition(";")[0].strip().lower()
            is_html = record.record_type in (
                WarcRecordType.response,
                WarcRecordType.resource,
            )
            status = (
                record.http_headers.status_code
                if record.http_headers is not None
                else 200
            )
            if (is_html and (status != 200 or content_type not in _HTML_TYPES)) or (
                not is_html and record.record_type != WarcRecordType.conversion
            ):
                continue
            if record.content_length > _MARKUP * request.max_document_chars:
                yield Reject(
                    file.name,
                    number,
                    RejectKind.TOO_LONG,
                    f"{record.content_length:,} bytes",
                )
                continue
            raw = record.reader.read()
            if is_html:
                text, values = _page(raw, record.http_charset, file)
            else:
                text = raw.decode("utf-8", "replace")
                values = {"language": _language(text)}
            values["content_type"] = content_type
            for name, header in (
                ("url", "Target-URI"),
                ("record_id", "Record-ID"),
                ("date", "Date"),
            ):
                values[name] = record.headers.get(f"WARC-{header}")
            if text and not text.isspace():
                own_id = (
                    values.get(request.source.id)
                    or values["url"]
                    or values["record_id"]
                )
                yield request.record(
                    text,
                    own_id,
                    number,
                    tuple(values.get(name) for name in request.columns),
                )
        if archive.error is not None:
            raise archive.error
        # Every record ends in two newlines; FastWARC does not check that.
        if archive.last and not archive.last.replace(b"\r", b"").endswith(b"\n\n"):
            raise OSError("its last record is incomplete")


class _WarcStream:
    """A stream for FastWARC, which requires `tell` and crashes if a read fails: it gets an end of file instead."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream, self._position, self.last = stream, 0, b""
        self.error: OSError | None = None

    def read(self, size: int) -> bytes:
        try:
            block: bytes = self._stream.read(size)
        except OSError as error:
            self.error, block = error, b""
        self._position += len(block)
        self.last = (self.last + block[-4:])[-4:]
        return block

    def tell(self) -> int:
        return self._position


class _PlainText(InputFormat):
    name = "text"
    suffixes = (".txt", ".md")
    has_columns = False

    def read(self, stream: pa.NativeFile, request: ReadRequest) -> Items:
        """Yield the file as one document, or why it is rejected."""
        file = request.part.file
        if request.columns:
            why = f"but the source's metadata or filter names {request.columns[0]!r}; remove them for plain text"
            raise CorpusError(f"{file.path} is plain text and has no columns, {why}")
        limit_bytes = 4 * request.max_document_chars + len(codecs.BOM_UTF8)
        try:
            if len(raw := stream.read(limit_bytes + 1)) > limit_bytes:
                yield Reject(
                    file.name,
                    1,
                    RejectKind.TOO_LONG,
                    f"over {request.max_document_chars:,} characters",
                )
            else:
                yield Record(
                    raw.removeprefix(codecs.BOM_UTF8).decode("utf-8"), file.name, 1
                )
        except UnicodeDecodeError:
            yield Reject(file.name, 1, RejectKind.INVALID_UTF8)


FORMAT: Final = (_Warc(), _Html(), _PlainText())


def _page(
    raw: bytes, charset: str | None, file: InputFile
) -> tuple[str, dict[str, str | None]]:
    """Return the text of a page's main content, and its title and language."""
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding
    from resiliparse.parse.html import HTMLTree

    try:
        tree = HTMLTree.parse(
            bytes_to_str(raw, charset or detect_encoding(raw) or "utf-8")
        )
    except ValueError as error:
        raise CorpusError(
            f"{file.path} cannot be parsed as HTML: {error}; download it again"
        ) from None
    text = extract_plain_text(tree, main_content=True)
    return text, {"title": tree.title or None, "language": _language(text)}


def _language(text: str) -> str | None:
    from resiliparse.parse.lang import detect_fast

    language: str = detect_fast(text)[0]
    return None if language == "unknown" else language
