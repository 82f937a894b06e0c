"""Small files of every format, and what is read of them; what tests of several readers share."""

import pyarrow as pa
import zstandard

from nextlong.reading.files import FilePart
from nextlong.reading.formats import read_records
from nextlong.reading.listing import list_files
from nextlong.reading.records import Reject
from nextlong.recipe import Source

zstd = zstandard.ZstdCompressor().compress


def read(path, **options):
    source = Source(path=str(path), **options)
    files = list_files(source, where="ingest.sources[0].path")
    return [
        item
        for file in files
        for item in read_records(FilePart(file), source, max_document_chars=1000)
    ]


def lines(path, *rows, **options):
    path.write_bytes(
        b"\n".join(row if isinstance(row, bytes) else row.encode() for row in rows)
        + b"\n"
    )
    return read(path, **options)


def arrow_file(path, table, *, layout="file"):
    new = pa.ipc.new_file if layout == "file" else pa.ipc.new_stream
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return path


TABLE = pa.table(
    {"id": [5, None, 7, 8], "text": ["one", "two", None, "four"], "vector": [[1.0]] * 4}
)

ITEMS = [("one", "5"), ("two", ":2"), "text is null", ("four", "8")]


def summary(items):
    return [
        item.reason
        if isinstance(item, Reject)
        else (
            item.text,
            item.source_id.removeprefix("a.parquet").removeprefix("a.arrow"),
        )
        for item in items
    ]
