"""Near-copies: words, shingles and shares against hand-written values and a naive model; rarity against plain counting."""

import random
from unicodedata import category

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nextlong.schemas import DOCUMENTS
from nextlong.stages.near_copies import (
    add_counts,
    copies_among,
    copies_of,
    count_shingles,
    hash_words,
    ngrams,
    shingles,
    similarities,
    weigh_shingles,
    weights_from,
)

ALIKE = np.ones(1, np.float16)  # no shingle is common


def distinct_words(count, prefix="w"):
    return [f"{prefix}{number}" for number in range(count)]


def similarity(candidate, document, weights=ALIKE):
    return float(similarities(shingles([candidate]), document=shingles([document]), weights=weights)[0])


def text_of(words):
    return " ".join(words)


def changed(words, places, draw):
    return [f"new{draw.randrange(10**9)}" if place in places else word for place, word in enumerate(words)]


# Words


def test_words_are_lower_cased_runs_of_letters_and_digits_with_their_places():
    words = hash_words("Don’t panic: 42 ÄPFEL_don")
    assert words.starts.tolist() == [0, 4, 6, 13, 16, 22]
    assert words.ends.tolist() == [3, 5, 11, 15, 21, 25]
    assert words.hashes[0] == words.hashes[5]
    assert words.hashes[4] == hash_words("äpfel").hashes[0]
    assert len(set(words.hashes.tolist())) == 5


def test_each_letter_of_a_script_without_blanks_is_a_word():
    words = hash_words("ab東京xy")
    assert list(zip(words.starts.tolist(), words.ends.tolist(), strict=True)) == [(0, 2), (2, 3), (3, 4), (4, 6)]


@pytest.mark.parametrize("text", ["", " ", "?!", "\n\n"])
def test_a_text_without_words(text):
    assert len(hash_words(text).hashes) == 0


def test_a_text_longer_than_one_piece_has_the_same_words_as_its_lines():
    line = "alpha beta gamma, delta.\n"
    one = hash_words(line)
    many = hash_words(line * 20_000)
    assert np.array_equal(many.hashes, np.tile(one.hashes, 20_000))
    assert many.starts[-1] == 19_999 * len(line) + one.starts[-1]


@settings(deadline=None)  # the table of letters is built once
@given(st.text(alphabet="aAbé1 .\n-’ß²", max_size=60))
def test_words_match_a_plain_loop(text):
    expected, start = [], None
    for place, char in enumerate(text + " "):
        if char.isalnum() and start is None:
            start = place
        if not char.isalnum() and start is not None:
            expected.append((start, place))
            start = None
    words = hash_words(text)
    assert list(zip(words.starts.tolist(), words.ends.tolist(), strict=True)) == expected
    same = {text[a:b].lower() for a, b in expected}
    assert len(set(words.hashes.tolist())) == len(same)


@settings(deadline=None)  # the table of letters is built once
@given(st.text(max_size=40))
def test_any_text_can_be_hashed(text):
    words = hash_words(text)
    inside = "".join(text[a:b] for a, b in zip(words.starts.tolist(), words.ends.tolist(), strict=True))
    assert inside == "".join(char for char in text if char.isalnum())
    assert not any(category(char).startswith("Z") for char in inside)


# Runs of words and shingles


def test_runs_are_equal_where_their_words_are_in_the_same_order():
    runs = ngrams(hash_words("a b c a b c b a").hashes, 3)
    assert len(runs) == 6
    assert runs[0] == runs[3]
    assert len(set(runs.tolist())) == 5
    assert len(ngrams(hash_words("a b").hashes, 3)) == 0


def test_a_run_of_two_words_is_not_the_run_of_one():
    words = hash_words("a a").hashes
    assert ngrams(words, 1)[0] != ngrams(words, 2)[0]


def test_shingles_do_not_reach_into_the_next_text():
    both = shingles(["one two three four five six", "", "a b c d e"])
    assert both.offsets.tolist() == [0, 4, 4, 7]
    assert both.hashes[:4].tolist() == shingles(["one two three four five six"]).hashes.tolist()
    assert both.hashes[4:].tolist() == shingles(["A. B! C? D, E"]).hashes.tolist()


@pytest.mark.parametrize(
    "document", ["Chapter one", "one chapter", "a chapter one of five words", "chapter one chapter one"]
)
def test_a_text_of_fewer_than_five_words_is_a_copy_of_the_same_words_only(document):
    assert similarity("chapter one", document) == (document == "Chapter one")


def test_nothing_is_a_copy_of_nothing():
    assert similarity("", "") == 0
    assert similarity("?!", "?!") == 0
    assert copies_among(shingles([]), weights=ALIKE, threshold=0.8).tolist() == []


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
    found = copies_of(
        shingles([text_of(words[22:40]), "none of it is in there"]), document=document, weights=ALIKE, threshold=0.8
    )
    assert found.tolist() == [True, False]


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
    add_counts(counts, texts)
    return weights_from(counts, len(texts))


def test_a_licence_in_every_document_makes_no_pair_a_near_copy():
    texts = corpus_with_a_licence()
    assert similarity(texts[0], texts[1]) > 0.8
    weights = weights_of(texts)
    assert similarity(texts[0], texts[1], weights) < 0.5
    assert not copies_among(shingles(texts), weights=weights, threshold=0.8).any()


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


def test_weights_fall_with_the_number_of_documents():
    assert weights_from(np.array([0, 1, 16, 32, 10**6]), 1_000).tolist() == [1, 1, 1, 0.5, 2**-10]
    assert weights_from(np.array([50, 100, 200]), 100_000).tolist() == [1, 1, 0.5]


