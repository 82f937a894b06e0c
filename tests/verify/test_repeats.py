"""Repeats: the words and runs of any text, and who repeats whom, against the rule in plain Python and the run's own code."""

import random
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import plain_rule
from invented import GAPS, SCRIPTS, Corpus
from nextlong.retrieval.near_duplicates.shingles import hash_words, ngrams
from nextlong.verify import near_duplicates as repeats
from nextlong.verify.near_duplicates import _ComparedTexts, _runs_within


@pytest.fixture(scope="module", params=[1, 50, repeats._ROWS_AT_ONCE])
def _rows_at_once(request):
    """Each text by itself, a few at a time, all at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeats, "_ROWS_AT_ONCE", request.param)
        yield


@pytest.mark.usefixtures("_rows_at_once")
@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**9))
def test_invented_texts_are_judged_by_the_rule(seed):
    draw = random.Random(seed)
    size = draw.choice([40, 200, 1000])
    pieces = [text[first : first + size] for text in Corpus(seed).documents for first in range(0, len(text), size)]
    texts = draw.sample(pieces, min(len(pieces), 12))
    weights = np.full(1 << 6, 1024, np.uint16)
    weights[: draw.choice([0, 30])] = 37
    threshold = draw.choice([0.3, 0.8, 0.95, 1.0])
    those = draw.sample(range(len(texts)), draw.randint(1, len(texts)))
    others = draw.sample(range(len(texts)), draw.randint(1, len(texts)))
    compared = _ComparedTexts(repeats._numbers_of_words(texts), weights=weights, threshold=threshold)
    found = {(a, b) for a, b, _ in compared.repeated(those, others)}
    assert found == {
        (a, b)
        for a in those
        for b in others
        if a != b and plain_rule.repeats(texts[a], texts[b], weights.tolist(), threshold)
    }


def test_texts_without_runs_repeat_nothing_but_the_same_words():
    texts = _ComparedTexts(
        repeats._numbers_of_words(["", "?!", "one two", "One, two.", "one"]), weights=None, threshold=0.8
    )
    assert {(a, b) for a, b, _ in texts.repeated(range(5), range(5))} == {(2, 3), (3, 2)}


LETTERS = "".join(SCRIPTS) + "".join(GAPS) + "İıẞßΣςσǅŉﬁ\n\r\x00"


def assert_same_words(text):
    (words,) = repeats._numbers_of_words([text])
    assert words.tolist() == hash_words(text).hashes.tolist()
    assert words.tolist() == [plain_rule.word_number(word) for word in plain_rule.words_of(text)]
    runs, _ = _runs_within([words])
    assert runs.tolist() == ngrams(hash_words(text).hashes, 3).tolist()
    assert runs.tolist() == [plain_rule.run_number(run) for run in plain_rule.runs_of(plain_rule.words_of(text))]


@settings(deadline=None)
@given(st.text(max_size=80))
def test_both_sides_find_the_same_words_in_any_text(text):
    assert_same_words(text)


@settings(deadline=None)
@given(st.text(alphabet=LETTERS, max_size=80))
def test_both_sides_find_the_same_words_in_odd_scripts(text):
    assert_same_words(text)


def test_both_sides_find_the_same_words_whatever_the_letter():
    codes = [code for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    text = " ".join(f"a{chr(code)}b" for code in codes)
    (words,) = repeats._numbers_of_words([text])
    assert np.array_equal(words, hash_words(text).hashes)
    cased = "".join(f"a{chr(code)}b " for code in codes if chr(code).lower() != chr(code) or code % 97 == 0)
    assert_same_words(cased)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("ÄPFEL", "äpfel", True),
        ("İstanbul", "istanbul", False),
        ("İstanbul", "İSTANBUL", True),
        ("ΟΔΟΣ", "οδοσ", True),
        ("ΟΔΟΣ", "οδος", False),
        ("ẞ", "ß", True),
        ("ǅ", "ǆ", True),
    ],
)
def test_every_letter_is_lower_cased_by_itself(one, other, equal):
    words = repeats._numbers_of_words([one, other])
    assert (words[0].tolist() == words[1].tolist()) is equal


@pytest.mark.parametrize("text", ["x" * 300_000, "ab,\tc" * 60_000, "漢字" * 80_000, "y" * 131_072 + "z w"])
def test_no_word_is_parted_however_long(text):
    (words,) = repeats._numbers_of_words([text])
    assert np.array_equal(words, hash_words(text).hashes)


def test_words_do_not_depend_on_the_texts_beside_them():
    texts = [text for seed in range(5) for text in Corpus(seed).documents] + ["", "?!", "a" * 300_000, "漢"]
    assert [words.tolist() for words in repeats._numbers_of_words(texts)] == [
        repeats._numbers_of_words([text])[0].tolist() for text in texts
    ]
    assert repeats._numbers_of_words([]) == []
