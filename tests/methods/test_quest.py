from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from nextlong.methods import keywords, quest
from nextlong.methods.base import CorpusArrays, DraftRequest
from nextlong.rng import keyed_hash


def hash_of(keyword):
    return xxhash.xxh3_64_intdigest(keyword.encode())


def lists(*rows):
    pieces = [
        [[hash_of(keyword) for keyword in row] for row in piece]
        for piece in (rows[:2], rows[2:])
    ]
    return pa.chunked_array(
        [pa.array(piece, pa.list_(pa.uint64())) for piece in pieces]
    )


def draw(candidates, hashes, words, *, seed=0, **limits):
    """Return the keyword of each document, None for none, as one of `words`, and how many documents share none of theirs."""
    hashes_of_keywords, keyword_of, unshared = quest._draw_keywords(
        candidates, hashes, seed=seed, **limits
    )
    named = {hash_of(word): word for word in words}
    return [
        named[int(hashes_of_keywords[code])] if code >= 0 else None
        for code in keyword_of.tolist()
    ], unshared


def drafts_of(keywords, hashes, tokens, *, enough, seed=0, **options):
    """Return the documents of each sequence, given the keyword of each document, None for none."""
    distinct, keyword_of = np.unique(
        np.array([hash_of(word) for word in keywords if word], np.uint64),
        return_inverse=True,
    )
    codes = np.full(len(keywords), -1)
    codes[[word is not None for word in keywords]] = keyword_of
    documents = CorpusArrays(
        content_hashes=hashes, tokens=tokens, chunk_offsets=codes, chunk_tokens=codes
    )
    request = DraftRequest(target_tokens=enough, sequences=None, seed=seed)
    return [
        one.documents.tolist()
        for one in quest._draft_keywords(
            distinct, codes, documents, quest.Quest(**options), request
        )
    ]


def hashes_of(count):
    return np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def test_uninformative_keywords_are_dropped():
    queries = ["What is the best way to bake sourdough bread?", "oven", "la mi"]
    assert keywords._candidate_keywords(queries, quest.Quest()) == [
        "bake sourdough bread"
    ]
    assert "best way" in dict(keywords._key_phrases("\n".join(queries)))
    assert keywords._candidate_keywords(
        ["la mi"], quest.Quest(min_keyword_chars=5)
    ) == ["la mi"]
    assert keywords._candidate_keywords(["la mi"], quest.Quest()) == []
    assert (
        keywords._candidate_keywords(["bread"], quest.Quest(min_keyword_score=1)) == []
    )
    assert keywords._candidate_keywords(
        ["breads"], quest.Quest(min_keyword_score=1)
    ) == ["breads"]


def test_a_document_gets_one_keyword_that_others_share():
    bread, sea = "rye bread", "north sea"
    rows = [bread, "only here"], [sea], [], [bread], [sea], ["only there"]
    found = draw(lists(*rows), hashes_of(6), [bread, sea], max_share=0.5)
    assert found == ([bread, sea, None, bread, sea, None], 1)


def test_rare_and_common_keywords_are_not_drawn():
    candidates = lists(["all", "pair"], ["all", "pair"], ["all", "one"], ["all"])
    assert draw(candidates, hashes_of(4), ["pair"], max_share=0.5) == (
        ["pair", "pair", None, None],
        2,
    )
    alone = draw(candidates, hashes_of(4), ["one"], min_documents=1, max_share=0.25)
    assert alone == ([None, None, "one", None], 3)


def test_keywords_of_every_hash_are_counted():
    hashes = [first << 56 | 1 for first in range(256)]
    candidates = pa.chunked_array(
        [pa.array([[one] for one in hashes] * 2, pa.list_(pa.uint64()))]
    )
    found, keyword_of, unshared = quest._draw_keywords(
        candidates, hashes_of(512), seed=0
    )
    assert found.tolist() == hashes
    assert (keyword_of.tolist(), unshared) == ([*range(256)] * 2, 0)


def test_the_draw_among_a_documents_keywords_is_even():
    candidates = lists(*[["first", "second", "third"]] * 3000)
    drawn, _ = draw(
        candidates, hashes_of(3000), ["first", "second", "third"], seed=1, max_share=1
    )
    assert all(900 < count < 1100 for count in Counter(drawn).values())


def test_documents_of_a_keyword_stand_together():
    drafts = drafts_of(
        [*"abcabc", None], hashes_of(7), np.full(7, 10), enough=20, split_ratio=0
    )
    assert sorted(map(sorted, drafts)) == [[0, 3], [1, 4], [2, 5]]


def test_a_keyword_that_does_not_fill_a_sequence_is_followed_by_another():
    (draft,) = drafts_of("aabb", hashes_of(4), np.full(4, 10), enough=40, split_ratio=0)
    assert sorted(draft[:2]) in ([0, 1], [2, 3])


