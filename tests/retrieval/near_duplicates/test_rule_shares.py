"""Which texts share enough with one other: against a look at every pair, word by word."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong.retrieval.near_duplicates import rule as shares
from nextlong.retrieval.near_duplicates.rule import Texts, shared_runs
from nextlong.retrieval.near_duplicates.shingles import shingles

ALIKE = np.full(1, 1024, np.uint16)  # every word weighs the same
TEXTS = st.lists(
    st.lists(st.sampled_from("abcdefg"), min_size=10, max_size=24),
    min_size=1,
    max_size=7,
)


def repeating(texts, threshold, *, suspects=None):
    made = Texts.of(shingles([" ".join(words) for words in texts]), ALIKE, threshold)
    shared = shared_runs(made.hashes, made.owners)
    those = made.suspects(shared.kinds > 0) if suspects is None else np.array(suspects)
    return sorted(map(tuple, shares.repeating(made, shared, those).tolist()))


def share(words, other):
    """Of the words that stand in three runs, those that stand in one which the other has, too."""
    runs = {tuple(other[place : place + 3]) for place in range(len(other) - 2)}
    inner = range(2, len(words) - 2)
    covered = [
        any(tuple(words[first : first + 3]) in runs for first in (at - 2, at - 1, at))
        for at in inner
    ]
    return sum(covered) / len(covered)


@given(
    texts=TEXTS,
    threshold=st.sampled_from([0.25, 0.5, 0.8, 1.0]),
    at_once=st.sampled_from([1, 5, 1 << 21]),
    dense=st.sampled_from([0, 1, 1 << 18]),
)
def test_pairs_are_those_that_a_look_at_every_pair_finds(
    texts, threshold, at_once, dense
):
    expected = [
        (one, other)
        for one, words in enumerate(texts)
        for other, beside in enumerate(texts)
        if one != other and share(words, beside) >= threshold
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shares, "_AT_ONCE", at_once)
        patch.setattr(shares, "_RUNS_AT_ONCE", at_once)
        patch.setattr(shares, "_DENSE_MATCHES", dense)
        patch.setattr(shares, "_DENSE_MATCHES_PER_PAIR", min(dense, 8))
        assert repeating(texts, threshold) == expected


def test_phrases_from_here_and_there_make_no_copy_of_either():
    one, other = list("abcdefghijklmn"), list("opqrstuvwxyz12")
    patchwork = one[:7] + other[:7]
    assert share(patchwork, one) == share(patchwork, other) == 0.5
    assert repeating([patchwork, one, other], 0.5) == [(0, 1), (0, 2), (1, 0), (2, 0)]
    assert repeating([patchwork, one, other], 0.6) == []


def test_only_suspects_are_compared_and_none_of_none():
    texts = [list("abcdefghijkl")] * 3
    assert repeating(texts, 0.8) == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    assert repeating(texts, 0.8, suspects=[False, True, False]) == [(1, 0), (1, 2)]
    assert repeating(texts, 0.8, suspects=[False] * 3) == []
