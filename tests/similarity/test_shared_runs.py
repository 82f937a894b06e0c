"""Shared runs: against what each text has, counted one by one."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nextlong.similarity.shared_runs import equal_runs, shared_runs

TEXTS = st.lists(st.lists(st.sampled_from([3, 5, 7, 11, 1 << 63, (1 << 63) + 1]), max_size=12), max_size=6)


def of(texts, among=None):
    hashes = np.array([run for text in texts for run in text], np.uint64)
    owners = np.repeat(np.arange(len(texts), dtype=np.int32), [len(text) for text in texts])
    among = np.ones(len(texts), np.bool_) if among is None else np.isin(np.arange(len(texts)), among)
    return hashes, shared_runs(equal_runs(hashes, owners), owners, among=among)


@settings(deadline=None)
@given(TEXTS)
def test_a_run_is_shared_if_another_text_has_it(texts):
    expected = [
        any(run in other for place, other in enumerate(texts) if place != own)
        for own, text in enumerate(texts)
        for run in text
    ]
    assert of(texts)[1].is_shared.tolist() == expected


@settings(deadline=None)
@given(TEXTS)
def test_parts_are_the_shared_runs_in_reading_order_and_each_of_one_text(texts):
    _, shared = of(texts)
    places = [
        place
        for start, runs in zip(shared.starts.tolist(), shared.runs.tolist(), strict=True)
        for place in range(start, start + runs)
    ]
    assert places == np.flatnonzero(shared.is_shared).tolist()
    owners = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    assert owners[shared.starts].tolist() == owners[shared.starts + shared.runs - 1].tolist() == shared.texts.tolist()


@settings(deadline=None)
@given(TEXTS)
def test_a_segment_is_the_same_runs_wherever_it_stands_and_stands_wherever_one_of_them_does(texts):
    hashes, shared = of(texts)
    runs_of = {}
    for start, runs, segment in zip(shared.starts, shared.runs, shared.segments.tolist(), strict=True):
        own = hashes[start : start + runs].tolist()
        assert runs_of.setdefault(segment, own) == own
    counts = np.bincount(shared.segments, minlength=len(shared.holders))
    assert counts.tolist() == shared.holders.tolist()
    for segment, runs in runs_of.items():
        assert all(np.count_nonzero(hashes == np.uint64(run)) == shared.holders[segment] for run in runs)


def test_copies_share_one_segment():
    shared = of([[1, 2, 3, 4, 9], [8, 1, 2, 3, 4], [5, 6]])[1]
    assert (shared.starts.tolist(), shared.runs.tolist(), shared.holders.tolist()) == ([0, 6], [4, 4], [2])


def test_numbers_that_differ_in_their_lowest_bits_alone_are_not_equal():
    high = 1 << 60
    assert not of([[high, 7], [high + 1, 8]])[1].is_shared.any()
    assert of([[high, 7], [high + 1, 7]])[1].is_shared.tolist() == [False, True, False, True]


def test_what_none_of_the_texts_asked_for_has_is_left_out():
    shared = of([[1, 2, 3], [1, 2, 9], [3, 9]], among=[0])[1]
    assert shared.is_shared.tolist() == [True, True, True, True, True, False, True, False]
    assert (shared.starts.tolist(), shared.runs.tolist()) == ([0, 2, 3, 6], [2, 1, 2, 1])
