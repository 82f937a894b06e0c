"""How much a plan says there is to do: what follows from a recipe and the size of a corpus."""

import pytest

from nextlong.recipe.keys import candidates_of
from nextlong.report.plan.amounts import Amounts, amounts_of

CORPUS = Amounts(
    shards=2,
    dimensions=16,
    documents=1200,
    text_bytes=1.1e6,
    kept_documents=1000,
    kept_chars=1e6,
    chunks=4000,
    eligible=500,
    meta_chunks=3000,
)


@pytest.fixture
def amounts(recipe_for, tmp_path):
    def made(*overrides, corpus=CORPUS):
        recipe = recipe_for(tmp_path / "run", *overrides)
        return amounts_of(recipe, corpus, chars_per_token=4.0)

    return made


def test_a_corpus_so_many_times_as_large_has_vectors_of_as_many_dimensions():
    larger = CORPUS.times(10)
    assert (larger.documents, larger.kept_chars, larger.meta_chunks) == (
        12_000,
        1e7,
        30_000,
    )
    assert larger.dimensions == CORPUS.dimensions


def test_chunks_are_searched_for_chunks_and_documents_for_documents(
    amounts, recipe_for, tmp_path
):
    nextlong, knn = amounts(), amounts("compose.method=knn")
    assert (nextlong.vectors, knn.vectors) == (4000, 1000)
    recipe = recipe_for(tmp_path / "run")
    assert nextlong.neighbours == candidates_of(
        recipe.compose, recipe.mine, chunk_chars=250
    )
    assert nextlong.chunk_chars == 250
    # 12 sequences: a quarter more documents and 8 are drawn, each with 6 chunks to be
    # searched for.
    assert nextlong.queries == pytest.approx((12 * 1.25 + 8) * 6)
    assert amounts("compose.method=standard").queries == 0


def test_no_more_sequences_come_out_than_the_corpus_can_give(amounts):
    assert amounts("compose.sequences=12").sequences == 12
    assert (
        amounts("compose.sequences=99999").sequences == CORPUS.eligible
    )  # each extends a document
    everything = amounts("compose.method=standard", "compose.sequences=all")
    assert everything.sequences == pytest.approx(
        CORPUS.kept_chars / (2048 * 4.0)
    )  # each text stands in one
    assert everything.tokens == pytest.approx(everything.sequences * 2048)


def test_drafts_name_no_chunk_that_is_not_there(amounts):
    few, many = amounts("compose.sequences=1"), amounts("compose.sequences=99999")
    assert few.referenced_chunks < few.drafted_chunks
    assert few.referenced_chunks < many.referenced_chunks <= CORPUS.chunks
    assert many.drafted_chunks > CORPUS.chunks  # chunks serve again and again


def test_more_documents_are_drafted_where_many_are_longer_than_a_sequence(amounts):
    longer = Amounts(**{**vars(CORPUS), "kept_chars": 8e6})
    short, long = amounts(), amounts(corpus=longer)
    assert short.drafts < long.drafts <= CORPUS.eligible


def test_an_index_that_is_named_is_looked_into_in_part_and_an_exact_one_wholly(amounts):
    exact = amounts("search.index=exact", corpus=CORPUS.times(1000))
    assert (exact.index, exact.visited_share) == ("exact", 1.0)
    built = amounts("search.index='IVF4096,SQ8'", corpus=CORPUS.times(1000))
    assert built.index == "IVF4096,SQ8"
    assert 0 < built.visited_share < 1
