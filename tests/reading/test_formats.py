"""Input formats: names, streams of records from every format and file system, first records."""

import gzip
import json
import os

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.support.compressed import COMPRESSORS
from tests.support.files_read import TABLE, arrow_file, read, zstd

from nextlong.errors import CorpusError
from nextlong.reading.compression import COMPRESSIONS
from nextlong.reading.files import FilePart
from nextlong.reading.formats import (
    estimate_text_bytes,
    format_by_name,
    format_of,
    head_columns,
    input_formats,
    known_suffixes,
    read_records,
)
from nextlong.reading.listing import list_files
from nextlong.reading.records import Record
from nextlong.recipe import Source

FORMATS = input_formats()
SUFFIXES = {suffix: made for made in FORMATS.values() for suffix in made.suffixes}


def test_the_recipe_names_every_format_that_is_read():
    assert {Source(path="x", format=name).format for name in FORMATS} == set(FORMATS)
    with pytest.raises(
        ValidationError,
        match=", ".join(FORMATS),
    ):
        Source(path="x", format="docx")


def test_no_two_formats_claim_a_suffix():
    assert len(SUFFIXES) == sum(len(made.suffixes) for made in FORMATS.values())


@given(
    stem=st.text(max_size=8).filter(lambda stem: "/" not in stem),
    suffix=st.sampled_from(sorted(SUFFIXES)),
    compression=st.sampled_from(["", ".gz", ".zst"]),
    upper=st.booleans(),
)
def test_a_name_tells_its_format_by_its_ending_alone(stem, suffix, compression, upper):
    ending = suffix + compression
    made = SUFFIXES[suffix]
    expected = made if not compression or made.compression == "around" else None
    assert format_by_name(f"a{stem}{ending.upper() if upper else ending}") is expected


@pytest.mark.parametrize("name", ["", "a", "a.gz", ".jsonl", "a.docx", "jsonl"])
def test_other_names_tell_none(name):
    assert format_by_name(name) is None


def test_the_recipe_goes_before_the_name():
    assert format_of("a.csv", Source(path="x", format="jsonl")) is FORMATS["jsonl"]
    assert format_of("a.csv", Source(path="x")) is FORMATS["csv"]


def test_messages_list_every_suffix():
    assert known_suffixes().startswith(", ".join(SUFFIXES))
    assert "parquet" not in known_suffixes().partition("(")[2]


EVERY = pytest.mark.parametrize("made", FORMATS.values(), ids=lambda made: made.name)


@EVERY
def test_a_format_is_known_by_its_endings_and_may_be_named_in_a_recipe(made):
    assert Source(path="x", format=made.name).format == made.name
    assert made.suffixes
    for suffix in made.suffixes:
        assert suffix == suffix.lower()
        assert suffix[0] == "."
        assert suffix not in COMPRESSIONS
        assert format_by_name(f"A/B{suffix.upper()}") is made


@EVERY
def test_what_compresses_itself_is_not_looked_for_in_a_compressed_file(made):
    for suffix in made.suffixes:
        found = format_by_name(f"a{suffix}.gz")
        assert found is (made if made.compression == "around" else None)


@pytest.mark.parametrize(("suffix", "compress"), COMPRESSORS.items())
def test_cut_compressed_file_stops_and_says_how_far_it_came(tmp_path, suffix, compress):
    path = tmp_path / f"a.jsonl{suffix}"
    rows = "".join(
        json.dumps({"text": str(i) + os.urandom(30).hex()}) + "\n"
        for i in range(20_000)
    )
    path.write_bytes(compress(rows.encode())[:-5])
    with pytest.raises(CorpusError, match="or damaged") as caught:
        read(path)
    assert caught.value.where == str(path)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.parquet", "a.arrow"])
def test_file_that_is_not_what_its_name_says_stops(tmp_path, name):
    (tmp_path / name).write_bytes(b"this is no such file at all, whatever it is called")
    with pytest.raises(CorpusError) as caught:
        read(tmp_path / name)
    assert caught.value.where == str(tmp_path / name)


@pytest.mark.parametrize("suffix", [*SUFFIXES, ".jsonl.gz", ".warc.zst"])
def test_a_pointer_in_place_of_a_file_stops_with_the_command_that_loads_it(
    tmp_path, suffix
):
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d' * 32}\n"
    (tmp_path / f"a{suffix}").write_text(f"{pointer}size 123456789\n")
    with pytest.raises(CorpusError) as caught:
        read(tmp_path / f"a{suffix}")
    assert caught.value.fix.endswith(" lfs pull")


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
    return read_records(FilePart(file), source, max_document_chars=1000)


