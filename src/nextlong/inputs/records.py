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

from nextlong.inputs.file_format import Items
from nextlong.inputs.files import Part, check_unchanged, open_file
from nextlong.inputs.formats import format_of
from nextlong.inputs.record import Record, Reject, explained
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


def _read(part: Part, source: Source, max_document_chars: int, where: Where | None) -> Items:
    wanted = (*source.keep, *(where.columns if where else ()))
    kind = format_of(part.file.name, source)
    with explained(part.file):
        with closing(open_file(part.file, start=0 if part.skips else part.start)) as stream:
            yield from kind.read(stream, part, source, max_document_chars, wanted)
        check_unchanged(part.file)
