"""Parquet, Arrow, CSV and TSV files: columns of every type, row groups, and every way in which a row can be wrong."""

import csv
import gzip
import io
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tests.support.files_read import ITEMS, TABLE, arrow_file, read, summary
from tests.support.larger_cases import thorough

import nextlong
from nextlong import pipeline
from nextlong.corpus.filter_report import read_filter_report
from nextlong.corpus.splits import _split_inputs
from nextlong.errors import CorpusError
from nextlong.reading.files import FilePart
from nextlong.reading.formats import (
    estimate_text_bytes,
    head_columns,
    read_records,
    sample_records,
)
from nextlong.reading.listing import list_files
from nextlong.reading.records import Record, Reject, RejectKind
from nextlong.recipe import Recipe, Source


def test_table_without_the_text_column_names_the_nearest(tmp_path):
    pq.write_table(
        pa.table({"texts": ["x"], "meta": [{"lang": "en"}]}), tmp_path / "a.parquet"
    )
    with pytest.raises(CorpusError, match=r"texts, meta, meta\.lang; .* 'texts'"):
        read(tmp_path / "a.parquet")


def test_text_column_of_another_type_is_refused(tmp_path):
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(CorpusError, match="column 'text' holds int64, not text"):
        read(tmp_path / "a.parquet")


NOTHING = [
    ("text", pa.nulls(3)),
    ("text", pa.nulls(3, pa.float64())),
    ("text", pa.nulls(3, pa.struct([("x", pa.int64())]))),
    ("text", pa.array([None, [None], None])),
    ("a.text", pa.nulls(3)),
    ("a.text", pa.array([{"text": None}] * 3)),
    ("a[].text", pa.nulls(3)),
    ("a[].text", pa.array([None, [None], None])),
]
NULL_SHARDS = [
    (suffix, *column) for suffix in (".parquet", ".arrow") for column in NOTHING
]
# Parquet has no dictionaries of nulls.
NULL_SHARDS.append((".arrow", "text", pa.nulls(3).dictionary_encode()))


@pytest.mark.parametrize(("suffix", "name", "column"), NULL_SHARDS)
def test_a_shard_whose_text_is_null_in_every_row_is_rejected_row_by_row(
    tmp_path, suffix, name, column
):
    top = name.partition(".")[0].removesuffix("[]")
    table = pa.table({"id": ["x", "y", "z"], top: column, "other": pa.nulls(3)})
    path = tmp_path / f"a{suffix}"
    if suffix == ".parquet":
        pq.write_table(table, path)
    else:
        arrow_file(path, table)
    items = read(path, text=name, metadata=["other"])
    expected = [Reject(path.name, line, RejectKind.NULL) for line in (1, 2, 3)]
    assert items == expected
    (file,) = list_files(Source(path=str(path)), where="path")
    assert head_columns(file, Source(path=str(path)))[0] == "id"


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_shard_without_any_text_does_not_end_the_run(tmp_path, suffix):
    texts = [f"{number} " + "the harbour " * 200 for number in range(40)]
    folder = tmp_path / "in"
    folder.mkdir()
    tables = {
        "a": pa.table({"text": texts}),
        "b": pa.table({"text": pa.nulls(2)}),
        "c": pa.table({"text": [1.5]}).slice(0, 0),
    }
    for name, table in tables.items():
        path = folder / f"{name}{suffix}"
        if suffix == ".parquet":
            pq.write_table(table, path)
        else:
            arrow_file(path, table)
    recipe = Recipe.from_dict(
        {
            "run_dir": str(tmp_path / "run"),
            "executor": "serial",
            "ingest": {"sources": [{"path": str(folder)}], "max_reject_share": 0.05},
            "tokenizer": {"train": 300},
            "compose": {"method": "standard", "sequences": 2, "target_tokens": 1024},
        }
    )
    run = nextlong.run(recipe)
    (report,) = read_filter_report(run.steps["filter_report"])
    assert (report.reason, report.count) == (f"rejected: {RejectKind.NULL}", 2)


