"""Clusters: centres nearest to a vector are those of the highest products; training fills every cluster and brings them nearer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.ivf_built import built, recalls_of
from tests.support.stored_vectors import brute_force, clustered_rows

from nextlong.retrieval.indexes import kmeans
from nextlong.retrieval.indexes.kmeans import nearest_centres, train_centres


@given(
    rows=st.integers(0, 60),
    centres=st.integers(1, 30),
    count=st.integers(1, 40),
    held=st.integers(1, 200),
)
def test_the_nearest_centres_are_those_of_the_highest_products(
    rows, centres, count, held
):
    draw = np.random.default_rng(rows * centres)
    rows_ND = draw.standard_normal((rows, 8)).astype(np.float32)
    centres_CD = draw.standard_normal((centres, 8)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kmeans, "_PRODUCTS", held)  # so that there are several blocks
        nearest = nearest_centres(rows_ND, centres_CD, count=count)
    expected = np.argsort(-(rows_ND @ centres_CD.T), axis=1)[:, :count]
    assert nearest.tolist() == expected.tolist()


def test_training_brings_centres_nearer_and_each_is_of_unit_length():
    sample = clustered_rows(4_000, centres=50, dimensions=12, spread=0.2).astype(
        np.float32
    )
    nearness = []
    for iterations in (0, 1, 8):
        centres = train_centres(sample, count=50, iterations=iterations, seed=3)
        assert np.linalg.norm(centres, axis=1) == pytest.approx(1.0, abs=1e-3)
        nearness.append(float((sample @ centres.T).max(axis=1).mean()))
    assert nearness == sorted(nearness)
    assert nearness[2] > nearness[0] + 0.05
    again = train_centres(sample, count=50, iterations=8, seed=3)
    assert again.tolist() == centres.tolist()


def test_many_centres_are_trained_in_two_levels_and_are_nearly_as_near(monkeypatch):
    sample = clustered_rows(6_000, centres=80, dimensions=12, spread=0.4).astype(
        np.float32
    )
    at_once = train_centres(sample, count=200, iterations=8, seed=3)
    monkeypatch.setattr(kmeans, "_MAX_AT_ONCE", 100)
    in_cells = train_centres(sample, count=200, iterations=8, seed=3)
    assert in_cells.shape == at_once.shape
    assert np.linalg.norm(in_cells, axis=1) == pytest.approx(1.0, abs=1e-3)
    of_one, of_two = (
        float((sample @ centres.T).max(axis=1).mean())
        for centres in (at_once, in_cells)
    )
    assert of_two > of_one - 0.01
    assert len(np.unique(in_cells, axis=0)) == 200


def test_a_centre_that_no_vector_is_nearest_to_goes_to_the_farthest():
    sample = np.repeat(
        np.eye(4, dtype=np.float32), [40, 30, 20, 1], axis=0
    )  # only four places, one of them rare
    centres = train_centres(sample, count=8, iterations=4, seed=0)
    assert (sample @ centres.T).max(axis=1) == pytest.approx(np.ones(len(sample)))


def naive_rounds(rows, book, rounds):
    """K-means as it is defined, one row after the other."""
    book = book.astype(np.float64)
    for _ in range(rounds):
        nearest = [
            min(
                range(len(book)),
                key=lambda value, row=row: ((row - book[value]) ** 2).sum(),
            )
            for row in rows
        ]
        for value in range(len(book)):
            members = [
                row for row, own in zip(rows, nearest, strict=True) if own == value
            ]
            if members:
                book[value] = np.mean(members, axis=0)
    return book


@pytest.mark.parametrize("rounds", [1, 5])
def test_codebooks_are_those_of_k_means_part_by_part(rounds):
    rows = np.random.default_rng(3).standard_normal((60, 6)).astype(np.float32)
    first = kmeans.first_codebooks(rows, parts=3, values=4, seed=1)
    assert first.shape == (3, 4, 2)
    trained = kmeans.train_codebooks(rows, first, rounds=rounds)
    for part in range(3):
        expected = naive_rounds(rows[:, 2 * part : 2 * part + 2], first[part], rounds)
        np.testing.assert_allclose(trained[part], expected, atol=1e-5)


def test_a_value_that_no_row_is_nearest_to_stays():
    rows = np.array([[0.0], [1.0]], np.float32)
    book = np.array([[[0.5], [9.0]]], np.float32)
    assert kmeans.train_codebooks(rows, book).tolist() == [[[0.5], [9.0]]]


def coding_error(rows, parts, seed=0):
    books = kmeans.train_codebooks(
        rows, kmeans.first_codebooks(rows, parts=parts, values=8, seed=seed)
    )
    slices = np.split(rows, parts, axis=1)
    return sum(
        float(((own[:, None] - book[None]) ** 2).sum(-1).min(1).mean())
        for own, book in zip(slices, books, strict=True)
    )


def test_the_rotation_keeps_lengths_and_makes_codes_fit_better():
    rng = np.random.default_rng(5)
    rows = (rng.standard_normal((800, 4)) @ rng.standard_normal((4, 16))).astype(
        np.float32
    )  # in four dimensions of 16
    rotation = kmeans.train_rotation(rows, parts=4, values=8, seed=2)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(16), atol=1e-5)
    assert coding_error(rows @ rotation.T, 4) < 0.8 * coding_error(rows, 4)


@pytest.mark.parametrize(
    ("factory", "least"),
    [("IVF8,PQ8", 0.95), ("OPQ8,IVF8,PQ8", 0.95), ("OPQ4,IVF8,SQ8", 0.9)],
)
def test_a_coded_index_finds_most_of_the_nearest(tmp_path, factory, least):
    rows = np.random.default_rng(4).standard_normal((12_000, 16)).astype(np.float32)
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)
    index = built(
        tmp_path, [rows[:5000], rows[5000:]], factory, probes=10_000, spare=2.0
    )
    ids = np.concatenate([np.arange(5000), (1 << 32) + np.arange(7000)])
    exclude = np.zeros((50, 2), np.int64)
    truth = tuple(
        map(
            list,
            zip(*brute_force(rows[:50], rows, ids, k=20, exclude=exclude), strict=True),
        )
    )
    recall = recalls_of(
        index.search(rows[:50].astype(np.float32), 20, exclude=exclude), truth
    ).mean()
    assert recall > least, recall
