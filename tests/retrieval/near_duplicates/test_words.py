"""Words and runs of words: against hand-written values and a plain loop."""

from unicodedata import category

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nextlong.retrieval.near_duplicates.words import hash_words, ngrams


def test_words_are_lower_cased_runs_of_letters_and_digits_with_their_places():
    words = hash_words("Don’t panic: 42 ÄPFEL_don")
    assert words.starts.tolist() == [0, 4, 6, 13, 16, 22]
    assert words.ends.tolist() == [3, 5, 11, 15, 21, 25]
    assert words.hashes[0] == words.hashes[5]
    assert words.hashes[4] == hash_words("äpfel").hashes[0]
    assert len(set(words.hashes.tolist())) == 5


def test_each_letter_of_a_script_without_blanks_is_a_word():
    words = hash_words("ab東京xy")
    assert list(zip(words.starts.tolist(), words.ends.tolist(), strict=True)) == [(0, 2), (2, 3), (3, 4), (4, 6)]


@pytest.mark.parametrize("text", ["", " ", "?!", "\n\n"])
def test_a_text_without_words(text):
    assert len(hash_words(text).hashes) == 0


def test_a_text_longer_than_one_piece_has_the_same_words_as_its_lines():
    line = "alpha beta gamma, delta.\n"
    one = hash_words(line)
    many = hash_words(line * 20_000)
    assert np.array_equal(many.hashes, np.tile(one.hashes, 20_000))
    assert many.starts[-1] == 19_999 * len(line) + one.starts[-1]


@settings(deadline=None)  # the table of letters is built once
@given(st.text(alphabet="aAbé1 .\n-’ß²", max_size=60))
def test_words_match_a_plain_loop(text):
    expected, start = [], None
    for place, char in enumerate(text + " "):
        if char.isalnum() and start is None:
            start = place
        if not char.isalnum() and start is not None:
            expected.append((start, place))
            start = None
    words = hash_words(text)
    assert list(zip(words.starts.tolist(), words.ends.tolist(), strict=True)) == expected
    same = {text[a:b].lower() for a, b in expected}
    assert len(set(words.hashes.tolist())) == len(same)


@settings(deadline=None)  # the table of letters is built once
@given(st.text(max_size=40))
def test_any_text_can_be_hashed(text):
    words = hash_words(text)
    inside = "".join(text[a:b] for a, b in zip(words.starts.tolist(), words.ends.tolist(), strict=True))
    assert inside == "".join(char for char in text if char.isalnum())
    assert not any(category(char).startswith("Z") for char in inside)


# Runs of words


def test_runs_are_equal_where_their_words_are_in_the_same_order():
    runs = ngrams(hash_words("a b c a b c b a").hashes, 3)
    assert len(runs) == 6
    assert runs[0] == runs[3]
    assert len(set(runs.tolist())) == 5
    assert len(ngrams(hash_words("a b").hashes, 3)) == 0


def test_a_run_of_two_words_is_not_the_run_of_one():
    words = hash_words("a a").hashes
    assert ngrams(words, 1)[0] != ngrams(words, 2)[0]