@pytest.mark.parametrize(
    "kind",
    [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
)
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
    table = pa.table(
        {"doc": [{"body": "one", "lang": "en"}, None], "meta": [{"key": 3}, {"key": 4}]}
    )
    if name == "a.arrow":
        arrow_file(tmp_path / name, table)
    else:
        pq.write_table(table, tmp_path / name)
    assert read(tmp_path / name, text="doc.body", id="meta.key") == [
        Record("one", "3", 1),
        Reject(name, 2, RejectKind.NULL),
    ]


def test_string_column_that_is_not_utf8_costs_one_row(tmp_path):
    raw = pa.array([b"one", b"\xff", None, b"four"], pa.binary())
    text = pa.StringArray.from_buffers(
        4, raw.buffers()[1], raw.buffers()[2], raw.buffers()[0], null_count=1
    )
    items = read(arrow_file(tmp_path / "a.arrow", pa.table({"text": text})))
    assert summary(items) == [
        ("one", ":1"),
        "invalid UTF-8",
        RejectKind.NULL,
        ("four", ":4"),
    ]


def written(path, rows, row_group_size):
    texts = [
        f"row {n} of a file that holds {rows} of them" if n % 7 else None
        for n in range(rows)
    ]
    pq.write_table(
        pa.table({"text": pa.array(texts, pa.string()), "n": range(rows)}),
        path,
        row_group_size=row_group_size,
    )
    source = Source(path=str(path), metadata=["n"])
    return source, list_files(source, where="path")


@given(
    rows=st.integers(0, 200),
    row_group_size=st.integers(1, 60),
    part_bytes=st.integers(1, 4000),
)
def test_parts_hold_every_row_once_under_its_own_number(
    tmp_path_factory, rows, row_group_size, part_bytes
):
    source, files = written(
        tmp_path_factory.mktemp("parts") / "a.parquet", rows, row_group_size
    )
    tasks = _split_inputs(files, source, shard_bytes=part_bytes, part_bytes=part_bytes)
    items = [
        item
        for task in tasks
        for part in task
        for item in read_records(part, source, max_document_chars=1000)
    ]
    assert items == list(
        read_records(FilePart(files[0]), source, max_document_chars=1000)
    )
    assert sum(part.begins_file for task in tasks for part in task) == 1


def test_a_large_file_is_parted_and_one_of_a_single_row_group_is_not(tmp_path):
    source, files = written(tmp_path / "a.parquet", 400, 50)
    tasks = _split_inputs(files, source, shard_bytes=1000, part_bytes=1000)
    assert len(tasks) > 2
    assert [part.lines_before for (part,) in tasks] == [
        50 * part.row_groups[0] for (part,) in tasks
    ]
    source, files = written(tmp_path / "b.parquet", 400, 400)
    assert _split_inputs(files, source, shard_bytes=1000, part_bytes=1000) == [
        (FilePart(files[0]),)
    ]


def test_a_footer_that_cannot_be_read_leaves_the_file_whole(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"x" * 9000)
    source = Source(path=str(tmp_path / "a.parquet"))
    files = list_files(source, where="path")
    assert _split_inputs(files, source, shard_bytes=1000, part_bytes=1000) == [
        (FilePart(files[0]),)
    ]


def test_a_run_names_documents_by_their_rows(tmp_path):
    texts = [
        "\n".join(f"Line {n}.{k} about tides and gulls and ropes." for k in range(20))
        for n in range(120)
    ]
    pq.write_table(
        pa.table({"text": texts}),
        tmp_path / "a.parquet",
        row_group_size=10,
        compression="none",
    )
    plain = {
        "run_dir": str(tmp_path / "run"),
        "executor": "serial",
        "ingest": {
            "sources": [{"path": str(tmp_path / "a.parquet")}],
            "shard_mb": 0.01,
        },
        "chunk": {"max_chars": 256},
        "encoder": {"lsa": {"dimensions": 8}},
        "mine": {"near_duplicates": None},
        "tokenizer": {"train": 300},
        "compose": {"sequences": 3, "target_tokens": 1024},
    }
    done = pipeline.run(Recipe.from_dict(plain))
    assert len(done["ingest"].manifest["parts"]) > 3
    for sequence in nextlong.open(tmp_path / "run").sequences():
        for span, text in zip(sequence.spans, sequence.texts, strict=True):
            if span.doc_id >= 0:
                name, _, row = span.source_id.partition(":")
                assert name == "a.parquet"
                assert texts[int(row) - 1][span.char_start : span.char_end] == text


def test_parquet(tmp_path):
    pq.write_table(TABLE, tmp_path / "a.parquet", row_group_size=3)
    items = read(tmp_path / "a.parquet")
    assert summary(items) == ITEMS
    assert [item.line for item in items] == [1, 2, 3, 4]


def test_a_parquet_column_that_stands_there_twice_is_refused_where_it_is_wanted(
    tmp_path,
):
    columns = [pa.array(column) for column in (["one"], ["two"], ["x"], ["y"])]
    pq.write_table(
        pa.Table.from_arrays(columns, names=["text", "body", "body", "id"]),
        tmp_path / "a.parquet",
    )
    assert read(tmp_path / "a.parquet") == [Record("one", "y", 1)]
    assert read(tmp_path / "a.parquet", id="body") == [Record("one", "a.parquet:1", 1)]
    for key, wanted in (
        ("text", {"text": "body"}),
        ("metadata", {"metadata": ["body"]}),
    ):
        with pytest.raises(
            CorpusError,
            match=rf"a\.parquet: .* 2 columns 'body', .*{key}.* ambiguous",
        ):
            read(tmp_path / "a.parquet", **wanted)


@pytest.mark.parametrize("fraction", [0.3, 0.9])
def test_cut_parquet_file_stops(tmp_path, fraction):
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"text": [os.urandom(50).hex() for _ in range(2000)]}), path
    )
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * fraction)])
    with pytest.raises(CorpusError, match="or damaged"):
        read(path)


