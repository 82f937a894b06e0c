"""Batches are tokenized while others are encoded, the longest texts first."""

import threading

import pytest

from nextlong.retrieval.batches import AHEAD, tokenized_ahead

TEXTS = ["bb", "a", "dddd", "", "ccc", "eeee"]


def test_batches_hold_texts_of_like_length_the_longest_first():
    read = list(tokenized_ahead(TEXTS, batch_size=2, tokenize=lambda batch: batch))
    assert [numbers for numbers, _ in read] == [[2, 5], [4, 0], [1, 3]]
    assert [batch for _, batch in read] == [["dddd", "eeee"], ["ccc", "bb"], ["a", ""]]


def test_no_texts_make_no_batch():
    assert list(tokenized_ahead([], batch_size=2, tokenize=list)) == []


def test_the_next_batches_are_tokenized_while_one_is_encoded_but_not_all_of_them():
    texts = ["x"] * (3 * AHEAD)
    tokenized = []
    has_room = threading.Semaphore(0)

    def tokenize(batch):
        tokenized.append(batch)
        has_room.release()
        return batch

    encoded = 0
    for _ in tokenized_ahead(texts, batch_size=1, tokenize=tokenize):
        # While this batch is encoded, the thread gets as far ahead as it may.
        is_first = encoded == 0
        encoded += 1
        waits = AHEAD + 1 if is_first else int(len(texts) - encoded >= AHEAD)
        for _ in range(waits):
            assert has_room.acquire(timeout=60)
        assert len(tokenized) == min(len(texts), encoded + AHEAD)
    assert encoded == len(texts)


def test_an_error_of_the_tokenizer_reaches_the_caller():
    def tokenize(batch):
        if batch == ["a", ""]:
            raise ValueError("no such task")
        return batch

    with pytest.raises(ValueError, match="no such task"):
        list(tokenized_ahead(TEXTS, batch_size=2, tokenize=tokenize))


def test_no_thread_is_left_where_encoding_fails():
    before = threading.active_count()
    with pytest.raises(RuntimeError, match="out of memory"):
        fail_at_first(["x"] * 100)
    assert threading.active_count() == before


def fail_at_first(texts):
    for _ in tokenized_ahead(texts, batch_size=1, tokenize=list):
        raise RuntimeError("out of memory")
