"""Character sets: the bytes of a web page → text.

The order is that of the encoding sniffing algorithm of the HTML standard (13.2.3.2): a
byte order mark, the HTTP header, `<meta>`, a detector. Unlike a browser, a declared
encoding is believed only if the bytes are valid in it, because many servers declare one
encoding for all pages. Bytes that are valid UTF-8 are UTF-8: text in another encoding
almost never is.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from typing import Final

from nextlong.reading.encoding import unicode_encoding_of

# UTF-32 is not supported by the HTML standard; its mark begins with that of UTF-16.
_BYTE_ORDER_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# Declared or not, a page may begin with a tag of two bytes per character.
_UTF16_TAGS: Final = ((b"<\0", "utf-16-le"), (b"\0<", "utf-16-be"))
# The standard decodes these encodings as supersets of them, which Python calls
# otherwise.
_SUPERSETS: Final = {
    "big5": "big5hkscs",
    "euc_kr": "cp949",
    "gbk": "gb18030",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "iso8859-11": "cp874",
    "shift_jis": "cp932",
    "tis-620": "cp874",
}
# What servers declare by default, and what no bytes contradict.
_DEFAULT: Final = "cp1252"
# Of 4,000 short texts in cp1252, in ten languages, the detector took 5 for one of
# these.
_NOT_LATIN: Final = frozenset(
    {
        "big5hkscs", "cp1251", "cp1253", "cp1255", "cp1256", "cp866", "cp874", "cp932",
        "cp949", "euc_jp", "gb18030", "iso2022_jp", "iso8859-5", "iso8859-6",
        "iso8859-7", "iso8859-8", "koi8-r",
    }
)  # fmt: skip
# Other Latin encodings that it found: for a few Polish and Turkish texts it is right, …
_OTHER_LATIN: Final = frozenset({"cp1250", "cp1254", "iso8859-15", "iso8859-2"})
# … while cp852, ISO 8859-3 and the like were always wrong.

# Legacy text of two bytes per character has up to 0.4 valid UTF-8 characters for each
# invalid byte (Thai, Japanese, Chinese); a UTF-8 page with some bad bytes has many.
_MIN_VALID_PER_INVALID: Final = 2
# A browser also follows a <meta> after the first 1,024 bytes, and parses again.
_HEAD_BYTES: Final = 1 << 16
# As in the HTML standard, a comment without an end contains all that follows it.
_COMMENT: Final = re.compile(rb"<!--.*?(?:-->|\Z)", re.DOTALL)
_META: Final = re.compile(rb"<meta[\s/][^>]*>", re.IGNORECASE)
_CHARSET_ATTRIBUTE: Final = re.compile(
    rb"""[\s/"']charset\s*=\s*["']?\s*([^\s"'/>;]+)""", re.IGNORECASE
)
_IS_CONTENT_TYPE: Final = re.compile(
    rb"""http-equiv\s*=\s*["']?\s*content-type""", re.IGNORECASE
)
_CONTENT_CHARSET: Final = re.compile(
    rb"""charset\s*=\s*["']?\s*([^\s"'/>;]+)""", re.IGNORECASE
)
_XML_ENCODING: Final = re.compile(
    rb"""\s*<\?xml\s[^>]*encoding\s*=\s*["']([^"']+)""", re.IGNORECASE
)


def decode_page(raw: bytes, header_charset: str | None = None) -> str:
    """Return the text of a page; bytes that are invalid in its encoding become U+FFFD.

    `header_charset` is the encoding that the HTTP header declares, if it does.
    """
    for mark, encoding in _BYTE_ORDER_MARKS:
        if raw.startswith(mark):
            return raw.removeprefix(mark).decode(encoding, "replace")
    for start, encoding in _UTF16_TAGS:
        if raw.startswith(start):
            return raw.decode(encoding, "replace")

    if not raw.isascii() and is_mostly_utf8(raw):
        return raw.decode("utf-8", "replace")

    labels = (header_charset, _meta_charset(raw))
    declared = [_encoding_of(label) for label in labels]
    valid = [encoding for encoding in declared if encoding and _is_valid(raw, encoding)]
    return raw.decode(_decided(valid, _detected(raw)), "replace")


def _decided(valid: Sequence[str], detected: str) -> str:
    """Return the encoding of a page with these valid declarations.

    The detector decides between two of them, and where none says anything.
    """
    if detected in valid:
        return detected
    # A declared default says nothing against a detected encoding of another script.
    if detected in _NOT_LATIN:
        believed = [encoding for encoding in valid if encoding != _DEFAULT]
    else:
        believed = list(valid)
    return believed[0] if believed else detected


def is_mostly_utf8(raw: bytes) -> bool:
    """Return whether bytes are UTF-8, perhaps with some invalid ones."""
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        text = raw.decode("utf-8", "replace")
        invalid = text.count("\ufffd")
        ascii_chars = len(text.encode("ascii", "ignore"))
        valid = len(text) - ascii_chars - invalid
        return valid >= _MIN_VALID_PER_INVALID * invalid
    return True


def _is_valid(raw: bytes, encoding: str) -> bool:
    # Bytes without NUL are no markup in UTF-16.
    if encoding.startswith("utf-16") and b"\0" not in raw:
        return False
    try:
        raw.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _meta_charset(raw: bytes) -> str | None:
    """Return the encoding that the page itself declares, in <meta> or for XML."""
    head = _COMMENT.sub(b"", raw[:_HEAD_BYTES])
    for tag in _META.findall(head):
        found = _CHARSET_ATTRIBUTE.search(tag)
        if found is None and _IS_CONTENT_TYPE.search(tag):
            found = _CONTENT_CHARSET.search(tag)
        if found is not None:
            label = found[1].decode("latin-1")
            # A page whose <meta> can be read is not UTF-16.
            if label.lower().startswith("utf-16"):
                return "utf-8"
            return label
    declaration = _XML_ENCODING.match(head)
    return None if declaration is None else declaration[1].decode("latin-1")


def _encoding_of(label: str | None) -> str:
    """Return Python's name of an encoding of the HTML standard; "" for another one."""
    from resiliparse.parse.encoding import map_encoding_to_html5

    label = (label or "").strip().lower()
    if not label:
        return ""
    if label == "x-user-defined":
        return _DEFAULT
    known = map_encoding_to_html5(label, fallback_utf8=False)
    return "" if known is None else _SUPERSETS.get(known, known)


def guess_encoding(raw: bytes) -> str:
    """Return the likely encoding of text that is not UTF-8.

    Without the detector of `nextlong[web]`, this is cp1252, that of Western Europe.
    """
    encoding = unicode_encoding_of(raw)
    if encoding:
        return encoding
    try:
        return _detected(raw)
    except ImportError:
        return _DEFAULT


def _detected(raw: bytes) -> str:
    """Return the encoding that the bytes suggest, else the default."""
    from resiliparse.parse.encoding import detect_encoding

    # With `html5_compatible`, it takes Korean in cp949 for UTF-8.
    found = detect_encoding(raw, max_len=len(raw), html5_compatible=False) or ""
    try:
        name = codecs.lookup(found).name
    except LookupError:
        return _DEFAULT
    name = _SUPERSETS.get(name, name)
    return name if name in _NOT_LATIN | _OTHER_LATIN else _DEFAULT
