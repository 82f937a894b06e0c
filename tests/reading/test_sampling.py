"""Estimates of text and samples of files."""

import gzip
import json
import os
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from nextlong.reading.listing import list_files
from nextlong.reading.sampling import (
    Limits,
    can_be_entered,
    estimate_text_bytes,
    sample_at,
    sample_from_start,
)
from nextlong.recipe import Source

WHERE = "ingest.sources[0].path"


def listed(path, **options):
    return list_files(Source(path=str(path), **options), where=WHERE)


def write(path, content="{}\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def lines_of(count):
    return "".join(
        json.dumps({"text": f"{i:04d} " + "abcdefgh " * (i % 7 + 20), "meta": "m" * 50}) + "\n" for i in range(count)
    )


def text_bytes_of(count):
    return sum(5 + 9 * (i % 7 + 20) for i in range(count))


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("count", [50, 4000])
def test_estimate_of_lines_counts_only_the_text_column(tmp_path, suffix, count):
    compress = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}[suffix]
    write(tmp_path / f"a.jsonl{suffix}", compress(lines_of(count).encode()))
    estimate = estimate_text_bytes(listed(tmp_path), Source(path=str(tmp_path)))
    assert estimate == pytest.approx(text_bytes_of(count), rel=0.01)


def test_estimate_of_parquet_arrow_and_text(tmp_path):
    texts = [f"{i} " * 200 for i in range(500)]
    table = pa.table({"text": texts, "noise": [os.urandom(900) for _ in texts]})
    total = sum(map(len, texts))
    pq.write_table(table, write(tmp_path / "p" / "a.parquet"), use_dictionary=False)
    with pa.OSFile(str(write(tmp_path / "a" / "a.arrow")), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    write(tmp_path / "t" / "a.txt.gz", gzip.compress("".join(texts).encode()))
    for folder in "pat":
        path = tmp_path / folder
        assert estimate_text_bytes(listed(path), Source(path=str(path))) == pytest.approx(total, rel=0.05)


def test_estimate_of_a_damaged_file_is_its_size(tmp_path):
    write(tmp_path / "a.parquet", b"x" * 1000)
    write(tmp_path / "a.jsonl.zst", b"y" * 500)
    assert estimate_text_bytes(listed(tmp_path), Source(path=str(tmp_path))) == 1500


def test_a_fault_is_not_remembered(tmp_path, monkeypatch):
    path = write(tmp_path / "c.jsonl", lines_of(50))
    files = listed(path)

    def fails(*_):
        raise OSError(5, "the network is away")

    with monkeypatch.context() as faulty:
        faulty.setattr("nextlong.reading.json_lines.read_head", fails)
        assert estimate_text_bytes(files, Source(path=str(path))) == files[0].bytes
    assert estimate_text_bytes(files, Source(path=str(path))) < files[0].bytes


TEXTS = [f"document {number:03d} " + "of the tide " * 5 for number in range(200)]
MOST = 10_000


def write_of_places(path):
    table = pa.table({"text": TEXTS})
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=20)
    elif path.suffix == ".arrow":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=20)
    else:
        content = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
        path.write_bytes(pa.compress(content, "gzip", asbytes=True) if path.suffix == ".gz" else content)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("places"), {}
    for name in ("a.jsonl", "a.parquet", "a.arrow", "a.jsonl.gz"):
        write_of_places(folder / name)
        source = Source(path=str(folder / name))
        made[name] = (*list_files(source, where="path"), source)
    return made


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.arrow"])
@given(position=st.floats(0, 1, exclude_max=True), read_bytes=st.integers(500, 4000))
def test_a_place_holds_records_of_the_file_and_says_their_share(files, name, position, read_bytes):
    file, source = files[name]
    assert can_be_entered(file, source)
    sampled = sample_at(file, source, position=position, read_bytes=read_bytes, limits=Limits(max_document_chars=MOST))
    numbers = [TEXTS.index(text.decode()) for text in sampled.texts]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert 0 < sampled.share <= 1
    assert not sampled.rejects
    assert len(numbers) / len(TEXTS) == pytest.approx(sampled.share, abs=0.01)
    assert numbers[0] / len(TEXTS) == pytest.approx(min(position, 1 - sampled.share), abs=0.11)


def test_a_compressed_file_is_read_through_and_a_share_of_it_kept(files):
    file, source = files["a.jsonl.gz"]
    assert not can_be_entered(file, source)
    draw = random.Random(7)
    some = sample_from_start(file, source, share=0.5, max_bytes=10**9, limits=Limits(max_document_chars=MOST), rng=draw)
    assert {text.decode() for text in some.texts} < set(TEXTS)
    assert len(some.texts) / len(TEXTS) == pytest.approx(some.share, abs=0.01)
    whole = sample_from_start(
        file, source, share=1.0, max_bytes=10**9, limits=Limits(max_document_chars=MOST), rng=draw
    )
    assert ([text.decode() for text in whole.texts], whole.share) == (TEXTS, 1.0)
