"""Formats: all that are known of the user's files, and which of them a file is."""

from __future__ import annotations

import posixpath
from typing import Final

from nextlong.inputs import arrow, delimited, json_lines, pages, parquet, plain_text
from nextlong.inputs.file_format import FileFormat
from nextlong.inputs.files import COMPRESSIONS
from nextlong.recipe import Source

FORMATS: Final = {
    made.name: made
    for made in (
        json_lines.FORMAT,
        parquet.FORMAT,
        arrow.FORMAT,
        delimited.CSV,
        delimited.TSV,
        pages.WARC,
        pages.HTML,
        plain_text.FORMAT,
    )
}
_BY_SUFFIX: Final = {suffix: made for made in FORMATS.values() for suffix in made.suffixes}
_COMPRESSED: Final = ", ".join(name.lstrip(".") for name, made in _BY_SUFFIX.items() if made.compression == "around")
KNOWN: Final = f"{', '.join(_BY_SUFFIX)} (.gz or .zst after any of {_COMPRESSED})"  # for messages


def format_by_name(name: str) -> FileFormat | None:
    """Return the format that the ending of a file's name stands for."""
    stem, suffix = posixpath.splitext(name.lower())
    if suffix not in COMPRESSIONS:
        return _BY_SUFFIX.get(suffix)
    inner = _BY_SUFFIX.get(posixpath.splitext(stem)[1])
    return inner if inner is not None and inner.compression == "around" else None


def known_format(name: str, source: Source) -> FileFormat | None:
    """Return the format that the recipe gives a file, or its name; None where neither says."""
    return format_by_name(name) if source.format == "auto" else FORMATS[source.format]


def format_of(name: str, source: Source) -> FileFormat:
    """Return the format of a file that was listed, which has one."""
    known = known_format(name, source)
    assert known is not None, name
    return known
