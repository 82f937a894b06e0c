"""Shared words: what two texts have in common beyond what all have."""

from hypothesis import given
from hypothesis import strategies as st

from nextlong.picture import shared_words


def test_common_words_are_those_of_a_third_of_the_texts():
    texts = [f"the rope {word}" for word in ("anchor", "sail", "reef", "tide", "deck", "gull")]
    assert shared_words.common_words(texts) == {"the", "rope"}
    assert shared_words.common_words(texts[:5]) == frozenset()


def test_shared_words_ignore_case_and_leave_the_common_ones_out():
    assert shared_words.shared("The Anchor holds", "an anchor, the END", frozenset({"the"})) == ["anchor"]


def test_letters_of_scripts_without_blanks_are_words():
    assert shared_words.words_of("日本語 text") == {"日", "本", "語", "text"}


@given(st.text(), st.text())
def test_what_is_shared_stands_in_both(one, other):
    shared = shared_words.shared(one, other, frozenset())
    assert set(shared) == shared_words.words_of(one) & shared_words.words_of(other)
    assert shared == sorted(shared)


def test_a_sample_is_spread_and_no_larger_than_asked():
    assert shared_words.sample(range(10), 3) == [0, 4, 8]
    assert shared_words.sample([5], 3) == [5]
