"""What the words of texts weigh, against sums that are written out word by word."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nextlong.retrieval.near_duplicates.rule import Texts, covered, highest, running
from nextlong.retrieval.near_duplicates.shingles import SHINGLE_WORDS, shingles


def test_thresholds_are_compared_in_whole_millionths():
    fourteen = shingles(
        [" ".join(f"w{number}" for number in range(14))]
    )  # of which ten words count
    texts = Texts.of(
        fourteen, np.full(1, 1024, np.uint16), 0.1 + 0.2
    )  # a little above 0.3
    assert (texts.whole.tolist(), texts.needed.tolist()) == ([10_240], [3072])


@given(st.lists(st.integers(0, 9), min_size=SHINGLE_WORDS, max_size=30))
def test_a_word_has_the_highest_of_the_shingles_that_it_stands_in(values):
    found = highest(np.array(values, np.uint16)).tolist()
    assert found == [
        max(values[place : place + SHINGLE_WORDS]) for place in range(len(values))
    ]


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=25),
    st.lists(st.sets(st.integers(0, 24), min_size=1), max_size=4),
)
def test_a_word_in_several_shingles_is_covered_once(words, groups):
    groups = [sorted({place % len(words) for place in places}) for places in groups]
    firsts = np.cumsum([0, *map(len, groups)])[:-1] if groups else np.empty(0, np.int64)
    found = covered(
        running(np.array(words, np.int64)),
        np.array([place for places in groups for place in places], np.int64),
        firsts.astype(np.int64),
    )
    held = [
        {
            word
            for place in places
            for word in range(max(0, place - SHINGLE_WORDS + 1), place + 1)
        }
        for places in groups
    ]
    assert found.tolist() == [sum(words[word] for word in one) for one in held]


WEIGHTS = np.full(1, 1000, np.uint16)  # every word alike


def test_the_words_at_the_edges_of_a_text_weigh_nothing():
    texts = Texts.of(
        shingles(
            [
                " ".join(f"w{n}" for n in range(20)),
                "",
                " ".join(f"x{n}" for n in range(12)),
            ]
        ),
        WEIGHTS,
        0.5,
    )
    assert texts.whole.tolist() == [16_000, 0, 8_000]
    assert texts.needed.tolist() == [8_000, 0, 4_000]


def test_a_text_is_suspect_where_enough_of_its_words_are_shared():
    texts = Texts.of(shingles([" ".join(f"w{n}" for n in range(20))] * 2), WEIGHTS, 0.5)
    of_second = texts.owners == 1
    for shared, suspected in (
        (np.zeros(len(texts.owners), bool), [False, False]),
        (of_second, [False, True]),
    ):
        assert texts.suspects(shared).tolist() == suspected
