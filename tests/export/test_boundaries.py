"""`export.boundaries` and `export.pad_documents_to`: documents are marked and padded, and verify composes them itself."""

import itertools
import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from exported_runs import breaches, folder_of
from nextlong import pipeline
from nextlong.errors import RecipeError
from nextlong.runs import export as runs_export

FORMATS = "export.formats=[parquet,jsonl,arrow,axolotl]"


@pytest.fixture(scope="module")
def bounded(recipe_for, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("bounded") / "run"
    changes = ["compose.method=standard", "tokenizer.bos=<|endoftext|>", "export.boundaries=document", FORMATS]
    pipeline.run(recipe_for(run_dir, *changes))
    return run_dir


def read(run, name):
    return pq.read_table(sorted(folder_of(run, name).glob("*.parquet")))


def rows_of(run):
    return read(run, "parquet").to_pylist()


def test_a_row_is_divided_where_its_spans_change_document(bounded):
    rows = rows_of(bounded)
    for row in rows:
        whole = [span for span in row["spans"] if span["role"] == "document"]
        changes = [new["token_start"] for old, new in itertools.pairwise(whole) if old["doc_id"] != new["doc_id"]]
        assert [0, *itertools.accumulate(row["seq_lengths"])] == [0, *changes, row["length"]]
    assert any(len(row["seq_lengths"]) > 3 for row in rows)


def test_labels_begin_anew_at_each_document(bounded):
    labels = read(bounded, "axolotl").column("labels").to_pylist()
    for row, row_labels in zip(rows_of(bounded), labels, strict=True):
        starts = [0, *itertools.accumulate(row["seq_lengths"])][:-1]
        assert [place for place, label in enumerate(row_labels) if label == -100] == starts


def test_verify_counts_the_documents_itself(bounded, tmp_path):
    assert breaches(bounded) == {}
    damaged = shutil.copytree(bounded, tmp_path / "run")
    (path,) = folder_of(damaged, "jsonl").glob("*.jsonl")
    first, *others = path.read_text().splitlines()
    row = json.loads(first)
    row["seq_lengths"] = [sum(row["seq_lengths"])]
    path.write_text("\n".join([json.dumps(row), *others]) + "\n")
    assert "seq_lengths is [2048], should be" in breaches(damaged)["jsonl rows"][0]


def test_extended_sequences_stay_one_document(recipe_for, tmp_path):
    pipeline.run(recipe_for(tmp_path / "run", "export.boundaries=document", "export.formats=[parquet]"))
    assert {len(row["seq_lengths"]) for row in rows_of(tmp_path / "run")} == {1}


def test_formats_that_mark_sequences_alone_refuse_it(recipe_for, tmp_path):
    with pytest.raises(RecipeError, match="boundaries is document but mds cannot take it"):
        recipe_for(tmp_path / "run", "export.boundaries=document", "export.formats=[mds]")


@pytest.fixture(scope="module")
def padded(bounded, tmp_path_factory):
    """The same documents, padded to multiples of 8, beside the unpadded ones."""
    run = shutil.copytree(bounded, tmp_path_factory.mktemp("padded") / "run")
    runs_export.export([run], formats=["parquet", "arrow"], overrides=["export.pad_documents_to=8", "workers=1"])
    return run


def test_padded_rows_hold_the_documents_of_the_unpadded_ones(bounded, padded):
    rows = rows_of(padded)
    assert any(row["seq_lengths"] != row["seq_lengths_padded"] for row in rows)
    for row, plain in zip(rows, rows_of(bounded), strict=True):
        assert row["seq_lengths"] == plain["seq_lengths"]
        assert all(room % 8 == 0 for room in row["seq_lengths_padded"])
        assert row["length"] == len(row["input_ids"]) == sum(row["seq_lengths_padded"])
        ids, place = [], 0
        for length, room in zip(row["seq_lengths"], row["seq_lengths_padded"], strict=True):
            ids += row["input_ids"][place : place + length]
            labels = row["labels"][place : place + room]
            assert labels == [-100, *row["input_ids"][place + 1 : place + length]] + [-100] * (room - length)
            place += room
        assert ids == plain["input_ids"]
    with pa.ipc.open_stream(min(folder_of(padded, "arrow").glob("*.arrow")).read_bytes()) as reader:
        columns = [name for name in reader.schema.names if name != "spans"]  # scores are NaN
        assert reader.read_all().select(columns) == read(padded, "parquet").select(columns)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("input_ids", "input_ids[{padding}] is 7, should be 0"),
        ("labels", "labels[{padding}] is 7, should be -100"),
        ("seq_lengths_padded", "seq_lengths_padded is [7"),
    ],
)
def test_verify_composes_padded_rows_itself(padded, tmp_path, name, problem):
    assert breaches(padded) == {}
    damaged = shutil.copytree(padded, tmp_path / "run")
    path = min(folder_of(damaged, "parquet").glob("*.parquet"))
    table = pq.read_table(path)
    rows = table.to_pylist()
    padding = rows[0]["seq_lengths"][0] if name != "seq_lengths_padded" else 0
    assert rows[0]["seq_lengths_padded"][0] > rows[0]["seq_lengths"][0]
    rows[0][name][padding] = 7
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    (wrong,) = breaches(damaged)["parquet rows"]
    assert problem.format(padding=padding) in wrong


@pytest.mark.parametrize("name", ["jsonl", "mds", "megatron", "olmo", "axolotl", "torchtitan"])
def test_formats_that_cannot_mark_padding_refuse_it(recipe_for, tmp_path, name):
    changes = ["export.pad_documents_to=8", "tokenizer.eos=<|endoftext|>", f"export.formats=[parquet,{name}]"]
    formats = "parquet and arrow|arrow and parquet"
    with pytest.raises(
        RecipeError, match=f"pad_documents_to is 8 but {name} cannot mark padding; .* export ({formats})"
    ):
        recipe_for(tmp_path / "run", *changes)


@pytest.mark.parametrize("multiple", [0, 1, -4])
def test_padding_is_to_a_multiple_of_two_or_more(recipe_for, tmp_path, multiple):
    with pytest.raises(RecipeError, match="export.pad_documents_to"):
        recipe_for(tmp_path / "run", f"export.pad_documents_to={multiple}")


def test_the_card_names_the_columns_of_padding(padded):
    card = (padded / "data" / "parquet" / "README.md").read_text("utf-8")
    assert "| `seq_lengths_padded` |" in card
    assert "| `labels` |" in card
