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
    ("arguments", "where", "value"),
    [
        ({"columns": ["ids"]}, "columns", "'ids'"),
        ({"columns": "labels"}, "columns", "'labels'"),
        ({"split": "train"}, "split", "'train'"),
        ({"validation": 0.1}, "validation", "0.1"),
        ({"split": "test", "validation": 0.1}, "split", "'test'"),
        ({"split": "train", "validation": 2}, "validation", "2"),
        ({"by": "rows"}, "by", "'rows'"),
        ({"mix": [0]}, "mix[0]", "0"),
        ({"shared_chunks": "leave-out"}, "shared_chunks", "'leave-out'"),
        ({"split_seed": 3}, "split_seed", "3"),
    ],
)
def test_arguments_that_cannot_be_met(short_run, dataset_of, arguments, where, value):
    with pytest.raises(RecipeError) as error:
        dataset_of(**{"run": short_run} | arguments)
    assert (error.value.where, error.value.value) == (where, value)


@pytest.mark.heavy
def test_a_share_of_no_sequence(short_run, dataset_of):
    with pytest.raises(CorpusError) as error:
        dataset_of(short_run, split="validation", validation=1e-9)
    assert (error.value.where, error.value.value) == ("split", "'validation'")


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"mix": [1, 2]}, RecipeError, "2 proportions"),
        ({"by": "tokens"}, RecipeError, "by='tokens'"),
        ({"pack": 100}, RecipeError, "sequence 0,"),
        ({"run": []}, RecipeError, "no run"),
        ({"run": "nowhere"}, RunError, "nowhere"),
    ],
)
def test_runs_that_cannot_be_read_so(short_run, dataset_of, arguments, error, named):
    with pytest.raises(error, match=named):
        dataset_of(**{"run": short_run} | arguments)


@pytest.mark.heavy
def test_two_tokenizers_cannot_be_mixed(recipe_for, shared_run, own_run, dataset_of):
    pipeline.run(recipe_for(own_run, "tokenizer.train=600", "name=other"))
    with pytest.raises(RunError, match="do not have the same tokenizer"):
        dataset_of([shared_run, f"{own_run}@other"])
