"""CSV and TSV: rows as RFC 4180 has them, and every way in which one can be wrong."""

import csv
import gzip
import io
import subprocess

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from nextlong.errors import CorpusError
from nextlong.reading.files import FilePart
from nextlong.reading.formats import estimate_text_bytes, read_records
from nextlong.reading.listing import list_files
from nextlong.reading.records import Record, Reject, RejectKind
from nextlong.recipe import Source


def read(path, content, **options):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    source = Source(path=str(path), **options)
    (file,) = list_files(source, where="ingest.sources[0].path")
    return list(read_records(FilePart(file), source, max_document_chars=1000))


def refusal(path, content, **options):
    with pytest.raises(CorpusError) as caught:
        read(path, content, **options)
    return str(caught.value).replace(f"{path.parent}/", "")


@pytest.mark.parametrize(
    ("suffix", "compress"), [("", bytes), (".gz", gzip.compress), (".zst", zstandard.ZstdCompressor().compress)]
)
def test_quoted_fields_hold_commas_quotes_and_lines(tmp_path, suffix, compress):
    content = b'\xef\xbb\xbfid,text\r\n7,"one, ""two""\nthree"\r\n\r\n8,four\r\n,five'
    name = f"a.csv{suffix}"
    assert read(tmp_path / name, compress(content)) == [
        Record('one, "two"\nthree', "7", 2),
        Record("four", "8", 5),
        Record("five", f"{name}:6", 6),
    ]


def test_tsv_and_other_names_of_columns(tmp_path):
    items = read(tmp_path / "a.tsv", "body\turl\tlang\nx, y\thttp://a\ten\n", text="body", id="url", metadata=["lang"])
    assert items == [Record("x, y", "http://a", 2, ("en",))]
    assert read(tmp_path / "b.dat", "text\nx\n", format="csv") == [Record("x", "b.dat:2", 2)]


def test_a_row_that_does_not_fit_costs_that_row(tmp_path):
    content = b'text,n\n"a"b,1\nfour,4\nx\n1,2,3\n\xff,9\nlast,5\n'
    assert read(tmp_path / "a.csv", content) == [
        Reject("a.csv", 2, RejectKind.BROKEN_ROW, "',' expected after '\"'"),
        Record("four", "a.csv:3", 3),
        Reject("a.csv", 4, RejectKind.BROKEN_ROW, "1 fields, the first row has 2"),
        Reject("a.csv", 5, RejectKind.BROKEN_ROW, "3 fields, the first row has 2"),
        Reject("a.csv", 6, RejectKind.INVALID_UTF8),
        Record("last", "a.csv:7", 7),
    ]


@pytest.mark.parametrize("content", ["", "text\n", "\n\n"])
def test_without_rows_there_is_nothing(tmp_path, content):
    assert read(tmp_path / "a.csv", content) == []


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("id,body\n1,x\n", {}, "a.csv has no column 'text' for the text; it has id, body; set the source's text to"),
        ("id,texts\n1,x\n", {}, "did you mean 'texts'?"),
        ("text,text\na,b\n", {}, "a.csv has 2 columns 'text', so text is ambiguous; rename one"),
        (
            "text,lang\na,b\n",
            {"metadata": ["lan"]},
            "no column 'lan' that metadata or filter names; it has text, lang; did you mean 'lang'?",
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
    (record,) = read(tmp_path / "a.csv", f"text\n{'x' * 200_000}\n")
    assert len(record.text) == 200_000


FIELD = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00\r"), min_size=1, max_size=20)


@given(rows=st.lists(st.tuples(FIELD, FIELD.filter(lambda field: field.strip("\ufeff"))), min_size=1, max_size=20))
def test_whatever_the_csv_module_writes_is_read_back(tmp_path_factory, rows):
    written = io.StringIO()
    csv.writer(written).writerows([("text", "id"), *rows])
    items = read(tmp_path_factory.mktemp("csv") / "a.csv", written.getvalue())
    assert [(item.text, item.source_id) for item in items] == rows


def test_the_size_of_the_text_is_estimated_from_its_column(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,text,more\n" + "".join(f"{n},{'x' * 90},{'y' * 100}\n" for n in range(2000)))
    source = Source(path=str(path))
    estimate = estimate_text_bytes(list_files(source, where="path"), source)
    assert estimate == pytest.approx(2000 * 90, rel=0.05)


@pytest.mark.parametrize(
    ("encoding", "named"),
    [("utf-16", "UTF-16"), ("utf-16-le", "UTF-16LE"), ("utf-16-be", "UTF-16BE"), ("utf-32", "UTF-32")],
)
def test_what_spreadsheets_call_unicode_text_is_named_with_its_cure(tmp_path, encoding, named):
    told = refusal(tmp_path / "a b.csv", "id,text\n1,größer\n".encode(encoding))
    assert told.startswith(f"a b.csv is {named}, but CSV and TSV files must be UTF-8; ")
    command = told.partition("convert it: ")[2].partition(", or")[0]
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    assert [item.text for item in read(tmp_path / "c.csv", (tmp_path / "utf8.csv").read_bytes())] == ["größer"]


def test_a_nul_byte_costs_its_row_or_the_file_where_it_names_columns(tmp_path):
    items = read(tmp_path / "a.csv", b"id,text\n1,one\n2,t\0wo\n3,three\n")
    assert items[1] == Reject("a.csv", 3, RejectKind.BROKEN_ROW, "a NUL byte in the column 'text'")
    assert [item.text for item in items if isinstance(item, Record)] == ["one", "three"]
    (unnamed,) = read(tmp_path / "c.csv", b"text,\none,\0\n")
    assert unnamed == Reject("c.csv", 2, RejectKind.BROKEN_ROW, "a NUL byte in the column ''")
    assert refusal(tmp_path / "b.csv", b"id,te\0xt,more columns\n1,x,y\n").startswith(
        "b.csv:1: byte 6 is NUL, which is not allowed in CSV and TSV files"
    )
