"""Tuning: the recall that is promised is the one that is measured against brute force, on queries of the recipe's own."""

import numpy as np
import pytest

from ivf_built import built
from nextlong.retrieval.indexes import tune
from nextlong.retrieval.indexes.base import VectorShards, open_index
from nextlong.retrieval.indexes.exact import Exact
from stored_vectors import clustered_rows


@pytest.mark.parametrize("factory", ["IVF64,Flat", "IVF64,SQ4"])
@pytest.mark.parametrize("target", [0.5, 0.9, 0.99])
def test_other_queries_find_what_was_promised(tmp_path, factory, target):
    rows = clustered_rows(8000, centres=500, dimensions=24, spread=0.8)
    files = built(tmp_path, [rows[:3000], rows[3000:]], factory)._files
    ids = np.concatenate([np.arange(3000), (1 << 32) + np.arange(5000)])
    exclude = np.stack([ids, ids + 1], axis=1)
    counts = tune.tune(files, ids=ids, exclude=exclude, k=30, target=target, seed=1)
    assert counts.recall == target
    assert counts.recall_measured >= target
    assert counts.probes < 64 or target == 0.99
    assert (
        counts.recall_worst
        <= counts.recall_p5
        <= counts.recall_measured
        <= counts.recall_nearest
        == pytest.approx(counts.recall_measured)
    )  # k is below 100: the nearest are all
    tuned = tune.replace(files, probes=counts.probes, spare=counts.spare)
    others = np.random.default_rng(5).choice(8000, 300, replace=False)
    queries = rows[others].astype(np.float32)
    found = open_index(tuned).search(queries, 30, exclude=exclude[others])
    truth = Exact(VectorShards(files.vectors)).search(queries, 30, exclude=exclude[others])
    recalls = tune.recalls_of(found, truth)
    assert recalls.mean() + 3 * recalls.std() / len(recalls) ** 0.5 >= target


def test_equal_cosines_count_whichever_is_found():
    ids, scores = [np.array([1, 9])], [np.array([0.9, 0.5], np.float32)]
    truth = ([np.array([1, 2])], [np.array([0.9, 0.5], np.float32)])
    assert tune.recalls_of((ids, scores), truth).tolist() == [1.0]
    worse = ([np.array([1, 9])], [np.array([0.9, 0.4], np.float32)])
    assert tune.recalls_of(worse, truth).tolist() == [0.5]


def test_a_query_with_no_neighbours_has_found_them_all():
    nothing = ([np.empty(0, np.int64)], [np.empty(0, np.float32)])
    assert tune.recalls_of(nothing, nothing).tolist() == [1.0]
