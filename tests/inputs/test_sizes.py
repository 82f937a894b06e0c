import gzip
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from nextlong.inputs.listing import list_files
from nextlong.inputs.sizes import auto_shard_bytes, estimate_text_bytes
from nextlong.recipe import Source

WHERE = "ingest.sources[0].path"


def listed(path, **options):
    return list_files(Source(path=str(path), **options), where=WHERE)


def write(path, content="{}\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("total", "shard"), [(0, 1_000_000), (32_000_000, 1_000_000), (320_000_000, 10_000_000), (10**12, 128_000_000)]
)
def test_auto_shard_is_a_32nd_between_1_and_128_mb(total, shard):
    assert auto_shard_bytes(total) == shard


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
        faulty.setattr("nextlong.inputs.json_lines.read_head", fails)
        assert estimate_text_bytes(files, Source(path=str(path))) == files[0].bytes
    assert estimate_text_bytes(files, Source(path=str(path))) < files[0].bytes
