import pytest

from nextlong.retrieval.indexes.base import IndexFiles, is_built, open_index
from stored_vectors import clustered_rows, save_shards


def test_a_task_without_a_gpu_searches_on_the_processor(tmp_path):
    (path,) = save_shards(tmp_path, clustered_rows(10))
    index = open_index(IndexFiles("exact", (path,)))
    assert (type(index).__name__, index.recall) == ("Exact", 1.0)


@pytest.mark.parametrize("index", ["IVF,Flat", "IVF4096_HNSW32,SQ8", "OPQ64,IVF,PQ64"])
def test_an_index_is_built_where_it_is_not_exact(index):
    assert is_built(index)
    assert not is_built("exact")
