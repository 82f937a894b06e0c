import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong.search import best, exact
from nextlong.search.index import IndexFiles, open_index
from stored_vectors import brute_force, clustered_rows, packed, save_shards


def found_by(paths, queries, *, k, exclude):
    index = open_index(IndexFiles("exact", tuple(paths)))
    assert index.recall == 1.0
    return index.search(queries.astype(np.float32), k, exclude=np.asarray(exclude, np.int64).reshape(-1, 2))


def assert_same(found, expected):
    for ids, scores, (true_ids, true_scores) in zip(*found, expected, strict=True):
        assert ids.tolist() == true_ids.tolist()
        assert scores.tolist() == true_scores.tolist()
        assert scores.dtype == np.float32


@given(
    seed=st.integers(0, 99),
    k=st.integers(1, 40),
    copies=st.integers(1, 60),
    block_rows=st.integers(1, 90),
    ties=st.sampled_from([0, 2, 64]),
    least_room=st.sampled_from([1, 8, 2048]),
    sampled=st.sampled_from([30, 1 << 14]),
)
def test_equal_and_nearly_equal_vectors_are_told_apart(
    tmp_path_factory, seed, k, copies, block_rows, ties, least_room, sampled
):
    rows = clustered_rows(40, centres=3, dimensions=4, spread=0.01, seed=seed)
    shards = [np.concatenate([rows[:20], np.tile(rows[3], (copies, 1))]), rows[15:]]
    ids, vectors = packed(map(len, shards)), np.concatenate(shards)
    exclude = np.stack([ids[:6], ids[:6] + 2], axis=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "_BLOCK_ROWS", block_rows)
        patch.setattr(best, "_TIES", ties)
        patch.setattr(best, "_LEAST_ROOM", least_room)
        patch.setattr(exact, "_SAMPLED", sampled)
        patch.setattr(exact, "_WORTH_SAMPLING", 1)
        paths = save_shards(tmp_path_factory.mktemp("vectors"), *shards)
        found = found_by(paths, vectors[:6], k=k, exclude=exclude)
    assert_same(found, brute_force(vectors[:6], vectors, ids, k=k, exclude=exclude))


def test_scores_do_not_depend_on_who_else_asks(tmp_path):
    rows = clustered_rows(3000, dimensions=64, seed=1)
    paths = save_shards(tmp_path, rows[:1800], rows[1800:])
    exclude = np.zeros((50, 2), np.int64)
    together = found_by(paths, rows[:50], k=100, exclude=exclude)
    for query in (0, 7, 49):
        alone = found_by(paths, rows[query : query + 1], k=100, exclude=exclude[:1])
        assert_same(alone, [(together[0][query], together[1][query])])