def test_parquet_damaged_in_its_middle_stops(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"text": [os.urandom(50).hex() for _ in range(5000)]}),
        path,
        compression="zstd",
        use_dictionary=False,
    )
    content = bytearray(path.read_bytes())
    content[200:400] = bytes(200)
    path.write_bytes(content)
    with pytest.raises(CorpusError, match="or damaged"):
        read(path)


CUT_WHILE_READ = """
import os, sys
from nextlong.errors import CorpusError
from nextlong.reading.files import FilePart
from nextlong.reading.listing import list_files
from nextlong.reading.formats import (
    estimate_text_bytes,
    head_columns,
    read_records,
    sample_records,
)
from nextlong.recipe import Source

source = Source(path=sys.argv[1])
(file,) = list_files(source, where="path")
records = read_records(FilePart(file), source, max_document_chars=99)
next(records)
os.truncate(file.path, 0)
try:
    print(sum(1 for _ in records))
except CorpusError as error:
    print(error)
"""


@pytest.mark.parametrize("layout", ["file", *thorough("stream")])
def test_an_arrow_file_that_is_cut_while_it_is_read_kills_no_process(tmp_path, layout):
    path = arrow_file(
        tmp_path / "a.arrow",
        pa.table({"text": ["line"] * 4_000, "n": range(4_000)}),
        layout=layout,
    )
    ended = subprocess.run(
        [sys.executable, "-c", CUT_WHILE_READ, path],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "a.arrow: it" in ended.stdout


@pytest.mark.parametrize("layout", ["file", "stream"])
def test_arrow_file_and_stream(tmp_path, layout):
    assert (
        summary(read(arrow_file(tmp_path / "a.arrow", TABLE, layout=layout))) == ITEMS
    )


def test_saved_dataset_folder(tmp_path):
    folder = tmp_path / "ds"
    folder.mkdir()
    arrow_file(folder / "data-00000-of-00001.arrow", TABLE, layout="stream")
    (folder / "state.json").write_text(
        '{"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_fingerprint": "f"}'
    )
    (folder / "dataset_info.json").write_text("{}")
    items = read(folder)
    assert [item.text for item in items if isinstance(item, Record)] == [
        "one",
        "two",
        "four",
    ]
    assert items[1].source_id == "data-00000-of-00001.arrow:2"


@pytest.mark.parametrize(
    "name", ["zero.parquet", "no-group.parquet", "file.arrow", "stream.arrow"]
)
def test_a_table_without_rows_is_read_and_estimated(tmp_path, name):
    path, empty = tmp_path / name, TABLE.slice(0, 0)
    if name == "no-group.parquet":
        pq.ParquetWriter(path, empty.schema).close()
    elif name == "zero.parquet":
        pq.write_table(empty, path)
    else:
        new = pa.ipc.new_file if name == "file.arrow" else pa.ipc.new_stream
        with pa.OSFile(str(path), "wb") as file, new(file, empty.schema):
            pass
    source = Source(path=str(path))
    files = list_files(source, where="here")
    assert read(path) == []
    assert head_columns(files[0], source) == []
    assert estimate_text_bytes(files, source) <= files[0].bytes


def read_content(path, content, **options):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    source = Source(path=str(path), **options)
    (file,) = list_files(source, where="ingest.sources[0].path")
    return list(read_records(FilePart(file), source, max_document_chars=1000))


def refusal(path, content, **options):
    with pytest.raises(CorpusError) as caught:
        read_content(path, content, **options)
    return str(caught.value).replace(f"{path.parent}/", "")


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [
        ("", bytes),
        (".gz", gzip.compress),
        (".zst", zstandard.ZstdCompressor().compress),
    ],
)
def test_quoted_fields_hold_commas_quotes_and_lines(tmp_path, suffix, compress):
    content = b'\xef\xbb\xbfid,text\r\n7,"one, ""two""\nthree"\r\n\r\n8,four\r\n,five'
    name = f"a.csv{suffix}"
    assert read_content(tmp_path / name, compress(content)) == [
        Record('one, "two"\nthree', "7", 2),
        Record("four", "8", 5),
        Record("five", f"{name}:6", 6),
    ]


