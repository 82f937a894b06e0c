"""Attention work and left contexts against counts token by token."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong.runs.statistics.attention import RANKS, exposure, imbalance
from nextlong.runs.statistics.measure import measure


def work_of(lengths, ranks):
    """The same token by token."""
    lefts = np.concatenate([np.arange(1, length + 1) for length in lengths])
    slices = np.array_split(lefts, 2 * ranks)
    works = [slices[rank].sum() + slices[-1 - rank].sum() for rank in range(ranks)]
    return max(works) / np.mean(works)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=9), st.sampled_from(RANKS))
def test_equals_a_count_token_by_token(lengths, ranks):
    lengths = [
        2 * ranks * length for length in lengths
    ]  # so that slices are whole tokens
    assert imbalance(np.array(lengths), ranks=ranks) == pytest.approx(
        work_of(lengths, ranks)
    )


def test_one_document_is_even_and_many_are_not():
    assert imbalance(np.array([1024]), ranks=8) == pytest.approx(1)
    assert imbalance(np.array([512, *[8] * 64]), ranks=8) > 1.5


def test_a_run_says_it_for_both_masks(standard_run):
    found = {
        (work.mask, work.ranks): work for work in measure(standard_run).attention.work
    }
    assert set(found) == {
        (mask, ranks) for mask in ("sequence", "document") for ranks in RANKS
    }
    assert found["sequence", 2].mean == pytest.approx(
        1
    )  # two sequences of one length, of which each device has a half
    assert 1 < found["document", 8].mean <= found["document", 8].worst


def test_extended_sequences_are_one_document(measured):
    assert {work.mask for work in measured.attention.work} == {"sequence"}
    assert [one.mask for one in measured.attention.exposure] == ["sequence"]


@given(st.lists(st.integers(1, 300), min_size=1, max_size=9))
def test_exposure_equals_a_count_token_by_token(lengths):
    lefts = np.concatenate([np.arange(1, length) for length in lengths])
    buckets = np.where(
        lefts < 8, 0, np.floor(np.log2(np.maximum(lefts, 1))).astype(int) - 2
    )
    by_mask = {counted.mask: counted for counted in exposure([np.array(lengths)])}
    counted = by_mask.get(
        "document" if len(lengths) > 1 else "sequence"
    )  # none where every document is one token
    found = [] if counted is None else [one.count for one in counted.histogram]
    assert found == np.bincount(buckets).tolist()


def test_means_and_bounds_by_hand():
    by_sequence, by_document = exposure([np.array([2, 9]), np.array([11])])
    assert [(one.low, one.high, one.count) for one in by_sequence.histogram] == [
        (1, 7, 14),
        (8, 15, 6),
    ]
    assert [(one.low, one.high, one.count) for one in by_document.histogram] == [
        (1, 7, 15),
        (8, 15, 4),
    ]
    assert (by_sequence.targets, by_sequence.mean) == (20, 5.5)
    assert by_document.mean == (1 + 36 + 55) / 19


def test_a_run_says_the_exposure_of_both_masks(standard_run):
    stats = measure(standard_run)
    found = {one.mask: one for one in stats.attention.exposure}
    assert found["sequence"].targets == stats.sequences * (
        stats.setting.target_tokens - 1
    )
    assert (
        found["document"].mean
        < found["sequence"].mean
        == stats.setting.target_tokens / 2
    )
