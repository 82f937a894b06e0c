"""Distinct texts: against comparing each with each."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nextlong.retrieval.near_duplicates.rule import distinct_texts
from nextlong.retrieval.near_duplicates.shingles import Shingles

# Sums are equal for equal runs in another order, too.
TEXTS = st.lists(
    st.lists(st.sampled_from([1, 2, 3]), max_size=3), min_size=1, max_size=9
)


def stored(texts):
    hashes = np.array([run for text in texts for run in text], np.uint64)
    return Shingles(hashes, np.cumsum([0, *map(len, texts)]))


@settings(deadline=None)
@given(TEXTS)
def test_texts_are_of_one_kind_if_they_have_the_same_runs_in_the_same_order(texts):
    distinct = distinct_texts(stored(texts))
    kinds = distinct.kinds.tolist()
    assert all(
        (kinds[a] == kinds[b]) == (texts[a] == texts[b])
        for a in range(len(texts))
        for b in range(len(texts))
    )
    bounds = distinct.texts.offsets
    of_kind = [
        distinct.texts.hashes[bounds[kind] : bounds[kind + 1]].tolist()
        for kind in range(len(bounds) - 1)
    ]
    assert [of_kind[kind] for kind in kinds] == texts


@settings(deadline=None)
@given(TEXTS, st.data())
def test_pairs_of_kinds_are_those_of_all_their_texts(texts, data):
    distinct = distinct_texts(stored(texts))
    kind = st.integers(0, int(distinct.kinds.max()))
    paired = data.draw(st.lists(st.tuples(kind, kind), max_size=5))
    kinds, count = distinct.kinds.tolist(), len(texts)
    either = {pair for a, b in paired for pair in ((a, b), (b, a))}
    expected = [
        [a, b]
        for a in range(count)
        for b in range(a + 1, count)
        if (kinds[a], kinds[b]) in either
    ]
    assert (
        distinct.pairs(np.array(paired, np.int64).reshape(-1, 2)).tolist() == expected
    )