def test_tsv_and_other_names_of_columns(tmp_path):
    items = read_content(
        tmp_path / "a.tsv",
        "body\turl\tlang\nx, y\thttp://a\ten\n",
        text="body",
        id="url",
        metadata=["lang"],
    )
    assert items == [Record("x, y", "http://a", 2, ("en",))]
    assert read_content(tmp_path / "b.dat", "text\nx\n", format="csv") == [
        Record("x", "b.dat:2", 2)
    ]


def test_a_row_that_does_not_fit_costs_that_row(tmp_path):
    content = b'text,n\n"a"b,1\nfour,4\nx\n1,2,3\n\xff,9\nlast,5\n'
    assert read_content(tmp_path / "a.csv", content) == [
        Reject("a.csv", 2, RejectKind.BROKEN_ROW, "',' expected after '\"'"),
        Record("four", "a.csv:3", 3),
        Reject("a.csv", 4, RejectKind.BROKEN_ROW, "1 fields, the first row has 2"),
        Reject("a.csv", 5, RejectKind.BROKEN_ROW, "3 fields, the first row has 2"),
        Reject("a.csv", 6, RejectKind.INVALID_UTF8),
        Record("last", "a.csv:7", 7),
    ]


@pytest.mark.parametrize("content", ["", "text\n", "\n\n"])
def test_without_rows_there_is_nothing(tmp_path, content):
    assert read_content(tmp_path / "a.csv", content) == []


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (
            "id,body\n1,x\n",
            {},
            "a.csv: it has no column 'text' for the text, only id, body; set the source's",
        ),
        ("id,texts\n1,x\n", {}, "did you mean 'texts'?"),
        (
            "text,text\na,b\n",
            {},
            "a.csv: it has 2 columns 'text', so text is ambiguous; rename one",
        ),
        (
            "text,lang\na,b\n",
            {"metadata": ["lan"]},
            "no column 'lan' that metadata or filter names, only text, lang; did you mean",
        ),
        (
            "id;text\n1;x\n",
            {},
            "the delimiter is ';' instead of ','; rewrite it with commas",
        ),
        ("id\ttext\n1\tx\n", {}, "set the source's format: tsv"),
        (
            'text\na\n"never closed\nb\n',
            {},
            "a.csv:3: the row that begins here has an unclosed quote (read up to line 4)",
        ),
        ('"te"x\nb\n', {}, "a.csv:1: the header row is invalid"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path, content, options, message):
    assert message in refusal(tmp_path / "a.csv", content, **options)


