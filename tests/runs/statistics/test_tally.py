"""Counts and quantiles of a stream against Python's own counting."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong.runs.statistics import tally
from nextlong.runs.statistics.tally import Spread, Tally

integers = st.lists(st.integers(-(2**40), 2**40) | st.integers(0, 5), max_size=30)


def filled(*blocks):
    counted = Tally()
    for block in blocks:
        counted.add(np.array(block, np.int64))
    return counted


@pytest.fixture(params=[1, 1 << 20], ids=["merged-at-once", "merged-late"])
def pending(request, monkeypatch):
    monkeypatch.setattr(tally, "_PENDING", request.param)


@pytest.mark.usefixtures("pending")
def test_equal_values_of_different_blocks_are_counted_together():
    values, counts = filled([5, 3, 5], [], [3, -1, 3]).counted()
    assert values.tolist() == [-1, 3, 5]
    assert counts.tolist() == [1, 3, 2]


def test_counts_can_be_given():
    counted = filled([7])
    counted.add(np.array([7, 9, 9]), np.array([10, 20, 300]))
    assert [column.tolist() for column in counted.counted()] == [[7, 9], [11, 320]]


def test_a_spread_by_hand():
    # Sorted: 1 2 3 4 5 6 7 8 9 100; the 1st, 5th and 9th of ten.
    assert filled([100, 3, 2, 1], [9, 8, 7, 6, 5, 4]).spread() == Spread(
        10, 14.5, 1, 5, 9, 100
    )
    assert filled([1, 3]).spread(unit=0.5) == Spread(2, 1.0, 0.5, 0.5, 1.5, 1.5)


def test_nothing_has_no_spread():
    assert filled([], []).spread() is None


@given(st.lists(integers, max_size=6))
def test_it_counts_as_python_does(blocks):
    counted = filled(*blocks)
    values, counts = counted.counted()
    expected = Counter(value for block in blocks for value in block)
    assert dict(zip(values.tolist(), counts.tolist(), strict=True)) == expected
    assert values.tolist() == sorted(expected)
    spread = counted.spread()
    for name, share in (("p10", 0.1), ("p50", 0.5), ("p90", 0.9)) if spread else ():
        value = getattr(spread, name)
        assert (
            sum(count for other, count in expected.items() if other <= value)
            >= share * spread.count
        )
        assert (
            sum(count for other, count in expected.items() if other < value)
            < share * spread.count
        )


@given(
    values=integers,
    cuts=st.lists(
        st.integers(-(2**40), 2**40), min_size=2, max_size=8, unique=True
    ).map(sorted),
)
def test_a_histogram_counts_every_value_within_the_edges_once(values, cuts):
    found = filled(values).histogram(edges=np.array(cuts, np.int64))
    assert sum(own.count for own in found) == sum(
        cuts[0] <= value < cuts[-1] for value in values
    )
    assert [own.count for own in found] == [
        sum(own.low <= value <= own.high for value in values) for own in found
    ]
    assert not found or (found[0].count and found[-1].count)
    assert all(before.high + 1 == after.low for before, after in pairwise(found))
