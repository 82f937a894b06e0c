import pytest

from nextlong.search.index import IndexFiles, open_index
from stored_vectors import clustered_rows, save_shards

pytestmark = pytest.mark.heavy


def test_a_task_with_a_gpu_searches_on_it(tmp_path, monkeypatch):
    monkeypatch.setattr("nextlong.search.index.granted_gpus", lambda: (0,))
    (path,) = save_shards(tmp_path, clustered_rows(10))
    assert type(open_index(IndexFiles("exact", (path,)))).__name__ == "ExactTorch"
