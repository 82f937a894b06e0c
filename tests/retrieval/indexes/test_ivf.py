"""IVF: what the clusters that are looked into hold is found exactly, whatever the codes, and all of it if all are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.ivf_built import built, recalls_of, tuned
from tests.support.larger_cases import thorough
from tests.support.stored_vectors import (
    brute_force,
    clustered_rows,
    packed,
    save_shards,
)

from nextlong.retrieval.indexes import ivf
from nextlong.retrieval.indexes.base import VectorShards
from nextlong.retrieval.indexes.exact_cpu import Exact


@pytest.mark.parametrize("factory", ["IVF,Flat", "IVF8,SQ8", "IVF8_HNSW8,Flat"])
@pytest.mark.parametrize("parts", [1, 3])
def test_looking_into_all_clusters_is_brute_force(tmp_path, factory, parts):
    shards = [clustered_rows(size, seed=size) for size in (300, 0, 170, 90)]
    ids, vectors = packed(map(len, shards)), np.concatenate(shards)
    exclude = np.stack([ids[:30] - ids[:30] % 4, ids[:30] - ids[:30] % 4 + 4], axis=1)
    index = built(tmp_path, shards, factory, parts=parts, probes=10_000, spare=3.0)
    found = index.search(vectors[:30].astype(np.float32), 25, exclude=exclude)
    expected = brute_force(vectors[:30], vectors, ids, k=25, exclude=exclude)
    for got, scores, (true_ids, true_scores) in zip(*found, expected, strict=True):
        assert got.tolist() == true_ids.tolist()
        assert scores == pytest.approx(true_scores, abs=1e-6)


@given(
    count=st.integers(1, 90),
    dimensions=st.integers(2, 9),
    k=st.integers(1, 50),
    codes=st.sampled_from(["Flat", "SQ8"]),
)
def test_small_corpora_never_fail(tmp_path_factory, count, dimensions, k, codes):
    rows = clustered_rows(count, dimensions=dimensions, seed=count)
    index = built(
        tmp_path_factory.mktemp("small"), [rows], f"IVF4096,{codes}", probes=1
    )
    exclude = np.stack([np.arange(count), np.arange(count) + 1], axis=1)
    found, scores = index.search(rows.astype(np.float32), k, exclude=exclude)
    for own, (ids, cosines) in enumerate(zip(found, scores, strict=True)):
        assert own not in ids
        assert len(set(ids.tolist())) == len(ids) <= k
        assert (np.diff(cosines) <= 0).all()


def test_more_probes_find_more(tmp_path):
    rows = clustered_rows(6000, centres=400, dimensions=24, spread=0.8)
    exclude = np.zeros((200, 2), np.int64)
    expected = brute_force(rows[:200], rows, np.arange(6000), k=40, exclude=exclude)
    truth = tuple(map(list, zip(*expected, strict=True)))
    recalls = []
    for probes in (1, 4, 16, 10_000):
        folder = tmp_path / str(probes)
        folder.mkdir()
        index = built(folder, [rows], "IVF,Flat", probes=probes)
        recalls.append(
            float(
                recalls_of(
                    index.search(rows[:200].astype(np.float32), 40, exclude=exclude),
                    truth,
                ).mean()
            )
        )
    assert recalls == sorted(recalls)
    assert recalls[0] < 0.9
    assert recalls[-1] == 1.0


def test_the_sample_comes_from_all_shards(tmp_path):
    shards = [np.full((100, 2), number, np.float16) for number in range(5)]
    sample = ivf.draw_sample(save_shards(tmp_path, *shards), count=50, seed=1)
    assert len(sample) == 50
    assert set(sample[:, 0].tolist()) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    ("factory", "vectors", "expected"),
    [
        ("IVF,SQ8", 1_000_000, "IVF2048,SQ8"),
        ("IVF4096,SQ8", 1_000_000, "IVF4096,SQ8"),
        ("IVF4096,SQ8", 4_000, "IVF100,SQ8"),
        ("IVF,Flat", 1, "IVF1,Flat"),
        ("OPQ16,IVF,PQ16", 40_000, "OPQ16,IVF512,PQ16"),
        ("IVF,SQ8", 100_000_000, "IVF16384,SQ8"),
        ("IVF,SQ8", 1_000_000_000, "IVF65536_HNSW32,SQ8"),
    ],
)
def test_clusters_fit_the_corpus(factory, vectors, expected):
    assert ivf.fitted(factory, vectors=vectors) == expected


@pytest.mark.parametrize(
    ("factory", "target"),
    [
        ("IVF64,SQ4", 0.9),
        ("IVF64,Flat", 0.99),
        *thorough(
            ("IVF64,Flat", 0.5),
            ("IVF64,SQ4", 0.5),
            ("IVF64,Flat", 0.9),
            ("IVF64,SQ4", 0.99),
        ),
    ],
)
def test_other_queries_find_what_was_promised(tmp_path, factory, target):
    rows = clustered_rows(8000, centres=500, dimensions=24, spread=0.8)
    files = built(tmp_path, [rows[:3000], rows[3000:]], factory, parts=2)._files
    ids = np.concatenate([np.arange(3000), (1 << 32) + np.arange(5000)])
    exclude = np.stack([ids, ids + 1], axis=1)
    np.save(queries := tmp_path / "queries.npy", ids)
    counts = tuned(tmp_path, files, queries, k=30, target=target, seed=1)
    assert counts == tuned(
        tmp_path, files, queries, k=30, target=target, seed=1, blocks=2
    )
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
    others = np.random.default_rng(5).choice(8000, 300, replace=False)
    queries = rows[others].astype(np.float32)
    index = ivf.Ivf(replace(files, probes=counts.probes, spare=counts.spare))
    found = index.search(queries, 30, exclude=exclude[others])
    truth = Exact(VectorShards(files.vectors)).search(
        queries, 30, exclude=exclude[others]
    )
    recalls = recalls_of(found, truth)
    assert recalls.mean() + 3 * recalls.std() / len(recalls) ** 0.5 >= target


@pytest.mark.parametrize(
    "factory", ["IVF32,PQ6", *thorough("IVF32,Flat", "OPQ6,IVF32,PQ6")]
)
def test_what_is_measured_by_blocks_is_what_a_search_finds(tmp_path, factory):
    rows = clustered_rows(12_000, centres=300, dimensions=24, spread=0.8)
    files = built(tmp_path, [rows[:3000], rows[3000:]], factory, parts=2)._files
    ids = np.concatenate([np.arange(3000), (1 << 32) + np.arange(9000)])[
        ::60
    ]  # fewer than are drawn: all are
    np.save(queries := tmp_path / "queries.npy", ids)
    counts = tuned(tmp_path, files, queries, k=20, target=0.8, seed=1, blocks=2)
    vectors_QD, exclude = (
        VectorShards(files.vectors).take(ids).astype(np.float32),
        np.stack([ids, ids + 1], axis=1),
    )
    truth = Exact(VectorShards(files.vectors)).search(vectors_QD, 20, exclude=exclude)
    index = ivf.Ivf(replace(files, probes=counts.probes, spare=counts.spare))
    recalls = recalls_of(index.search(vectors_QD, 20, exclude=exclude), truth)
    assert recalls.mean() == pytest.approx(counts.recall_measured, abs=1e-3)
    assert recalls.min() == pytest.approx(
        counts.recall_worst, abs=0.051
    )  # one neighbour


def test_ties_and_queries_without_neighbours_are_found(tmp_path):
    rows = np.repeat(
        clustered_rows(150, dimensions=8), 8, axis=0
    )  # each vector eight times
    files = built(tmp_path, [rows], "IVF8,Flat")._files
    np.save(queries := tmp_path / "queries.npy", np.arange(0, len(rows), 12))
    counts = tuned(tmp_path, files, queries, k=5, target=0.9, seed=1)
    assert counts.recall_measured >= counts.recall == 0.9
    (tmp_path / "one").mkdir()
    alone = built(tmp_path / "one", [rows[:1]], "IVF8,Flat")._files
    np.save(queries, np.arange(1))
    assert (
        tuned(tmp_path / "one", alone, queries, k=5, target=0.9, seed=1).recall_measured
        == 1.0
    )
