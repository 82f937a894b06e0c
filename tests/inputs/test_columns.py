"""Columns of strings in every layout, and names that reach into structs."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from files_read import arrow_file, read, summary
from nextlong.inputs.record import Record, Reject


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_every_arrow_string_type_is_text(tmp_path, kind):
    column = (
        pa.array(["one", None, "one"]).cast(kind)
        if not pa.types.is_dictionary(kind)
        else pa.array(["one", None, "one"]).dictionary_encode()
    )
    items = read(arrow_file(tmp_path / "a.arrow", pa.table({"text": column})))
    assert [getattr(item, "text", None) for item in items] == ["one", None, "one"]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_dotted_name_reads_a_struct_field(tmp_path, name):
    table = pa.table({"doc": [{"body": "one", "lang": "en"}, None], "meta": [{"key": 3}, {"key": 4}]})
    if name == "a.arrow":
        arrow_file(tmp_path / name, table)
    else:
        pq.write_table(table, tmp_path / name)
    assert read(tmp_path / name, text="doc.body", id="meta.key") == [
        Record("one", "3", 1),
        Reject(name, 2, "text is null"),
    ]


def test_string_column_that_is_not_utf8_costs_one_row(tmp_path):
    raw = pa.array([b"one", b"\xff", None, b"four"], pa.binary())
    text = pa.StringArray.from_buffers(4, raw.buffers()[1], raw.buffers()[2], raw.buffers()[0], null_count=1)
    items = read(arrow_file(tmp_path / "a.arrow", pa.table({"text": text})))
    assert summary(items) == [("one", ":1"), "invalid UTF-8", "text is null", ("four", ":4")]
