"""Arrow files by hand: record batches of columns, and DOCUMENTS of a few texts."""

import pyarrow as pa

from nextlong import schemas


def write_arrow(path, schema, *batches):
    """Write record batches, the columns of each in the order of the schema; return the path."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for columns in batches:
            named = dict(zip(schema.names, map(list, columns), strict=True))
            writer.write_batch(pa.RecordBatch.from_pydict(named, schema=schema))
    return path


def write_documents(path, batches):
    """Write batches of texts as DOCUMENTS, each text its own id and source."""
    columns = [[texts, range(len(texts)), texts, texts] for texts in batches]
    return write_arrow(path, schemas.DOCUMENTS, *columns)
