"""Choose: exact where it is cheaper, codes by memory, and a reason that names the numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong.retrieval.index import SearchLoad, choose, count_parts, seconds

GIB = 1 << 30


@pytest.fixture(autouse=True)
def much_memory(monkeypatch):
    monkeypatch.setattr("nextlong.retrieval.index.memory_bytes", lambda: 64 * GIB)


def load(vectors, queries, *, dimensions=256, k=1088):
    return SearchLoad(
        vectors=vectors, queries=queries, dimensions=dimensions, neighbours=k
    )


@pytest.mark.parametrize(
    ("asked", "gib", "has_gpu", "expected"),
    [
        (load(5_000, 5_000), 64, False, "exact"),
        (
            load(1_332_815, 2_500),
            64,
            False,
            "exact",
        ),  # an index would take longer to build
        (load(577_070, 577_070, k=17), 64, False, "IVF,Flat"),
        (load(10_000_000, 10_000_000), 64, False, "IVF,Flat"),
        (load(10_000_000, 10_000_000), 3, False, "OPQ64,IVF,PQ64"),
        (load(10_000_000, 10_000_000), 4, False, "IVF,SQ8"),
        (load(100_000_000, 200_000, dimensions=1024), 64, True, "exact"),
    ],
)
def test_the_cheaper_search_is_chosen(asked, gib, has_gpu, expected, monkeypatch):
    monkeypatch.setattr("nextlong.retrieval.index.memory_bytes", lambda: gib * GIB)
    chosen, why = choose(asked, has_gpu=has_gpu)
    assert chosen == expected
    assert f"{asked.vectors:,}" in why


def test_more_queries_never_bring_exact_search_back():
    chosen = [
        choose(load(1_000_000, 10**digits))[0] != "exact" for digits in range(1, 9)
    ]
    assert chosen == sorted(chosen)


def test_a_gpu_makes_exact_search_cheaper_alone():
    slow, fast = (
        seconds(load(1_000_000, 1_000_000), has_gpu=has_gpu)
        for has_gpu in (False, True)
    )
    assert fast[0] < slow[0]
    assert fast[1] == slow[1]


@given(vectors=st.floats(0, 1e12), shards=st.integers(1, 10**6))
def test_an_index_is_filled_by_no_more_tasks_than_shards(vectors, shards):
    assert 1 <= count_parts(vectors, shards) <= shards
    assert count_parts(vectors, shards) >= min(shards, vectors / 2**21)
