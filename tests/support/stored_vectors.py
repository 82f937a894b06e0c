"""Stored vectors: small shards of unit vectors, and the search that nobody can get wrong."""

from pathlib import Path

import numpy as np

from nextlong import schemas


def unit_rows(count, dimensions=8, seed=0):
    rows = (
        np.random.default_rng(seed)
        .standard_normal((count, dimensions))
        .astype(np.float32)
    )
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)


def clustered_rows(count, *, centres=20, dimensions=16, spread=0.3, seed=0):
    """Unit vectors around a few centres, as those of real texts lie."""
    draw = np.random.default_rng(seed)
    rows = draw.standard_normal((centres, dimensions))[draw.integers(0, centres, count)]
    rows = rows + spread * draw.standard_normal((count, dimensions))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)


def save_shards(folder, *shards):
    paths = [Path(folder) / f"{number}.vectors.npy" for number in range(len(shards))]
    for path, rows in zip(paths, shards, strict=True):
        np.save(path, rows)
    return paths


def packed(sizes):
    return np.concatenate(
        [schemas.pack_ids(shard, np.arange(size)) for shard, size in enumerate(sizes)]
    )


def brute_force(queries, vectors, ids, *, k, exclude):
    """Score all in float64, leave out, sort by the float32 score and then by id."""
    found = []
    for query, (first, last) in zip(queries, exclude, strict=True):
        scores = (vectors.astype(np.float64) @ query.astype(np.float64)).astype(
            np.float32
        )
        others = (ids < first) | (ids >= last)
        order = np.lexsort((ids[others], -scores[others]))[:k]
        found.append((ids[others][order], scores[others][order]))
    return found
