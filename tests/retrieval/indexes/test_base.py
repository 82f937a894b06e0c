import numpy as np
import pytest
from tests.support.stored_vectors import clustered_rows, save_shards

from nextlong.retrieval.indexes.base import IndexFiles, index_kind, widen


def test_a_task_without_a_gpu_searches_on_the_processor(tmp_path):
    (path,) = save_shards(tmp_path, clustered_rows(10))
    index = index_kind("exact").open(IndexFiles("exact", (path,)))
    assert (type(index).__name__, index.recall) == ("Exact", 1.0)


@pytest.mark.parametrize("index", ["IVF,Flat", "IVF4096_HNSW32,SQ8", "OPQ64,IVF,PQ64"])
def test_an_index_is_built_where_it_is_not_exact(index):
    assert index_kind(index).is_built
    assert not index_kind("exact").is_built


def test_every_finite_float16_is_widened_exactly():
    bits = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = bits[np.isfinite(bits)].reshape(-1, 8)
    widened = np.empty(finite.shape, np.float32)
    widen(finite, widened)
    # Bits, because 0.0 equals -0.0.
    expected = finite.astype(np.float32)
    assert (widened.view(np.uint32) == expected.view(np.uint32)).all()


@pytest.mark.heavy
def test_subnormal_numbers_are_widened_where_the_processor_flushes_them():
    torch = pytest.importorskip("torch")
    subnormal = np.array([[2.0**-24, 2.0**-14]], np.float16)
    widened = np.empty(subnormal.shape, np.float32)
    assert torch.set_flush_denormal(True)
    try:
        widen(subnormal, widened)
    finally:
        torch.set_flush_denormal(False)
    assert widened.tolist() == [[2.0**-24, 2.0**-14]]
