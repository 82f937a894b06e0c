"""Pairs of texts of which drafting filtered one out, with what both hold marked."""

import re

import pytest

import nextlong
from nextlong.artifacts.results import DraftResult
from nextlong.report.page import near_duplicates


def marked(*texts):
    return [
        [text for text, is_shared in pieces if is_shared]
        for pieces in near_duplicates.marked(texts)
    ]


def test_what_both_hold_is_marked_and_nothing_else():
    shared = "The harbour holds a rope"
    alike = "the HARBOUR holds a rope"
    found = marked(f"Before it all. {shared}, and more. Gull", f"Other. {alike}: gull")
    assert found == [[shared], [alike]]


def test_a_long_text_begins_a_little_before_the_first_mark():
    one = "filler words " * 200 + "the harbour holds a rope " + "tail " * 400
    pieces, _ = near_duplicates.marked([one, "the harbour holds a rope"])
    text = "".join(text for text, _ in pieces)
    assert text.startswith("…")
    assert text.endswith("…")
    assert text.index("the harbour") < 200
    assert len(text) < 1000


def test_two_texts_with_nothing_in_common_have_no_mark():
    texts = ("one two three four", "five six seven eight")
    assert marked(*texts) == [[], []]


@pytest.fixture(scope="module")
def run(shared_run):
    return nextlong.open(shared_run)


def test_examples_of_a_run_share_runs_of_words(run):
    remembered = [
        own
        for part in run.steps["draft"].results(DraftResult)
        for own in part.near_duplicate_examples
    ]
    pairs = list(near_duplicates.near_duplicate_pairs(run, limit=3))
    assert len(pairs) == min(3, len(remembered))
    for pair in pairs:
        words = [
            re.findall(r"\w+", "".join(text for text, _ in pieces).lower())
            for _, _, pieces in pair
        ]
        assert set(words[0]) & set(words[1])
