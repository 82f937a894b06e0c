import pytest
from tests.support.stored_vectors import clustered_rows, save_shards

from nextlong.retrieval.indexes.base import IndexFiles, index_kind


def test_a_task_without_a_gpu_searches_on_the_processor(tmp_path):
    (path,) = save_shards(tmp_path, clustered_rows(10))
    index = index_kind("exact").open(IndexFiles("exact", (path,)))
    assert (type(index).__name__, index.recall) == ("Exact", 1.0)


@pytest.mark.parametrize("index", ["IVF,Flat", "IVF4096_HNSW32,SQ8", "OPQ64,IVF,PQ64"])
def test_an_index_is_built_where_it_is_not_exact(index):
    assert index_kind(index).is_built
    assert not index_kind("exact").is_built
