"""Cuts by hand: within a character, before a newline, of less than a character."""

from types import SimpleNamespace

import numpy as np
import pytest

from nextlong.schemas import JOINT, META, NEGATIVE, Layout
from nextlong.tokens.tokenizer import train_bpe
from nextlong.verify.cuts import Tokenized, cut_problems

TEXT = "日本\nab"  # three tokens each of the first two characters, then one each
RUN = SimpleNamespace(
    layout=Layout.EXTENDED,
    setting=lambda section, key, default=None: default,
    special_ids={JOINT: [9]},
    tokenizer=train_bpe([], vocab_size=257),
)


def found(tokens, *, joints, role=NEGATIVE, joint=(9,)):
    """Return what is wrong with a sequence of one chunk, cut to so many tokens, and joints."""
    run = SimpleNamespace(**{**vars(RUN), "special_ids": {JOINT: list(joint)}})
    roles = np.array([role, *[JOINT] * joints])
    ends = np.cumsum([tokens, *[1] * joints])
    one = SimpleNamespace(
        role=roles,
        chunk=np.array([5, *[-1] * joints]),
        start=ends - np.array([tokens, *[1] * joints]),
        end=ends,
        is_truncated=roles != JOINT,
        where=lambda span: f"span {span}",
    )
    return list(cut_problems(run, one, {5: Tokenized(RUN, TEXT)}))


@pytest.mark.parametrize(
    ("tokens", "joints", "problem"),
    [
        (3, 1, ""),
        (3, 3, ""),
        (4, 1, "ends within a character; 1 tokens fewer would not"),
        (5, 1, "ends within a character; 2 tokens fewer would not"),
        (5, 0, "ends within a character; 2 tokens fewer would not"),
        (4, 0, "ends within a character; 1 tokens fewer would not"),
        (7, 1, "ends in a newline but a separator (joint) follows it"),
        (7, 0, ""),
        (8, 1, ""),
        (2, 1, "holds a part of a character only"),
    ],
)
def test_cuts_of_negatives(tokens, joints, problem):
    problems = found(tokens, joints=joints)
    assert [text for text in problems if problem not in text or not problem] == []
    assert bool(problems) == bool(problem)


def test_without_separators_nothing_could_fill():
    assert found(5, joints=0, joint=()) == []


def test_of_what_is_not_extended_less_than_a_character_may_be_left():
    assert found(2, joints=0, role=META) == []
    assert found(4, joints=0, role=META) == ["span 0 ends within a character; 1 tokens fewer would not"]


def test_what_is_visible_is_a_character_at_least():
    assert [Tokenized(RUN, TEXT).visible(tokens) for tokens in (1, 3, 5, 6, 8)] == ["日", "日", "日", "日本", "日本\na"]
