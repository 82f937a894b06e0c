"""The words that LSA counts."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nextlong.retrieval.encoders.lsa_words import cut_ascii_words, cut_words


def words_of(text: str) -> list[str]:
    words, bounds = cut_words([text])
    assert bounds.tolist() == [0, len(words)]
    return [word.decode("utf-32-le") for word in words.to_pylist()]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The CAT's hat_2, a 42nd!", ["the", "cat", "hat_2", "42nd"]),
        ("naïve – “Ångström” ΣΊΣΥΦΟΣ", ["naïve", "ångström", "σίσυφοσ"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("自然言語。処理", ["自然", "然言", "言語", "処理"]),
        ("Python3入門書 and 東x京都", ["python3", "入門", "門書", "and", "京都"]),
        ("한국어", ["한국", "국어"]),
        ("ไทย", ["ไท", "ทย"]),
        ("\U00020000\U00020001\U00020002", ["\U00020000\U00020001", "\U00020001\U00020002"]),
        ("a b — \n\x00 😀", []),
        ("", []),
    ],
)
def test_words_are_cut_as_written_by_hand(text, words):
    assert words_of(text) == words


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.sampled_from("ab 日本。é\n_x"), max_size=12), min_size=1, max_size=6))
def test_words_of_a_batch_are_the_words_of_its_texts(texts):
    words, bounds = cut_words(texts)
    flat = [word.decode("utf-32-le") for word in words.to_pylist()]
    parts = [flat[first:last] for first, last in pairwise(bounds)]
    assert parts == [words_of(text) for text in texts]


@given(st.lists(st.text(st.characters(max_codepoint=127), max_size=12), min_size=1, max_size=6))
def test_ascii_words_are_the_same_but_for_single_characters(texts):
    words, bounds = cut_ascii_words(texts)
    flat = [word.decode("ascii") for word in words.to_pylist()]
    for text, (first, last) in zip(texts, pairwise(bounds), strict=True):
        assert [word for word in flat[first:last] if len(word) > 1] == words_of(text)
    assert bounds[-1] == len(flat)
