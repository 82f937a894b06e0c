"""Near-copies: shares against hand-written values, pairs against a plain loop."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nextlong.similarity.near_copies import find, similarities
from nextlong.similarity.shingles import add_counts, shingles, weights_from

ALIKE = np.ones(1, np.float16)  # no shingle is common


def distinct_words(count, prefix="w"):
    return [f"{prefix}{number}" for number in range(count)]


def similarity(candidate, document, weights=ALIKE):
    return float(similarities(shingles([candidate]), document=shingles([document]), weights=weights)[0])


def text_of(words):
    return " ".join(words)


def changed(words, places, draw):
    return [f"new{draw.randrange(10**9)}" if place in places else word for place, word in enumerate(words)]


def found(texts, *, document="", weights=ALIKE, threshold=0.8):
    """Return which texts are copies of the document, and the pairs of the others."""
    copies = find(shingles(texts), document=shingles([document]), weights=weights, threshold=threshold)
    return copies.of_document.tolist(), copies.pairs.tolist()


@pytest.mark.parametrize(
    "document", ["Chapter one", "one chapter", "a chapter one of five words", "chapter one chapter one"]
)
def test_a_text_of_few_words_is_a_copy_of_the_same_words_only(document):
    assert similarity("chapter one", document) == (document == "Chapter one")
    assert found(["chapter one"], document=document) == ([document == "Chapter one"], [])
    assert found(["chapter one", document])[1] == ([[0, 1]] if document == "Chapter one" else [])


def test_nothing_is_a_copy_of_nothing():
    assert similarity("", "") == 0
    assert similarity("?!", "?!") == 0
    assert found([]) == ([], [])
    assert found(["", "?!", ""], document="") == ([False] * 3, [])


# Similarity


def test_a_changed_word_counts_once():
    words = distinct_words(12)
    copy = [*words[:5], "other", *words[6:]]
    assert similarity(text_of(copy), text_of(words)) == 7 / 8  # of the eight words that are not at an edge


def test_a_changed_passage_counts_whole():
    words = distinct_words(20)
    assert similarity(text_of(words[:10] + distinct_words(10, "x")), text_of(words)) == 8 / 16


def test_a_chunk_is_a_copy_of_the_document_that_holds_it_and_not_the_other_way_round():
    words = distinct_words(100)
    assert similarity(text_of(words[40:70]), text_of(words)) == 1
    assert similarity(text_of(words), text_of(words[40:70])) < 0.4


def test_a_document_may_be_given_in_several_texts():
    words = distinct_words(40)
    document = shingles([text_of(words[:20]), text_of(words[20:])])
    candidates = shingles([text_of(words[22:40]), "none of it is in there, not at all, not a word"])
    copies = find(candidates, document=document, weights=ALIKE, threshold=0.8)
    assert copies.of_document.tolist() == [True, False]


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
    return [text_of([f"own{draw.randrange(10**9)}" for _ in range(20)] + licence) for _ in range(documents)]


def weights_of(texts):
    counts = np.zeros(1 << 16, np.uint32)
    add_counts(counts, shingles(texts))
    return weights_from(counts, len(texts))


def test_a_licence_in_every_document_makes_no_pair_a_near_copy():
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
        places = {draw.randrange(20), *draw.sample(range(20, 110), 4)}  # of its own words, and of the licence
        copy = text_of(changed(text.split(), places, draw))
        assert similarity(copy, text, weights) >= 0.8


def test_a_chunk_of_nothing_but_stock_is_a_copy_of_the_same_stock():
    texts = corpus_with_a_licence()
    assert similarity(text_of(distinct_words(90, "licence")), texts[0], weights_of(texts)) == 1


# Among candidates


def test_copies_are_paired_and_those_of_the_document_stand_apart():
    draw = random.Random(0)
    first, second, third = distinct_words(60), distinct_words(60, "x"), distinct_words(60, "y")
    texts = [first, third, changed(first, {3, 20, 40}, draw), second, changed(first, {5, 50}, draw), second]
    copies, pairs = found([text_of(words) for words in texts], document=text_of(changed(third, {30}, draw)))
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
    assert found([text_of(words) for words in (first, second, third)])[1] == [[0, 1], [1, 2]]


def test_a_mosaic_of_several_is_a_copy_of_none():
    parts = [distinct_words(40, prefix) for prefix in "abcd"]
    mosaic = [word for part in parts for word in part[10:22]]
    assert found([text_of(words) for words in (*parts, mosaic)])[1] == []


def test_more_copies_than_are_compared_at_once():
    texts = [text_of(distinct_words(20)) for _ in range(150)]
    assert len(found(texts)[1]) == 150 * 149 // 2


@settings(deadline=None)
@given(
    st.lists(st.lists(st.sampled_from("abc"), max_size=24), max_size=8),
    st.lists(st.sampled_from("abc"), max_size=24),
    st.sampled_from([0.3, 0.5, 0.8, 1.0]),
    st.integers(0, 3),
)
def test_pairs_are_those_of_a_plain_loop(texts, document, threshold, common):
    texts, document = [text_of(words) for words in texts], text_of(document)
    weights = np.ones(1 << 4, np.float16)
    weights[:common] = 0.25
    copies = [similarity(text, document, weights) >= threshold for text in texts]
    pairs = [
        [a, b]
        for b in range(len(texts))
        for a in range(b)
        if not copies[a]
        and not copies[b]
        and max(similarity(texts[a], texts[b], weights), similarity(texts[b], texts[a], weights)) >= threshold
    ]
    assert found(texts, document=document, weights=weights, threshold=threshold) == (copies, sorted(pairs))


def test_shares_do_not_depend_on_the_texts_beside_them():
    draw = random.Random(5)
    words = distinct_words(300)
    texts = [text_of(changed(words, set(draw.sample(range(300), 40)), draw)) for _ in range(20)]
    weights = np.array([1, 0.3, 0.07, 0.9], np.float16)
    together = similarities(shingles(texts), document=shingles([text_of(words)]), weights=weights)
    assert together.tolist() == [similarity(text, text_of(words), weights) for text in texts]
