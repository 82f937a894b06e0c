"""The `datasets` library reads Parquet, Arrow and JSONL exports, and would save the same Arrow files itself."""

import json
import re

import pyarrow as pa
import pytest
from tests.support.exported_rows import exported, rows_in
from tests.support.random_rows import documents_of, options, random_blocks

from nextlong.export.formats import arrow, parquet
from nextlong.export.formats.base import COLUMNS, to_table

pytestmark = [
    pytest.mark.readers,
    pytest.mark.filterwarnings("ignore"),
]  # not ours to mend


@pytest.fixture(params=[1, 4], ids=["single", "packed"])
def blocks(request):
    return random_blocks(request.param, rows=50, per_row=request.param)


@pytest.fixture
def folder(blocks, tmp_path):
    """An Arrow export in three shards."""
    folder = tmp_path / "arrow"
    folder.mkdir()
    counts = [
        arrow.FORMAT.write(
            folder / f"part-{shard:05}",
            blocks[shard::3],
            options(shard=shard, shards=3),
        )
        for shard in range(3)
    ]
    arrow.FORMAT.close(folder, counts)
    return folder


def taken_apart(rows):
    """Return the ids of the documents of rows, by their seq_lengths."""
    found = []
    for row in rows:
        ids = iter(row["input_ids"])
        found += [[next(ids) for _ in range(length)] for length in row["seq_lengths"]]
        assert next(ids, None) is None
    return found


def test_load_from_disk_gives_the_same_rows(blocks, folder):
    from datasets import load_from_disk

    loaded = load_from_disk(str(folder))
    in_shards = [block for shard in range(3) for block in blocks[shard::3]]
    assert taken_apart(loaded) == documents_of(in_shards)
    assert loaded.to_list() == [
        row
        for block in in_shards
        for row in to_table(block, COLUMNS, options()).to_pylist()
    ]


def test_datasets_would_save_the_same_files(folder, tmp_path):
    from datasets import Dataset, load_from_disk

    loaded = load_from_disk(str(folder))
    assert (
        loaded.features
        == Dataset(loaded.data.table.replace_schema_metadata(None)).features
    )
    loaded.save_to_disk(str(tmp_path / "saved"), num_shards=3)
    assert (folder / "dataset_info.json").read_bytes() == (
        tmp_path / "saved" / "dataset_info.json"
    ).read_bytes()
    # Their shards have the same number of rows, ours those of the run; so the files
    # agree in all but where they end.
    ours, theirs = (
        sorted(path.glob("*.arrow")) for path in (folder, tmp_path / "saved")
    )
    assert [path.name for path in ours] == [path.name for path in theirs]
    tables = [
        [pa.ipc.open_stream(path.read_bytes()).read_all() for path in paths]
        for paths in (ours, theirs)
    ]
    assert pa.concat_tables(tables[0]).equals(pa.concat_tables(tables[1]))
    assert {
        table.schema.metadata[b"huggingface"] for table in tables[0] + tables[1]
    } == {tables[0][0].schema.metadata[b"huggingface"]}
    states = [
        json.loads((path / "state.json").read_text())
        for path in (folder, tmp_path / "saved")
    ]
    for state in states:
        assert re.fullmatch(
            "[0-9a-f]{16}", state.pop("_fingerprint")
        )  # theirs is of the loaded table, so another
    assert states[0] == states[1]


def test_a_shard_of_one_block_is_theirs_byte_for_byte(blocks, tmp_path):
    from datasets import Dataset

    counts = arrow.FORMAT.write(tmp_path / "part-00000", blocks[:1], options())
    arrow.FORMAT.close(tmp_path, [counts])
    (tmp_path / "saved").mkdir()
    Dataset(to_table(blocks[0], COLUMNS, options())).save_to_disk(
        str(tmp_path / "saved"), num_shards=1
    )
    name = "data-00000-of-00001.arrow"
    assert (tmp_path / name).read_bytes() == (tmp_path / "saved" / name).read_bytes()


def test_a_cache_is_used_again_for_the_same_content_only(blocks, folder, tmp_path):
    from datasets import load_from_disk

    first, again = load_from_disk(str(folder)), load_from_disk(str(folder))
    counts = arrow.FORMAT.write(folder / "part-00000", blocks[:1], options())
    arrow.FORMAT.close(folder, [counts])
    other = load_from_disk(str(folder))
    assert first._fingerprint == again._fingerprint != other._fingerprint
    heads = [
        loaded.map(lambda row: {"head": row["input_ids"][0]})["head"]
        for loaded in (first, other)
    ]
    assert [len(found) for found in heads] == [first.num_rows, len(blocks[0])]


