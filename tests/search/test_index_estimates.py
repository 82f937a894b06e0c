import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong.recipe.amounts import Amounts
from nextlong.search.index_estimates import FILL, TRAIN, TUNE, parts

EXACT = Amounts(vectors=1e6, queries=1e4, dimensions=256, neighbours=1000, shards=40)


@pytest.mark.parametrize("estimate", [TRAIN, FILL, TUNE])
def test_exact_search_builds_nothing(estimate):
    assert estimate.work(EXACT) == estimate.disk(EXACT) == estimate.memory(EXACT) == 0


@pytest.mark.parametrize(("codes", "code_bytes"), [("Flat", 512), ("SQ8", 256), ("PQ64", 64)])
def test_lists_hold_a_code_and_an_id_a_vector(codes, code_bytes):
    built = Amounts(**{**vars(EXACT), "index": f"IVF,{codes}"})
    assert FILL.disk(built) * FILL.bytes == 1e6 * (code_bytes + 8)
    assert TRAIN.work(built) > 0
    assert FILL.work(built) > 0


@given(vectors=st.floats(0, 1e12), shards=st.integers(1, 10**6))
def test_an_index_is_filled_by_no_more_tasks_than_shards(vectors, shards):
    assert 1 <= parts(vectors, shards) <= shards
    assert parts(vectors, shards) >= min(shards, vectors / 2**21)
