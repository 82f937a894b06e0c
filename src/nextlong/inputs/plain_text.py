"""Plain text: a file is one document, and has no columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from nextlong.errors import CorpusError
from nextlong.inputs.file_format import FileFormat, Items, no_head
from nextlong.inputs.files import InputFile, Part, read_head
from nextlong.inputs.record import BOM, Record, Reject, RejectKind
from nextlong.recipe import Source


def read(stream: Any, part: Part, source: Source, max_document_chars: int, wanted: Sequence[str]) -> Items:
    """Yield the one document of a file, or why it is none."""
    del source
    file = part.file
    if wanted:
        raise CorpusError(
            f"{file.path} is plain text and has no columns, but the source's keep or where names "
            f"{wanted[0]!r}; leave these out for plain text"
        )
    limit_bytes = 4 * max_document_chars + len(BOM)
    raw = stream.read(limit_bytes + 1)
    if len(raw) > limit_bytes:
        yield Reject(file.name, 1, RejectKind.TOO_LONG, f"over {max_document_chars:,} characters")
        return
    try:
        yield Record(raw.removeprefix(BOM).decode("utf-8"), file.name, 1)
    except UnicodeDecodeError:
        yield Reject(file.name, 1, RejectKind.INVALID_UTF8)


def text_bytes(file: InputFile, source: Source, head_bytes: int) -> tuple[int, int]:
    """Return (bytes of text, bytes on disk) of a file's head: all of it is text."""
    del source
    head, raw_bytes = read_head(file, head_bytes)
    return len(head), raw_bytes


FORMAT: Final = FileFormat(
    name="text", suffixes=(".txt", ".md"), read=read, head=no_head, text_bytes=text_bytes, has_columns=False
)
