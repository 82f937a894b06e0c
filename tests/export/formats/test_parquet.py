"""Parquet files of hand-made sequences, read back by the official reader."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.support.exported_runs import exported, parquet_rows
from tests.support.random_rows import options

import nextlong
from nextlong import pipeline
from nextlong.artifacts.blocks import Resolved
from nextlong.errors import NextlongError
from nextlong.export.formats import parquet
from nextlong.export.formats.base import COLUMNS

# What trainers read; a change here breaks people's pipelines.
SCHEMA = {
    "sequence_id": "string",
    "method": "string",
    "domain": "string",
    "input_ids": "list<element: int32>",
    "length": "int32",
    "seq_lengths": "list<element: int32>",
    "spans": "list<element: struct<chunk_id: int64, doc_id: int64, source_id: string, metadata: string, "
    "char_start: int64, char_end: int64, role: string, token_start: int32, token_end: int32, score: float>>",
}


def block_of(first, count, tokens=4):
    """`count` sequences of `tokens` tokens, each a meta-chunk and a separator; the first has the number `first`."""
    spans = 2 * count
    return Resolved(
        sequence_ids=[f"nextlong-{first + number}" for number in range(count)],
        methods=["nextlong"] * count,
        domains=["wiki"] * count,
        document_offsets=np.arange(count + 1),
        document_lengths=np.full(count, tokens, np.int32),
        token_offsets=np.arange(count + 1) * tokens,
        input_ids=np.arange(first * tokens, (first + count) * tokens, dtype=np.int32),
        span_offsets=np.arange(count + 1) * 2,
        chunk_ids=np.array([first, -1] * count),
        doc_ids=np.array([2**33, -1] * count),
        source_ids=np.array(["é", ""] * count, object),
        metadata=np.array(['{"a":1}', None] * count, object),
        char_starts=np.array([0, -1] * count),
        char_ends=np.array([3, -1] * count),
        roles=np.array([0, 3] * count, np.int8),
        groups=np.zeros(spans, np.int32),
        token_starts=np.array([0, tokens - 1] * count, np.int32),
        token_ends=np.array([tokens - 1, tokens] * count, np.int32),
        scores=np.array([1, 0] * count, np.float32),
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.parquet"


def write(path, blocks, row_group_bytes, *, columns=COLUMNS, compression="zstd"):
    """Write `path`, whose name ends in .parquet; return the number of rows."""
    keys = {
        "row_group_mb": (row_group_bytes + 0.5) / 1_000_000,
        "compression": compression,
    }
    return parquet.FORMAT.write(
        path.with_suffix(""), blocks, options(**keys), columns=columns
    ).rows


def groups_of(path):
    metadata = pq.read_metadata(path)
    return [
        metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)
    ]


def test_the_schema_is_what_was_promised(path):
    write(path, [block_of(0, 1)], 1000)
    assert {field.name: str(field.type) for field in pq.read_schema(path)} == SCHEMA


def test_rows_come_back_as_they_were(path):
    assert write(path, [block_of(0, 2), block_of(2, 1)], 1000) == 3
    rows = pq.read_table(path).to_pylist()
    assert [row["sequence_id"] for row in rows] == [
        "nextlong-0",
        "nextlong-1",
        "nextlong-2",
    ]
    assert [row["input_ids"] for row in rows] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
    ]
    assert [(row["length"], row["seq_lengths"]) for row in rows] == [(4, [4])] * 3
    assert rows[2]["spans"] == [
        {
            "chunk_id": 2, "doc_id": 2**33, "source_id": "é", "metadata": '{"a":1}', "char_start": 0, "char_end": 3, "role": "meta",
            "token_start": 0, "token_end": 3, "score": 1.0,
        },
        {
            "chunk_id": -1, "doc_id": -1, "source_id": "", "metadata": None, "char_start": -1, "char_end": -1, "role": "separator",
            "token_start": 3, "token_end": 4, "score": 0.0,
        },
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("row_group_bytes", "expected"),
    [
        (1, [1, 1, 1, 1, 1, 1, 1]),  # never less than a row
        (32, [2, 2, 2, 1]),  # 16 bytes of ids a row
        (47, [2, 2, 2, 1]),
        (48, [3, 3, 1]),
        (1000, [7]),
    ],
)
def test_row_groups_hold_as_many_rows_as_asked_whatever_the_blocks(
    path, row_group_bytes, expected
):
    write(path, [block_of(0, 3), block_of(3, 1), block_of(4, 3)], row_group_bytes)
    assert groups_of(path) == expected
    assert [row["input_ids"][0] for row in pq.read_table(path).to_pylist()] == [
        0,
        4,
        8,
        12,
        16,
        20,
        24,
    ]


def columns_of(path):
    group = pq.read_metadata(path).row_group(0)
    return {
        group.column(number).path_in_schema: group.column(number)
        for number in range(group.num_columns)
    }


@pytest.mark.parametrize(
    ("compression", "encoding"), [("zstd", "BYTE_STREAM_SPLIT"), ("none", "PLAIN")]
)
def test_ids_have_no_dictionary_and_are_split_where_they_are_compressed(
    path, compression, encoding
):
    names = (*COLUMNS, "labels")
    write(path, [block_of(0, 3)], 1000, columns=names, compression=compression)
    columns = columns_of(path)
    for name in ("input_ids", "labels"):
        assert set(columns[f"{name}.list.element"].encodings) == {encoding, "RLE"}
        assert not columns[f"{name}.list.element"].has_dictionary_page
    assert columns["spans.list.element.role"].has_dictionary_page


def test_columns_are_zstd_by_default(path):
    write(path, [block_of(0, 3)], 1000)
    assert {column.compression for column in columns_of(path).values()} == {"ZSTD"}


@pytest.mark.parametrize(
    ("compression", "stored"),
    [("zstd", "ZSTD"), ("lz4", "LZ4"), ("snappy", "SNAPPY"), ("none", "UNCOMPRESSED")],
)
def test_any_compression_gives_the_same_rows(path, tmp_path, compression, stored):
    write(tmp_path / "default.parquet", [block_of(0, 3)], 32)
    write(path, [block_of(0, 3)], 32, compression=compression)
    assert {column.compression for column in columns_of(path).values()} == {stored}
    assert pq.read_table(path) == pq.read_table(tmp_path / "default.parquet")


def test_the_same_blocks_give_the_same_bytes(path, tmp_path):
    for name in ("a.parquet", "b.parquet"):
        write(tmp_path / name, [block_of(0, 3), block_of(3, 2)], 32)
    assert (tmp_path / "a.parquet").read_bytes() == (
        tmp_path / "b.parquet"
    ).read_bytes()


def test_no_blocks_are_a_file_without_rows(path):
    assert write(path, [], 1000) == 0
    assert pq.read_table(path).num_rows == 0


T = 2048


def test_axolotl_gets_masks_and_labels_that_pass_over_a_first_token(
    own_run, shared_ids
):
    done = exported([own_run], formats=["axolotl"])
    rows = parquet_rows(done["axolotl"].folder)
    assert [row["input_ids"] for row in rows] == list(shared_ids.values())
    assert all(row["labels"] == [-100, *row["input_ids"][1:]] for row in rows)
    assert all(row["attention_mask"] == [1] * T for row in rows)
    with pytest.raises(
        NextlongError, match="axolotl takes a packed row for one document"
    ):
        exported([own_run], formats=["axolotl"], overrides=["export.pack=4096"])


T = 2048


def test_torchtitan_gets_the_token_that_its_last_label_is(own_run, recipe_for):
    with pytest.raises(
        NextlongError,
        match=r"needs sequences of compose.target_tokens \+ 1 = 2,049 tokens, but those of",
    ):
        exported([own_run], formats=["torchtitan"])
    embedded = {path.name for path in own_run.glob("*-embed-*")}
    done = pipeline.run(
        recipe_for(own_run, "export.formats=[torchtitan]", "compose.sequences=3")
    )
    rows = parquet_rows(done["torchtitan"].folder)
    assert [row["seq_lengths"] for row in rows] == [[T + 1]] * 3
    assert [len(row["input_ids"]) for row in rows] == [T + 1] * 3
    assert {path.name for path in own_run.glob("*-embed-*")} == embedded
    assert [
        len(sequence.input_ids) for sequence in nextlong.open(own_run).sequences()
    ] == [T + 1] * 3


def test_a_mix_of_sequences_with_and_without_the_last_label_is_refused(
    own_run, recipe_for, started, tmp_path
):
    pipeline.run(
        recipe_for(
            started(tmp_path / "titan"),
            "export.formats=[torchtitan]",
            "compose.sequences=2",
            "workers=1",
        )
    )
    for formats in (["torchtitan"], ["parquet"]):
        with pytest.raises(
            NextlongError,
            match=r"sequences of 2,048 tokens of .*run \(for parquet, jsonl\) and 2,049 tokens",
        ):
            exported([own_run, tmp_path / "titan"], formats=formats)
    with pytest.raises(NextlongError) as error:
        exported([tmp_path / "titan"], formats=["parquet"])
    assert error.value.where == "parquet"
    assert "2,048" in error.value.problem