def test_a_field_may_be_longer_than_the_csv_module_allows(tmp_path):
    (record,) = read_content(tmp_path / "a.csv", f"text\n{'x' * 200_000}\n")
    assert len(record.text) == 200_000


FIELD = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x00\r"),
    min_size=1,
    max_size=20,
)


@given(
    rows=st.lists(
        st.tuples(FIELD, FIELD.filter(lambda field: field.strip("\ufeff"))),
        min_size=1,
        max_size=20,
    )
)
def test_whatever_the_csv_module_writes_is_read_back(tmp_path_factory, rows):
    written = io.StringIO()
    csv.writer(written).writerows([("text", "id"), *rows])
    items = read_content(tmp_path_factory.mktemp("csv") / "a.csv", written.getvalue())
    assert [(item.text, item.source_id) for item in items] == rows


def test_the_size_of_the_text_is_estimated_from_its_column(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        "id,text,more\n" + "".join(f"{n},{'x' * 90},{'y' * 100}\n" for n in range(2000))
    )
    source = Source(path=str(path))
    estimate = estimate_text_bytes(list_files(source, where="path"), source)
    assert estimate == pytest.approx(2000 * 90, rel=0.05)


def test_a_nul_byte_costs_its_row_or_the_file_where_it_names_columns(tmp_path):
    items = read_content(tmp_path / "a.csv", b"id,text\n1,one\n2,t\0wo\n3,three\n")
    assert items[1] == Reject(
        "a.csv", 3, RejectKind.BROKEN_ROW, "a NUL byte in the column 'text'"
    )
    assert [item.text for item in items if isinstance(item, Record)] == ["one", "three"]
    (unnamed,) = read_content(tmp_path / "c.csv", b"text,\none,\0\n")
    assert unnamed == Reject(
        "c.csv", 2, RejectKind.BROKEN_ROW, "a NUL byte in the column ''"
    )
    assert refusal(tmp_path / "b.csv", b"id,te\0xt,more columns\n1,x,y\n").startswith(
        "b.csv:1: byte 6"
    )


def test_a_table_without_a_header_is_refused_at_its_first_row(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("1," + "some words " * 60 + "\n2,other words\n")
    source = Source(path=str(path))
    (file,) = list_files(source, where="ingest.sources[0].path")
    with pytest.raises(CorpusError, match=r"a\.csv:1: "):
        sample_records(file, source, max_bytes=10_000)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", 'id\ttext\n1\t"Quoted" words\n2\t"Quoted" words\n'),
        ("a.csv", 'id,text\n1,"a \\"quoted\\" word"\n2,"a \\"quoted\\" word"\n'),
        ("c.csv", "id,text\n1,two words,more\n2\n"),
    ],
)
def test_a_table_without_a_valid_row_is_sampled_with_its_first_fault(
    tmp_path, name, content
):
    (tmp_path / name).write_text(content)
    source = Source(path=str(tmp_path / name))
    (file,) = list_files(source, where="ingest.sources[0].path")
    with pytest.raises(ValueError, match="line 2: .* quotes"):
        sample_records(file, source, max_bytes=10_000)
