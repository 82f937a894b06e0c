"""Passages of 100 words that texts share, against the slices that the texts were made of."""

import random
from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nextlong.retrieval.near_duplicates.rule import (
    _PASSAGE_WORDS,
    Texts,
    repeated_passages,
)
from nextlong.retrieval.near_duplicates.shingles import shingles

STOCK = [f"stock{number}" for number in range(160)]


def pairs(texts):
    """Return the pairs of texts that share a passage, with every run that stands in two of them told as shared."""
    held = Texts.of(
        shingles([" ".join(words) for words in texts]), np.full(1, 1024, np.uint16), 0.8
    )
    _, which = np.unique(held.hashes, return_inverse=True)
    holders = np.zeros((which.max(initial=-1) + 1, len(texts)), bool)
    holders[which, held.owners] = True
    is_shared = holders.sum(axis=1)[which] > 1
    found = repeated_passages(held, is_shared)
    return sorted(map(tuple, found.tolist()))


def with_own_words(words, name, draw):
    """Return words between some that no other text has."""
    own = iter(f"{name}{number}" for number in range(60))
    return (
        [next(own) for _ in range(draw.randrange(30))]
        + words
        + [next(own) for _ in range(draw.randrange(30))]
    )


@given(st.integers(0, 10**9))
def test_texts_share_a_passage_where_a_hundred_words_of_their_slices_are_the_same(seed):
    draw = random.Random(seed)
    slices = [
        (first := draw.randrange(60), first + draw.randint(90, 110))
        for _ in range(draw.randrange(2, 6))
    ]
    texts = [
        with_own_words(STOCK[first:last], f"own{n}x", draw)
        for n, (first, last) in enumerate(slices)
    ]
    expected = [
        (one, other)
        for one, other in combinations(range(len(texts)), 2)
        if min(min(slices[one][1], slices[other][1]), len(STOCK))
        - max(slices[one][0], slices[other][0])
        >= _PASSAGE_WORDS
    ]
    assert pairs(texts) == expected


def test_a_hundred_words_that_are_interrupted_are_none():
    whole = STOCK[:120]
    assert pairs([whole, [*whole[:60], "x", *whole[60:]]]) == []
    assert pairs([whole, ["x", *whole[:100], "y", *whole[100:]]]) == [(0, 1)]


def test_a_passage_does_not_reach_over_the_end_of_a_text():
    assert pairs([STOCK[:60], STOCK[60:130], STOCK[:130]]) == []


def test_texts_of_few_words_have_none():
    assert pairs([["the", "end"], ["the", "end"], []]) == []
