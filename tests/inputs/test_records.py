"""Records: every format once on a real small file, and every way in which a line or a file can be wrong."""

import gzip
import itertools
import json
import os
import subprocess
import sys

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from nextlong.errors import CorpusError
from nextlong.inputs.files import Part
from nextlong.inputs.json_lines import count_lines
from nextlong.inputs.listing import list_files
from nextlong.inputs.record import Record, Reject, RejectKind
from nextlong.inputs.records import read_records
from nextlong.recipe import Source

zstd = zstandard.ZstdCompressor().compress


def read(path, **options):
    source = Source(path=str(path), **options)
    files = list_files(source, where="ingest.sources[0].path")
    return [item for file in files for item in read_records(Part(file), source, max_document_chars=1000)]


def lines(path, *rows, **options):
    path.write_bytes(b"\n".join(row if isinstance(row, bytes) else row.encode() for row in rows) + b"\n")
    return read(path, **options)


def arrow_file(path, table, *, layout="file"):
    new = pa.ipc.new_file if layout == "file" else pa.ipc.new_stream
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return path


@pytest.mark.parametrize(("suffix", "compress"), [("", bytes), (".gz", gzip.compress), (".zst", zstd)])
def test_json_lines_plain_and_compressed(tmp_path, suffix, compress):
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(compress(b'{"text":"one","id":7}\n\n{"text":"two \\u00e9"}'))
    assert read(path) == [Record("one", "7", 1), Record("two é", f"a.jsonl{suffix}:3", 3)]


CUT_WHILE_READ = """
import os, sys
from nextlong.errors import CorpusError
from nextlong.inputs.files import Part
from nextlong.inputs.listing import list_files
from nextlong.inputs.records import read_records
from nextlong.recipe import Source

source = Source(path=sys.argv[1])
(file,) = list_files(source, where="path")
records = read_records(Part(file), source, max_document_chars=99)
next(records)
os.truncate(file.path, 0)
try:
    print(sum(1 for _ in records))
except CorpusError as error:
    print(error)
"""


@pytest.mark.parametrize("layout", ["file", "stream"])
def test_an_arrow_file_that_is_cut_while_it_is_read_kills_no_process(tmp_path, layout):
    path = arrow_file(tmp_path / "a.arrow", pa.table({"text": ["line"] * 4_000, "n": range(4_000)}), layout=layout)
    ended = subprocess.run([sys.executable, "-c", CUT_WHILE_READ, path], check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "a.arrow changed while it was read" in ended.stdout


def test_several_compressed_frames_are_one_file(tmp_path):
    for name, compress in (("a.jsonl.zst", zstd), ("b.jsonl.gz", gzip.compress)):
        (tmp_path / name).write_bytes(compress(b'{"text":"one"}\n') + compress(b'{"text":"two"}\n'))
    assert [item.text for item in read(tmp_path)] == ["one", "two", "one", "two"]


def test_empty_files_give_nothing(tmp_path):
    for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl.zst"):
        (tmp_path / name).write_bytes(b"")
    assert read(tmp_path) == []


def test_byte_order_mark_blank_lines_and_carriage_returns_are_harmless(tmp_path):
    items = lines(tmp_path / "a.jsonl", b'\xef\xbb\xbf{"text":"one"}\r', b"  \r", b'{"text":"two"}\r')
    assert [(item.text, item.line) for item in items] == [("one", 1), ("two", 3)]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('{"text": "cut', "broken JSON"),
        ("[1, 2]", "not a JSON object"),
        ('"text"', "not a JSON object"),
        ('{"title": "x"}', "no text column"),
        ('{"text": null}', "text is null"),
        ('{"text": 5}', "text is not a string"),
        (b'{"text": "\xff"}', "invalid UTF-8"),
        ('{"text": "a \\ud800 b"}', "lone surrogate in the text"),
        ("[" * 100_000, "broken JSON"),
    ],
)
def test_bad_line_is_a_reject_with_its_line_and_reason(tmp_path, row, reason):
    good, bad, after = lines(tmp_path / "a.jsonl", '{"text":"fine"}', row, '{"text":"after"}')
    assert (bad.file, bad.line, bad.kind) == ("a.jsonl", 2, reason)
    assert (good.text, after.text, after.line) == ("fine", "after", 3)


def test_oddities_outside_the_text_do_not_cost_the_document(tmp_path):
    items = lines(tmp_path / "a.jsonl", '{"text":"one","score":NaN}', '{"text":"two","title":"\\ud800"}')
    assert [item.text for item in items] == ["one", "two"]


