"""Records: one file of any known format → a stream of documents as the user gave them.

In:  JSON lines, Parquet, Arrow, CSV, TSV, web archives, HTML or plain text, from any fsspec file system, compressed or not.
Out: a `Record` (text, the user's own id, what `keep` asks for) for each line or row, or a `Reject`, or `LeftOut` where the
source's `where` does not hold; in file order.
A line that cannot be read costs one line. A file that cannot be read to its end stops the run: half a file must never
pass for a whole one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from nextlong.errors import CorpusError
from nextlong.inputs import delimited, json_lines, pages, tables
from nextlong.inputs.files import Part, check_unchanged, format_of, open_file
from nextlong.inputs.json_lines import BOM
from nextlong.inputs.record import Record, Reject, RejectKind, explained
from nextlong.inputs.where import LeftOut, Where, where_of
from nextlong.recipe import Source

Item = Record | Reject | LeftOut


def read_records(part: Part, source: Source, *, max_document_chars: int) -> Iterator[Item]:
    """Stream a file's records, rejects and what is left out, in file order; memory holds one line, or one batch of records.

    Lines too long to hold a document of `max_document_chars` characters are rejects and never held whole.
    Raises CorpusError if the file lacks a column, cannot be read to its end, or changed since it was listed.
    """
    where = where_of(source)
    items = _read(part, source, max_document_chars, where)
    return items if where is None else where.sorted_out(items, beside=len(source.keep), file=part.file)


def _read(part: Part, source: Source, max_document_chars: int, where: Where | None) -> Iterator[Record | Reject]:
    wanted = (*source.keep, *(where.columns if where else ()))
    kind = format_of(part.file.name, source)
    with explained(part.file):
        with closing(open_file(part.file, start=part.start)) as stream:
            if kind == "text":
                if wanted:
                    raise CorpusError(
                        f"{part.file.path} is plain text and has no columns, but the source's keep or where names "
                        f"{wanted[0]!r}; leave these out for plain text"
                    )
                yield from read_text(stream, part, max_document_chars)
            elif kind in ("parquet", "arrow"):
                read = tables.read_parquet if kind == "parquet" else tables.read_arrow
                yield from read(stream, part, source, wanted)
            elif kind in pages.PAGES:
                read_pages = pages.read_warc if kind == "warc" else pages.read_html
                yield from read_pages(stream, part, source, max_document_chars, wanted)
            else:
                lines = json_lines.read_json_lines if kind == "jsonl" else delimited.read_delimited
                yield from lines(stream, part, source, max_document_chars, wanted)
        check_unchanged(part.file)


def read_text(stream: Any, part: Part, max_document_chars: int) -> Iterator[Record | Reject]:
    file = part.file
    limit_bytes = 4 * max_document_chars + len(BOM)
    raw = stream.read(limit_bytes + 1)
    if len(raw) > limit_bytes:
        yield Reject(file.name, 1, RejectKind.TOO_LONG, f"over {max_document_chars:,} characters")
        return
    try:
        yield Record(raw.removeprefix(BOM).decode("utf-8"), file.name, 1)
    except UnicodeDecodeError:
        yield Reject(file.name, 1, RejectKind.INVALID_UTF8)
