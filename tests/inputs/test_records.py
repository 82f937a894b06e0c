"""Records: any text from every format and file system, and files that are cut, damaged or changed."""

import gzip
import json
import os

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from files_read import TABLE, arrow_file, read, zstd
from nextlong.errors import CorpusError
from nextlong.inputs.files import Part
from nextlong.inputs.listing import list_files
from nextlong.inputs.record import Record
from nextlong.inputs.records import read_records
from nextlong.recipe import Source


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
