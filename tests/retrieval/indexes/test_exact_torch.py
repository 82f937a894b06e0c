"""Exact search by torch, on its processor device: what the processor finds, to the last bit."""

import numpy as np
import pytest

from nextlong.retrieval.indexes import exact_torch
from nextlong.retrieval.indexes.base import VectorShards
from nextlong.retrieval.indexes.exact import Exact
from stored_vectors import clustered_rows, packed, save_shards

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize("k", [1, 20, 200, 5000])
@pytest.mark.parametrize("rows", [64, 1 << 17])
@pytest.mark.parametrize("copies", [0, 300])
def test_torch_finds_what_the_processor_finds(tmp_path, monkeypatch, k, rows, copies):
    monkeypatch.setattr(exact_torch, "_ROWS", rows)
    monkeypatch.setattr(exact_torch, "_QUERIES", 7)
    sizes = (400 + copies, 0, 330)
    first = np.concatenate([clustered_rows(400, seed=1), np.tile(clustered_rows(400, seed=1)[5], (copies, 1))])
    shards = [first, clustered_rows(0, seed=2), clustered_rows(330, seed=3)]
    paths, ids = tuple(save_shards(tmp_path, *shards)), packed(sizes)
    exclude = np.stack([ids[:20], ids[:20] + 3], axis=1)
    queries = first[:20].astype(np.float32)
    found = exact_torch.ExactTorch(VectorShards(paths)).search(queries, k, exclude=exclude)
    expected = Exact(VectorShards(paths)).search(queries, k, exclude=exclude)
    for column, true_column in zip(found, expected, strict=True):
        assert [values.tolist() for values in column] == [values.tolist() for values in true_column]
