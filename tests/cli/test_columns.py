"""Which columns hold text and id, in every format, by names and values."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nextlong.cli.columns import columns_of, id_column, text_column

ROWS = [
    {"doc_id": "a1", "title": "One", "content": "A text that is longer than its title.", "meta": {"lang": "en"}},
    {"doc_id": "a2", "title": "Two", "content": "Another.", "meta": {"lang": "de"}},
]


def written(folder, kind):
    path = folder / f"a.{kind}"
    if kind.startswith("jsonl"):
        content = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)
        path.write_bytes(gzip.compress(content) if kind.endswith("gz") else content)
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif kind == "arrow":
        table = pa.Table.from_pylist(ROWS)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    else:
        path.write_text("doc_id,title,content\n" + "".join(f"{row['doc_id']},x,{row['content']}\n" for row in ROWS))
    return path


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet", "arrow", "csv"])
def test_every_format_is_looked_into(tmp_path, kind):
    assert columns_of(str(written(tmp_path, kind))) == ("content", "doc_id")


@pytest.mark.parametrize(
    ("columns", "text", "own_id"),
    [
        ({"text": ["x"], "content": ["long " * 50], "id": [1]}, "text", "id"),
        ({"text": [3], "body": ["x"], "url": ["u"]}, "body", "url"),
        ({"Headline": ["short"], "Prose": ["many words " * 9]}, "Prose", None),
        ({"label": ["yes", "no"], "n": [1, 2]}, None, None),
        (
            {"data.text": ["x"], "data": [{"text": "x"}], "meta.id": ["i"], "meta": [{"id": "i"}]},
            "data.text",
            "meta.id",
        ),
        ({"text": ["x", "y"], "id": ["same", "same"], "uuid": ["a", "b"]}, "text", "uuid"),
        ({"text": [], "TEXT": ["x"], "ID": ["1"]}, "TEXT", "ID"),
        ({}, None, None),
    ],
)
def test_names_come_before_lengths_and_ids_differ(columns, text, own_id):
    assert (text_column(columns), id_column(columns)) == (text, own_id)


@pytest.mark.parametrize("content", [b"", b"\x00\xff", b"[1]\n", b"{", b"\n\n"])
@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow", "csv", "jsonl.gz"])
def test_what_cannot_be_read_tells_nothing(tmp_path, kind, content):
    (tmp_path / f"a.{kind}").write_bytes(content)
    assert columns_of(str(tmp_path / f"a.{kind}"))[1] is None


def test_of_several_files_the_first_that_tells(tmp_path):
    (tmp_path / "0.jsonl").touch()
    written(tmp_path, "jsonl")
    assert columns_of(str(tmp_path / "*.jsonl")) == ("content", "doc_id")
