"""Choose: exact where it is cheaper, codes by memory, and a reason that names the numbers."""

import pytest

from nextlong.search.choose import Load, choose, seconds

GIB = 1 << 30


def load(vectors, queries, *, dimensions=256, k=1088, memory=64 * GIB, has_gpu=False):
    return Load(vectors, queries, dimensions, k, memory, has_gpu)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (load(5_000, 5_000), "exact"),
        (load(1_332_815, 2_500), "exact"),  # an index would take longer to build
        (load(577_070, 577_070, k=17), "IVF,Flat"),
        (load(10_000_000, 10_000_000), "IVF,Flat"),
        (load(10_000_000, 10_000_000, memory=3 * GIB), "OPQ64,IVF,PQ64"),
        (load(10_000_000, 10_000_000, memory=4 * GIB), "IVF,SQ8"),
        (load(100_000_000, 200_000, dimensions=1024, has_gpu=True), "exact"),
    ],
)
def test_the_cheaper_search_is_chosen(asked, expected):
    chosen, why = choose(asked)
    assert chosen == expected
    assert f"{asked.vectors:,}" in why


def test_more_queries_never_bring_exact_search_back():
    chosen = [choose(load(1_000_000, 10**digits))[0] != "exact" for digits in range(1, 9)]
    assert chosen == sorted(chosen)


def test_a_gpu_makes_exact_search_cheaper_alone():
    slow, fast = (seconds(load(1_000_000, 1_000_000, has_gpu=has_gpu)) for has_gpu in (False, True))
    assert fast[0] < slow[0]
    assert fast[1] == slow[1]
