"""SequenceDataset: rows against the exported ones, and every argument that cannot be met."""

import pickle
import shutil
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

import nextlong
from nextlong import pipeline
from nextlong.errors import CorpusError, RecipeError, RunError

EVERYTHING = ("input_ids", "labels", "position_ids", "cu_seqlens", "max_seqlen", "seq_lengths")
LONG, SHORT = 2048, 512


def test_without_torch_the_cure_is_said():
    code = "import sys; sys.modules['torch'] = None; import nextlong.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ImportError: nextlong.torch needs PyTorch" in done.stderr
    assert done.stderr.rstrip().endswith("pip install torch")


@pytest.fixture(scope="module")
def short_run(recipe_for, shared_run, tmp_path_factory):
    """More and shorter sequences from the same corpus, steps and tokenizer."""
    run_dir = shutil.copytree(shared_run, tmp_path_factory.mktemp("short") / "run")
    pipeline.run(recipe_for(run_dir, f"compose.target_tokens={SHORT}", "compose.sequences=30", "name=short"))
    return f"{run_dir}@short"


@pytest.fixture(scope="module")
def dataset_of():
    from nextlong.torch import SequenceDataset

    return SequenceDataset


def keys_of(dataset):
    return [f"{key:016x}" for key in dataset.rows.index["key"].tolist()]


@pytest.mark.heavy
def test_rows_are_the_exported_ones(shared_run, dataset_of):
    run = nextlong.open(shared_run)
    exported = [ids for path in run.exported("parquet") for ids in pq.read_table(path)["input_ids"].to_pylist()]
    for named in (shared_run, str(shared_run), run, [run]):
        dataset = dataset_of(named)
        assert [dataset[row]["input_ids"].tolist() for row in range(len(dataset))] == exported
    assert dataset[-1]["input_ids"].tolist() == exported[-1]
    assert (dataset.fill, dataset.left_out) == (1.0, 0)


@pytest.mark.heavy
def test_the_columns_of_a_packed_row(short_run, dataset_of):
    import torch

    sequences = [sequence.input_ids.tolist() for sequence in nextlong.open(short_run).sequences()]
    dataset = dataset_of(short_run, pack=3 * SHORT, columns=EVERYTHING)
    row = dataset[1]
    assert tuple(row) == EVERYTHING
    ids = [token for sequence in sequences[3:6] for token in sequence]
    assert row["input_ids"].tolist() == ids
    assert row["labels"].tolist() == [-100 if place % SHORT == 0 else token for place, token in enumerate(ids)]
    assert row["position_ids"].tolist() == list(range(SHORT)) * 3
    assert row["cu_seqlens"].tolist() == [0, SHORT, 2 * SHORT, 3 * SHORT]
    assert (row["max_seqlen"], row["seq_lengths"].tolist()) == (SHORT, [SHORT] * 3)
    assert [row[name].dtype for name in ("input_ids", "labels", "position_ids", "seq_lengths")] == [torch.int64] * 4
    assert row["cu_seqlens"].dtype == torch.int32


@pytest.mark.heavy
@pytest.mark.parametrize("columns", [["labels"], ["seq_lengths", "position_ids"], ["input_ids", "max_seqlen"]])
def test_each_column_is_the_same_whatever_else_is_asked_for(short_run, dataset_of, columns):
    whole, some = (dataset_of(short_run, pack=1100, columns=names)[2] for names in (EVERYTHING, columns))
    assert list(some) == columns
    assert all(np.array_equal(some[name], whole[name]) for name in columns)


@pytest.mark.heavy
def test_short_rows_are_counted_and_lose_nothing(short_run, dataset_of):
    dataset = dataset_of(short_run, pack=4 * SHORT, columns=["seq_lengths"])
    assert [int(dataset[row]["seq_lengths"].sum()) for row in range(len(dataset))] == [4 * SHORT] * 7 + [2 * SHORT]
    assert dataset.fill == 30 / 32


@pytest.mark.heavy
def test_a_mix_of_two_lengths(shared_run, short_run, dataset_of):
    by_sequences = dataset_of([shared_run, short_run], mix=[1, 2])
    assert [len(by_sequences[row]["input_ids"]) for row in range(3)] == [SHORT, LONG, SHORT]
    assert len(by_sequences) == 12 + 24
    by_tokens = dataset_of([shared_run, short_run], mix=[1, 1], by="tokens", columns=["max_seqlen"])
    lengths = [by_tokens[row]["max_seqlen"] for row in range(len(by_tokens))]
    assert (lengths.count(LONG), lengths.count(SHORT)) == (7, 30)
    assert len(dataset_of([shared_run, short_run])) == 12 + 30


@pytest.mark.heavy
def test_a_split_parts_meta_documents_of_all_runs(shared_run, short_run, dataset_of):
    runs = [shared_run, short_run]
    sides = [dataset_of(runs, split=side, validation=0.4) for side in ("train", "validation")]
    assert sum(map(len, sides)) == 42
    train, held_out = (set(keys_of(side)) for side in sides)
    assert train
    assert held_out
    assert not train & held_out
    alone = dataset_of(shared_run, split="validation", validation=0.4)
    assert set(keys_of(alone)) <= held_out


