import numpy as np
import pytest

from nextlong.search import exact
from nextlong.search.index import IndexFiles, open_index
from stored_vectors import brute_force, clustered_rows, packed, save_shards, unit_rows


def found_by(paths, queries, *, k, exclude):
    index = open_index(IndexFiles("exact", tuple(paths)))
    assert index.recall == 1.0
    return index.search(queries.astype(np.float32), k, exclude=np.asarray(exclude, np.int64).reshape(-1, 2))


def assert_same(found, expected):
    for ids, scores, (true_ids, true_scores) in zip(*found, expected, strict=True):
        assert ids.tolist() == true_ids.tolist()
        assert scores.tolist() == true_scores.tolist()
        assert scores.dtype == np.float32


def test_equal_cosines_stand_in_the_order_of_their_ids(tmp_path):
    paths = save_shards(tmp_path, np.ones((3, 1), np.float16), np.ones((2, 1), np.float16))
    found, _ = found_by(paths, np.ones((1, 1)), k=9, exclude=[[1, 2]])
    assert found[0].tolist() == [0, 2, 1 << 32, (1 << 32) + 1]


@pytest.mark.parametrize("period", [None, 16, 40])
@pytest.mark.parametrize("k", [1, 20, 90])
def test_a_guess_of_the_kth_best_changes_nothing_right_or_wrong(tmp_path, monkeypatch, period, k):
    monkeypatch.setattr(exact, "_SAMPLED", 64)
    monkeypatch.setattr(exact, "_SCORES", 320)  # five queries, and 16 columns, at a time
    passes = []
    walk = exact.blocks
    monkeypatch.setattr(exact, "blocks", lambda paths: passes.append(1) or walk(paths))
    shards = [unit_rows(size, seed=size) for size in (500, 3, 521)]
    if period is not None:  # what lies near the queries is what is sampled: there seems to be more of it than there is
        near = np.concatenate([np.arange(0, 1024, period), np.arange(20)])
        vectors = np.concatenate(shards)
        vectors[near] = clustered_rows(len(near), centres=1, dimensions=8, spread=0.05, seed=1)
        shards = np.split(vectors, [500, 503])
    ids, vectors = packed(map(len, shards)), np.concatenate(shards)
    exclude = np.stack([ids[:20], ids[:20] + 7], axis=1)
    found = found_by(save_shards(tmp_path, *shards), vectors[:20], k=k, exclude=exclude)
    assert_same(found, brute_force(vectors[:20], vectors, ids, k=k, exclude=exclude))
    assert len(passes) == (2 if period == 16 and k > 1 else 1)
