"""Codes: the codebooks are those of k-means, and the rotation makes them fit better."""

import numpy as np
import pytest

from ivf_built import built
from nextlong.retrieval.indexes import codes
from nextlong.retrieval.indexes.tune import recalls_of
from stored_vectors import brute_force


def naive_rounds(rows, book, rounds):
    """K-means as it is defined, one row after the other."""
    book = book.astype(np.float64)
    for _ in range(rounds):
        nearest = [min(range(len(book)), key=lambda value, row=row: ((row - book[value]) ** 2).sum()) for row in rows]
        for value in range(len(book)):
            members = [row for row, own in zip(rows, nearest, strict=True) if own == value]
            if members:
                book[value] = np.mean(members, axis=0)
    return book


@pytest.mark.parametrize("rounds", [1, 5])
def test_codebooks_are_those_of_k_means_part_by_part(rounds):
    rows = np.random.default_rng(3).standard_normal((60, 6)).astype(np.float32)
    first = codes.first_codebooks(rows, parts=3, values=4, seed=1)
    assert first.shape == (3, 4, 2)
    trained = codes.train_codebooks(rows, first, rounds=rounds)
    for part in range(3):
        expected = naive_rounds(rows[:, 2 * part : 2 * part + 2], first[part], rounds)
        np.testing.assert_allclose(trained[part], expected, atol=1e-5)


def test_a_value_that_no_row_is_nearest_to_stays():
    rows = np.array([[0.0], [1.0]], np.float32)
    book = np.array([[[0.5], [9.0]]], np.float32)
    assert codes.train_codebooks(rows, book).tolist() == [[[0.5], [9.0]]]


def coding_error(rows, parts, seed=0):
    books = codes.train_codebooks(rows, codes.first_codebooks(rows, parts=parts, values=8, seed=seed))
    slices = np.split(rows, parts, axis=1)
    return sum(
        float(((own[:, None] - book[None]) ** 2).sum(-1).min(1).mean()) for own, book in zip(slices, books, strict=True)
    )


def test_the_rotation_keeps_lengths_and_makes_codes_fit_better():
    rng = np.random.default_rng(5)
    rows = (rng.standard_normal((800, 4)) @ rng.standard_normal((4, 16))).astype(np.float32)  # in four dimensions of 16
    rotation = codes.train_rotation(rows, parts=4, values=8, seed=2)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(16), atol=1e-5)
    assert coding_error(rows @ rotation.T, 4) < 0.8 * coding_error(rows, 4)


@pytest.mark.parametrize(("factory", "least"), [("IVF8,PQ8", 0.95), ("OPQ8,IVF8,PQ8", 0.95), ("OPQ4_8,IVF8,SQ8", 0.2)])
def test_a_coded_index_finds_most_of_the_nearest(tmp_path, factory, least):
    rows = np.random.default_rng(4).standard_normal((12_000, 16)).astype(np.float32)
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)
    index = built(tmp_path, [rows[:5000], rows[5000:]], factory, probes=10_000, spare=2.0)
    ids = np.concatenate([np.arange(5000), (1 << 32) + np.arange(7000)])
    exclude = np.zeros((50, 2), np.int64)
    truth = tuple(map(list, zip(*brute_force(rows[:50], rows, ids, k=20, exclude=exclude), strict=True)))
    recall = recalls_of(index.search(rows[:50].astype(np.float32), 20, exclude=exclude), truth).mean()
    assert recall > least, recall
