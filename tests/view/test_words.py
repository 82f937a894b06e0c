"""An index of words: against a look at every text, for any text and any term."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nextlong.view import words
from nextlong.view.documents import contain

# Characters whose case, width or separation is unlike that of others.
ODD = "aAbß\u1e9eSs\u017fKk\u212aıİiςσΣ\u0390\u1fd3ﬁﬆﬅ東京。、-_.'’\"  \n\t\x00é\u0301\u0345ιΙ𐐀𐐨"
TEXTS = st.lists(st.text(st.sampled_from(ODD) | st.characters(codec="utf-8")))
TERMS = st.text(st.sampled_from(ODD) | st.characters(codec="utf-8"), min_size=1)


def held(texts, term):
    return words.may_contain(words.index_words(texts), term)[: len(texts)].tolist()


@given(TEXTS, TERMS, st.data())
@example(["Straße", "STRASSE", "straẞe"], "SS", None)
@example(["Καλός", "ΚΑΛΌΣ"], "λόσ", None)
@example(["\u0390"], "\u1fd3", None)
@example(["\u1fe3"], "\u03b0", None)
@example(["\ufb05"], "\ufb06", None)
def test_no_text_is_missed_and_for_a_word_none_is_added(texts, term, data):
    if data is not None and texts:
        # A part of a text, so that something is found.
        text = data.draw(st.sampled_from(texts))
        start = data.draw(st.integers(0, len(text)))
        term = text[start : start + data.draw(st.integers(1, 9))] or term
    expected = contain(texts, f'"{term}"').tolist() if '"' not in term else None
    if expected is None or not term:
        return
    answer = held(texts, term)
    if words.is_word(term):
        assert answer == expected
    else:
        assert all(own >= wanted for own, wanted in zip(answer, expected, strict=True))


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        ("sail", [True, True, False, False]),
        ("AIL", [True, True, False, False]),
        ("il", [True, True, False, False]),
        ("京", [False, False, True, False]),
        ("東京", [False, False, True, False]),
        ("reef sail", [True, False, False, False]),
        ("ee", [True, False, False, False]),
    ],
)
def test_terms_of_any_length_and_script_are_found(term, expected):
    assert (
        held(["A Sail, a reef", "assailant", "私は東京に行く。", ""], term) == expected
    )


def test_words_are_indexed_once_with_their_texts():
    batch = words.index_words(["The cat the CAT", "cat-cat\nthe", "", "\t.,"])
    rows = {row["word"]: row["texts"] for row in batch.to_pylist() if row["word"]}
    assert rows == {"the": [0, 1], "cat": [0, 1]}


def test_the_last_text_of_a_full_batch_is_numbered():
    texts = ["x"] * (words.MAX_TEXTS - 1) + ["needle"]
    assert held(texts, "needle") == [False] * (words.MAX_TEXTS - 1) + [True]


@pytest.mark.parametrize(
    ("term", "expected"),
    [("sail", True), ("Straße", True), ("東京", True), ("a b", False), ("a.", False)],
)
def test_a_word_has_no_separators(term, expected):
    assert words.is_word(term) is expected


def test_separators_are_the_same_for_python_and_arrow():
    text = "a\x01b/c:d@e[f`g{h\x7fi\u2000j\u206fk\u3000l\u303fm\x00n\xa0o"
    batch = words.index_words([text])
    assert set(batch.column("word").to_pylist()) == set(
        re.split(words._SEPARATORS, text)
    )
