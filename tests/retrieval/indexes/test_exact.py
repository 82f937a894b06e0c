"""Exact search: ids and scores to the last bit those of a search by hand, however the vectors are cut into blocks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.stored_vectors import (
    brute_force,
    clustered_rows,
    packed,
    save_shards,
    unit_rows,
)

from nextlong.retrieval.indexes import best, exact, exact_cpu
from nextlong.retrieval.indexes.base import IndexFiles, VectorShards


def found_by(paths, queries, *, k, exclude):
    index = exact.open_exact(IndexFiles("exact", tuple(paths)))
    assert index.recall == 1.0
    return index.search(
        queries.astype(np.float32),
        k,
        exclude=np.asarray(exclude, np.int64).reshape(-1, 2),
    )


def assert_same(found, expected):
    for ids, scores, (true_ids, true_scores) in zip(*found, expected, strict=True):
        assert ids.tolist() == true_ids.tolist()
        assert scores.tolist() == true_scores.tolist()
        assert scores.dtype == np.float32


@pytest.mark.parametrize("block_rows", [7, 16, 1000])
@pytest.mark.parametrize("k", [1, 5, 30, 500])
def test_exact_is_brute_force(tmp_path, monkeypatch, block_rows, k):
    monkeypatch.setattr(exact_cpu, "_BLOCK_ROWS", block_rows)
    monkeypatch.setattr(exact_cpu, "_SCORES", 50)  # a few columns at a time
    monkeypatch.setattr(
        exact_cpu, "_CELLS_AT_ONCE", 3 * best.cells(k)
    )  # three queries at a time
    sizes = (20, 0, 33, 5)
    shards = [unit_rows(size, seed=size) for size in sizes]
    ids, vectors = packed(sizes), np.concatenate(shards)
    exclude = np.repeat(
        [[ids[0], ids[10]], [ids[25], ids[29]]], [10, 4], axis=0
    )  # documents of 10 chunks and of 4
    queries = np.concatenate([vectors[:10], vectors[25:29]])
    found = found_by(save_shards(tmp_path, *shards), queries, k=k, exclude=exclude)
    assert_same(found, brute_force(queries, vectors, ids, k=k, exclude=exclude))


def test_a_document_that_is_its_own_nearest_still_gets_all_it_asked_for(tmp_path):
    # 40 chunks of one document, all alike, before 6 others further away.
    same, others = (
        np.tile([1.0, 0.0], (40, 1)),
        np.array([[np.cos(a), np.sin(a)] for a in np.arange(1, 7) / 7]),
    )
    paths = save_shards(tmp_path, np.concatenate([same, others]).astype(np.float16))
    found, _ = found_by(paths, same, k=2, exclude=np.tile([0, 40], (40, 1)))
    assert [ids.tolist() for ids in found] == [[40, 41]] * 40


def test_a_corpus_of_one_document_has_no_candidates(tmp_path):
    paths = save_shards(tmp_path, unit_rows(3))
    found, scores = found_by(paths, unit_rows(3), k=4, exclude=np.tile([0, 3], (3, 1)))
    assert (
        [len(ids) for ids in found] == [len(values) for values in scores] == [0, 0, 0]
    )


def test_opposite_vectors_are_candidates_too(tmp_path):
    paths = save_shards(tmp_path, np.array([[1], [-1]], np.float16))
    found, scores = found_by(paths, np.ones((1, 1)), k=2, exclude=[[0, 1]])
    assert (found[0].tolist(), scores[0].tolist()) == ([1], [-1.0])


def test_a_tie_in_truth_is_none_that_rounding_decides(tmp_path):
    # The same 512 numbers in 200 orders have the same sum; added up in float32 they
    # differ in their last bits.
    draw = np.random.default_rng(1)
    row = draw.standard_normal(512)
    rows = np.array(
        [draw.permutation(row / np.linalg.norm(row)) for _ in range(200)]
    ).astype(np.float16)
    query = np.full((1, 512), 512**-0.5, np.float32)
    assert len(np.unique(query @ rows.astype(np.float32).T)) > 5
    found, _ = found_by(save_shards(tmp_path, rows), query, k=5, exclude=[[0, 0]])
    assert found[0].tolist() == [0, 1, 2, 3, 4]


@given(
    seed=st.integers(0, 99),
    k=st.integers(1, 40),
    copies=st.integers(1, 60),
    block_rows=st.integers(1, 90),
    ties=st.sampled_from([0, 2, 64]),
    least_room=st.sampled_from([1, 8, 2048]),
    sampled=st.sampled_from([2, 1 << 14]),
)
def test_equal_and_nearly_equal_vectors_are_told_apart(
    tmp_path_factory, seed, k, copies, block_rows, ties, least_room, sampled
):
    rows = clustered_rows(40, centres=3, dimensions=4, spread=0.01, seed=seed)
    shards = [np.concatenate([rows[:20], np.tile(rows[3], (copies, 1))]), rows[15:]]
    ids, vectors = packed(map(len, shards)), np.concatenate(shards)
    exclude = np.stack([ids[:6], ids[:6] + 2], axis=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact_cpu, "_BLOCK_ROWS", block_rows)
        patch.setattr(best, "_TIES", ties)
        patch.setattr(best, "_MIN_ROOM", least_room)
        patch.setattr(exact_cpu, "_SAMPLED", sampled)
        patch.setattr(exact_cpu, "_WORTH_SAMPLING", 1)
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


def test_equal_cosines_stand_in_the_order_of_their_ids(tmp_path):
    paths = save_shards(
        tmp_path, np.ones((3, 1), np.float16), np.ones((2, 1), np.float16)
    )
    found, _ = found_by(paths, np.ones((1, 1)), k=9, exclude=[[1, 2]])
    assert found[0].tolist() == [0, 2, 1 << 32, (1 << 32) + 1]


@pytest.mark.parametrize("period", [None, 16, 40])
@pytest.mark.parametrize("k", [1, 20, 90])
def test_a_guess_of_the_kth_best_changes_nothing_right_or_wrong(
    tmp_path, monkeypatch, period, k
):
    monkeypatch.setattr(exact_cpu, "_SAMPLED", 16)
    monkeypatch.setattr(
        exact_cpu, "_SCORES", 320
    )  # five queries, and 16 columns, at a time
    passes = []
    walk = VectorShards.blocks
    monkeypatch.setattr(
        VectorShards,
        "blocks",
        lambda shards, rows: passes.append(1) or walk(shards, rows),
    )
    shards = [unit_rows(size, seed=size) for size in (500, 3, 521)]
    if (
        period is not None
    ):  # what lies near the queries is what is sampled: there seems to be more of it than there is
        near = np.concatenate([np.arange(0, 1024, period), np.arange(20)])
        vectors = np.concatenate(shards)
        vectors[near] = clustered_rows(
            len(near), centres=1, dimensions=8, spread=0.05, seed=1
        )
        shards = np.split(vectors, [500, 503])
    ids, vectors = packed(map(len, shards)), np.concatenate(shards)
    exclude = np.stack([ids[:20], ids[:20] + 7], axis=1)
    found = found_by(save_shards(tmp_path, *shards), vectors[:20], k=k, exclude=exclude)
    assert_same(found, brute_force(vectors[:20], vectors, ids, k=k, exclude=exclude))
    assert len(passes) == (2 if period == 16 and k > 1 else 1)
