import pytest

import nextlong
from nextlong import pipeline
from nextlong.errors import CorpusError, RecipeError, RunError

LONG, SHORT = 2048, 512


def keys_of(dataset):
    return [f"{key:016x}" for key in dataset.rows.index["key"].tolist()]


@pytest.mark.heavy
def test_a_mix_of_two_lengths(shared_run, short_run, dataset_of):
    by_sequences = dataset_of([shared_run, short_run], mix=[1, 2])
    assert [len(by_sequences[row]["input_ids"]) for row in range(3)] == [
        SHORT,
        LONG,
        SHORT,
    ]
    assert len(by_sequences) == 12 + 24
    by_tokens = dataset_of(
        [shared_run, short_run], mix=[1, 1], by="tokens", columns=["max_seqlen"]
    )
    lengths = [by_tokens[row]["max_seqlen"] for row in range(len(by_tokens))]
    assert (lengths.count(LONG), lengths.count(SHORT)) == (7, 30)
    assert len(dataset_of([shared_run, short_run])) == 12 + 30


@pytest.mark.heavy
def test_a_split_parts_meta_documents_of_all_runs(shared_run, short_run, dataset_of):
    runs = [shared_run, short_run]
    sides = [
        dataset_of(runs, split=side, validation=0.4) for side in ("train", "validation")
    ]
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
        dataset_of(short_run, split=side, validation=0.1, shared_chunks="leave-out")
        for side in ("train", "validation")
    )
    assert len(train) + len(held_out) + train.left_out == 30
    assert train.left_out == held_out.left_out > 0
    chunks = {
        sequence.id: {span.chunk_id for span in sequence.spans} - {-1}
        for sequence in nextlong.open(short_run).sequences()
    }
    of_train, of_held_out = (
        set().union(*(chunks[f"nextlong-{key}"] for key in keys_of(side)))
        for side in (train, held_out)
    )
    assert not of_train & of_held_out


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"columns": ["ids"]},
            RecipeError,
            "columns='ids' .*'input_ids', 'labels'",
        ),
        (
            {"columns": "labels"},
            RecipeError,
            "columns='labels' is not a list",
        ),
        (
            {"split": "train"},
            RecipeError,
            "split='train' without validation; validation=0.01",
        ),
        ({"validation": 0.1}, RecipeError, "validation=0.1 without a split"),
        (
            {"split": "test", "validation": 0.1},
            RecipeError,
            "split='test' is not known",
        ),
        (
            {"split": "train", "validation": 2},
            RecipeError,
            "validation=2 is not a share",
        ),
        (
            {"split": "validation", "validation": 1e-9},
            CorpusError,
            "no sequence is left: split='validation'",
        ),
        (
            {"by": "rows"},
            RecipeError,
            "by='rows' is not known; it must be one of 'sequences', 'tokens'",
        ),
        ({"mix": [1, 2]}, RecipeError, "2 proportions for 1 runs"),
        (
            {"mix": [0]},
            RecipeError,
            r"mix\[0\]=0 is not above 0",
        ),
        (
            {"by": "tokens"},
            RecipeError,
            "by='tokens' is the unit of the proportions of a mix, which has none",
        ),
        (
            {"shared_chunks": "leave-out"},
            RecipeError,
            "shared_chunks='leave-out' without a split; split=\"train\" with",
        ),
        ({"split_seed": 3}, RecipeError, "split_seed=3 without a split"),
        (
            {"pack": 100},
            RecipeError,
            "pack=100 tokens a row cannot hold sequence 0, which has 512",
        ),
        ({"run": []}, RecipeError, "no run is given"),
        ({"run": "nowhere"}, RunError, "nowhere does not exist"),
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
