"""Arrow folders: what `datasets` reads, and the same rows as in Parquet."""

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.random_rows import (
    documents_of,
    options,
    random_blocks,
    read_back,
    rows_of,
)

from nextlong.export.formats import arrow
from nextlong.export.formats.base import COLUMNS, schema_of, to_table


def write_all(folder, *shards):
    """Write one shard for each list of blocks."""
    counts = [
        arrow.FORMAT.write(
            folder / f"part-{shard:05}",
            blocks,
            options(shard=shard, shards=len(shards)),
        )
        for shard, blocks in enumerate(shards)
    ]
    arrow.FORMAT.close(
        folder,
        [arrow._ArrowShard(**json.loads(count.model_dump_json())) for count in counts],
    )
    return counts


def read_json(folder, name):
    return json.loads((folder / name).read_text())


def test_files_are_named_and_listed_as_datasets_does(tmp_path):
    blocks = random_blocks(0)
    counts = write_all(tmp_path, blocks[:2], [])
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *names,
        "dataset_info.json",
        "state.json",
    ]
    state = read_json(tmp_path, "state.json")
    assert state["_data_files"] == [{"filename": name} for name in names]
    assert [count.rows for count in counts] == [len(blocks[0]) + len(blocks[1]), 0]


def test_features_say_what_the_columns_are(tmp_path):
    write_all(tmp_path, random_blocks(0))
    features = read_json(tmp_path, "dataset_info.json")["features"]
    assert list(features) == list(COLUMNS)
    assert features["length"] == {"dtype": "int32", "_type": "Value"}
    assert features["input_ids"] == {
        "feature": {"dtype": "int32", "_type": "Value"},
        "_type": "List",
    }
    assert features["spans"]["feature"]["score"] == {
        "dtype": "float32",
        "_type": "Value",
    }
    with pa.ipc.open_stream(
        (tmp_path / "data-00000-of-00001.arrow").read_bytes()
    ) as reader:
        assert json.loads(reader.schema.metadata[b"huggingface"]) == {
            "info": {"features": features}
        }
        assert reader.schema.equals(schema_of(COLUMNS))


@given(seed=st.integers(0, 2**32), per_row=st.sampled_from([1, 4]))
def test_rows_come_back_and_are_those_of_parquet(tmp_path_factory, seed, per_row):
    folder = tmp_path_factory.mktemp("arrow")
    blocks = random_blocks(seed, rows=12, per_row=per_row)
    write_all(folder, blocks[:1], blocks[1:])
    rows = read_back(folder, "arrow")
    assert [row["sequence_id"] for row in rows] == [
        name for block in blocks for name in block.sequence_ids
    ]
    found = []
    for row in rows:
        ids = iter(row["input_ids"].tolist())
        found += [[next(ids) for _ in range(length)] for length in row["seq_lengths"]]
        assert next(ids, None) is None
    assert found == documents_of(blocks)
    stored = pa.concat_tables(
        pa.ipc.open_stream(path.read_bytes()).read_all()
        for path in sorted(folder.glob("*.arrow"))
    )
    assert stored.equals(
        pa.concat_tables([to_table(block, COLUMNS, options()) for block in blocks])
    )


@pytest.mark.parametrize("change", ["nothing", "an id", "a score", "the order"])
def test_the_fingerprint_names_the_content(tmp_path, change):
    blocks = rows_of(random_blocks(0, rows=3))
    first, again = tmp_path / "first", tmp_path / "again"
    for folder in (first, again):
        folder.mkdir()
        write_all(folder, blocks)
        if change == "an id":
            blocks[1].input_ids[0] += 1
        if change == "a score":
            blocks[2].scores[-1] += 1
        if change == "the order":
            blocks.reverse()
    found = [
        read_json(folder, "state.json")["_fingerprint"] for folder in (first, again)
    ]
    assert (found[0] == found[1]) == (change == "nothing")
    assert all(len(name) == 16 for name in found)
