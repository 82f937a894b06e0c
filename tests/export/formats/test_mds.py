"""MDS shards: bytes by hand, the rule of sharding, and random rows read back."""

import json
import struct
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tests.support.random_rows import (
    documents_of,
    options,
    random_blocks,
    read_back,
    rows_of,
)

from nextlong.export.formats import mds
from nextlong.export.formats.base import RowSizes, format_of

NO_LIMIT = 1 << 26


HEADER = (
    b'{"column_encodings": ["str", "ndarray:uint32", "ndarray:uint32", "int"], '
    b'"column_names": ["domain", "indices", "input_ids", "length"], "column_sizes": [null, null, null, 8], '
    b'"compression": null, "format": "mds", "hashes": [], "size_limit": 67108864, "version": 2}'
)


def sizes_of(rows, **given):
    tokens = np.array([row.token_offsets[-1] for row in rows], np.int64)
    documents = np.array([row.document_offsets[-1] for row in rows], np.int64)
    return mds._shard_sizes(
        RowSizes(tokens, documents, [row.domains[0] for row in rows]), options(**given)
    )


def write_all(folder, blocks, **given):
    """Write blocks to as many shards as the rule says; return how many rows each has."""
    rows = rows_of(blocks)
    sizes = sizes_of(rows, **given)
    counts = [
        mds.FORMAT.write(
            folder / "part",
            rows[first:last],
            options(shard=shard, shards=len(sizes), **given),
        )
        for shard, (first, last) in enumerate(pairwise(accumulate([0, *sizes])))
    ]
    assert [count.rows for count in counts] == sizes
    assert sum(sizes) == len(rows)
    mds.FORMAT.close(
        folder,
        [mds._MdsShard(**json.loads(count.model_dump_json())) for count in counts],
    )
    return sizes


def test_a_shard_of_one_packed_row_byte_for_byte(tmp_path):
    (block,) = random_blocks(0, rows=1, longest=1)
    block = block.__class__(
        **vars(block)
        | {
            "domains": ["é"],
            "token_offsets": np.array([0, 3]),
            "input_ids": np.array([7, 8, 128_255], np.int32),
            "document_offsets": np.array([0, 2]),
            "document_lengths": np.array([2, 1], np.int32),
        }
    )
    counts = mds.FORMAT.write(
        tmp_path / "part-00004",
        [block],
        options(shard=4, shards=9, shard_bytes=NO_LIMIT),
    )
    sample = struct.pack("<3I", 2, 3 + 16, 2 + 12) + "é".encode()
    sample += bytes([2 << 2, 2, 2]) + struct.pack("<4I", 0, 2, 2, 3)
    sample += (
        bytes([1 << 2, 3]) + struct.pack("<3I", 7, 8, 128_255) + struct.pack("<q", 3)
    )
    first = 12 + len(HEADER)
    expected = struct.pack("<3I", 1, first, first + len(sample)) + HEADER + sample
    assert (tmp_path / "shard.00004.mds").read_bytes() == expected
    assert counts.entry["raw_data"] == {
        "basename": "shard.00004.mds",
        "bytes": len(expected),
        "hashes": {},
    }
    assert (counts.rows, counts.entry["samples"], counts.entry["zip_data"]) == (
        1,
        1,
        None,
    )


@given(
    seed=st.integers(0, 2**32),
    per_row=st.sampled_from([1, 4]),
    limit=st.sampled_from([NO_LIMIT, 9000, 1000]),
)
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_rows_come_back_from_as_many_shards_as_fit(
    tmp_path_factory, seed, per_row, limit, compression
):
    folder = tmp_path_factory.mktemp("mds")
    blocks = random_blocks(seed, rows=12, per_row=per_row)
    sizes = write_all(folder, blocks, shard_bytes=limit, compression=compression)
    rows = read_back(folder, "mds")
    assert [row["domain"] for row in rows] == [
        domain for block in blocks for domain in block.domains
    ]
    found = [
        row["input_ids"][start:end].tolist()
        for row in rows
        for start, end in row["indices"]
    ]
    assert found == documents_of(blocks)
    assert all(
        row["length"] == len(row["input_ids"]) == row["indices"][-1][1] for row in rows
    )
    entries = json.loads((folder / "index.json").read_text())["shards"]
    assert [entry["samples"] for entry in entries] == sizes
    assert all(
        size < 2 or entry["raw_data"]["bytes"] <= limit
        for size, entry in zip(sizes, entries, strict=True)
    )


def test_a_row_that_no_shard_can_hold_leaves_an_empty_one_before_it():
    rows = rows_of(random_blocks(1, rows=3, longest=9))
    assert sizes_of(rows, shard_bytes=1) == [0, 1, 1, 1]
    assert sizes_of(rows, shard_bytes=NO_LIMIT) == [3]
    assert sizes_of([], shard_bytes=NO_LIMIT) == []


def test_a_shard_is_full_to_the_last_byte(tmp_path):
    rows = rows_of(random_blocks(1, rows=5))
    mds.FORMAT.write(tmp_path / "part", rows[:3], options(shard_bytes=NO_LIMIT))
    filled = (tmp_path / "shard.00000.mds").stat().st_size
    limit = (
        filled - len(str(NO_LIMIT)) + len("1234")
    )  # the header names the limit, which has four digits below
    assert len(str(limit)) == 4
    assert sizes_of(rows[:3], shard_bytes=limit) == [3]
    assert sizes_of(rows[:3], shard_bytes=limit - 1) == [2, 1]


def test_compressed_shards_hold_the_same(tmp_path):
    (tmp_path / "zipped").mkdir()
    for folder, compression in ((tmp_path, "none"), (tmp_path / "zipped", "zstd")):
        write_all(
            folder, random_blocks(2), shard_bytes=NO_LIMIT, compression=compression
        )
    entry = json.loads((tmp_path / "zipped" / "index.json").read_text())["shards"][0]
    zipped = (tmp_path / "zipped" / "shard.00000.mds.zstd").read_bytes()
    assert entry["zip_data"] == {
        "basename": "shard.00000.mds.zstd",
        "bytes": len(zipped),
        "hashes": {},
    }
    raw = zstandard.ZstdDecompressor().decompress(zipped)
    assert entry["raw_data"]["bytes"] == len(raw)
    assert (
        raw.replace(b'"zstd"', b"null")[-1000:]
        == (tmp_path / "shard.00000.mds").read_bytes()[-1000:]
    )
    assert not (tmp_path / "zipped" / "shard.00000.mds").exists()


def test_it_is_mds_by_another_name():
    assert replace(mds.FORMAT, name="prolong") == format_of("prolong")
    assert mds.FORMAT.name == "mds"
