"""Encoding: text files in any encoding → UTF-8, and content of another kind.

A source's `encoding` applies to its text files (JSON lines, CSV, TSV, text, HTML).
Their content is converted to UTF-8 before it is split into lines, so that readers know
no other encoding. Bytes that are invalid become lone surrogates, which are invalid in
UTF-8 too: a reader rejects the line or file that contains them.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

from nextlong.reading.compression import Pieces, compression_in

_BLOCK_BYTES: Final = 1 << 16
SNIFFED_BYTES: Final = 64
_ERRORS: Final = "nextlong-lone-surrogates"
_BYTE_ORDER_MARKS: Final = {
    # The mark of UTF-32 begins with that of UTF-16.
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_FORMATS: Final = {
    b"PAR1": "Parquet",
    b"ARROW1": "Arrow",
    b"PK\x03\x04": "zip",
    b"%PDF-": "PDF",
}
# Of the first bytes in one of two places, to be UTF-16 without a mark.
_MIN_NUL_SHARE: Final = 0.4
_MIN_PAIRS: Final = 4


def as_utf8(raw: Any, encoding: str) -> io.RawIOBase:
    """Return the content of an open file in another encoding as UTF-8."""
    return Pieces(_utf8_pieces(raw, encoding), raw)


def bytes_as_utf8(raw: bytes, encoding: str | None) -> bytes:
    """Return the head of a file as UTF-8; a last character may be missing."""
    if encoding is None:
        return raw
    decoder = codecs.getincrementaldecoder(encoding)(_ERRORS)
    try:
        return decoder.decode(raw).encode("utf-8", "surrogatepass")
    except UnicodeError:
        # Reading the file reports the error.
        return raw


def unicode_encoding_of(head: bytes) -> str:
    """Return "utf-16" or "utf-32" for content in one of these encodings, else ""."""
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if head.startswith(mark):
            return encoding
    pairs = len(head) // 2
    # Text of ASCII characters has a NUL as every second byte.
    low_nuls = head[0 : 2 * pairs : 2].count(0)
    high_nuls = head[1 : 2 * pairs : 2].count(0)
    if pairs < _MIN_PAIRS:
        return ""
    if high_nuls > _MIN_NUL_SHARE * pairs and not low_nuls:
        return "utf-16-le"
    if low_nuls > _MIN_NUL_SHARE * pairs and not high_nuls:
        return "utf-16-be"
    return ""


class OtherContent(NamedTuple):
    """What a file holds that should hold text, and what to do about it."""

    content: str
    fix: str


def other_content(
    head: bytes, *, utf16: Literal["accept", "refuse"]
) -> OtherContent | None:
    """Return what a file holds that should hold text; None if it does."""
    compression = compression_in(head)
    if compression:
        suffix = {"gzip": "gz", "zstd": "zst"}.get(compression, compression)
        return OtherContent(
            f"{compression} data", f"add .{suffix} to its name, or decompress it"
        )
    for magic, kind in _FORMATS.items():
        if head.startswith(magic):
            return OtherContent(f"{kind} data", "rename it, or convert it")
    encoding = unicode_encoding_of(head)
    if encoding and utf16 == "refuse":
        return OtherContent(
            f"text in {encoding}", f"set its source's encoding: {encoding}"
        )
    return None


def _utf8_pieces(raw: Any, encoding: str) -> Iterator[bytes]:
    """Yield the content in UTF-8.

    Raises OSError for UTF-16 and UTF-32 without a mark.
    """
    decoder = codecs.getincrementaldecoder(encoding)(_ERRORS)
    is_at_end = False
    while not is_at_end:
        block = raw.read(_BLOCK_BYTES)
        is_at_end = not block
        try:
            text = decoder.decode(block, final=is_at_end)
        except UnicodeError as error:
            raise OSError(f"{error}; set encoding: {encoding}-le or -be") from None
        yield text.encode("utf-8", "surrogatepass")


def _as_surrogates(error: UnicodeError) -> tuple[str, int]:
    """Replace each invalid byte with a lone surrogate."""
    assert isinstance(error, UnicodeDecodeError), error
    invalid = error.object[error.start : error.end]
    return "".join(chr(0xDC00 + byte) for byte in invalid), error.end


codecs.register_error(_ERRORS, _as_surrogates)