@pytest.mark.heavy
def test_shared_chunks_are_left_out_of_train_and_counted(short_run, dataset_of):
    train, held_out = (
        dataset_of(short_run, split=side, validation=0.1, shared_chunks="leave-out") for side in ("train", "validation")
    )
    assert len(train) + len(held_out) + train.left_out == 30
    assert train.left_out == held_out.left_out > 0
    chunks = {
        sequence.id: {span.chunk_id for span in sequence.spans} - {-1}
        for sequence in nextlong.open(short_run).sequences()
    }
    of_train, of_held_out = (
        set().union(*(chunks[f"nextlong-{key}"] for key in keys_of(side))) for side in (train, held_out)
    )
    assert not of_train & of_held_out


@pytest.mark.heavy
def test_a_dataset_travels_light(short_run, dataset_of):
    dataset = dataset_of(short_run)
    expected = dataset[7]
    sent = pickle.dumps(dataset)
    assert len(sent) < 30_000
    assert all(np.array_equal(value, expected[name]) for name, value in pickle.loads(sent)[7].items())


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"columns": ["ids"]}, RecipeError, r"columns=\['ids'\]: choose from input_ids, labels"),
        ({"columns": "labels"}, RecipeError, "columns='labels': choose from .*, as a list"),
        ({"split": "train"}, RecipeError, "split='train' without validation; validation=0.01"),
        ({"validation": 0.1}, RecipeError, "validation=0.1 without split"),
        ({"split": "test", "validation": 0.1}, RecipeError, "split='test' is not known"),
        ({"split": "train", "validation": 2}, RecipeError, "validation=2 is no share"),
        ({"split": "validation", "validation": 1e-9}, CorpusError, "no sequence is left: split='validation'"),
        ({"by": "rows"}, RecipeError, "by='rows' is not known; it must be one of 'sequences', 'tokens'"),
        ({"mix": [1, 2]}, RecipeError, "2 proportions for 1 runs"),
        ({"mix": [0]}, RecipeError, "proportion 0 of the mix is 0; give a number above 0"),
        ({"by": "tokens"}, RecipeError, "by='tokens' says what the proportions of a mix count, but there are none"),
        (
            {"shared_chunks": "leave-out"},
            RecipeError,
            "shared_chunks='leave-out' without a split; split=\"train\" with",
        ),
        ({"split_seed": 3}, RecipeError, "split_seed=3 without a split"),
        ({"pack": 100}, RecipeError, "pack=100 tokens a row cannot hold sequence 0, which has 512"),
        ({"run": []}, RecipeError, "no run is named"),
        ({"run": "nowhere"}, RunError, "nowhere is not a folder"),
    ],
)
def test_arguments_that_cannot_be_met(short_run, dataset_of, arguments, error, message):
    with pytest.raises(error, match=message):
        dataset_of(**{"run": short_run} | arguments)


@pytest.mark.heavy
def test_two_tokenizers_cannot_be_mixed(recipe_for, shared_run, own_run, dataset_of):
    pipeline.run(recipe_for(own_run, "tokenizer.train=600", "name=other"))
    with pytest.raises(RunError, match="do not have the same tokenizer"):
        dataset_of([shared_run, f"{own_run}@other"])


@pytest.mark.heavy
@pytest.mark.parametrize("row", [12, -13])
def test_a_row_that_is_none(shared_run, dataset_of, row):
    with pytest.raises(IndexError, match=r"of 12"):
        dataset_of(shared_run)[row]


@pytest.mark.heavy
def test_a_batch_is_stacked_padded_or_flat():
    import torch

    from nextlong.torch import collate

    def row(*lengths):
        ends = np.cumsum([0, *lengths])
        positions = np.concatenate([np.arange(length) for length in lengths])
        return {
            "input_ids": torch.arange(ends[-1]) + 7,
            "labels": torch.arange(ends[-1]) + 7,
            "position_ids": torch.from_numpy(positions),
            "cu_seqlens": torch.from_numpy(ends.astype(np.int32)),
            "max_seqlen": max(lengths),
            "seq_lengths": torch.tensor(lengths),
        }

    rows = [row(2, 1), row(2), row(3)]
    padded = collate(rows, pad_id=9)
    assert padded["input_ids"].tolist() == [[7, 8, 9], [7, 8, 9], [7, 8, 9]]
    assert padded["labels"].tolist() == [[7, 8, 9], [7, 8, -100], [7, 8, 9]]
    assert padded["position_ids"].tolist() == [[0, 1, 0], [0, 1, 0], [0, 1, 2]]
    assert padded["cu_seqlens"].tolist() == [0, 2, 3, 5, 6, 9]
    assert padded["cu_seqlens"].dtype == torch.int32
    assert padded["max_seqlen"] == 3
    assert padded["seq_lengths"].tolist() == [2, 1, 2, 3]
    assert collate([row(1), row(2, 2)])["max_seqlen"] == 3  # of padding
    flat = collate(rows, layout="flat")
    assert flat["input_ids"].tolist() == [[7, 8, 9, 7, 8, 7, 8, 9]]
    assert flat["cu_seqlens"].tolist() == [0, 2, 3, 5, 8]
    with pytest.raises(RecipeError, match="layout='ragged' is not known"):
        collate(rows, layout="ragged")
