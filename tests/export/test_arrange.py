"""Arrange: mixing, splitting and packing, against hand-written cases and what must always hold."""

from itertools import chain, pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong.errors import CorpusError, RecipeError
from nextlong.export.arrange import (
    Arrangement,
    RowsResult,
    SplitResult,
    _mix,
    arranged,
    packed,
)
from nextlong.export.mixture import EVERYTHING, Mixture
from nextlong.rng import keyed_hash, threshold_for
from nextlong.schemas import SEQUENCE_INDEX


def index_of(lengths, *, run=0, keys=None):
    index = np.zeros(len(lengths), SEQUENCE_INDEX)
    index["run"], index["place"], index["length"] = (
        run,
        np.arange(len(lengths)),
        lengths,
    )
    index["key"] = np.arange(len(lengths)) + 1000 * run if keys is None else keys
    return index


def names(index):
    return list(zip(index["run"].tolist(), index["place"].tolist(), strict=True))


def split(index, *, validation, seed):
    how = Arrangement(
        mixture=EVERYTHING,
        validation=validation,
        shared_chunks="keep",
        pack=None,
        seed=seed,
    )
    splits, _ = arranged([SimpleNamespace(read_index=lambda run: index)], how)
    return splits["train"], splits["validation"]


def test_one_to_two_by_sequences():
    long, short = index_of([8] * 3), index_of([1] * 8, run=1)
    mixed = _mix([long, short], weights=[1, 2], by="sequences")
    assert names(mixed) == [
        (1, 0),
        (0, 0),
        (1, 1),
        (1, 2),
        (0, 1),
        (1, 3),
        (1, 4),
        (0, 2),
        (1, 5),
    ]


def test_one_to_two_by_tokens():
    long, short = index_of([8, 8]), index_of([2] * 20, run=1)
    mixed = _mix([long, short], weights=[1, 2], by="tokens")
    assert mixed["run"].tolist() == [1] * 4 + [0] + [1] * 8 + [0] + [1] * 4
    assert mixed["length"].tolist() == [2] * 4 + [8] + [2] * 8 + [8] + [2] * 4


def test_the_scarcest_run_sets_the_scale():
    mixed = _mix(
        [index_of([1] * 100), index_of([1] * 3, run=1)],
        weights=[0.5, 0.1],
        by="sequences",
    )
    assert np.bincount(mixed["run"]).tolist() == [15, 3]


def test_a_run_without_sequences():
    runs = [
        SimpleNamespace(read_index=lambda run: index_of([1] * (1 - run), run=run))
    ] * 2
    how = Arrangement(
        mixture=Mixture(weights=(1, 1)),
        validation=0.0,
        shared_chunks="keep",
        pack=None,
        seed=0,
    )
    with pytest.raises(CorpusError) as error:
        arranged(runs, how)
    assert error.value.where == "run 1 of the mix"


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(1, 50), min_size=1, max_size=40), st.floats(0.1, 10)
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(["sequences", "tokens"]),
)
def test_any_mix_keeps_order_repeats_nothing_and_meets_its_proportions(runs, by):
    indexes = [index_of(lengths, run=run) for run, (lengths, _) in enumerate(runs)]
    weights = [weight for _, weight in runs]
    mixed = _mix(indexes, weights=weights, by=by)
    sizes = [
        index["length"].sum() if by == "tokens" else len(index) for index in indexes
    ]
    scale = min(size / weight for size, weight in zip(sizes, weights, strict=True))
    for run, index in enumerate(indexes):
        own = mixed[mixed["run"] == run]
        assert own["place"].tolist() == list(
            range(len(own))
        )  # the first ones, in order, once
        used = own["length"].sum() if by == "tokens" else len(own)
        step = index["length"].max() if by == "tokens" else 1
        assert scale * weights[run] - step < used + 1e-6
        assert used <= scale * weights[run] + 1e-6


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 5)), min_size=2, max_size=4)
)
def test_no_run_is_bunched(runs):
    mixed = _mix(
        [index_of([1] * count, run=run) for run, (count, _) in enumerate(runs)],
        weights=[weight for _, weight in runs],
        by="sequences",
    )
    totals = np.bincount(mixed["run"], minlength=len(runs))
    for run, total in enumerate(totals):
        share = total / len(mixed)
        drift = np.cumsum(mixed["run"] == run) - share * np.arange(1, len(mixed) + 1)
        assert np.abs(drift).max() <= 1 + share * len(runs) / 2 + 1e-9