def test_file_that_vanished_after_listing_stops(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text":"x"}\n')
    items = open_listed(path)
    path.unlink()
    with pytest.raises(CorpusError, match="deleted after"):
        list(items)


def test_file_that_changed_while_it_was_read_stops(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text":"x"}\n')
    items = open_listed(path)
    assert next(items).text == "x"
    with path.open("a") as file:
        file.write('{"text":"y"}\n')
    with pytest.raises(CorpusError, match="changed while"):
        list(items)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_any_text_comes_back_from_every_format(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("any")
    escaped, plain = (
        "".join(json.dumps({"text": t}, ensure_ascii=a) + "\n" for t in texts)
        for a in (True, False)
    )
    (folder / "a.jsonl").write_bytes(escaped.encode())
    (folder / "b.jsonl").write_bytes(plain.encode())
    table = pa.table({"text": pa.array(texts, pa.string())})
    arrow_file(folder / "c.arrow", table)
    pq.write_table(table, folder / "d.parquet")
    assert [item.text for item in read(folder)] == texts * 4


ROWS = [
    {"id": number, "text": "tide" if number else None, "meta": {"lang": "en"}}
    for number in range(30)
]


def write(path):
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif path.suffix == ".arrow":
        with (
            pa.OSFile(str(path), "wb") as sink,
            pa.ipc.new_file(sink, pa.Table.from_pylist(ROWS).schema) as writer,
        ):
            writer.write_table(pa.Table.from_pylist(ROWS))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "arrow"])
def test_columns_of_the_first_records_include_nested_ones(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    write(path)
    source = Source(path=str(path))
    (file,) = list_files(source, where="path")
    assert head_columns(file, source) == ["id", "text", "meta", "meta.lang"]


def test_a_byte_order_mark_is_no_part_of_the_first_record(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "tide"}\n', encoding="utf-8-sig")
    source = Source(path=str(tmp_path))
    (file,) = list_files(source, where="path")
    assert head_columns(file, source) == ["text"]


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.jsonl", b"{"), ("a.parquet", b"PAR1"), ("a.csv", b'a,b\n"x'), ("a.txt", b"x")],
)
def test_of_what_cannot_be_read_there_is_nothing(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    source = Source(path=str(tmp_path / name))
    (file,) = list_files(source, where="path")
    assert head_columns(file, source) == []


# how much text files hold


def estimate(path):
    source = Source(path=str(path))
    return estimate_text_bytes(list_files(source, where="path"), source)


def lines_of(count):
    return "".join(
        json.dumps({"text": f"{i:04d} " + "abcdefgh " * (i % 7 + 20), "meta": "m" * 50})
        + "\n"
        for i in range(count)
    )


def text_bytes_of(count):
    return sum(5 + 9 * (i % 7 + 20) for i in range(count))


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("count", [50, 4000])
def test_estimate_of_lines_counts_only_the_text_column(tmp_path, suffix, count):
    compress = {
        "": bytes,
        ".gz": gzip.compress,
        ".zst": zstandard.ZstdCompressor().compress,
    }[suffix]
    (tmp_path / f"a.jsonl{suffix}").write_bytes(compress(lines_of(count).encode()))
    assert estimate(tmp_path) == pytest.approx(text_bytes_of(count), rel=0.01)


def test_estimate_of_parquet_arrow_and_text(tmp_path):
    texts = [f"{i} " * 200 for i in range(500)]
    table = pa.table({"text": texts, "noise": [os.urandom(900) for _ in texts]})
    total = sum(map(len, texts))
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False)
    with (
        pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("".join(texts).encode()))
    for name in ("a.parquet", "a.arrow", "a.txt.gz"):
        assert estimate(tmp_path / name) == pytest.approx(total, rel=0.05)


def test_estimate_of_a_damaged_file_is_its_size(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"x" * 1000)
    (tmp_path / "a.jsonl.zst").write_bytes(b"y" * 500)
    assert estimate(tmp_path) == 1500


def test_a_fault_is_not_remembered(tmp_path, monkeypatch):
    path = tmp_path / "c.jsonl"
    path.write_text(lines_of(50))

    def fails(*_):
        raise OSError(5, "the network is away")

    with monkeypatch.context() as faulty:
        faulty.setattr("nextlong.reading.records.read_head", fails)
        assert estimate(path) == path.stat().st_size
    assert estimate(path) < path.stat().st_size
