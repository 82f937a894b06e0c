"""HTTP responses: the block of a WARC record → status, media type and decoded body.

Crawlers store responses as the server sent them, or with the body decoded and the
header unchanged, and servers send headers that no standard allows. What browsers accept
is
accepted: lines that end in LF, any HTTP version, a missing `Content-Type`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import zstandard

HTML_TYPES: Final = ("text/html", "application/xhtml+xml")

_STATUS_LINE: Final = re.compile(
    rb"(?:HTTP(?:/\d+(?:\.\d+)?)?|ICY)[ \t]+(\d{3})(?:[ \t][^\n]*)?\r?\n?",
    re.IGNORECASE,
)
_BLANK_LINE: Final = re.compile(rb"\n\r?\n")
_CHARSET: Final = re.compile(r"""charset\s*=\s*["']?\s*([^\s"';,]+)""", re.IGNORECASE)
_WHOLE_RANGE: Final = re.compile(r"\s*bytes\s+0-(\d+)/(\d+)\s*", re.IGNORECASE)
_CHUNK_HEADER: Final = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[^\n]*)?\r?\n")
_LINE_END: Final = re.compile(rb"\r?\n")
# The patterns of the MIME Sniffing standard (7.1), after an XML declaration or none.
_TAGS: Final = (
    rb"!doctype html|html|head|script|iframe|h1|div|font|table|a|style|title|b|body|br"
    rb"|p"
)
_HTML_START: Final = re.compile(
    rb"\s*(?:<\?xml[^>]*>\s*)?<(?:(?:" + _TAGS + rb")[\s>]|!--)", re.IGNORECASE
)
_SNIFFED_BYTES: Final = 1445
# As in that standard, these say no more than no media type.
_UNKNOWN_TYPES: Final = ("unknown/unknown", "application/unknown", "*/*")
_NO_CODINGS: Final = ("", "identity", "none")
_GZIP: Final = 16 + zlib.MAX_WBITS
# Of input at a time: zstd may turn four bytes into 128 KB.
_ZSTD_PIECE_BYTES: Final = 1 << 10


class BrokenBodyError(ValueError):
    """The body is not in the encoding that the header declares."""


class LongBodyError(ValueError):
    """The decoded body is longer than a document may be."""


@dataclass(frozen=True)
class Response:
    """A parsed response; `headers` has lower-case names and all values of each."""

    status: int
    headers: Mapping[str, Sequence[str]]
    body: bytes  # as it was sent

    @property
    def is_whole_page(self) -> bool:
        """Whether the status is that of a page, and the body all of it."""
        if self.status != 206:
            return self.status in (200, 203)
        found = _WHOLE_RANGE.fullmatch(self._last("content-range"))
        return found is not None and int(found[1]) + 1 == int(found[2])

    @property
    def content_type(self) -> str:
        """The value of the header, "" if there is none."""
        return self._last("content-type")

    def decoded_body(self, max_bytes: int) -> bytes:
        """Return the body without transfer and content codings.

        Raises BrokenBodyError for a body that is not as declared, and LongBodyError for
        one of more than `max_bytes`.
        """
        content = self._codings("content-encoding")
        transfer = self._codings("transfer-encoding")
        body = self.body
        for coding in reversed([*content, *transfer]):
            # Many crawlers store the decoded body under the header of the encoded one.
            if begins_html(body):
                break
            body = _decoded(body, coding, max_bytes)
        if len(body) > max_bytes:
            raise LongBodyError(f"over {max_bytes:,} bytes")
        return body

    def _last(self, name: str) -> str:
        values = self.headers.get(name)
        return values[-1] if values else ""

    def _codings(self, name: str) -> list[str]:
        joined = ",".join(self.headers.get(name, ()))
        return [coding.strip().lower() for coding in joined.split(",")]


def parse_response(block: bytes) -> Response | None:
    """Return the response in a block; None if it has no whole HTTP header."""
    status = _STATUS_LINE.match(block)
    if status is None:
        return None
    end = _BLANK_LINE.search(block, status.end() - 1)
    # An interim response, such as "100 Continue", precedes the real one.
    while end is not None and status[1].startswith(b"1"):
        following = _STATUS_LINE.match(block, end.end())
        if following is None:
            break
        status = following
        end = _BLANK_LINE.search(block, status.end() - 1)
    if end is None:
        # A header without a body, unless it ends within the page.
        head = block[status.end() :]
        body = b""
        if b"<" in head:
            return None
    else:
        head = block[status.end() : end.start()]
        body = block[end.end() :]
    return Response(int(status[1]), _headers_in(head), body)