def test_parquet_streams(blocks, tmp_path):
    from datasets import load_dataset

    for shard in range(2):
        parquet.FORMAT.write(
            tmp_path / f"part-{shard:05}",
            blocks[shard::2],
            options(row_group_mb=0.01, compression="zstd"),
        )
    rows = load_dataset(
        "parquet",
        data_files=f"{tmp_path}/part-*.parquet",
        split="train",
        streaming=True,
        cache_dir=str(tmp_path / "cache"),
    )
    in_shards = [*blocks[0::2], *blocks[1::2]]
    assert taken_apart(rows) == documents_of(in_shards)
    assert [row["domain"] for row in rows] == [
        domain for block in in_shards for domain in block.domains
    ]


def assert_rows(rows, reference):
    """Assert that rows have the ids, or the text, and the boundaries of the reference."""
    expected = rows_in(reference)
    for name in {"input_ids", "text", "seq_lengths"} & set(rows.column_names):
        assert [row[name] for row in rows] == [row[name] for row in expected]


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streaming"])
@exported("parquet", "torchtitan", "axolotl")
def test_load_dataset_reads_parquet_of_a_run(folder, reference, streaming, tmp_path):
    from datasets import load_dataset

    files = f"{folder}/*.parquet"
    rows = load_dataset(
        "parquet",
        data_files=files,
        split="train",
        streaming=streaming,
        cache_dir=str(tmp_path),
    )
    assert_rows(rows, reference)
    if "axolotl" in folder.parts:
        assert set(rows.column_names) == {"input_ids", "attention_mask", "labels"}
        assert all(row["labels"] == [-100, *row["input_ids"][1:]] for row in rows)
        assert all(row["attention_mask"] == [1] * len(row["input_ids"]) for row in rows)
    else:
        assert {"input_ids", "seq_lengths"} <= set(rows.column_names)


@exported("jsonl")
def test_load_dataset_reads_jsonl_of_a_run(folder, reference, tmp_path):
    from datasets import load_dataset

    rows = load_dataset(
        "json", data_files=f"{folder}/*.jsonl", split="train", cache_dir=str(tmp_path)
    )
    assert {"text", "seq_lengths"} <= set(rows.column_names)
    assert_rows(rows, reference)
    assert all(row["spans"][-1]["token_end"] == sum(row["seq_lengths"]) for row in rows)


@exported("arrow")
def test_load_from_disk_reads_arrow_of_a_run(folder, reference):
    from datasets import load_from_disk

    rows = load_from_disk(str(folder))
    assert {"input_ids", "seq_lengths"} <= set(rows.column_names)
    assert_rows(rows, reference)


@exported("parquet", "jsonl", "torchtitan", "axolotl", splits=["train"])
def test_the_card_names_the_files_of_every_split(folder, reference, tmp_path):
    from datasets import load_dataset

    pushed = folder.parent if folder.name == "train" else folder
    splits = load_dataset(str(pushed), cache_dir=str(tmp_path))
    references = {path.stem: path for path in reference.parent.glob("[!.]*.json")}
    assert splits.keys() == references.keys()
    for split, rows in splits.items():
        assert_rows(rows, references[split])


@exported("arrow", splits=["train"])
def test_load_from_disk_reads_both_splits_of_an_arrow_export(folder, reference):
    from datasets import DatasetDict, load_from_disk

    if folder.name != "train":
        return  # this export has one split
    splits = load_from_disk(str(folder.parent))
    assert isinstance(splits, DatasetDict)
    references = {path.stem: path for path in reference.parent.glob("[!.]*.json")}
    assert splits.keys() == references.keys()
    for split, rows in splits.items():
        assert_rows(rows, references[split])


@exported("parquet", splits=["train"])
def test_load_dataset_reads_a_destination_of_several_formats(
    folder, reference, tmp_path
):
    from datasets import load_dataset

    pushed = folder.parent if folder.name == "train" else folder
    if not (pushed.parent / "README.md").exists():
        return  # torchtitan's rows are an export of their own
    splits = load_dataset(str(pushed.parent), cache_dir=str(tmp_path))
    assert_rows(splits["train"], reference)
