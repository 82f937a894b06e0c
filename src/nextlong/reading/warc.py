"""Web archives: the records of WARC and WET files → documents.

The documents are the HTML pages with status 200, and the texts of a WET file. Each
other record is counted by reason: a `Skip` if it is no page by its kind (a request, an
image, a page that was not found), a `Reject` if it is broken.

The records are delimited here (ISO 28500, 5 and 6), not by FastWARC, because its
iterator ends at the first record whose length is wrong or skips it without a word, and
yields a record before it is known where it ends.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from nextlong.reading.charset import decode_page
from nextlong.reading.compression import MAGIC_BYTES, compression_in, decompressed
from nextlong.reading.http_response import (
    HTML_TYPES,
    BrokenBodyError,
    LongBodyError,
    Response,
    charset_in,
    media_type_of,
    parse_response,
)
from nextlong.reading.pages import MARKUP, Pages, language_of, page_of
from nextlong.reading.records import (
    Items,
    ReadRequest,
    Record,
    Reject,
    RejectKind,
    Skip,
)

_BUFFER_BYTES: Final = 1 << 20
_HEAD_BYTES: Final = 1 << 16  # of a long block; shows what it is
_MAX_LINE_BYTES: Final = 1 << 16
_VERSION: Final = re.compile(rb"WARC/\d+\.\d+\s*")
_LENGTH: Final = re.compile(r"\d{1,15}")
# Those of ISO 28500; any other one counts as unknown.
_RECORD_TYPES: Final = (
    "warcinfo", "response", "resource", "request", "metadata", "revisit", "conversion",
    "continuation",
)  # fmt: skip
# One reason for all types of these, of which pages have dozens.
_MEDIA: Final = ("audio", "font", "image", "video")
# Any other ValueError is that of a page that cannot be parsed.
_REJECT_KINDS: Final[Mapping[type[Exception], RejectKind]] = {
    BrokenBodyError: RejectKind.BROKEN_RESPONSE,
    LongBodyError: RejectKind.TOO_LONG,
}
_MEDIA_TYPE: Final = re.compile(r"[\w.+-]{1,40}/[\w.+-]{1,60}")


class _Warc(Pages):
    name = "warc"
    is_text = False  # each page has an encoding
    suffixes = (".warc", ".wet")
    columns = ("url", "record_id", "date", "content_type", "title", "language")

    def read(self, stream: pa.NativeFile, request: ReadRequest) -> Items:
        """Yield an item for each record; `line` is the record's number."""
        file = self.check(stream, request)
        max_bytes = MARKUP * request.max_document_chars
        for record in _records(_Rewindable(stream), max_bytes):
            if record.problem:
                kind = RejectKind.BROKEN_RECORD
                yield Reject(file.name, record.number, kind, record.problem)
                continue
            try:
                page = _page_in(record, max_bytes)
            except ValueError as error:
                kind = _REJECT_KINDS.get(type(error), RejectKind.BROKEN_PAGE)
                yield Reject(file.name, record.number, kind, str(error))
                continue
            if isinstance(page, str):
                yield Skip(file.name, record.number, page)
                continue
            yield _document(page, record, request)


@dataclass(frozen=True)
class _ArchiveRecord:
    """A record; `headers` has lower-case names, `block` its content or its head."""

    number: int
    headers: Mapping[str, str]
    block: bytes = b""
    block_bytes: int = 0
    problem: str = ""  # why it is broken

    @property
    def type(self) -> str:
        named = self.headers.get("warc-type", "").lower()
        return named if named in _RECORD_TYPES else "unknown"


@dataclass(frozen=True)
class _Page:
    """The text of a page; `values` has those columns that depend on its content."""

    text: str
    values: Mapping[str, str | None]


