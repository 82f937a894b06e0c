"""Exact search on a device: ids and scores are the processor's, to the last bit."""

import numpy as np
import pytest
from tests.support.stored_vectors import clustered_rows, packed, save_shards

from nextlong.retrieval.indexes import exact, exact_cpu
from nextlong.retrieval.indexes.base import IndexFiles, VectorShards

pytestmark = pytest.mark.heavy
exact_gpu = pytest.importorskip("nextlong.retrieval.indexes.exact_gpu")


def assert_same(found, expected):
    for ids, scores, (true_ids, true_scores) in zip(*found, expected, strict=True):
        assert ids.tolist() == true_ids.tolist()
        assert scores.tolist() == true_scores.tolist()
        assert scores.dtype == np.float32


def with_copies(copies):
    """Return shards of clustered vectors, one of them empty, one with copies of a vector."""
    rows = clustered_rows(400, seed=1)
    first = np.concatenate([rows, np.tile(rows[5], (copies, 1))])
    return [first, clustered_rows(0, seed=2), clustered_rows(330, seed=3)]


def in_small_pieces(monkeypatch, *, rows, piece_rows, dimensions):
    """Let a device hold a piece of the vectors at a time, and multiply few of them."""
    monkeypatch.setattr(exact_gpu, "_DEVICE_ROWS", rows)
    monkeypatch.setattr(exact_gpu, "_DEVICE_QUERIES", 7)
    monkeypatch.setattr(exact_gpu, "_DEVICE_BYTES", 2 * dimensions * piece_rows)
    monkeypatch.setattr(exact_gpu, "_RESCORED_BYTES", 8 * dimensions * 50)


@pytest.mark.parametrize("k", [1, 20, 200, 5000])
@pytest.mark.parametrize("rows", [64, 1 << 17])
@pytest.mark.parametrize("piece_rows", [150, 1 << 17])
@pytest.mark.parametrize("copies", [0, 300])
def test_torch_finds_what_the_processor_finds(
    tmp_path, monkeypatch, k, rows, piece_rows, copies
):
    shards = with_copies(copies)
    in_small_pieces(
        monkeypatch, rows=rows, piece_rows=piece_rows, dimensions=shards[0].shape[1]
    )
    paths, ids = save_shards(tmp_path, *shards), packed(map(len, shards))
    exclude = np.stack([ids[:20], ids[:20] + 3], axis=1)
    queries = shards[0][:20].astype(np.float32)
    found = exact_gpu.ExactTorch(VectorShards(paths)).search(
        queries, k, exclude=exclude
    )
    expected = exact_cpu.Exact(VectorShards(paths)).search(queries, k, exclude=exclude)
    assert_same(found, list(zip(*expected, strict=True)))


def test_a_device_never_holds_many_candidates_for_queries_with_many_copies(
    tmp_path, monkeypatch
):
    shards = with_copies(2000)
    paths = save_shards(tmp_path, *shards)
    most = 4000
    monkeypatch.setattr(exact_gpu, "_CANDIDATES_AT_ONCE", most)
    rough = exact_gpu.ExactTorch._rough
    candidates = []

    def counted(self, rows, queries, width, ranges):
        candidates.append((len(queries) * width, len(queries)))
        return rough(self, rows, queries, width, ranges)

    monkeypatch.setattr(exact_gpu.ExactTorch, "_rough", counted)
    queries = np.tile(shards[0][5], (30, 1)).astype(np.float32)
    exclude = np.zeros((30, 2), np.int64)
    found = exact_gpu.ExactTorch(VectorShards(paths)).search(
        queries, 20, exclude=exclude
    )
    expected = exact_cpu.Exact(VectorShards(paths)).search(queries, 20, exclude=exclude)
    assert_same(found, list(zip(*expected, strict=True)))
    assert all(count <= most for count, queries in candidates if queries > 1)


@pytest.mark.parametrize("block", [range(1), range(1, 3), range(2, 3)])
def test_torch_finds_what_the_processor_finds_in_a_block_above_a_bound(
    tmp_path, monkeypatch, block
):
    shards = with_copies(30)
    paths, ids = save_shards(tmp_path, *shards), packed(map(len, shards))
    vectors = np.concatenate(shards)
    some = np.array([0, 5, 60, 429, 430, 431, 600])
    exclude = np.stack([ids[some], ids[some] + 4], axis=1)
    options = {
        "exclude": exclude,
        "min_scores_Q": np.linspace(-1, 0.9, len(some)).astype(np.float32),
    }
    queries = vectors[some].astype(np.float32)
    found, expected = (
        kind(VectorShards(paths, block)).search(queries, 50, **options)
        for kind in (exact_gpu.ExactTorch, exact_cpu.Exact)
    )
    assert_same(found, list(zip(*expected, strict=True)))


def test_a_device_reads_each_vector_once_for_all_queries(tmp_path, monkeypatch):
    shards = with_copies(0)
    monkeypatch.setattr(exact_gpu, "_DEVICE_QUERIES", 7)
    vectors = VectorShards(save_shards(tmp_path, *shards))
    read = VectorShards.__getitem__
    reads = []
    monkeypatch.setattr(
        VectorShards,
        "__getitem__",
        lambda self, shard: reads.append(shard) or read(self, shard),
    )
    index = exact_gpu.ExactTorch(vectors)
    exclude = np.zeros((40, 2), np.int64)
    queries = shards[0][:40].astype(np.float32)
    index.search(queries, 5, exclude=exclude)
    first_reads = len(reads)
    assert first_reads <= 2 * len(shards)
    index.search(queries, 9, exclude=exclude)
    assert len(reads) == first_reads


def test_a_device_that_is_not_asked_reads_nothing(tmp_path, monkeypatch):
    vectors = VectorShards(save_shards(tmp_path, *with_copies(0)))
    monkeypatch.setattr(VectorShards, "__getitem__", None)
    found, _ = exact_gpu.ExactTorch(vectors).search(
        np.empty((0, 8), np.float32), 5, exclude=np.empty((0, 2), np.int64)
    )
    assert found == []


def test_a_task_with_a_gpu_searches_on_it(tmp_path, monkeypatch):
    monkeypatch.setattr(exact, "granted_gpus", lambda: (0,))
    assert isinstance(
        exact.open_exact(
            IndexFiles("exact", tuple(save_shards(tmp_path, clustered_rows(10))))
        ),
        exact_gpu.ExactTorch,
    )
