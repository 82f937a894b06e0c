"""Pages: HTML pages and plain text → records, and what web archives share with them.

Resiliparse extracts the main content of a page (`nextlong[web]`), 15 times as fast as
trafilatura.
"""

from __future__ import annotations

import codecs
from typing import Final

import pyarrow as pa

from nextlong.errors import CorpusError
from nextlong.reading.charset import decode_page
from nextlong.reading.files import FilePart, InputFile
from nextlong.reading.records import (
    InputFormat,
    Items,
    ReadRequest,
    Record,
    Reject,
    RejectKind,
    library,
)
from nextlong.text import Rows

# A page of more bytes per character of the longest document is rejected unread.
MARKUP: Final = 20


class Pages(InputFormat):
    """The base class of archives and pages; `columns` are the available metadata."""

    columns: tuple[str, ...]
    extractor = library("resiliparse")

    def rows(self, stream: pa.NativeFile, part: FilePart) -> Rows:
        """Yield nothing. Raises CorpusError if the packages are missing."""
        if not self.extractor:
            raise CorpusError(
                where=part.file.path,
                problem="it needs the package resiliparse, which is not installed",
                fix="pip install 'nextlong[web]'",
            )
        return super().rows(stream, part)

    def check(self, stream: pa.NativeFile, request: ReadRequest) -> InputFile:
        """Return the file.

        Raises CorpusError for missing packages and for columns that pages do not have.
        """
        self.rows(stream, request.part)
        named = [(name, key) for name, key in request.required() if key != "text"]
        if request.source.names_ids:
            named.append((request.source.id, "id"))
        for name, key in named:
            if name not in self.columns:
                request.refuse_column(name, self.columns, key=key)
        return request.part.file


class _Html(Pages):
    name = "html"
    suffixes = (".html", ".htm")
    columns = ("title", "language")

    def read(self, stream: pa.NativeFile, request: ReadRequest) -> Items:
        """Yield the page of a file, or why it is rejected."""
        file = self.check(stream, request)
        max_bytes = MARKUP * request.max_document_chars
        raw = stream.read(max_bytes + 1)
        if len(raw) > max_bytes:
            detail = f"over {max_bytes:,} bytes"
            yield Reject(file.name, 1, RejectKind.TOO_LONG, detail)
            return
        try:
            text, values = page_of(raw, None)
        except ValueError as error:
            yield Reject(file.name, 1, RejectKind.BROKEN_PAGE, str(error))
            return
        own_id = values.get(request.source.id) or file.name
        columns = tuple(values.get(name) for name in request.columns)
        yield request.record(text, own_id, 1, columns)


class _PlainText(InputFormat):
    name = "text"
    suffixes = (".txt", ".md")
    has_columns = False

    def read(self, stream: pa.NativeFile, request: ReadRequest) -> Items:
        """Yield the file as one document, or why it is rejected."""
        file = request.part.file
        if request.columns:
            raise CorpusError(
                where=file.path,
                problem="it is plain text and has no columns, but the source's "
                f"metadata or filter names {request.columns[0]!r}",
                fix="remove them for plain text",
            )
        # A character of UTF-8 has four bytes at most.
        max_bytes = 4 * request.max_document_chars + len(codecs.BOM_UTF8)
        raw = stream.read(max_bytes + 1)
        if len(raw) > max_bytes:
            detail = f"over {request.max_document_chars:,} characters"
            yield Reject(file.name, 1, RejectKind.TOO_LONG, detail)
            return
        try:
            text = raw.removeprefix(codecs.BOM_UTF8).decode("utf-8")
        except UnicodeDecodeError:
            yield Reject(file.name, 1, RejectKind.INVALID_UTF8)
        else:
            yield Record(text, file.name, 1)


FORMAT: Final = (_Html(), _PlainText())


def page_of(raw: bytes, charset: str | None) -> tuple[str, dict[str, str | None]]:
    """Return the text of a page's main content, and its title and language.

    `charset` is the one that the HTTP header declares. Raises ValueError for a page
    that cannot be parsed.
    """
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    tree = HTMLTree.parse(decode_page(raw, charset))
    text = extract_plain_text(tree, main_content=True)
    return text, {"title": tree.title or None, "language": language_of(text)}


def language_of(text: str) -> str | None:
    """Return the code of a text's language, None if it is not recognized."""
    from resiliparse.parse.lang import detect_fast

    language: str = detect_fast(text)[0]
    return None if language == "unknown" else language
