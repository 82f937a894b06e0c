"""Near-duplicates: shares against hand-written values, everything against the rule in plain Python."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import plain_rule
from tests.support.invented import Corpus

from nextlong.retrieval.near_duplicates import rule as shares
from nextlong.retrieval.near_duplicates.rule import Texts, find_near_duplicates
from nextlong.retrieval.near_duplicates.shingles import (
    add_counts,
    documents_of,
    shingles,
    weights_from,
)

ALIKE = np.full(1, 1024, np.uint16)  # no shingle is common


def distinct_words(count, prefix="w"):
    return [f"{prefix}{number}" for number in range(count)]


def similarities(candidates, *, document, weights):
    """Return for each of m candidates the share of its words, by weight, that stand in a shared shingle, (m,) in [0, 1]."""
    texts = Texts.of(candidates, weights, 1.0)
    shares_of = shares._covered_by(document, texts).astype(np.float64)
    np.divide(shares_of, texts.whole, out=shares_of, where=texts.whole > 0)
    short = (
        candidates.is_short
    )  # of fewer than ten words: the document has the same or not
    shares_of[short] = np.isin(texts.hashes[texts.offsets[:-1][short]], document.wholes)
    return shares_of


def similarity(candidate, document, weights=ALIKE):
    return float(
        similarities(
            shingles([candidate]),
            document=documents_of([[document]])[0],
            weights=weights,
        )[0]
    )


def text_of(words):
    return " ".join(words)


def changed(words, places, draw):
    return [
        f"new{draw.randrange(10**9)}" if place in places else word
        for place, word in enumerate(words)
    ]


def found(texts, *, document="", weights=ALIKE, threshold=0.8):
    """Return which texts are copies of the document, and the pairs of the others."""
    copies = find_near_duplicates(
        shingles(texts),
        document=documents_of([[document]])[0],
        weights=weights,
        threshold=threshold,
    )
    return copies.of_document.tolist(), copies.pairs.tolist()


@pytest.mark.parametrize(
    "document",
    [
        "Chapter one",
        "one chapter",
        "a chapter one of five words",
        "chapter one chapter one",
    ],
)
def test_a_text_of_few_words_is_a_copy_of_the_same_words_only(document):
    assert similarity("chapter one", document) == (document == "Chapter one")
    assert found(["chapter one"], document=document) == (
        [document == "Chapter one"],
        [],
    )
    assert found(["chapter one", document])[1] == (
        [[0, 1]] if document == "Chapter one" else []
    )


def test_nothing_is_a_copy_of_nothing():
    assert similarity("", "") == 0
    assert similarity("?!", "?!") == 0
    assert found([]) == ([], [])
    assert found(["", "?!", ""], document="") == ([False] * 3, [])


# Similarity


def test_a_changed_word_counts_once():
    words = distinct_words(12)
    copy = [*words[:5], "other", *words[6:]]
    assert (
        similarity(text_of(copy), text_of(words)) == 7 / 8
    )  # of the eight words that are not at an edge


def test_a_changed_passage_counts_whole():
    words = distinct_words(20)
    assert (
        similarity(text_of(words[:10] + distinct_words(10, "x")), text_of(words))
        == 8 / 16
    )


def test_a_chunk_is_a_copy_of_the_document_that_holds_it_and_not_the_other_way_round():
    words = distinct_words(100)
    assert similarity(text_of(words[40:70]), text_of(words)) == 1
    assert similarity(text_of(words), text_of(words[40:70])) < 0.4


def test_a_run_across_the_border_of_two_chunks_of_the_document_counts():
    words = distinct_words(40)
    document = documents_of([[text_of(words[:20]) + " ", text_of(words[20:])]])[0]
    candidates = shingles(
        [text_of(words[12:28]), "none of it is in there, not at all, not a word"]
    )
    assert similarities(candidates, document=document, weights=ALIKE).tolist() == [1, 0]


def test_a_short_chunk_of_the_document_is_a_text_of_its_own():
    document = documents_of(
        [["Chapter one\n", text_of(distinct_words(20)) + "\n", "The end"]]
    )[0]
    candidates = shingles(["the end", "chapter one", "w3 w4 w5", "chapter one the end"])
    assert similarities(candidates, document=document, weights=ALIKE).tolist() == [
        1,
        1,
        0,
        0,
    ]


def test_a_document_of_few_words_is_one_too():
    candidates = shingles(["the end", "of", "of the end"])
    assert similarities(
        candidates, document=documents_of([["of ", "the end"]])[0], weights=ALIKE
    ).tolist() == [1, 1, 1]


@settings(deadline=None)
@given(words=st.integers(10, 400), seed=st.integers(0, 10_000))
def test_every_copy_with_one_word_in_twenty_changed_is_found(words, seed):
    draw = random.Random(seed)
    original = distinct_words(words)
    copy = changed(original, set(draw.sample(range(words), round(words / 20))), draw)
    assert similarity(text_of(copy), text_of(original)) >= 0.8


@settings(deadline=None)
@given(words=st.integers(60, 400), seed=st.integers(0, 10_000))
def test_no_text_of_which_a_third_is_new_passes_for_a_copy(words, seed):
    draw = random.Random(seed)
    original = distinct_words(words)
    first = draw.randrange(words - words // 3)
    copy = changed(original, set(range(first, first + words // 3)), draw)
    assert similarity(text_of(copy), text_of(original)) < 0.8


# Stock passages


def corpus_with_a_licence(documents=200):
    draw = random.Random(1)
    licence = distinct_words(90, "licence")
    return [
        text_of([f"own{draw.randrange(10**9)}" for _ in range(20)] + licence)
        for _ in range(documents)
    ]


def weights_of(texts):
    counts = np.zeros(1 << 16, np.uint32)
    add_counts(counts, shingles(texts))
    return weights_from(counts, len(texts))


def test_a_licence_in_every_document_makes_no_pair_a_near_duplicate():
    texts = corpus_with_a_licence()
    assert similarity(texts[0], texts[1]) > 0.8
    weights = weights_of(texts)
    assert similarity(texts[0], texts[1], weights) < 0.5
    assert found(texts, weights=weights) == ([False] * len(texts), [])


def test_a_copy_of_a_document_with_a_licence_is_still_found():
    texts = corpus_with_a_licence()
    draw = random.Random(2)
    weights = weights_of(texts)
    for text in texts[:50]:
        places = {
            draw.randrange(20),
            *draw.sample(range(20, 110), 4),
        }  # of its own words, and of the licence
        copy = text_of(changed(text.split(), places, draw))
        assert similarity(copy, text, weights) >= 0.8


def test_a_chunk_of_nothing_but_stock_is_a_copy_of_the_same_stock():
    texts = corpus_with_a_licence()
    assert (
        similarity(text_of(distinct_words(90, "licence")), texts[0], weights_of(texts))
        == 1
    )


# Among candidates


def test_copies_are_paired_and_those_of_the_document_stand_apart():
    draw = random.Random(0)
    first, second, third = (
        distinct_words(60),
        distinct_words(60, "x"),
        distinct_words(60, "y"),
    )
    texts = [
        first,
        third,
        changed(first, {3, 20, 40}, draw),
        second,
        changed(first, {5, 50}, draw),
        second,
    ]
    copies, pairs = found(
        [text_of(words) for words in texts],
        document=text_of(changed(third, {30}, draw)),
    )
    assert copies == [False, True, False, False, False, False]
    assert pairs == [[0, 2], [0, 4], [2, 4], [3, 5]]


def test_a_part_is_paired_with_the_whole_whichever_comes_first():
    words = distinct_words(100)
    assert found([text_of(words), text_of(words[40:70])])[1] == [[0, 1]]
    assert found([text_of(words[40:70]), text_of(words)])[1] == [[0, 1]]


def test_a_copy_of_a_copy_need_not_be_one_of_the_original():
    draw = random.Random(0)
    first = distinct_words(60)
    second = changed(first, set(range(5, 14)), draw)
    third = changed(second, set(range(40, 49)), draw)
    assert found([text_of(words) for words in (first, second, third)])[1] == [
        [0, 1],
        [1, 2],
    ]


def test_a_mosaic_of_several_is_a_copy_of_none():
    parts = [distinct_words(40, prefix) for prefix in "abcd"]
    mosaic = [word for part in parts for word in part[10:22]]
    assert found([text_of(words) for words in (*parts, mosaic)])[1] == []


def test_many_copies_of_few_texts_are_all_paired():
    texts = [text_of(distinct_words(20)) for _ in range(150)]
    assert len(found(texts)[1]) == 150 * 149 // 2


def test_a_family_of_texts_that_share_most_of_their_words_is_judged_by_the_rule():
    draw = random.Random(3)
    stock = distinct_words(60, "stock")
    texts = [
        text_of(changed(stock, set(draw.sample(range(60), draw.randrange(12))), draw))
        for _ in range(45)
    ]
    against_the_rule(
        texts, [text_of(stock[:30])], np.array([1024, 30, 200, 5], np.uint16), 0.8
    )


def against_the_rule(texts, chunks, weights, threshold, *, rare=0.1, at_once=1 << 21):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shares, "_RARE_SHARE", rare)
        patch.setattr(shares, "_AT_ONCE", at_once)
        patch.setattr(shares, "_RUNS_AT_ONCE", at_once)
        patch.setattr(shares, "_CELLS_AT_ONCE", at_once)
        # One at a time, every pair of texts that share a rare run is compared.
        if at_once == 1:
            patch.setattr(shares, "_DENSE_MATCHES", 0)
            patch.setattr(shares, "_DENSE_MATCHES_PER_PAIR", 0)
        copies = find_near_duplicates(
            shingles(texts),
            document=documents_of([chunks])[0],
            weights=weights,
            threshold=threshold,
        )
    expected = plain_rule.found(texts, chunks, weights.tolist(), threshold)
    assert (
        copies.of_document.tolist(),
        copies.pairs.tolist(),
        copies.by_passage.tolist(),
    ) == expected


@settings(deadline=None)
@given(
    st.lists(st.lists(st.sampled_from("abc"), max_size=24), max_size=8),
    st.lists(st.lists(st.sampled_from("abc"), max_size=24), max_size=3),
    st.sampled_from([0.3, 0.5, 0.8, 1.0]),
    st.integers(0, 3),
    st.sampled_from([0, 0.1, 1]),
    st.sampled_from([1, 20, 1 << 21]),
)
def test_small_texts_are_judged_by_the_rule(
    texts, chunks, threshold, common, rare, at_once
):
    weights = np.full(1 << 4, 1024, np.uint16)
    weights[:common] = 256
    against_the_rule(
        [text_of(words) for words in texts],
        [text_of(words) + "\n" for words in chunks],
        weights,
        threshold,
        rare=rare,
        at_once=at_once,
    )


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**9))
def test_invented_texts_are_judged_by_the_rule(seed):
    draw = random.Random(seed)
    texts = Corpus(seed).documents
    size = draw.choice([40, 200, 1000])
    pieces = [
        text[first : first + size]
        for text in texts
        for first in range(0, len(text), size)
    ]
    weights = np.full(1 << 6, 1024, np.uint16)
    weights[: draw.choice([0, 30])] = 37
    text = draw.choice(texts)
    chunks = [text[first : first + size] for first in range(0, len(text), size)]
    sample = draw.sample(pieces, min(len(pieces), 12))
    rare, at_once = draw.choice([0, 0.1, 0.5, 1]), draw.choice([1, 500, 1 << 21])
    threshold = draw.choice([0.3, 0.8, 0.95, 1.0])
    against_the_rule(sample, chunks, weights, threshold, rare=rare, at_once=at_once)


@pytest.mark.parametrize(("length", "is_copy"), [(99, False), (100, True), (101, True)])
def test_a_hundred_words_in_a_row_are_a_copy_however_common_and_however_little_of_the_text(
    length, is_copy
):
    passage = distinct_words(length, "stock")
    weights = np.ones(1, np.uint16)
    texts = [
        text_of(
            [*distinct_words(150, prefix), *passage, *distinct_words(150, prefix + "z")]
        )
        for prefix in "ab"
    ]
    against_the_rule(texts, [text_of(distinct_words(30))], weights, 0.8)
    assert found(texts, weights=weights)[1] == ([[0, 1]] if is_copy else [])
    assert found(texts[:1], document=texts[1], weights=weights)[0] == [is_copy]


def test_the_same_runs_in_another_order_are_no_passage():
    words = distinct_words(160)
    parts = [words[:40], words[40:80], words[80:120], words[120:]]
    other = [word for part in reversed(parts) for word in [*part, "x"]]
    texts = [
        text_of([*words, *distinct_words(400, prefix="a")]),
        text_of([*other, *distinct_words(400, prefix="b")]),
    ]
    assert found(texts)[1] == []


def test_shares_do_not_depend_on_the_texts_beside_them():
    draw = random.Random(5)
    words = distinct_words(300)
    texts = [
        text_of(changed(words, set(draw.sample(range(300), 40)), draw))
        for _ in range(20)
    ]
    weights = np.array([1024, 300, 70, 900], np.uint16)
    together = similarities(
        shingles(texts), document=documents_of([[text_of(words)]])[0], weights=weights
    )
    assert together.tolist() == [
        similarity(text, text_of(words), weights) for text in texts
    ]
