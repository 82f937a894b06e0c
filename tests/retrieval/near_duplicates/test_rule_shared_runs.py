"""Shared runs: against what each text has, counted one by one."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nextlong.artifacts.corpus_files import ranges
from nextlong.retrieval.near_duplicates.rule import shared_runs

TEXTS = st.lists(
    st.lists(st.sampled_from([3, 5, 7, 11, 1 << 63, (1 << 63) + 1]), max_size=12),
    max_size=6,
)


def of(texts):
    hashes = np.array([run for text in texts for run in text], np.uint64)
    owners = np.repeat(
        np.arange(len(texts), dtype=np.int32), [len(text) for text in texts]
    )
    return shared_runs(hashes, owners)


@settings(deadline=None)
@given(TEXTS)
def test_a_run_has_a_kind_if_another_text_has_it_and_each_run_its_own(texts):
    expected = [
        any(run in other for place, other in enumerate(texts) if place != own)
        for own, text in enumerate(texts)
        for run in text
    ]
    kinds = of(texts).kinds.tolist()
    assert [kind > 0 for kind in kinds] == expected
    shared = {
        (run, kind)
        for run, kind in zip(
            [run for text in texts for run in text], kinds, strict=True
        )
        if kind
    }
    assert (
        len(shared)
        == len({run for run, _ in shared})
        == len({kind for _, kind in shared})
    )


@settings(deadline=None)
@given(TEXTS)
def test_the_holders_of_a_kind_are_the_texts_that_have_it_once_each(texts):
    shared = of(texts)
    assert shared.counts[0] == 0
    for run, kind in zip(
        [run for text in texts for run in text], shared.kinds.tolist(), strict=True
    ):
        if kind:
            holders = shared.holders[
                shared.offsets[kind] : shared.offsets[kind + 1]
            ].tolist()
            assert holders == [place for place, text in enumerate(texts) if run in text]


def test_numbers_that_differ_in_their_lowest_bits_alone_are_not_equal():
    high = 1 << 60
    assert not of([[high, 7], [high + 1, 8]]).kinds.any()
    assert of([[high, 7], [high + 1, 7]]).kinds.astype(bool).tolist() == [
        False,
        True,
        False,
        True,
    ]


def test_ranges_follow_each_other():
    assert ranges(np.array([5, 9, 0]), np.array([2, 0, 3])).tolist() == [5, 6, 0, 1, 2]
    assert ranges(np.array([], np.int64), np.array([], np.int64)).tolist() == []
