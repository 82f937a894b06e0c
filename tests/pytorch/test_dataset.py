import pickle
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

import nextlong

EVERYTHING = (
    "input_ids",
    "labels",
    "position_ids",
    "cu_seqlens",
    "max_seqlen",
    "seq_lengths",
)


LONG, SHORT = 2048, 512


def test_without_torch_the_cure_is_said():
    code = "import sys; sys.modules['torch'] = None; import nextlong.torch"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "ImportError: nextlong.torch needs PyTorch" in done.stderr
    assert done.stderr.rstrip().endswith("pip install torch")


@pytest.mark.heavy
def test_rows_are_the_exported_ones(shared_run, dataset_of):
    run = nextlong.open(shared_run)
    exported = [
        ids
        for path in run.exported("parquet")
        for ids in pq.read_table(path)["input_ids"].to_pylist()
    ]
    for named in (shared_run, str(shared_run), run, [run]):
        dataset = dataset_of(named)
        assert [
            dataset[row]["input_ids"].tolist() for row in range(len(dataset))
        ] == exported
    assert dataset[-1]["input_ids"].tolist() == exported[-1]
    assert (dataset.fill, dataset.left_out) == (1.0, 0)


@pytest.mark.heavy
def test_the_columns_of_a_packed_row(short_run, dataset_of):
    import torch

    sequences = [
        sequence.input_ids.tolist() for sequence in nextlong.open(short_run).sequences()
    ]
    dataset = dataset_of(short_run, pack=3 * SHORT, columns=EVERYTHING)
    row = dataset[1]
    assert tuple(row) == EVERYTHING
    ids = [token for sequence in sequences[3:6] for token in sequence]
    assert row["input_ids"].tolist() == ids
    assert row["labels"].tolist() == [
        -100 if place % SHORT == 0 else token for place, token in enumerate(ids)
    ]
    assert row["position_ids"].tolist() == list(range(SHORT)) * 3
    assert row["cu_seqlens"].tolist() == [0, SHORT, 2 * SHORT, 3 * SHORT]
    assert (row["max_seqlen"], row["seq_lengths"].tolist()) == (SHORT, [SHORT] * 3)
    assert [
        row[name].dtype
        for name in ("input_ids", "labels", "position_ids", "seq_lengths")
    ] == [torch.int64] * 4
    assert row["cu_seqlens"].dtype == torch.int32


@pytest.mark.heavy
@pytest.mark.parametrize(
    "columns",
    [["labels"], ["seq_lengths", "position_ids"], ["input_ids", "max_seqlen"]],
)
def test_each_column_is_the_same_whatever_else_is_asked_for(
    short_run, dataset_of, columns
):
    whole, some = (
        dataset_of(short_run, pack=1100, columns=names)[2]
        for names in (EVERYTHING, columns)
    )
    assert list(some) == columns
    assert all(np.array_equal(some[name], whole[name]) for name in columns)


@pytest.mark.heavy
def test_short_rows_are_counted_and_lose_nothing(short_run, dataset_of):
    dataset = dataset_of(short_run, pack=4 * SHORT, columns=["seq_lengths"])
    assert [int(dataset[row]["seq_lengths"].sum()) for row in range(len(dataset))] == [
        4 * SHORT
    ] * 7 + [2 * SHORT]
    assert dataset.fill == 30 / 32


@pytest.mark.heavy
def test_a_dataset_travels_light(short_run, dataset_of):
    dataset = dataset_of(short_run)
    expected = dataset[7]
    sent = pickle.dumps(dataset)
    assert len(sent) < 30_000
    assert all(
        np.array_equal(value, expected[name])
        for name, value in pickle.loads(sent)[7].items()
    )


@pytest.mark.heavy
def test_a_mix_that_takes_nothing_of_a_run_warns(shared_run, short_run, dataset_of):
    with pytest.warns(UserWarning, match="no sequence of run@short for train"):
        dataset = dataset_of([shared_run, short_run], mix=[1, 0.02])
    assert len(dataset) == 12


@pytest.mark.heavy
@pytest.mark.parametrize("row", [12, -13])
def test_a_row_that_is_none(shared_run, dataset_of, row):
    with pytest.raises(IndexError, match=r"of 12"):
        dataset_of(shared_run)[row]
