from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from nextlong.methods import keywords, quest
from nextlong.rng import keyed_hash


def hash_of(keyword):
    return xxhash.xxh3_64_intdigest(keyword.encode())


def lists(*rows):
    return pa.array([[hash_of(keyword) for keyword in row] for row in rows], pa.list_(pa.uint64()))


def index_of(keywords, keyword_of):
    """Return the index of words, in any order."""
    hashes, order = np.unique(np.array([*map(hash_of, keywords)], np.uint64), return_inverse=True)
    return quest.KeywordIndex(hashes, np.append(order, -1)[keyword_of])


def keywords_of(index, words):
    """Return the keyword of each document, None for none."""
    named = {hash_of(word): word for word in words}
    return [named[int(index.keywords[code])] if code >= 0 else None for code in index.keyword_of.tolist()]


def hashes_of(count):
    return np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def test_uninformative_keywords_are_dropped():
    queries = ["What is the best way to bake sourdough bread?", "oven", "la mi"]
    assert keywords._candidate_keywords(queries) == ["bake sourdough bread"]
    assert keywords._candidate_keywords(queries, uninformative=()) == ["bake sourdough bread", "best way"]
    assert keywords._candidate_keywords(["la mi"], min_keyword_chars=5) == ["la mi"]
    assert keywords._candidate_keywords(["la mi"]) == []
    assert keywords._candidate_keywords(["bread"], min_keyword_score=1) == []
    assert keywords._candidate_keywords(["breads"], min_keyword_score=1) == ["breads"]


def test_a_document_gets_one_keyword_that_others_share():
    index = quest.draw_keywords(
        lists(["rye bread", "only here"], ["north sea"], [], ["rye bread"], ["north sea"], ["only there"]),
        hashes_of(6),
        seed=0,
        max_keyword_share=0.5,
    )
    bread, sea = "rye bread", "north sea"
    assert keywords_of(index, [bread, sea]) == [bread, sea, None, bread, sea, None]


def test_rare_and_common_keywords_are_not_drawn():
    candidates = lists(["all", "pair"], ["all", "pair"], ["all", "one"], ["all"])
    common = quest.draw_keywords(candidates, hashes_of(4), seed=0, max_keyword_share=0.5)
    assert keywords_of(common, ["pair"]) == ["pair", "pair", None, None]
    alone = quest.draw_keywords(candidates, hashes_of(4), seed=0, min_keyword_documents=1, max_keyword_share=0.25)
    assert keywords_of(alone, ["one"]) == [None, None, "one", None]


def test_the_draw_among_a_documents_keywords_is_even():
    candidates = lists(*[["first", "second", "third"]] * 3000)
    index = quest.draw_keywords(candidates, hashes_of(3000), seed=1, max_keyword_share=1)
    assert all(900 < count < 1100 for count in np.bincount(index.keyword_of))


def test_documents_of_a_keyword_stand_together():
    index = index_of(["a", "b", "c"], np.array([0, 1, 2, 0, 1, 2, -1]))
    drafts = quest.draft_pieces(index, hashes_of(7), np.full(7, 10), enough=20, sequences=None, seed=0, split_ratio=0)
    assert sorted(sorted(draft.tolist()) for draft in drafts) == [[0, 3], [1, 4], [2, 5]]


def test_a_keyword_that_does_not_fill_a_sequence_is_followed_by_another():
    index = index_of(["a", "b"], np.array([0, 0, 1, 1]))
    (draft,) = quest.draft_pieces(index, hashes_of(4), np.full(4, 10), enough=40, sequences=None, seed=0, split_ratio=0)
    assert index.keyword_of[draft].tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])


@pytest.mark.parametrize(("split_ratio", "rare"), [(0, ()), (0.5, (4, 5)), (1, (0, 1, 2, 3, 4, 5))])
def test_the_rarer_keywords_are_oversampled(split_ratio, rare):
    index = index_of(["four", "two"], np.array([0, 0, 0, 0, 1, 1]))
    drafts = quest.draft_pieces(
        index,
        hashes_of(6),
        np.full(6, 10),
        enough=10,
        sequences=None,
        seed=0,
        split_ratio=split_ratio,
        oversample=3,
    )
    assert Counter(np.concatenate(drafts).tolist()) == {place: 3 if place in rare else 1 for place in range(6)}


def test_no_keyword_no_sequence():
    index = quest.draw_keywords(lists([], []), hashes_of(2), seed=0)
    assert index.keyword_of.tolist() == [-1, -1]
    assert quest.draft_pieces(index, hashes_of(2), np.full(2, 10), enough=5, sequences=None, seed=0) == []
    empty = quest.draw_keywords(lists(), hashes_of(0), seed=0)
    assert (len(empty.keywords), len(empty.keyword_of)) == (0, 0)


