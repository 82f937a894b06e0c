"""Shared words: the rare words that two texts have in common."""

from hypothesis import given
from hypothesis import strategies as st

from nextlong.picture import shared_words


def test_words_that_many_texts_hold_are_not_marked():
    texts = [f"the rope my over {word}" for word in ("anchor", "sail", "reef", "tide") * 10]
    known = shared_words.frequencies([*texts, "anchor plankton"])
    assert shared_words.shared("The Plankton over my anchor", "plankton: the anchor, my, over", known) == ["plankton"]


def test_the_rarest_words_are_marked_when_there_are_many():
    words = [f"w{number:02}" for number in range(60)]
    known = shared_words.frequencies([*words[:40], *(" ".join(words[:40]) for _ in range(1)), *["x"] * 100])
    assert len(shared_words.shared(" ".join(words), " ".join(words), known)) == 20
    assert set(words[40:]) == set(shared_words.shared(" ".join(words), " ".join(words), known))


def test_a_sample_too_small_to_tell_hides_nothing():
    assert shared_words.shared("The anchor", "the END", shared_words.frequencies(["the"] * 5)) == ["the"]


def test_letters_of_scripts_without_blanks_are_words():
    assert shared_words.words_of("日本語 text") == {"日", "本", "語", "text"}


@given(st.text(), st.text())
def test_what_is_shared_stands_in_both(one, other):
    shared = shared_words.shared(one, other, shared_words.frequencies([]))
    common = shared_words.words_of(one) & shared_words.words_of(other)
    assert set(shared) <= common
    assert shared == sorted(shared)
    assert len(shared) == min(20, len(common))
