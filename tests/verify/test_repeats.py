"""Repeats: the words and runs of any text, and who repeats whom, against the rule in plain Python and the run's own code."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import plain_rule
from invented import Corpus
from nextlong.verify import repeats
from nextlong.verify.repeats import Texts
from nextlong.verify.words import words_of


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
    compared = Texts(words_of(texts), weights=weights, threshold=threshold)
    found = {(a, b) for a, b, _ in compared.repeated(those, others)}
    assert found == {
        (a, b)
        for a in those
        for b in others
        if a != b and plain_rule.repeats(texts[a], texts[b], weights.tolist(), threshold)
    }
    assert compared.repeating(those, others) == {a for a, _ in found}


def test_texts_without_runs_repeat_nothing_but_the_same_words():
    texts = Texts(words_of(["", "?!", "one two", "One, two.", "one"]), weights=None, threshold=0.8)
    assert {(a, b) for a, b, _ in texts.repeated(range(5), range(5))} == {(2, 3), (3, 2)}