@given(
    st.lists(st.lists(st.sampled_from("abcdefg"), max_size=3, unique=True), max_size=25),
    st.integers(0, 2**32 - 1),
    st.integers(1, 300),
    st.integers(1, 3),
)
def test_no_document_twice_in_a_sequence_and_the_order_of_documents_does_not_matter(rows, seed, needed, oversample):
    rng = np.random.default_rng(seed)
    hashes, chars = rng.integers(0, 2**63, len(rows)).astype(np.uint64), rng.integers(0, 100, len(rows))
    sequences = []
    for order in (np.arange(len(rows)), rng.permutation(len(rows))):
        own = [rows[place] for place in order]
        index = quest.draw_keywords(lists(*own), hashes[order], seed=seed, max_keyword_share=0.8)
        drawn = keywords_of(index, "abcdefg")
        assert all(keyword is None or keyword in row for keyword, row in zip(drawn, own, strict=True))
        drafts = quest.draft_pieces(
            index,
            hashes[order],
            chars[order],
            enough=needed,
            sequences=None,
            seed=seed,
            split_ratio=0.5,
            oversample=oversample,
        )
        assert all(len(set(draft.tolist())) == len(draft) for draft in drafts)
        assert all(chars[order][draft].sum() >= needed for draft in drafts)
        if oversample == 1:
            used = np.concatenate([*drafts, np.empty(0, np.int64)]).tolist()
            assert len(set(used)) == len(used)
        sequences.append([hashes[order][draft].tolist() for draft in drafts])
    assert sequences[0] == sequences[1]


def key_of(value, stage):
    return int(keyed_hash(np.array([value], np.uint64), seed=3, stage=stage)[0])


def naive_keywords(rows, hashes, *, share):
    """One keyword for each document, None for none: a slow reading of the paper's rule."""
    documents = Counter(keyword for row in rows for keyword in row)
    choices = [[keyword for keyword in row if 2 <= documents[keyword] <= share * len(rows)] for row in rows]
    return [
        own[key_of(content, "quest.keyword") % len(own)] if own else None
        for own, content in zip(choices, hashes, strict=True)
    ]


def naive_sequences(keyword_of, hashes, tokens, *, enough, split_ratio, oversample):
    """Keyword after keyword, document after document, until a sequence is full."""
    members = {}
    for position in sorted(range(len(hashes)), key=lambda place: key_of(hashes[place], "quest.documents")):
        if keyword_of[position] is not None:
            members.setdefault(keyword_of[position], []).append(position)
    by_rarity = sorted(members, key=lambda keyword: (len(members[keyword]), key_of(hash_of(keyword), "quest.rare")))
    drawn = [(key_of(hash_of(keyword), "quest.draw.0"), keyword) for keyword in members]
    for turn in range(1, oversample):
        rare = by_rarity[: round(split_ratio * len(members))]
        drawn += [(key_of(hash_of(keyword), f"quest.draw.{turn}"), keyword) for keyword in rare]
    sequences, filling = [], []
    for _, keyword in sorted(drawn):
        for position in members[keyword]:
            filling.append(position)
            if sum(tokens[one] for one in filling) >= enough:
                sequences.append(list(dict.fromkeys(filling)))
                filling = []
    return sorted(one for one in sequences if sum(tokens[position] for position in one) >= enough)


@given(
    rows=st.lists(st.lists(st.sampled_from("abcdef"), max_size=3, unique=True), min_size=1, max_size=12),
    lengths=st.lists(st.integers(1, 9), min_size=12, max_size=12),
    enough=st.integers(1, 20),
    split_ratio=st.sampled_from([0.0, 0.3, 1.0]),
    oversample=st.integers(1, 3),
)
def test_quest_is_the_naive_reading_of_the_papers_rule(rows, lengths, enough, split_ratio, oversample):
    hashes, tokens = hashes_of(len(rows)), np.array(lengths[: len(rows)])
    index = quest.draw_keywords(lists(*rows), hashes, seed=3, max_keyword_share=0.8)
    expected = naive_keywords(rows, hashes, share=0.8)
    assert keywords_of(index, "abcdef") == expected
    options = {"enough": enough, "split_ratio": split_ratio, "oversample": oversample}
    drafts = quest.draft_pieces(index, hashes, tokens, sequences=None, seed=3, **options)
    assert sorted(draft.tolist() for draft in drafts) == naive_sequences(expected, hashes, tokens, **options)
