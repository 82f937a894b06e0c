import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nextlong.recipe.search import Search

CODES = ["Flat", "SQ4", "SQ6", "SQ8", "SQfp16", "SQbf16", "PQ64", "PQ32x4"]


@given(
    before=st.sampled_from(["", "OPQ64,", "OPQ64_128,", "PCA32,", "PCAR32,", "RR64,", "ITQ64,"]),
    clusters=st.one_of(st.just(""), st.integers(1, 2**20).map(str)),
    graph=st.sampled_from(["", "_HNSW", "_HNSW32"]),
    codes=st.sampled_from(CODES),
)
def test_inverted_lists_of_plain_codes_are_taken(before, clusters, graph, codes):
    index = f"{before}IVF{clusters}{graph},{codes}"
    assert Search(index=index).index == index


@pytest.mark.parametrize(
    "index", ["Flat", "HNSW32", "IVF", "IVF64", "ivf,Flat", "IVF64,Flat,RFlat", "Exact", "IVF,PQ8x5"]
)
def test_other_indexes_are_refused_with_examples(index):
    with pytest.raises(ValidationError, match=r"must be auto, exact or a FAISS factory string .* IVF4096,SQ8"):
        Search(index=index)


@pytest.mark.parametrize("recall", [0.0, 1.0, -1])
def test_a_recall_is_between_none_and_all(recall):
    with pytest.raises(ValidationError):
        Search(recall=recall)
