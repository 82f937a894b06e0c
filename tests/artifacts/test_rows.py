"""Rows read from references against the sequences that the run itself gives."""

import pickle
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nextlong
from nextlong import pipeline
from nextlong.artifacts.rows import Rows, epoch_order, rank_places, worker_part


@pytest.fixture(scope="module")
def run(recipe_for, started, tmp_path_factory):
    """With chunks of several shards, separators, a BOS and an EOS."""
    run_dir = tmp_path_factory.mktemp("rows") / "run"
    marked = ("tokenizer.bos=<|endoftext|>", "tokenizer.eos=<|endoftext|>", r'compose.separator="\n\n"')
    pipeline.run(recipe_for(started(run_dir), *marked, "export.formats=[jsonl]"))
    return nextlong.open(run_dir)


@pytest.fixture(scope="module")
def rows(run):
    index = run.files.read_index()
    return Rows([run.files], index=index[::-1], offsets=np.array([0, 1, 4, 12]))


def ids_of(rows, row):
    target = np.full(int(rows.lengths(row).sum()), -1, np.int64)
    rows.copy_into(target, row)
    return target.tolist()


def test_a_row_is_its_sequences_one_after_the_other(run, rows):
    sequences = [sequence.input_ids.tolist() for sequence in run.sequences()][::-1]
    assert {span.role for sequence in run.sequences() for span in sequence.spans} == {
        "meta",
        "negative",
        "separator",
        "bos",
        "eos",
    }
    assert len(rows) == 3
    for row, (first, last) in enumerate([(0, 1), (1, 4), (4, 12)]):
        assert ids_of(rows, row) == list(chain.from_iterable(sequences[first:last]))
        assert rows.lengths(row).tolist() == [2048] * (last - first)


def test_rows_travel_without_their_open_files(rows):
    expected = ids_of(rows, 1)
    sent = pickle.dumps(rows)
    assert len(sent) < 20_000
    assert ids_of(pickle.loads(sent), 1) == expected


def test_the_fingerprint_is_of_what_stands_where(run, rows):
    index = run.files.read_index()
    others = [
        Rows([], index=own, offsets=np.array(offsets))
        for own, offsets in [(index[::-1], [0, 1, 4, 12]), (index, [0, 1, 4, 12]), (index[::-1], [0, 1, 5, 12])]
    ]
    assert [other.fingerprint == rows.fingerprint for other in others] == [True, False, False]


SMALL = st.integers(1, 5)


def all_places(rows, *, start=0, world_size, remainder):
    return [
        rank_places(rows, start=start, rank=rank, world_size=world_size, remainder=remainder).tolist()
        for rank in range(world_size)
    ]


@pytest.mark.parametrize(
    ("remainder", "expected"),
    [
        ("keep", [[0, 3, 6], [1, 4], [2, 5]]),
        ("drop", [[0, 3], [1, 4], [2, 5]]),
        ("repeat", [[0, 3, 6], [1, 4, 0], [2, 5, 1]]),
    ],
)
def test_seven_rows_for_three_ranks(remainder, expected):
    assert all_places(7, world_size=3, remainder=remainder) == expected


def test_more_ranks_than_rows():
    assert all_places(2, world_size=5, remainder="repeat") == [[0], [1], [0], [1], [0]]
    assert all_places(2, world_size=5, remainder="keep") == [[0], [1], [], [], []]
    assert all_places(2, world_size=5, remainder="drop") == [[]] * 5


def test_workers_take_whole_batches_in_turn():
    places = np.arange(11)
    parts = [worker_part(places, worker=worker, workers=2, batch_size=3).tolist() for worker in range(2)]
    assert parts == [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10]]


@given(st.integers(0, 60), SMALL, SMALL, SMALL, st.integers(0, 20))
def test_every_row_once_over_ranks_and_workers_also_when_resumed(rows, world_size, workers, batch_size, steps):
    start = min(rows, steps * world_size)
    read = [
        place
        for rank in range(world_size)
        for worker in range(workers)
        for place in worker_part(
            rank_places(rows, start=start, rank=rank, world_size=world_size, remainder="keep"),
            worker=worker,
            workers=workers,
            batch_size=batch_size,
        ).tolist()
    ]
    assert sorted(read) == list(range(start, rows))


@given(st.integers(1, 60), SMALL, st.sampled_from(["drop", "repeat"]))
def test_ranks_read_equally_many_where_asked(rows, world_size, remainder):
    places = all_places(rows, world_size=world_size, remainder=remainder)
    assert len({len(own) for own in places}) == 1
    flat = [place for own in places for place in own]
    assert rows - len(set(flat)) == (rows % world_size if remainder == "drop" else 0)
    assert len(flat) - len(set(flat)) == (-rows % world_size if remainder == "repeat" else 0)


@given(st.integers(0, 200), st.integers(0, 3), st.integers(0, 3))
def test_an_epoch_is_a_permutation_that_seed_and_epoch_give(rows, seed, epoch):
    order = epoch_order(rows, order="shuffled", seed=seed, epoch=epoch)
    assert sorted(order.tolist()) == list(range(rows))
    assert order.tolist() == epoch_order(rows, order="shuffled", seed=seed, epoch=epoch).tolist()
    assert epoch_order(rows, order="arranged", seed=seed, epoch=epoch).tolist() == list(range(rows))


def test_epochs_and_seeds_differ():
    orders = [
        tuple(epoch_order(50, order="shuffled", seed=seed, epoch=epoch)) for seed in range(2) for epoch in range(3)
    ]
    assert len(set(orders)) == 6
