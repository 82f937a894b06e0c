"""Known pairs: whatever was learned before, the same near-duplicates as by comparing."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nextlong.retrieval.near_duplicates import known
from nextlong.retrieval.near_duplicates.known import KnownPairs
from nextlong.retrieval.near_duplicates.rule import find_near_duplicates
from nextlong.retrieval.near_duplicates.shingles import documents_of, shingles


class Store:
    """The shingles of texts, whose chunk ids are their places."""

    def __init__(self, texts):
        self.shingles = shingles(texts)
        self.read = []

    def of(self, chunks):
        self.read += chunks.tolist()
        return self.shingles.picked(chunks)


def invented(draw, count):
    """Texts that repeat or contain each other, share passages, or have few words."""
    passage = [f"p{place}" for place in range(105)]
    bases = [[f"b{base}x{place}" for place in range(60)] for base in range(4)]
    texts = []
    for _ in range(count):
        own = list(draw.choice(bases))
        for place in draw.sample(range(60), draw.choice([0, 1, 2, 4])):
            own[place] = f"new{draw.randrange(20)}"
        kind = draw.randrange(6)
        if kind == 0:
            own = own[: draw.choice([3, 8, 20, 40])]
        elif kind == 1:
            own = [f"o{draw.randrange(10**6)}" for _ in range(300)] + passage
        elif kind == 2:
            own += ["and", "so", "on"] * draw.randrange(20)
        texts.append(" ".join(own) + draw.choice(["", ".\n"]))
    return [*texts, "", "?!"]


def same_as_by_comparing(pairs, store, chunks, document, weights):
    found = pairs.against(document).find(chunks)
    expected = find_near_duplicates(
        store.shingles.picked(chunks),
        document=document,
        weights=weights,
        threshold=0.8,
    )
    for one, other in zip(found, expected, strict=True):
        assert one.tolist() == other.tolist()


@settings(deadline=None, max_examples=150)
@given(seed=st.integers(0, 10**9), most_runs=st.sampled_from([0, 2000, 1 << 21]))
def test_known_pairs_are_those_of_the_rule_in_whatever_order_they_are_learned(
    seed, most_runs
):
    draw = random.Random(seed)
    texts = invented(draw, draw.randrange(1, 30))
    store = Store(texts)
    weights = np.full(1 << 4, 1024, np.uint16)
    weights[: draw.randrange(4)] = 100
    pairs = KnownPairs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known, "_MAX_RUNS", most_runs)
        patch.setattr(known, "_MAX_MATCHES", draw.choice([10, 1 << 22]))
        for _ in range(4):
            count = draw.randrange(1, len(texts) + 1)
            learned = draw.sample(range(len(texts)), count)
            pairs.learn(np.array(sorted(learned)), store, weights, 0.8)
            chunks = np.array(draw.sample(learned, draw.randrange(1, count + 1)))
            own = draw.sample(texts, draw.randrange(4))
            (document,) = documents_of([own])
            same_as_by_comparing(pairs, store, chunks, document, weights)


def test_chunks_are_read_once_while_there_is_room():
    store = Store(invented(random.Random(1), 20))
    weights = np.full(1, 1024, np.uint16)
    pairs = KnownPairs()
    for last in (10, 15, 12, 20):
        pairs.learn(np.arange(last), store, weights, 0.8)
    assert sorted(store.read) == list(range(20))
