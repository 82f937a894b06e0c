"""Text files in other encodings, and files that hold something other than text."""

import csv
import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.compressed import COMPRESSORS
from tests.support.files_read import read

from nextlong.errors import CorpusError
from nextlong.reading.encoding import as_utf8, bytes_as_utf8, unicode_encoding_of
from nextlong.reading.records import Record, Reject, RejectKind
from nextlong.recipe import Source

TEXT = "Größe über alles, und die Straße führt zum Hafen.\nEnde"
ENCODINGS = ["cp1252", "latin-1", "utf-16", "utf-16-le", "utf-16-be", "utf-32"]


def written(folder, suffix, encoding):
    """Write two documents as a file of a kind in an encoding; return its path."""
    rows = [{"id": "x", "text": TEXT}, {"id": "y", "text": "plain"}]
    if suffix.startswith(".jsonl"):
        content = "".join(json.dumps(row, ensure_ascii=False) + "\r\n" for row in rows)
    elif suffix == ".txt":
        content = TEXT
    else:
        delimiter = "\t" if suffix == ".tsv" else ","
        table = io.StringIO()
        writer = csv.DictWriter(table, ["id", "text"], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
        content = table.getvalue()
    raw = content.encode(encoding)
    compression = suffix[len(".jsonl") :] if suffix.startswith(".jsonl.") else ""
    path = folder / f"a{suffix}"
    path.write_bytes(COMPRESSORS[compression](raw) if compression else raw)
    return path


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".csv", ".tsv", ".txt"])
def test_text_files_are_read_in_the_encoding_of_their_source(
    tmp_path, suffix, encoding
):
    first, *others = read(written(tmp_path, suffix, encoding), encoding=encoding)
    assert first.text == TEXT
    assert [item.text for item in others] == ([] if suffix == ".txt" else ["plain"])


def test_asian_encodings_are_read(tmp_path):
    for encoding, text in [("gb18030", "潮水每天来两次"), ("cp932", "表示ソース能")]:
        path = tmp_path / f"{encoding}.jsonl"
        path.write_bytes(
            json.dumps({"text": text}, ensure_ascii=False).encode(encoding)
        )
        (item,) = read(path, encoding=encoding)
        assert item.text == text


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_invalid_bytes_reject_their_row_only(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    head = "text\n" if suffix == ".csv" else ""
    rows = ["größer", "b\udc81d", "fine"]
    lines = rows if suffix == ".csv" else [f'{{"text": "{row}"}}' for row in rows]
    content = head + "".join(f"{line}\n" for line in lines)
    path.write_bytes(content.encode("cp1252", "surrogateescape"))
    first, second, third = read(path, encoding="cp1252")
    assert (first.text, third.text) == ("größer", "fine")
    assert (second.kind, second.line) == (
        RejectKind.INVALID_ENCODING,
        3 if suffix == ".csv" else 2,
    )


def test_an_invalid_text_file_is_one_reject(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"abc\x81")
    assert read(tmp_path / "a.txt", encoding="cp1252") == [
        Reject("a.txt", 1, RejectKind.INVALID_ENCODING)
    ]


@given(
    text=st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
    encoding=st.sampled_from(["utf-16", "utf-32", "gb18030", "utf-8"]),
    size=st.integers(1, 7),
)
def test_every_text_is_converted_exactly(text, encoding, size):
    raw = text.encode(encoding)
    with as_utf8(io.BytesIO(raw), encoding) as stream:
        assert b"".join(iter(lambda: stream.read(size), b"")) == text.encode()
    assert bytes_as_utf8(raw, encoding) == text.encode()


@given(
    raw=st.binary(max_size=60),
    encoding=st.sampled_from(["cp932", "gbk", "utf-16-le", "utf-8"]),
)
def test_invalid_bytes_never_become_valid_text(raw, encoding):
    with as_utf8(io.BytesIO(raw), encoding) as stream:
        converted = stream.read(1000)
    try:
        expected = raw.decode(encoding)
    except UnicodeDecodeError:
        with pytest.raises(UnicodeDecodeError):
            converted.decode("utf-8")
    else:
        assert converted.decode("utf-8") == expected


@pytest.mark.parametrize("name", ["a.parquet", "a.warc"])
def test_an_encoding_of_files_that_are_no_text_is_refused(tmp_path, name):
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / name)
    with pytest.raises(CorpusError, match="cp1252"):
        read(tmp_path / name, encoding="cp1252")


@pytest.mark.parametrize("name", ["klingon", "base64", "hex"])
def test_an_unknown_encoding_is_refused(name):
    with pytest.raises(ValueError, match="cp1252"):
        Source(path="a", encoding=name)


def test_an_encoding_has_one_spelling():
    assert Source(path="a", encoding="LATIN1").encoding == "iso8859-1"
    assert Source(path="a", encoding="UTF8").encoding is None


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.jsonl.gz"])
def test_a_compressed_file_under_the_name_of_a_table_is_refused(tmp_path, name, suffix):
    content = COMPRESSORS[suffix](b'{"text": "one"}\n')
    (tmp_path / name).write_bytes(
        gzip.compress(content) if name.endswith(".gz") else content
    )
    with pytest.raises(CorpusError) as caught:
        read(tmp_path / name)
    assert f"add {suffix} " in caught.value.fix


@pytest.mark.parametrize(
    "content", [gzip.compress(b"text", mtime=0), b"PK\x03\x04", b"PAR1"]
)
@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.html"])
def test_a_file_that_is_no_text_is_one_reject(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    (tmp_path / "b.txt").write_text("fine")
    first, second = read(tmp_path)
    assert (first.file, first.kind) == (name, RejectKind.NOT_TEXT)
    assert second == Record("fine", "b.txt", 1)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".jsonl.zst"])
def test_unicode_of_more_bytes_is_named_with_its_cure(tmp_path, suffix, encoding):
    path = written(tmp_path, suffix, encoding)
    with pytest.raises(CorpusError) as caught:
        read(path)
    named = str(caught.value).rpartition("encoding: ")[2]
    first, *_ = read(path, encoding=named)
    assert first.text == TEXT


def test_utf_16_that_needs_a_mark_and_has_none_is_refused(tmp_path):
    path = written(tmp_path, ".jsonl", "utf-16-be")
    with pytest.raises(CorpusError, match="-le or -be"):
        read(path, encoding="utf-16")


def test_utf_8_is_never_taken_for_another_encoding():
    for text in ["", "a", "ab", "größer", "潮", "a\0b", '{"text": "x"}']:
        assert unicode_encoding_of(text.encode()) == ""