@given(
    st.lists(st.integers(0, 2**64 - 1), max_size=60),
    st.floats(0.01, 0.99),
    st.integers(0, 9),
    st.randoms(),
)
def test_a_split_is_by_key_alone(keys, validation, seed, random):
    index = index_of([1] * len(keys), keys=np.array(keys, np.uint64))
    train, held_out = split(index, validation=validation, seed=seed)
    assert not set(train["key"].tolist()) & set(held_out["key"].tolist())
    assert sorted(names(train) + names(held_out)) == names(index)
    assert names(train) == sorted(names(train))
    shuffled = index[random.sample(range(len(keys)), len(keys))]
    assert set(names(split(shuffled, validation=validation, seed=seed)[1])) == set(
        names(held_out)
    )


def test_about_the_share_is_held_out():
    index = index_of([1] * 20_000)
    for validation in (0.01, 0.3):
        held_out = split(index, validation=validation, seed=1)[1]
        assert len(held_out) == pytest.approx(20_000 * validation, rel=0.2)
    assert names(split(index, validation=0.3, seed=2)[1]) != names(held_out)


@pytest.mark.parametrize(("of_first", "shared"), [(6, [2, 4]), (4, [2])])
def test_what_shares_a_chunk_of_one_corpus_with_validation_is_left_out(
    of_first, shared
):
    """Six sequences of one run, or the last two of a second run of other chunks; the first alone is held out."""
    references = [[10, 11], [12], [13, 11], [14], [10], [15]]
    numbers = np.arange(1000, dtype=np.uint64)
    is_held_out = keyed_hash(numbers, seed=3, stage="split") < threshold_for(0.1)
    keys = np.array([numbers[is_held_out][0], *numbers[~is_held_out][:5]])

    def run(corpus, places):
        own = [references[place] for place in places]
        ids, ends = np.array([*chain(*own)], np.int64), np.cumsum([0, *map(len, own)])
        return SimpleNamespace(
            corpus_id=f"corpus {corpus}",
            chunk_ids=lambda: (ids, ends),
            read_index=lambda run: index_of([1] * len(own), run=run, keys=keys[places]),
        )

    runs = [
        run(0, range(of_first)),
        *([run(1, range(of_first, 6))] if of_first < 6 else []),
    ]
    how = Arrangement(
        mixture=EVERYTHING,
        validation=0.1,
        shared_chunks="leave-out",
        pack=None,
        seed=3,
    )
    splits, left_out = arranged(runs, how)
    assert splits["validation"]["key"].tolist() == [keys[0]]
    assert {*keys[1:].tolist()} - {*splits["train"]["key"].tolist()} == {
        *keys[shared].tolist()
    }
    assert left_out == len(shared)


def rows_of(lengths, row_tokens):
    index, offsets = packed(index_of(lengths), row_tokens=row_tokens)
    assert index["length"].tolist() == [lengths[place] for place in index["place"]]
    return [index["place"][first:last].tolist() for first, last in pairwise(offsets)]


def test_eight_of_65536_fill_a_row():
    assert rows_of([65_536] * 20, row_tokens=524_288) == [
        list(range(8)),
        list(range(8, 16)),
        list(range(16, 20)),
    ]


def test_each_goes_where_the_least_room_suffices():
    assert rows_of([3, 6, 5, 4, 2], row_tokens=10) == [[0, 2, 4], [1, 3]]


def test_of_rows_with_the_same_room_the_last_one_is_filled():
    assert rows_of([6, 6, 3], row_tokens=10) == [[0], [1, 2]]


def test_a_sequence_longer_than_a_row():
    with pytest.raises(RecipeError) as error:
        rows_of([1, 11], row_tokens=10)
    assert (error.value.where, error.value.value) == ("pack", "10")


def test_nothing_to_pack():
    assert rows_of([], row_tokens=10) == []


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(40, 90))
def test_packing_loses_nothing_and_overfills_no_row(lengths, row_tokens):
    rows = rows_of(lengths, row_tokens)
    assert sorted(number for row in rows for number in row) == list(range(len(lengths)))
    tokens = np.array([sum(lengths[number] for number in row) for row in rows])
    assert all((tokens > 0) & (tokens <= row_tokens))
    assert [row[0] for row in rows] == sorted(min(row) for row in rows)
    assert (
        len(rows) < 2 or np.sort(tokens)[:2].sum() > row_tokens
    )  # no two rows would fit into one


def test_the_splits_of_rows_are_those_that_there_are():
    split = SplitResult(rows=1, sequences=2, documents=3, tokens=4)
    assert RowsResult(left_out=0, train=split).splits == {"train": split}
    assert [*RowsResult(left_out=0, train=split, validation=split).splits] == [
        "train",
        "validation",
    ]