def test_a_shingle_counts_once_a_document():
    counts = np.zeros(1 << 16, np.uint32)
    add_counts(counts, ["a b c d e a b c d e", "a b c d e", ""])
    assert counts.max() == 2
    assert counts.sum() == 5 + 3


# Among candidates


def test_of_copies_the_first_stays():
    draw = random.Random(0)
    first, second = distinct_words(60), distinct_words(60, "x")
    texts = [first, changed(first, {3, 20, 40}, draw), second, changed(first, {5, 50}, draw), second]
    found = copies_among(shingles([text_of(words) for words in texts]), weights=ALIKE, threshold=0.8)
    assert found.tolist() == [False, True, False, True, True]


def test_a_copy_of_a_copy_stays_if_it_is_none_of_the_original():
    draw = random.Random(0)
    first = distinct_words(60)
    second = changed(first, set(range(5, 14)), draw)
    third = changed(second, set(range(40, 49)), draw)
    texts = shingles([text_of(words) for words in (first, second, third)])
    assert copies_among(texts, weights=ALIKE, threshold=0.8).tolist() == [False, True, False]
    assert copies_among(texts, weights=ALIKE, threshold=0.8, taken=np.array([False, True, True])).tolist() == [
        False,
        False,
        True,
    ]


def test_a_mosaic_of_several_is_a_copy_of_none():
    parts = [distinct_words(40, prefix) for prefix in "abcd"]
    mosaic = [word for part in parts for word in part[10:22]]
    texts = shingles([text_of(words) for words in (*parts, mosaic)])
    assert not copies_among(texts, weights=ALIKE, threshold=0.8).any()


@settings(deadline=None)
@given(
    st.lists(st.lists(st.sampled_from("abcd"), max_size=14), max_size=10),
    st.sampled_from([0.3, 0.5, 0.8]),
    st.integers(0, 3),
)
def test_copies_among_are_those_of_a_plain_loop(texts, threshold, common):
    texts = [text_of(words) for words in texts]
    weights = np.ones(1 << 4, np.float16)
    weights[:common] = 0.25
    taken = np.array([len(text) % 5 != 4 for text in texts], np.bool_)
    kept, expected = [], []
    for text, counts in zip(texts, taken.tolist(), strict=True):
        copy = counts and any(similarity(text, other, weights) >= threshold for other in kept)
        if counts and not copy:
            kept.append(text)
        expected.append(copy)
    found = copies_among(shingles(texts), weights=weights, threshold=threshold, taken=taken)
    assert found.tolist() == expected


def test_shares_do_not_depend_on_the_texts_beside_them():
    draw = random.Random(5)
    words = distinct_words(300)
    texts = [text_of(changed(words, set(draw.sample(range(300), 40)), draw)) for _ in range(20)]
    weights = np.array([1, 0.3, 0.07, 0.9], np.float16)
    together = similarities(shingles(texts), document=shingles([text_of(words)]), weights=weights)
    assert together.tolist() == [similarity(text, text_of(words), weights) for text in texts]


# The stages


def write_shard(stem, texts, keep=None):
    hashes = pa.array([hash(text) % 2**63 if text else 0 for text in texts], pa.uint64())
    names = pa.array(["x"] * len(texts))
    with pa.OSFile(f"{stem}.documents.arrow", "wb") as sink, pa.ipc.new_file(sink, DOCUMENTS) as writer:
        for start in range(0, len(texts), 3):
            columns = [pa.array(texts, pa.large_string()), hashes, names, names]
            writer.write_batch(pa.record_batch([c.slice(start, 3) for c in columns], schema=DOCUMENTS))
    np.save(f"{stem}.keep.npy", np.ones(len(texts), np.bool_) if keep is None else np.array(keep))


def weights_of_shards(folder, shards, share=1.0):
    folder.mkdir()
    sampled = 0
    for number, texts in enumerate(shards):
        stem = folder / str(number)
        write_shard(stem, texts)
        counts = count_shingles(
            stem,
            documents=folder / f"{number}.documents.arrow",
            keep=folder / f"{number}.keep.npy",
            share=share,
            seed=3,
        )
        sampled += counts["sampled"]
    weigh_shingles(folder / "all", counted=sorted(folder.glob("*.stock.npy")), sampled=sampled)
    return sampled, np.load(folder / "all.weights.npy")


def test_sharding_does_not_change_the_weights(tmp_path):
    texts = corpus_with_a_licence(60)
    sampled, whole = weights_of_shards(tmp_path / "one", [texts])
    assert sampled == 60
    assert np.array_equal(whole, weights_of_shards(tmp_path / "three", [texts[40:], texts[:7], texts[7:40]])[1])
    licence = shingles([text_of(distinct_words(90, "licence"))])
    assert whole[licence.hashes & np.uint64(len(whole) - 1)].max() == np.float16(16 / 60)


def test_a_sample_is_the_same_however_sharded(tmp_path):
    texts = corpus_with_a_licence(60)
    sampled, whole = weights_of_shards(tmp_path / "one", [texts], share=0.5)
    assert 15 < sampled < 45
    again, parts = weights_of_shards(tmp_path / "two", [texts[30:], texts[:30]], share=0.5)
    assert again == sampled
    assert np.array_equal(whole, parts)


def test_documents_that_were_not_kept_are_not_counted(tmp_path):
    write_shard(tmp_path / "0", ["one two three four five", "six seven eight nine ten"], keep=[True, False])
    counts = count_shingles(
        tmp_path / "0", documents=tmp_path / "0.documents.arrow", keep=tmp_path / "0.keep.npy", share=1.0, seed=0
    )
    assert counts == {"sampled": 1}
    assert np.load(tmp_path / "0.stock.npy")[:, 1].tolist() == [1, 1, 1]
