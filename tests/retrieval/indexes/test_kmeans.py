"""Clusters: centres nearest to a vector are those of the highest products; training fills every cluster and brings them nearer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong.retrieval.indexes import kmeans
from nextlong.retrieval.indexes.kmeans import nearest_centres, train_centres
from stored_vectors import clustered_rows


@given(rows=st.integers(0, 60), centres=st.integers(1, 30), count=st.integers(1, 40), held=st.integers(1, 200))
def test_the_nearest_centres_are_those_of_the_highest_products(rows, centres, count, held):
    draw = np.random.default_rng(rows * centres)
    rows_ND = draw.standard_normal((rows, 8)).astype(np.float32)
    centres_CD = draw.standard_normal((centres, 8)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kmeans, "_PRODUCTS", held)  # so that there are several blocks
        nearest = nearest_centres(rows_ND, centres_CD, count=count)
    expected = np.argsort(-(rows_ND @ centres_CD.T), axis=1)[:, :count]
    assert nearest.tolist() == expected.tolist()


def test_training_brings_centres_nearer_and_each_is_of_unit_length():
    sample = clustered_rows(4_000, centres=50, dimensions=12, spread=0.2).astype(np.float32)
    nearness = []
    for iterations in (0, 1, 8):
        centres = train_centres(sample, count=50, iterations=iterations, seed=3)
        assert np.linalg.norm(centres, axis=1) == pytest.approx(1.0, abs=1e-3)
        nearness.append(float((sample @ centres.T).max(axis=1).mean()))
    assert nearness == sorted(nearness)
    assert nearness[2] > nearness[0] + 0.05
    again = train_centres(sample, count=50, iterations=8, seed=3)
    assert again.tolist() == centres.tolist()


def test_a_centre_that_no_vector_is_nearest_to_goes_to_the_farthest():
    sample = np.repeat(np.eye(4, dtype=np.float32), [40, 30, 20, 1], axis=0)  # only four places, one of them rare
    centres = train_centres(sample, count=8, iterations=4, seed=0)
    assert (sample @ centres.T).max(axis=1) == pytest.approx(np.ones(len(sample)))