def test_line_that_no_document_can_need_is_a_reject(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text":"one"}\n{"text":"two","junk":"' + b"x" * 65_000_000 + b'"}\n{"text":"three"}\n')
    assert read(path) == [
        Record("one", "a.jsonl:1", 1),
        Reject("a.jsonl", 2, "line too long"),
        Record("three", "a.jsonl:3", 3),
    ]


@pytest.mark.parametrize(
    ("given_id", "read_id"),
    [('"k"', "k"), ("12", "12"), ("1.5", "1.5"), ('""', "a.jsonl:1"), ("null", "a.jsonl:1"), ("[1]", "a.jsonl:1")],
)
def test_id_is_any_scalar_as_a_string(tmp_path, given_id, read_id):
    (item,) = lines(tmp_path / "a.jsonl", f'{{"text":"x","id":{given_id}}}')
    assert item.source_id == read_id


def test_dotted_name_reads_a_nested_field_unless_a_key_is_called_so(tmp_path):
    rows = ['{"doc":{"body":"nested"},"meta":{"key":1}}', '{"doc.body":"literal","doc":{"body":"nested"}}']
    items = lines(tmp_path / "a.jsonl", *rows, text="doc.body", id="meta.key")
    assert items == [Record("nested", "1", 1), Record("literal", "a.jsonl:2", 2)]


@pytest.mark.parametrize("count", [1, 150])
def test_file_without_the_text_column_stops_with_the_nearest_key(tmp_path, count):
    with pytest.raises(CorpusError, match=r"no column 'text'.*it has txet, meta, meta\.lang; did you mean 'txet'"):
        lines(tmp_path / "a.jsonl", *['{"txet":"x","meta":{"lang":"en"}}'] * count)


def test_json_array_is_refused_with_its_conversion(tmp_path):
    with pytest.raises(CorpusError, match=r"jq -c '\.\[\]'"):
        lines(tmp_path / "a.json", "[", '{"text":"x"}', "]")


def test_binary_junk_called_json_lines_is_rejects(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(bytes(range(256)) * 40)
    items = read(path)
    assert items
    assert all(isinstance(item, Reject) for item in items)


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".zst", zstd)])
def test_cut_compressed_file_stops_and_says_how_far_it_came(tmp_path, suffix, compress):
    path = tmp_path / f"a.jsonl{suffix}"
    rows = "".join(json.dumps({"text": str(i) + os.urandom(30).hex()}) + "\n" for i in range(20_000))
    path.write_bytes(compress(rows.encode())[:-5])
    with pytest.raises(CorpusError, match=r"ends early or is damaged .*; re-download it") as caught:
        read(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.parquet", "a.arrow"])
def test_file_that_is_not_what_its_name_says_stops(tmp_path, name):
    (tmp_path / name).write_bytes(b"this is no such file at all, whatever it is called")
    with pytest.raises(CorpusError, match="ends early or is damaged"):
        read(tmp_path / name)


def test_plain_text_is_one_document_a_file(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\ntwo\r\n")
    (tmp_path / "sub" / "b.md.gz").write_bytes(gzip.compress(b"# three"))
    (tmp_path / "sub" / "c.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "sub" / "d.txt").write_bytes(b"x" * 4004)
    assert read(tmp_path) == [
        Record("one\ntwo\r\n", "a.txt", 1),
        Record("# three", "sub/b.md.gz", 1),
        Reject("sub/c.txt", 1, "invalid UTF-8"),
        Reject("sub/d.txt", 1, RejectKind.TOO_LONG, "over 1,000 characters"),
    ]


TABLE = pa.table({"id": [5, None, 7, 8], "text": ["one", "two", None, "four"], "vector": [[1.0]] * 4})
ITEMS = [("one", "5"), ("two", ":2"), "text is null", ("four", "8")]


def summary(items):
    return [
        item.reason
        if isinstance(item, Reject)
        else (item.text, item.source_id.removeprefix("a.parquet").removeprefix("a.arrow"))
        for item in items
    ]


def test_parquet(tmp_path):
    pq.write_table(TABLE, tmp_path / "a.parquet", row_group_size=3)
    items = read(tmp_path / "a.parquet")
    assert summary(items) == ITEMS
    assert [item.line for item in items] == [1, 2, 3, 4]


@pytest.mark.parametrize("layout", ["file", "stream"])
def test_arrow_file_and_stream(tmp_path, layout):
    assert summary(read(arrow_file(tmp_path / "a.arrow", TABLE, layout=layout))) == ITEMS


def test_saved_dataset_folder(tmp_path):
    folder = tmp_path / "ds"
    folder.mkdir()
    arrow_file(folder / "data-00000-of-00001.arrow", TABLE, layout="stream")
    (folder / "state.json").write_text(
        '{"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_fingerprint": "f"}'
    )
    (folder / "dataset_info.json").write_text("{}")
    items = read(folder)
    assert [item.text for item in items if isinstance(item, Record)] == ["one", "two", "four"]
    assert items[1].source_id == "data-00000-of-00001.arrow:2"


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


def test_table_without_the_text_column_names_the_nearest(tmp_path):
    pq.write_table(pa.table({"texts": ["x"], "meta": [{"lang": "en"}]}), tmp_path / "a.parquet")
    with pytest.raises(CorpusError, match=r"it has texts, meta, meta\.lang; did you mean 'texts'"):
        read(tmp_path / "a.parquet")


def test_a_parquet_column_that_stands_there_twice_is_refused_where_it_is_wanted(tmp_path):
    columns = [pa.array(column) for column in (["one"], ["two"], ["x"], ["y"])]
    pq.write_table(pa.Table.from_arrays(columns, names=["text", "body", "body", "id"]), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == [Record("one", "y", 1)]
    assert read(tmp_path / "a.parquet", id="body") == [Record("one", "a.parquet:1", 1)]
    for key, wanted in (("text", {"text": "body"}), ("keep", {"keep": ["body"]})):
        with pytest.raises(CorpusError, match=rf"a.parquet has 2 columns 'body', .* meant by .*{key}.*; rename one"):
            read(tmp_path / "a.parquet", **wanted)


def test_text_column_of_another_type_is_refused(tmp_path):
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(CorpusError, match="column 'text' holds int64, not strings"):
        read(tmp_path / "a.parquet")


@pytest.mark.parametrize("fraction", [0.3, 0.9])
def test_cut_parquet_file_stops(tmp_path, fraction):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [os.urandom(50).hex() for _ in range(2000)]}), path)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * fraction)])
    with pytest.raises(CorpusError, match="ends early or is damaged"):
        read(path)


