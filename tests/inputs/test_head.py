import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nextlong.inputs.head import head_columns
from nextlong.inputs.listing import list_files
from nextlong.recipe import Source

ROWS = [{"id": number, "text": "tide" if number else None, "meta": {"lang": "en"}} for number in range(30)]


def write(path):
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif path.suffix == ".arrow":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, pa.Table.from_pylist(ROWS).schema) as writer:
            writer.write_table(pa.Table.from_pylist(ROWS))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "arrow"])
def test_the_first_twenty_records_are_shown_without_nulls_and_with_what_is_nested(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    write(path)
    source = Source(path=str(path))
    (file,) = list_files(source, where="path")
    columns = head_columns(file, source)
    assert list(columns) == ["id", "text", "meta", "meta.lang"]
    assert (columns["id"], columns["text"]) == (list(range(20)), ["tide"] * 19)
    assert columns["meta.lang"] == ["en"] * 20


def test_a_byte_order_mark_is_no_part_of_the_first_record(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "tide"}\n', encoding="utf-8-sig")
    source = Source(path=str(tmp_path))
    (file,) = list_files(source, where="path")
    assert head_columns(file, source) == {"text": ["tide"]}


@pytest.mark.parametrize(
    ("name", "content"), [("a.jsonl", b"{"), ("a.parquet", b"PAR1"), ("a.csv", b'a,b\n"x'), ("a.txt", b"x")]
)
def test_of_what_cannot_be_read_there_is_nothing(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    source = Source(path=str(tmp_path / name))
    (file,) = list_files(source, where="path")
    assert head_columns(file, source) == {}
