"""Which columns hold text and id, in every format, by names and values."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nextlong.cli.columns import id_column, look_into, text_column

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
    (look,) = look_into(str(written(tmp_path, kind)))
    assert (look.text, look.id, look.suffix) == ("content", "doc_id", f".{kind}")


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
    (look,) = look_into(str(tmp_path / f"a.{kind}"))
    assert look.id is None
    assert look.text is None
    assert look.problem or kind == "csv"  # of which any text may be the heading


def test_the_first_files_of_each_kind_are_looked_into(tmp_path):
    for number in range(9):
        (tmp_path / f"{number}.jsonl").write_text('{"url": "u", "text": "t"}\n' * 2)
    written(tmp_path, "csv")
    (tmp_path / "a.txt").write_text("a document")
    looks = look_into(str(tmp_path))
    assert [look.suffix for look in looks] == [".jsonl"] * 8 + [".csv", ".txt"]
    assert [look.text for look in looks[7:]] == ["text", "content", None]
    assert looks[0].repeating == ("url", "u")
    assert not looks[-1].has_columns
