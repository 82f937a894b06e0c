"""KNN: a seed and its nearest."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nextlong.methods import knn
from nextlong.search.metas import draw_seeds

CHARS = np.array([10, 20, 30, 40, 50, 60])
SEEDS = np.array([2, 0, 5, 1])
NEIGHBOURS = [np.array(ids) for ids in ([0, 1, 4], [2, 5, 1], [4, 3, 0], [3, 4, 5])]


def drafts(drafted_chars, reuse, sequences=None):
    found = knn.draft(SEEDS, NEIGHBOURS, CHARS, drafted_chars=drafted_chars, sequences=sequences, reuse=reuse)
    return [draft.tolist() for draft in found]


def test_a_seed_is_followed_by_its_nearest_until_there_is_enough():
    # 30+10+20 | 10+30+60 | 60 | 20+40
    assert drafts(60, "across-sequences") == [[2, 0, 1], [0, 2, 5], [5], [1, 3]]
    assert drafts(60, "across-sequences", sequences=2) == [[2, 0, 1], [0, 2, 5]]


def test_a_seed_without_enough_neighbours_gives_no_sequence():
    # 30+10+20+50 = 110 and 10+30+60+20 = 120 are short of 125; 60+50+40 is not; 20+40+50+60 is not
    assert drafts(125, "across-sequences") == [[5, 4, 3], [1, 3, 4, 5]]


def test_never_gives_each_document_to_the_first_seed_that_reaches_it():
    # 2 takes 0 and 1; 0 is used, so no seed; 5 alone is 60; 1 is used.
    assert drafts(60, "never") == [[2, 0, 1], [5]]
    # 2 and 0 fall short and take nothing; 5 takes 4 and 3; 1 then has none left.
    assert drafts(125, "never") == [[5, 4, 3]]


@given(st.integers(1, 20), st.integers(0, 2**32 - 1), st.integers(1, 400))
def test_never_repeats_no_document_and_both_start_with_the_seed(count, seed, needed):
    rng = np.random.default_rng(seed)
    chars = rng.integers(0, 100, count)
    seeds = draw_seeds(rng.integers(0, 2**63, count).astype(np.uint64), seed=seed)
    neighbours = [rng.permutation(np.setdiff1d(np.arange(count), [own]))[: rng.integers(count)] for own in seeds]
    for reuse in ("across-sequences", "never"):
        found = knn.draft(seeds, neighbours, chars, drafted_chars=needed, sequences=None, reuse=reuse)
        used = np.concatenate([*found, np.empty(0, np.int64)]).tolist()
        assert all(chars[draft[:-1]].sum() < needed <= chars[draft].sum() for draft in found)
        assert all(len(set(draft.tolist())) == len(draft) for draft in found)
        if reuse == "never":
            assert len(set(used)) == len(used)
        else:
            # every seed that can is there, in draw order
            whole = [own for own, near in zip(seeds, neighbours, strict=True) if chars[[own, *near]].sum() >= needed]
            assert [draft[0] for draft in found] == whole


def test_seeds_are_drawn_by_content():
    hashes = np.array([11, 22, 33, 44, 55], np.uint64)
    turned = hashes[::-1]
    assert hashes[draw_seeds(hashes, seed=1)].tolist() == turned[draw_seeds(turned, seed=1)].tolist()
