import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong.engine.step import Amounts
from nextlong.recipe import Recipe
from nextlong.recipe.amounts import BLOCKS, MOST_QUERIES, blocks, candidates_of, draws, sequence_limit, shortlist_chunks
from nextlong.recipe.keys import Compose, Mine


def recipe(**compose):
    keys = {"ingest": {"sources": [{"path": "corpus"}]}, "tokenizer": {"source": "t.json"}, "run_dir": "run"}
    return Recipe.from_dict({**keys, "compose": compose})


@given(count=st.integers(1, 10**7), attempt=st.integers(0, 5))
def test_each_attempt_draws_and_drafts_twice_as_many_and_more_than_asked(count, attempt):
    asked = recipe(sequences=count)
    assert draws(asked.compose, attempt) == 2**attempt * draws(asked.compose) > 2**attempt * count
    assert sequence_limit(asked.compose, attempt) == 2**attempt * sequence_limit(asked.compose) > 2**attempt * count
    assert sequence_limit(asked.compose) <= draws(asked.compose)


def test_all_is_no_number():
    assert draws(recipe(sequences="all").compose) is None
    assert sequence_limit(recipe(sequences="all").compose, 3) is None


@given(tokens=st.integers(1024, 2**22))
def test_a_meta_chunk_gets_candidates_for_a_whole_sequence(tokens):
    asked = recipe(target_tokens=tokens)
    candidates = candidates_of(asked.compose, asked.mine, max_chars=asked.chunk.max_chars)
    assert candidates >= tokens * asked.compose.draft_factor * 4 / asked.chunk.max_chars
    assert math.log2(candidates).is_integer()


@given(documents=st.floats(0, 1e9), queries=st.floats(0, 1e9))
def test_no_task_searches_for_too_many_and_none_is_empty(documents, queries):
    tasks = blocks(documents, queries)
    assert tasks >= max(1.0, queries / MOST_QUERIES)
    assert tasks <= max(1.0, BLOCKS, queries / MOST_QUERIES)


def test_no_query_has_more_neighbours_than_there_are_vectors():
    assert Amounts(queries=3, neighbours=10, vectors=4).all_neighbours == 12
    assert Amounts(queries=3, neighbours=2, vectors=4).all_neighbours == 6


@pytest.mark.parametrize(
    ("chunks", "meta_documents", "times"),
    [(1e9, 13, 2.0), (800, 1, 2.0), (600, 1, 1.5), (400, 1, 1.0), (10, 100, 1.0)],
    ids=["large corpus", "just large enough", "between", "a draft needs as many", "tiny corpus"],
)
def test_a_shortlist_has_one_to_two_times_the_chunks_of_a_draft_by_the_size_of_the_corpus(
    chunks, meta_documents, times
):
    compose, mine = Compose(target_tokens=10_000, draft_factor=1.0), Mine(shortlist="bm25")
    sizes = {"chunks": chunks, "chunk_chars": 450.0, "meta_documents": meta_documents}  # 100 chunks make a draft
    assert shortlist_chunks(compose, mine, **sizes) == times * 100
    assert shortlist_chunks(compose, Mine(shortlist="bm25", shortlist_chunks=7), **sizes) == 7
