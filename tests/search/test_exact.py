"""Exact search: ids and scores to the last bit those of a search by hand, however the vectors are cut into blocks."""

import numpy as np
import pytest

from nextlong.search import best, exact
from nextlong.search.index import IndexFiles, open_index
from stored_vectors import brute_force, packed, save_shards, unit_rows


def found_by(paths, queries, *, k, exclude):
    index = open_index(IndexFiles("exact", tuple(paths)))
    assert index.recall == 1.0
    return index.search(queries.astype(np.float32), k, exclude=np.asarray(exclude, np.int64).reshape(-1, 2))


def assert_same(found, expected):
    for ids, scores, (true_ids, true_scores) in zip(*found, expected, strict=True):
        assert ids.tolist() == true_ids.tolist()
        assert scores.tolist() == true_scores.tolist()
        assert scores.dtype == np.float32


@pytest.mark.parametrize("block_rows", [7, 16, 1000])
@pytest.mark.parametrize("k", [1, 5, 30, 500])
def test_exact_is_brute_force(tmp_path, monkeypatch, block_rows, k):
    monkeypatch.setattr(exact, "_BLOCK_ROWS", block_rows)
    monkeypatch.setattr(exact, "_SCORES", 50)  # a few columns at a time
    monkeypatch.setattr(exact, "_HELD", 3 * best.cells(k))  # three queries at a time
    sizes = (20, 0, 33, 5)
    shards = [unit_rows(size, seed=size) for size in sizes]
    ids, vectors = packed(sizes), np.concatenate(shards)
    exclude = np.repeat([[ids[0], ids[10]], [ids[25], ids[29]]], [10, 4], axis=0)  # documents of 10 chunks and of 4
    queries = np.concatenate([vectors[:10], vectors[25:29]])
    found = found_by(save_shards(tmp_path, *shards), queries, k=k, exclude=exclude)
    assert_same(found, brute_force(queries, vectors, ids, k=k, exclude=exclude))


def test_a_document_that_is_its_own_nearest_still_gets_all_it_asked_for(tmp_path):
    # 40 chunks of one document, all alike, before 6 others further away.
    same, others = np.tile([1.0, 0.0], (40, 1)), np.array([[np.cos(a), np.sin(a)] for a in np.arange(1, 7) / 7])
    paths = save_shards(tmp_path, np.concatenate([same, others]).astype(np.float16))
    found, _ = found_by(paths, same, k=2, exclude=np.tile([0, 40], (40, 1)))
    assert [ids.tolist() for ids in found] == [[40, 41]] * 40


def test_a_corpus_of_one_document_has_no_candidates(tmp_path):
    paths = save_shards(tmp_path, unit_rows(3))
    found, scores = found_by(paths, unit_rows(3), k=4, exclude=np.tile([0, 3], (3, 1)))
    assert [len(ids) for ids in found] == [len(values) for values in scores] == [0, 0, 0]


def test_opposite_vectors_are_candidates_too(tmp_path):
    paths = save_shards(tmp_path, np.array([[1], [-1]], np.float16))
    found, scores = found_by(paths, np.ones((1, 1)), k=2, exclude=[[0, 1]])
    assert (found[0].tolist(), scores[0].tolist()) == ([1], [-1.0])


def test_a_tie_in_truth_is_none_that_rounding_decides(tmp_path):
    # The same 512 numbers in 200 orders have the same sum; added up in float32 they differ in their last bits.
    draw = np.random.default_rng(1)
    row = draw.standard_normal(512)
    rows = np.array([draw.permutation(row / np.linalg.norm(row)) for _ in range(200)]).astype(np.float16)
    query = np.full((1, 512), 512**-0.5, np.float32)
    assert len(np.unique(query @ rows.astype(np.float32).T)) > 5
    found, _ = found_by(save_shards(tmp_path, rows), query, k=5, exclude=[[0, 0]])
    assert found[0].tolist() == [0, 1, 2, 3, 4]