def test_parquet_damaged_in_its_middle_stops(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"text": [os.urandom(50).hex() for _ in range(5000)]}), path, compression="zstd", use_dictionary=False
    )
    content = bytearray(path.read_bytes())
    content[200:400] = bytes(200)
    path.write_bytes(content)
    with pytest.raises(CorpusError, match="ends early or is damaged"):
        read(path)


def test_other_file_systems_are_read_alike():
    fs = fsspec.filesystem("memory")
    table = pa.BufferOutputStream()
    pq.write_table(TABLE, table)
    fs.pipe("/reading/a.jsonl.zst", zstd(b'{"text":"lines"}\n'))
    fs.pipe("/reading/b.parquet", table.getvalue().to_pybytes())
    fs.pipe("/reading/c.txt", b"plain")
    texts = [item.text for item in read("memory://reading") if isinstance(item, Record)]
    assert texts == ["lines", "one", "two", "four", "plain"]


def open_listed(path):
    source = Source(path=str(path))
    (file,) = list_files(source, where="ingest.sources[0].path")
    return read_records(Part(file), source, max_document_chars=1000)


def test_file_that_vanished_after_listing_stops(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text":"x"}\n')
    items = open_listed(path)
    path.unlink()
    with pytest.raises(CorpusError, match="has vanished since it was listed"):
        list(items)


def test_file_that_changed_while_it_was_read_stops(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text":"x"}\n')
    items = open_listed(path)
    assert next(items).text == "x"
    with path.open("a") as file:
        file.write('{"text":"y"}\n')
    with pytest.raises(CorpusError, match="changed while it was read"):
        list(items)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_any_text_comes_back_from_every_format(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("any")
    escaped, plain = ("".join(json.dumps({"text": t}, ensure_ascii=a) + "\n" for t in texts) for a in (True, False))
    (folder / "a.jsonl").write_bytes(escaped.encode())
    (folder / "b.jsonl").write_bytes(plain.encode())
    table = pa.table({"text": pa.array(texts, pa.string())})
    arrow_file(folder / "c.arrow", table)
    pq.write_table(table, folder / "d.parquet")
    assert [item.text for item in read(folder)] == texts * 4


# parts of a file

LINES = st.sampled_from(
    [b'{"text":"one"}', b'{"text":"two","id":2}', b"", b"  \r", b"broken", b'{"text":"' + b"x" * 40 + b'"}']
)


@given(st.lists(LINES, min_size=1), st.booleans(), st.lists(st.integers(1, 400), max_size=6))
def test_parts_of_a_file_give_its_records_once_with_their_line_numbers(tmp_path_factory, rows, is_ended, cuts):
    path = tmp_path_factory.mktemp("parts") / "a.jsonl"
    path.write_bytes(b'{"text":"head"}\n' + b"\n".join(rows) + b"\n" * is_ended)
    source = Source(path=str(path))
    (file,) = list_files(source, where="ingest.sources[0].path")
    bounds = [0, *sorted({cut for cut in cuts if cut < file.bytes}), file.bytes]
    items, above = [], 0
    for start, stop in itertools.pairwise(bounds):
        part = Part(file, start, stop, above)
        items += read_records(part, source, max_document_chars=1000)
        above += count_lines(part).lines
    assert items == list(read_records(Part(file), source, max_document_chars=1000))
    assert above == count_lines(Part(file)).lines == path.read_bytes().count(b"\n")


def test_only_the_head_of_a_file_says_whether_it_has_the_column(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text":"one"}\n' + b'{"other":1}\n' * 200)
    source = Source(path=str(path))
    (file,) = list_files(source, where="ingest.sources[0].path")
    rest = list(read_records(Part(file, 15, file.bytes, 1), source, max_document_chars=1000))
    assert rest == [Reject("a.jsonl", line, "no text column") for line in range(2, 202)]


def test_file_that_cannot_be_counted_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{}\n")
    (file,) = list_files(Source(path=str(path)), where="ingest.sources[0].path")
    path.unlink()
    with pytest.raises(CorpusError, match=r"a\.jsonl has vanished since it was listed"):
        count_lines(Part(file))