class _Rewindable:
    """A stream to which what was read last can be given back."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = io.BufferedReader(stream, _BUFFER_BYTES)
        # Many archives are compressed under a name without .gz.
        compression = compression_in(self._stream.peek(MAGIC_BYTES))
        if compression:
            content = decompressed(self._stream, compression)
            self._stream = io.BufferedReader(content, _BUFFER_BYTES)
        self._given_back = io.BytesIO()

    def read(self, size: int) -> bytes:
        block = self._given_back.read(size)
        missing = size - len(block)
        return block + self._stream.read(missing) if missing else block

    def read_line(self) -> bytes:
        line = self._given_back.readline(_MAX_LINE_BYTES)
        if line.endswith(b"\n"):
            return line
        return line + self._stream.readline(_MAX_LINE_BYTES - len(line))

    def skip(self, size: int) -> int:
        """Read up to `size` bytes; return how many there were."""
        skipped = 0
        while skipped < size:
            block = self.read(min(size - skipped, _BUFFER_BYTES))
            if not block:
                break
            skipped += len(block)
        return skipped

    def give_back(self, block: bytes) -> None:
        has_more = self._given_back.tell() < self._given_back.getbuffer().nbytes
        if has_more:
            # Then the block came from there, too.
            self._given_back.seek(-len(block), io.SEEK_CUR)
        else:
            self._given_back = io.BytesIO(block)


FORMAT: Final = _Warc()


def _records(source: _Rewindable, max_bytes: int) -> Iterator[_ArchiveRecord]:
    """Yield the records of an archive, the broken ones with their problem.

    After a broken record, reading continues with the next line that can begin one.
    Raises OSError if the file does not begin with a record, or ends within one.
    """
    number = 0
    _, line = _separator(source)
    while line:
        number += 1
        headers: dict[str, str] = {}
        problem = ""
        if _VERSION.fullmatch(line):
            headers = _read_headers(source)
        elif number == 1:
            raise OSError("it does not begin with a WARC record")
        else:
            problem = "it does not begin with a version, such as WARC/1.1"
        length = headers.get("content-length", "")
        if not problem and not _LENGTH.fullmatch(length):
            problem = f"Content-Length is {length[:40]!r}"
        if problem:
            yield _ArchiveRecord(number, headers, problem=problem)
            line = _next_version(source)
            continue

        # Of a block longer than a page may be, only the head is kept.
        size = int(length)
        is_long = size > max_bytes
        block = source.read(_HEAD_BYTES if is_long else size)
        found = len(block)
        last_bytes = block[-4:]
        if is_long:
            found += source.skip(size - len(block))
            last_bytes = b""
        newlines, line = _separator(source)
        last_bytes = (last_bytes + newlines).replace(b"\r", b"")
        is_separated = last_bytes.endswith(b"\n\n")
        if found == size and (is_separated or _VERSION.fullmatch(line)):
            yield _ArchiveRecord(number, headers, block, size)
            continue

        # Its length is wrong if another record follows; else the file is truncated.
        is_at_end = not line
        if not is_long:
            source.give_back(block + newlines + line)
        line = _next_version(source)
        if is_at_end and not line:
            raise OSError("its last record is incomplete")
        problem = f"its Content-Length is {size:,}, but it ends elsewhere"
        yield _ArchiveRecord(number, headers, problem=problem)


def _separator(source: _Rewindable) -> tuple[bytes, bytes]:
    """Read blank lines and the line after them; return both, b"" at the end."""
    newlines = b""
    while line := source.read_line():
        if line.strip():
            return newlines, line
        newlines = (newlines + line)[-4:]
    return newlines, b""


def _next_version(source: _Rewindable) -> bytes:
    """Read up to the first line of the next record; return it, b"" at the end."""
    is_after_blank = False
    while line := source.read_line():
        if is_after_blank and _VERSION.fullmatch(line):
            return line
        is_after_blank = not line.strip()
    return b""


def _read_headers(source: _Rewindable) -> dict[str, str]:
    """Read the lines up to a blank one; return them as lower-case name → value."""
    headers: dict[str, str] = {}
    name = ""
    while (line := source.read_line()).strip():
        text = line.decode("utf-8", "replace")
        if text[0] in " \t" and name:
            headers[name] += f" {text.strip()}"
            continue
        name, _, value = text.partition(":")
        name = name.strip().lower()
        headers[name] = value.strip()
    return headers


def _page_in(record: _ArchiveRecord, max_bytes: int) -> _Page | str:
    """Return the page in a record, or why it has none by its kind.

    Raises ValueError for a broken page, BrokenBodyError for a broken response and
    LongBodyError for one of more than `max_bytes`.
    """
    if record.type == "conversion":
        return _text_in(record, max_bytes)
    if record.type not in ("response", "resource"):
        return f"{record.type} record"
    content_type = record.headers.get("content-type", "")
    response = _response_in(record)
    if response is not None:
        if not response.is_whole_page:
            return f"HTTP status {response.status}"
        content_type = response.content_type

    # Most records of an archive are no pages, so their bodies are not decoded.
    declared = media_type_of(content_type, b"")
    if declared and declared not in HTML_TYPES:
        return _other_type(declared)
    _check_length(record, max_bytes)
    body = record.block if response is None else response.decoded_body(max_bytes)
    if not body:
        return "empty page"
    media_type = media_type_of(content_type, body)
    if media_type not in HTML_TYPES:
        return _other_type(media_type)
    text, values = page_of(body, charset_in(content_type))
    if not text or text.isspace():
        return "page without text"
    return _Page(text, {**values, "content_type": media_type})


def _response_in(record: _ArchiveRecord) -> Response | None:
    """Return the HTTP response in a record; None if it holds a page without one."""
    content_type = record.headers.get("content-type", "")
    is_http = content_type.lower().startswith("application/http")
    if not is_http and (content_type or record.type != "response"):
        return None
    response = parse_response(record.block)
    if response is None:
        raise BrokenBodyError("it has no whole HTTP header")
    return response


def _text_in(record: _ArchiveRecord, max_bytes: int) -> _Page | str:
    """Return the text that a WET file has of a page, or why it has none."""
    content_type = record.headers.get("content-type", "")
    media_type = media_type_of(content_type, b"") or "text/plain"
    if not media_type.startswith("text/"):
        return _other_type(media_type)
    _check_length(record, max_bytes)
    text = decode_page(record.block, charset_in(content_type))
    if not text or text.isspace():
        return "page without text"
    return _Page(text, {"language": language_of(text), "content_type": media_type})


def _check_length(record: _ArchiveRecord, max_bytes: int) -> None:
    if record.block_bytes > max_bytes:
        raise LongBodyError(f"{record.block_bytes:,} bytes")


def _other_type(media_type: str) -> str:
    kind = media_type.partition("/")[0]
    if kind in _MEDIA:
        return f"content type {kind}/*"
    is_known = _MEDIA_TYPE.fullmatch(media_type) is not None
    return f"content type {media_type}" if is_known else "unknown content type"


def _document(page: _Page, record: _ArchiveRecord, request: ReadRequest) -> Record:
    """Return the document of a page, with the columns that its record has."""
    url = record.headers.get("warc-target-uri")
    # wget writes it as the grammar of WARC 1.0 has it, which the standard corrected.
    if url is not None and url.startswith("<") and url.endswith(">"):
        url = url[1:-1]
    record_id = record.headers.get("warc-record-id")
    values = {
        **page.values,
        "url": url,
        "record_id": record_id,
        "date": record.headers.get("warc-date"),
    }
    own_id = values.get(request.source.id) or url or record_id
    columns = tuple(values.get(name) for name in request.columns)
    return request.record(page.text, own_id, record.number, columns)
