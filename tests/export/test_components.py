"""Mixtures of components: six sequences by hand, and what must always hold against one sequence at a time."""

from collections import Counter, defaultdict
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.export.test_arrange import index_of, names

from nextlong.errors import CorpusError, RecipeError
from nextlong.export.arrange import Arrangement, arranged
from nextlong.export.components import bucket_name, buckets_of
from nextlong.export.mixture import MIXTURES, Mixture, check_mixture

# Two runs: sequences of 100 tokens ("64-128"), and of 8 to 40.
LONG = [100, 100, 100]
SHORT = [8, 33, 12, 40, 9, 10]


def mixed(runs, mixture, *, validation=0.0):
    """Return the training sequences of runs, each a list of lengths."""
    held = [
        SimpleNamespace(
            read_index=lambda run: index_of(runs[run], run=run), chunk_ids=None
        )
        for _ in runs
    ]
    how = Arrangement(
        mixture=mixture,
        validation=validation,
        shared_chunks="keep",
        pack=None,
        seed=0,
    )
    splits, _ = arranged(held, how)
    return splits["train"]


@pytest.mark.parametrize(
    ("tokens", "name"),
    [
        (1, "1-2"),
        (8_191, "4k-8k"),
        (8_192, "8k-16k"),
        (16_383, "8k-16k"),
        (65_536, "64k-128k"),
        (1 << 19, "512k-1M"),
        (1 << 20, "1M-2M"),
    ],
)
def test_buckets_have_the_names_that_marin_gives_them(tokens, name):
    assert bucket_name(tokens) == name


@given(st.lists(st.integers(1, 1 << 52), min_size=1))
def test_a_bucket_is_the_power_of_two_below(lengths):
    powers = [length.bit_length() - 1 for length in lengths]
    assert buckets_of(np.array(lengths)).tolist() == powers


def test_replay_gives_two_thirds_of_the_tokens_to_the_second_run():
    index = mixed([LONG, [10] * 200], MIXTURES["replay-66"])
    tokens = Counter()
    for run, length in zip(index["run"], index["length"], strict=True):
        tokens[int(run)] += int(length)
    assert (tokens[0], tokens[1]) == (300, 580)  # 300 · 66 / 34 = 582


def test_balanced_lengths_give_each_bucket_the_tokens_of_the_smallest():
    index = mixed([LONG, SHORT], MIXTURES["balanced-lengths"])
    tokens = Counter()
    for length in index["length"].tolist():
        tokens[bucket_name(length)] += length
    # 8 + 12 + 9 + 10 are all of the smallest bucket; no sequence of 100 fits.
    assert tokens == {"8-16": 39, "32-64": 33}


def test_named_buckets_are_mixed_and_others_left_out():
    mixture = Mixture(components="lengths", names=("8-16", "64-128"), weights=(3, 1))
    index = mixed([LONG, SHORT], mixture)
    assert Counter(index["length"].tolist()) == {8: 1, 12: 1, 9: 1, 10: 1, 100: 1}


def test_a_name_that_is_no_component():
    mixture = Mixture(components="lengths", names=("8k-16k",), weights=(1,))
    with pytest.raises(CorpusError) as error:
        mixed([LONG, SHORT], mixture)
    assert error.value.where == "8k-16k of the mix"
    assert "8-16, 32-64, 64-128" in error.value.fix


def test_a_curriculum_goes_from_short_to_long_buckets():
    index = mixed([LONG, SHORT], Mixture(order="curriculum"))
    plain = mixed([LONG, SHORT], Mixture())
    expected = sorted(
        plain.tolist(), key=lambda sequence: sequence[3].bit_length()
    )  # stable, as within a bucket the runs stay interleaved
    assert index.tolist() == expected
    assert index["length"].tolist()[-3:] == LONG


def test_a_scarce_component_is_repeated_as_often_as_allowed():
    mixture = Mixture(weights=(1, 1), repeat=3)
    index = mixed([[1] * 100, [1] * 5], mixture)
    uses = Counter(names(index))
    assert sum(uses[0, place] for place in range(100)) == 15
    assert [uses[1, place] for place in range(5)] == [3] * 5


def test_held_out_sequences_are_not_repeated():
    runs = [
        SimpleNamespace(
            read_index=lambda run: index_of([1] * 60, run=run),
            chunk_ids=lambda: (np.empty(0, np.int64), np.zeros(61, np.int64)),
        )
        for _ in range(2)
    ]
    how = Arrangement(
        mixture=Mixture(weights=(1, 3), repeat=2),
        validation=0.3,
        shared_chunks="keep",
        pack=None,
        seed=0,
    )
    splits, _ = arranged(runs, how)
    assert max(Counter(names(splits["validation"])).values()) == 1
    assert max(Counter(names(splits["train"])).values()) == 2


def test_a_split_without_a_component():
    with pytest.raises(CorpusError) as error:
        mixed([LONG, []], MIXTURES["replay-66"])
    assert error.value.where == "run 1 of the mix"


@given(
    st.lists(st.lists(st.integers(1, 300), max_size=30), min_size=1, max_size=3).filter(
        any
    ),
    st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    st.sampled_from(["sequences", "tokens"]),
    st.integers(1, 3),
)
def test_any_temperature_gives_each_bucket_its_share(runs, temperature, by, repeat):
    mixture = Mixture(
        components="lengths", temperature=temperature, by=by, repeat=repeat
    )
    index = mixed(runs, mixture)
    amounts = defaultdict(list)
    for lengths in runs:
        for length in lengths:
            amounts[length.bit_length()].append(length if by == "tokens" else 1)
    sizes = {bucket: sum(values) for bucket, values in amounts.items()}
    shares = {bucket: size**temperature for bucket, size in sizes.items()}
    scale = min(
        repeat * size / Fraction(str(float(shares[bucket])))
        for bucket, size in sizes.items()
    )
    used = Counter()
    for length in index["length"].tolist():
        used[length.bit_length()] += length if by == "tokens" else 1
    for bucket, values in amounts.items():
        wanted = float(scale) * shares[bucket]
        assert wanted - max(values) - 1e-6 <= used[bucket] <= wanted + 1e-6
    assert max(Counter(names(index)).values(), default=0) <= repeat


@pytest.mark.parametrize(
    ("mixture", "where"),
    [
        (Mixture(weights=(1,), temperature=0.5), "--temperature"),
        (Mixture(temperature=1.5), "--temperature"),
        (Mixture(components="lengths", weights=(1, 2)), "--components lengths"),
        (Mixture(names=("a",), weights=(1,)), "--components runs"),
        (Mixture(components="lengths"), "--components lengths --repeat 1"),
        (Mixture(repeat=2), "--components runs --repeat 2"),
        (Mixture(weights=(1, 2), repeat=0), "--mix and --repeat"),
        (
            Mixture(components="lengths", names=("8-16",), weights=(-1.0,)),
            "--mix and --repeat",
        ),
        (
            Mixture(components="lengths", names=("8-16",), weights=(float("inf"),)),
            "--mix and --repeat",
        ),
        (Mixture(components="lengths", names=("8-16",), weights=(1, 2)), "--mix"),
        (
            Mixture(components="lengths", names=("8-16", "8-16"), weights=(1, 2)),
            "--mix",
        ),
    ],
)
def test_settings_that_contradict_each_other(mixture, where):
    with pytest.raises(RecipeError) as error:
        check_mixture(mixture)
    assert error.value.where == where
