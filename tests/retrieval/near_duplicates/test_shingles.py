"""Shingles: by hand, as files, and how rare they are against plain counting."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from unicodedata import category

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import plain_rule
from tests.support.arrow_files import write_arrow
from tests.support.invented import Corpus

from nextlong.retrieval.near_duplicates.shingles import (
    ShingleStore,
    add_counts,
    documents_of,
    hash_words,
    ngrams,
    positions_of,
    shingle_shard,
    shingles,
    weigh_shingles,
    weights_from,
)
from nextlong.schemas import CHUNKS, DOCUMENTS

LICENCE = [f"licence{number}" for number in range(90)]


def corpus_with_a_licence(documents):
    draw = random.Random(1)
    return [
        " ".join([f"own{draw.randrange(10**9)}" for _ in range(20)] + LICENCE)
        for _ in range(documents)
    ]


def test_shingles_do_not_reach_into_the_next_text():
    ten, eleven = (
        "a b c d e f g h i j",
        "one two three four five six seven eight nine ten eleven",
    )
    both = shingles([eleven, "", ten])
    assert both.offsets.tolist() == [0, 9, 9, 17]
    assert both.hashes[:9].tolist() == shingles([eleven]).hashes.tolist()
    assert (
        both.hashes[9:].tolist()
        == shingles(["A. B! C? D, E f (g) h: i-j"]).hashes.tolist()
    )


@pytest.mark.parametrize(
    "other",
    [
        "Chapter one",
        "one chapter",
        "a chapter one",
        "chapter one chapter one",
        "chapter one and its eight more words",
    ],
)
def test_a_text_of_few_words_is_one_shingle_that_only_the_same_words_have(other):
    found = shingles(["chapter one", other])
    assert found.offsets.tolist()[:2] == [0, 1]
    assert found.is_short[0]
    assert (found.hashes[0] in found.hashes[1:]) == (other == "Chapter one")


def test_a_document_is_compared_as_a_whole_and_by_its_short_chunks():
    chunks = ["a b c d e f g\n", "h i j k l m n o p q\n", "r s t"]
    document = documents_of([chunks])[0]
    assert document.runs.tolist() == shingles(["".join(chunks)]).hashes.tolist()
    assert document.wholes.tolist() == shingles([chunks[0], chunks[2]]).hashes.tolist()
    assert (
        documents_of([["a ", "b"]])[0].wholes.tolist()
        == shingles(["a", "b", "a b"]).hashes.tolist()
    )
    assert not len(documents_of([["a ", "b"]])[0].runs)
    assert not len(documents_of([["?!"]])[0].wholes)


def test_weights_fall_with_the_number_of_documents():
    assert weights_from(np.array([0, 1, 16, 17, 32, 10**6]), 1_000).tolist() == [
        1024,
        1024,
        1024,
        963,
        512,
        1,
    ]
    assert weights_from(np.array([50, 100, 200]), 100_000).tolist() == [1024, 1024, 512]


def test_a_shingle_counts_once_a_text():
    counts = np.zeros(1 << 16, np.uint32)
    add_counts(counts, shingles(["a b c d e a b c d e", "a b c d e a b c d e f", ""]))
    assert counts.max() == 2
    assert counts.sum() == 5 + 6


def shard(stem, texts, *, cut=0):
    """Write and shingle documents; those not empty are chunks, those of the first `cut` rows two."""
    hashes = [xxhash.xxh3_64_intdigest(text.encode()) for text in texts]
    write_arrow(
        f"{stem}.documents.arrow",
        DOCUMENTS,
        [texts, hashes, ["s"] * len(texts), ["i"] * len(texts)],
    )
    np.save(f"{stem}.hashes.npy", np.array(hashes, np.uint64))
    rows = []
    for row, text in enumerate(texts):
        middle = [text.index(" ", len(text) // 2)] if text and row < cut else []
        ends = [*middle, len(text)] if text else []
        rows += [(row, start, end, True) for start, end in pairwise([0, *ends])]
    write_arrow(
        f"{stem}.chunks.arrow", CHUNKS, zip(*rows, strict=True) if rows else [[]] * 4
    )
    return shingle_shard(
        stem,
        documents=Path(f"{stem}.documents.arrow"),
        chunks=Path(f"{stem}.chunks.arrow"),
    )


def store_of(folder, *, count):
    return ShingleStore(
        hashes=[folder / f"{number}.shingles.npy" for number in range(count)],
        offsets=[folder / f"{number}.offsets.npy" for number in range(count)],
    )


def test_stored_shingles_are_those_of_the_chunks_in_any_order(tmp_path):
    texts = corpus_with_a_licence(3)
    middle = texts[0].index(" ", len(texts[0]) // 2)
    shard(tmp_path / "0", ["", *texts], cut=2)
    shard(tmp_path / "1", ["chapter one"])
    found = store_of(tmp_path, count=2).of(np.array([1 << 32, 2, 0, 1, 2]))
    expected = shingles(
        ["chapter one", texts[1], texts[0][:middle], texts[0][middle:], texts[1]]
    )
    assert found.hashes.tolist() == expected.hashes.tolist()
    assert found.offsets.tolist() == expected.offsets.tolist()


def weights_of_shards(folder, shards, *, share=1.0, cut=0):
    folder.mkdir()
    for number, texts in enumerate(shards):
        shard(folder / str(number), texts, cut=cut)
    weigh_shingles(
        folder / "all",
        store=store_of(folder, count=len(shards)),
        chunks=[folder / f"{number}.chunks.arrow" for number in range(len(shards))],
        hashes=[folder / f"{number}.hashes.npy" for number in range(len(shards))],
        share=share,
        seed=3,
    )
    return len(np.load(folder / "all.counted.npy")), np.load(folder / "all.weights.npy")


def test_sharding_does_not_change_the_weights(tmp_path):
    texts = corpus_with_a_licence(60)
    sampled, whole = weights_of_shards(tmp_path / "one", [texts])
    assert sampled == 60
    assert np.array_equal(
        whole,
        weights_of_shards(
            tmp_path / "four", [texts[40:], [""], texts[:7], texts[7:40]]
        )[1],
    )
    licence = shingles([" ".join(LICENCE)]).hashes & np.uint64(len(whole) - 1)
    assert whole[licence].max() == 1024 * 16 // 60


def test_a_document_of_several_chunks_counts_once(tmp_path):
    texts = [" ".join([*LICENCE, *LICENCE])] * 20
    _, weights = weights_of_shards(tmp_path / "cut", [texts], cut=20)
    assert (
        weights[
            shingles([" ".join(LICENCE)]).hashes & np.uint64(len(weights) - 1)
        ].max()
        == 1024 * 16 // 20
    )


def test_weights_are_those_of_the_rule(tmp_path):
    texts = Corpus(5).documents
    halves = [[text[: len(text) // 2], text[len(text) // 2 :]] for text in texts]
    numbered = [
        [own for own in (text.strip(),) if own] for pair in halves for text in pair
    ]
    _, weights = weights_of_shards(
        tmp_path / "one", [[own[0] for own in numbered if own]]
    )
    assert weights.tolist() == plain_rule.weights_of(
        [own for own in numbered if own], slots=len(weights)
    )


def test_a_sample_is_the_same_however_sharded(tmp_path):
    texts = corpus_with_a_licence(60)
    sampled, whole = weights_of_shards(tmp_path / "one", [texts], share=0.5)
    assert 15 < sampled < 45
    again, parts = weights_of_shards(
        tmp_path / "two", [texts[30:], texts[:30]], share=0.5
    )
    assert again == sampled
    assert np.array_equal(whole, parts)


def test_words_are_lower_cased_runs_of_letters_and_digits_with_their_places():
    words = hash_words("Don’t panic: 42 ÄPFEL_don")
    assert words.starts.tolist() == [0, 4, 6, 13, 16, 22]
    assert words.ends.tolist() == [3, 5, 11, 15, 21, 25]
    assert words.hashes[0] == words.hashes[5]
    assert words.hashes[4] == hash_words("äpfel").hashes[0]
    assert len(set(words.hashes.tolist())) == 5


def test_each_letter_of_a_script_without_blanks_is_a_word():
    words = hash_words("ab東京xy")
    assert list(zip(words.starts.tolist(), words.ends.tolist(), strict=True)) == [
        (0, 2),
        (2, 3),
        (3, 4),
        (4, 6),
    ]


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
    assert (
        list(zip(words.starts.tolist(), words.ends.tolist(), strict=True)) == expected
    )
    same = {text[a:b].lower() for a, b in expected}
    assert len(set(words.hashes.tolist())) == len(same)


@settings(deadline=None)  # the table of letters is built once
@given(st.text(max_size=40))
def test_any_text_can_be_hashed(text):
    words = hash_words(text)
    inside = "".join(
        text[a:b]
        for a, b in zip(words.starts.tolist(), words.ends.tolist(), strict=True)
    )
    assert inside == "".join(char for char in text if char.isalnum())
    assert not any(category(char).startswith("Z") for char in inside)


# Runs of words


def test_runs_are_equal_where_their_words_are_in_the_same_order():
    runs = ngrams(hash_words("a b c a b c b a").hashes, 3)
    assert len(runs) == 6
    assert runs[0] == runs[3]
    assert len(set(runs.tolist())) == 5
    assert len(ngrams(hash_words("a b").hashes, 3)) == 0


def test_a_run_of_two_words_is_not_the_run_of_one():
    words = hash_words("a a").hashes
    assert ngrams(words, 1)[0] != ngrams(words, 2)[0]


def test_runs_are_found_where_all_of_their_bits_are_equal():
    draw = np.random.default_rng(0)
    runs = draw.integers(0, 2**64, 300, dtype=np.uint64)
    same_low_bits = runs ^ np.uint64(1 << 63)
    others = draw.integers(0, 2**64, 300, dtype=np.uint64)
    hashes = draw.permutation(np.concatenate([runs, same_low_bits, others, runs]))
    found = np.flatnonzero(np.isin(hashes, runs))
    assert positions_of(runs, hashes).tolist() == found.tolist()
    assert len(positions_of(runs[:0], hashes)) == 0
    assert len(positions_of(runs, hashes[:0])) == 0