@pytest.mark.parametrize(
    ("split_ratio", "rare"), [(0, ()), (0.5, (4, 5)), (1, (0, 1, 2, 3, 4, 5))]
)
def test_the_rarer_keywords_are_oversampled(split_ratio, rare):
    drafts = drafts_of(
        "aaaabb",
        hashes_of(6),
        np.full(6, 10),
        enough=10,
        split_ratio=split_ratio,
        oversample=3,
    )
    assert Counter(np.concatenate(drafts).tolist()) == {
        place: 3 if place in rare else 1 for place in range(6)
    }


def test_no_keyword_no_sequence():
    assert draw(lists([], []), hashes_of(2), []) == ([None, None], 0)
    assert draw(lists(), hashes_of(0), []) == ([], 0)
    assert drafts_of([None, None], hashes_of(2), np.full(2, 10), enough=5) == []


@given(
    st.lists(
        st.lists(st.sampled_from("abcdefg"), max_size=3, unique=True), max_size=25
    ),
    st.integers(0, 2**32 - 1),
    st.integers(1, 300),
    st.integers(1, 3),
)
def test_no_document_twice_in_a_sequence_and_the_order_of_documents_does_not_matter(
    rows, seed, needed, oversample
):
    rng = np.random.default_rng(seed)
    hashes, chars = (
        rng.integers(0, 2**63, len(rows)).astype(np.uint64),
        rng.integers(0, 100, len(rows)),
    )
    sequences = []
    for order in (np.arange(len(rows)), rng.permutation(len(rows))):
        own = [rows[place] for place in order]
        drawn, _ = draw(lists(*own), hashes[order], "abcdefg", seed=seed, max_share=0.8)
        assert all(
            keyword is None or keyword in row
            for keyword, row in zip(drawn, own, strict=True)
        )
        options = {
            "enough": needed,
            "seed": seed,
            "split_ratio": 0.5,
            "oversample": oversample,
        }
        drafts = drafts_of(drawn, hashes[order], chars[order], **options)
        assert all(len(set(draft)) == len(draft) for draft in drafts)
        assert all(chars[order][draft].sum() >= needed for draft in drafts)
        if oversample == 1:
            used = [place for draft in drafts for place in draft]
            assert len(set(used)) == len(used)
        sequences.append([hashes[order][draft].tolist() for draft in drafts])
    assert sequences[0] == sequences[1]


def key_of(value, stage):
    return int(keyed_hash(np.array([value], np.uint64), seed=3, stage=stage)[0])


def naive_keywords(rows, hashes, *, share):
    """One keyword for each document, None for none: a slow reading of the paper's rule."""
    documents = Counter(keyword for row in rows for keyword in row)
    choices = [
        [keyword for keyword in row if 2 <= documents[keyword] <= share * len(rows)]
        for row in rows
    ]
    return [
        own[key_of(content, "quest.keyword") % len(own)] if own else None
        for own, content in zip(choices, hashes, strict=True)
    ]


def naive_sequences(keyword_of, hashes, tokens, *, enough, split_ratio, oversample):
    """Keyword after keyword, document after document, until a sequence is full."""
    members = {}
    for position in sorted(
        range(len(hashes)), key=lambda place: key_of(hashes[place], "quest.documents")
    ):
        if keyword_of[position] is not None:
            members.setdefault(keyword_of[position], []).append(position)
    by_rarity = sorted(
        members,
        key=lambda keyword: (
            len(members[keyword]),
            key_of(hash_of(keyword), "quest.rare"),
        ),
    )
    drawn = [(key_of(hash_of(keyword), "quest.draw.0"), keyword) for keyword in members]
    for turn in range(1, oversample):
        rare = by_rarity[: round(split_ratio * len(members))]
        drawn += [
            (key_of(hash_of(keyword), f"quest.draw.{turn}"), keyword)
            for keyword in rare
        ]
    sequences, filling = [], []
    for _, keyword in sorted(drawn):
        for position in members[keyword]:
            filling.append(position)
            if sum(tokens[one] for one in filling) >= enough:
                sequences.append(list(dict.fromkeys(filling)))
                filling = []
    return sorted(
        one for one in sequences if sum(tokens[position] for position in one) >= enough
    )


@given(
    rows=st.lists(
        st.lists(st.sampled_from("abcdef"), max_size=3, unique=True),
        min_size=1,
        max_size=12,
    ),
    lengths=st.lists(st.integers(1, 9), min_size=12, max_size=12),
    enough=st.integers(1, 20),
    split_ratio=st.sampled_from([0.0, 0.3, 1.0]),
    oversample=st.integers(1, 3),
)
def test_quest_is_the_naive_reading_of_the_papers_rule(
    rows, lengths, enough, split_ratio, oversample
):
    hashes, tokens = hashes_of(len(rows)), np.array(lengths[: len(rows)])
    drawn, _ = draw(lists(*rows), hashes, "abcdef", seed=3, max_share=0.8)
    assert drawn == naive_keywords(rows, hashes, share=0.8)
    options = {"enough": enough, "split_ratio": split_ratio, "oversample": oversample}
    assert sorted(
        drafts_of(drawn, hashes, tokens, seed=3, **options)
    ) == naive_sequences(drawn, hashes, tokens, **options)
