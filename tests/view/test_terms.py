"""What a search box asks for: words, phrases in quotes, and a snippet that shows them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong.view import terms


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("serverless lambda", ["serverless", "lambda"]),
        ('"market price" supply', ["market price", "supply"]),
        ('"not closed', ["not closed"]),
        ("", []),
        ('"" a', ['""', "a"]),
    ],
)
def test_words_and_phrases(text, parsed):
    assert terms.parse(text) == parsed


def test_every_term_has_to_be_there_and_none_is_a_pattern():
    texts = ["Lambda is a SERVERLESS service", "serverless lambda", "lambda", "a.b", "axb"]
    assert terms.contain(texts, "serverless lambda").tolist() == [True, True, False, False, False]
    assert terms.contain(texts, '"serverless lambda"').tolist() == [False, True, False, False, False]
    assert terms.contain(texts, "a.b").tolist() == [False, False, False, True, False]


def test_a_snippet_begins_a_little_before_the_first_term():
    pieces = terms.snippet("x " * 500 + "the Reef here and a reef there " + "y " * 500, "reef").pieces
    assert [text for text, is_term in pieces if is_term] == ["Reef", "reef"]
    assert pieces[0][0].startswith("…")
    assert pieces[-1][0].endswith("…")


@given(st.text(), st.text())
def test_a_snippet_loses_nothing_and_invents_nothing(text, wanted):
    shown = "".join(piece for piece, _ in terms.snippet(text, wanted).pieces)
    assert shown.strip("…").replace(" ", "") in "".join(text.split())