def _headers_in(head: bytes) -> dict[str, list[str]]:
    """Return the lines of a header as lower-case name → values."""
    headers: dict[str, list[str]] = {}
    name = ""
    for line in head.decode("latin-1").split("\n"):
        is_continuation = line[:1] in (" ", "\t")
        if is_continuation and name:
            headers[name][-1] += f" {line.strip()}"
            continue
        name, colon, value = line.partition(":")
        name = name.strip().lower()
        if not colon or not name:
            name = ""
            continue
        headers.setdefault(name, []).append(value.strip())
    return headers


def begins_html(body: bytes) -> bool:
    """Return whether bytes begin as an HTML page does, in any encoding."""
    head = body[:_SNIFFED_BYTES]
    # Of UTF-16, the byte order mark and every second byte.
    for mark in (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"):
        head = head.removeprefix(mark)
    return _HTML_START.match(head.replace(b"\0", b"")) is not None


def media_type_of(content_type: str, body: bytes) -> str:
    """Return the media type of a header or, where that says nothing, of the body."""
    declared = content_type.partition(";")[0].partition(",")[0].strip().lower()
    if "/" in declared and declared not in _UNKNOWN_TYPES:
        return declared
    return HTML_TYPES[0] if begins_html(body) else ""


def charset_in(content_type: str) -> str | None:
    """Return the parameter `charset` of a media type."""
    found = _CHARSET.search(content_type)
    return None if found is None else found[1]


def _decoded(body: bytes, coding: str, max_bytes: int) -> bytes:
    """Return a body without one of its codings."""
    if coding in _NO_CODINGS or not body:
        return body
    decode = _DECODERS.get(coding)
    if decode is None:
        raise BrokenBodyError(f"unknown encoding {coding!r}")
    return decode(body, max_bytes)


def _from_chunks(body: bytes, max_bytes: int) -> bytes:  # noqa: ARG001
    """Return the content of a chunked body (RFC 9112, 7.1), or one that is not."""
    header = _CHUNK_HEADER.match(body)
    if header is None:
        return body
    pieces: list[bytes] = []
    while header is not None:
        size = int(header[1], 16)
        if not size:
            return b"".join(pieces)
        stop = header.end() + size
        pieces.append(body[header.end() : stop])
        line_end = _LINE_END.match(body, stop)
        if line_end is None:
            break
        header = _CHUNK_HEADER.match(body, line_end.end())
    raise BrokenBodyError("a chunk is truncated or has another size")


def _from_gzip(body: bytes, max_bytes: int) -> bytes:
    content = bytearray()
    is_first = True
    # Of several members, if there are; what follows them is ignored, as browsers do.
    while is_first or (body.startswith(b"\x1f\x8b") and len(content) <= max_bytes):
        decompressor = zlib.decompressobj(_GZIP)
        content += _inflated(decompressor, body, max_bytes)
        body = decompressor.unused_data
        is_first = False
    return bytes(content)


def _from_deflate(body: bytes, max_bytes: int) -> bytes:
    try:
        return _inflated(zlib.decompressobj(), body, max_bytes)
    except BrokenBodyError:
        # Some servers send it without the header of zlib.
        return _inflated(zlib.decompressobj(-zlib.MAX_WBITS), body, max_bytes)


def _inflated(decompressor: zlib._Decompress, body: bytes, max_bytes: int) -> bytes:
    try:
        content = decompressor.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise BrokenBodyError(str(error)) from None
    if not decompressor.eof and len(content) <= max_bytes:
        raise BrokenBodyError("it is truncated")
    return content


def _from_brotli(body: bytes, max_bytes: int) -> bytes:
    import brotli

    decompressor = brotli.Decompressor()
    try:
        content: bytes = decompressor.process(body, output_buffer_limit=max_bytes + 1)
    except brotli.error as error:
        raise BrokenBodyError(str(error)) from None
    if not decompressor.is_finished() and len(content) <= max_bytes:
        raise BrokenBodyError("it is truncated")
    return content


def _from_zstd(body: bytes, max_bytes: int) -> bytes:
    decompressor = zstandard.ZstdDecompressor().decompressobj()
    content = bytearray()
    try:
        for start in range(0, len(body), _ZSTD_PIECE_BYTES):
            piece = body[start : start + _ZSTD_PIECE_BYTES]
            content += decompressor.decompress(piece)
            if decompressor.eof or len(content) > max_bytes:
                return bytes(content)
    except zstandard.ZstdError as error:
        raise BrokenBodyError(str(error)) from None
    raise BrokenBodyError("it is truncated")


_DECODERS: Final[Mapping[str, Callable[[bytes, int], bytes]]] = {
    "br": _from_brotli,
    "chunked": _from_chunks,
    "deflate": _from_deflate,
    "gzip": _from_gzip,
    "x-gzip": _from_gzip,
    "zstd": _from_zstd,
}
