"""Sections and amounts: what of a recipe is made anew where it changes, and which keys only say how or where to work."""

import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nextlong import pipeline
from nextlong.errors import RecipeError
from nextlong.plugins import ENCODERS
from nextlong.reading.listing import input_files
from nextlong.recipe import Recipe, Section
from nextlong.recipe.keys import (
    BLOCKS,
    MOST_QUERIES,
    NEGATIVES,
    Compose,
    Mine,
    Operational,
    Search,
    blocks,
    candidates_of,
    draws,
    queries_of_task,
    read_length,
    sequence_limit,
    shortlist_chunks,
)
from nextlong.recipe.recipe import encoder_with
from nextlong.recipe.text import InvalidKeysError

MODEL = "encoder.model=sentence-transformers:some/model"
SERVER = "encoder.model=openai:some-model"
# Of each operational key another value, and what must be set beside it.
OTHER_VALUES = {
    "run_dir": ["run_dir=elsewhere"],
    "name": ["name=mine"],
    "workers": ["workers=7"],
    "executor": ["executor=serial"],
    "ray": ["ray.retries=9", "ray.address=auto"],
    "search.device": ["search.device=cpu"],
    "tokenizer.engine": ["tokenizer.engine=reference"],
    "export.push": ["export.push=published"],
    "encoder.sentence_transformers.batch_size": [
        MODEL,
        "encoder.sentence_transformers.batch_size=7",
    ],
    "encoder.openai.api_key_env": [SERVER, "encoder.openai.api_key_env=OTHER"],
    "encoder.openai.batch_size": [SERVER, "encoder.openai.batch_size=7"],
    "encoder.openai.concurrency": [SERVER, "encoder.openai.concurrency=3"],
    "encoder.openai.requests_per_minute": [
        SERVER,
        "encoder.openai.requests_per_minute=30",
    ],
    "encoder.openai.max_attempts": [SERVER, "encoder.openai.max_attempts=2"],
    "encoder.openai.timeout_s": [SERVER, "encoder.openai.timeout_s=5"],
    "scorer.batch_tokens": ["scorer.batch_tokens=8"],
    "scorer.device": ["scorer.device=cpu"],
}
# Another engine must give the same ids, and is what a user takes where one did not:
# these steps are done again with it.
ENCODE_AGAIN = {"draft", "lengths", "tokens"}


def dotted(section, above=""):
    """Yield the operational keys of a section and of those in it."""
    for name, field in section.model_fields.items():
        if any(isinstance(mark, Operational) for mark in field.metadata):
            yield above + name
        elif isinstance(field.annotation, type) and issubclass(
            field.annotation, Section
        ):
            yield from dotted(field.annotation, f"{above}{name}.")


@pytest.fixture
def fingerprints(tmp_path):
    (tmp_path / "corpus.jsonl").write_text('{"text": "One document."}\n')

    def fingerprints(*overrides):
        plain = {
            "run_dir": "run",
            "ingest": {"sources": [{"path": str(tmp_path / "corpus.jsonl")}]},
            "tokenizer": {"train": 300},
        }
        recipe = Recipe.from_dict(plain, overrides=overrides)
        return {
            step.name: step.fingerprint
            for step in pipeline.route(recipe, input_files(recipe.ingest))
        }

    return fingerprints


def test_every_operational_key_is_tested_here():
    encoders = dotted(encoder_with(tuple(ENCODERS.built_in)), "encoder.")
    assert {*dotted(Recipe), *encoders} == OTHER_VALUES.keys()


@pytest.mark.parametrize("method", ["nextlong", "knn"])
@pytest.mark.parametrize("key", OTHER_VALUES)
def test_an_operational_key_makes_nothing_anew(fingerprints, key, method):
    chosen = [
        f"compose.method={method}",
        *(word for word in OTHER_VALUES[key] if word in (MODEL, SERVER)),
    ]
    before, after = fingerprints(*chosen), fingerprints(*chosen, *OTHER_VALUES[key])
    changed = {name for name in before if after[name] != before[name]}
    inputs_of_changed = {"referenced_chunks", "compose", "rows", "parquet"}
    assert changed <= (
        ENCODE_AGAIN | inputs_of_changed if key == "tokenizer.engine" else set()
    )


def test_identity_is_the_plain_recipe_without_operational_keys():
    plain = {
        "run_dir": "run",
        "ingest": {"sources": [{"path": "x"}]},
        "tokenizer": {"train": 300},
    }
    recipe = Recipe.from_dict(
        plain | {"encoder": {"openai": {"timeout_s": 3, "dimensions": 64}}}
    )
    identity = recipe.identity()
    assert {"run_dir", "name", "workers", "executor", "ray"}.isdisjoint(identity)
    assert identity["encoder"]["openai"] == {
        "base_url": "https://api.openai.com/v1",
        "dimensions": 64,
    }
    assert identity["ingest"]["sources"][0]["path"] == "x"
    assert "engine" not in identity["tokenizer"]
    assert identity["chunk"] == recipe.chunk.model_dump(mode="json")


PLAIN = {"run_dir": "r", "ingest": {"sources": [{"path": "a"}]}, "tokenizer": "gpt2"}


@given(
    st.integers(0, 10**9),
    st.sampled_from(
        [("", 1), ("k", 1024), ("K", 1024), ("m", 1 << 20), ("M", 1 << 20)]
    ),
)
def test_a_length_is_its_number_times_its_unit(number, unit):
    assert read_length(f"{number}{unit[0]}") == number * unit[1]


@pytest.mark.parametrize(
    "text", ["", "k", "-8k", "8kk", "8 k", "8.5k", "0x8k", "８k", "9" * 5000 + "k"]
)
def test_other_texts_are_none(text):
    assert read_length(text) is None


def test_a_recipe_takes_them_where_lengths_are():
    recipe = Recipe.from_dict(
        PLAIN | {"chunk": {"max_chars": "2k"}, "compose": {"target_tokens": "64K"}},
        overrides=["export.pack=128k", "encoder.sentence_transformers.max_tokens=8k"],
    )
    assert (
        recipe.chunk.max_chars,
        recipe.compose.target_tokens,
        recipe.export.pack,
    ) == (2048, 65_536, 131_072)
    assert recipe.encoder.sentence_transformers.max_tokens == 8192
    assert recipe == Recipe.from_dict(recipe.as_data())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "ingest.sources[0].max_documents=500k",
            "only lengths in tokens or characters may use k and M: write 500000",
        ),
        ("compose.sequences=1M", "write 1000000"),
        (
            "compose.target_tokens=128kb",
            "compose.target_tokens: a length is a whole number, such as 131072, 128k",
        ),
        ("compose.target_tokens=1g", "or 1M (M is 1,048,576) (it is '1g')"),
        (
            "export.pack=1.5M",
            "export.pack: a length is a whole number, such as 131072, 128k",
        ),
        (
            "compose.target_tokens=0k",
            "compose.target_tokens must be greater than or equal to 2 (it is '0k')",
        ),
        ("compose.target_tokens=2048M", "must be less than 2147483648"),
    ],
)
def test_counts_and_what_is_no_length_are_refused(override, message):
    with pytest.raises(RecipeError) as caught:
        Recipe.from_dict(PLAIN, overrides=[override])
    assert message in str(caught.value)


def test_every_name_of_the_recipe_has_a_choice():
    assert set(NEGATIVES) == set(get_args(Compose.model_fields["negatives"].annotation))


CODES = ["Flat", "SQ4", "SQ8", "PQ64"]


@given(
    before=st.sampled_from(["", "OPQ64,"]),
    clusters=st.one_of(st.just(""), st.integers(1, 2**20).map(str)),
    graph=st.sampled_from(["", "_HNSW", "_HNSW32"]),
    codes=st.sampled_from(CODES),
)
def test_inverted_lists_of_plain_codes_are_taken(before, clusters, graph, codes):
    index = f"{before}IVF{clusters}{graph},{codes}"
    assert Search(index=index).index == index


@pytest.mark.parametrize(
    "index",
    [
        "Flat",
        "HNSW32",
        "IVF",
        "IVF64",
        "ivf,Flat",
        "IVF64,Flat,RFlat",
        "Exact",
        "IVF,PQ8x4",
        "PCA32,IVF,Flat",
    ],
)
def test_other_indexes_are_refused_with_examples(index):
    with pytest.raises(
        ValidationError,
        match="auto, exact .*IVF4096,SQ8",
    ):
        Search(index=index)


@pytest.mark.parametrize("recall", [0.0, 1.0, -1])
def test_a_recall_is_between_none_and_all(recall):
    with pytest.raises(ValidationError):
        Search(recall=recall)


def recipe(**compose):
    keys = {
        "ingest": {"sources": [{"path": "corpus"}]},
        "tokenizer": {"source": "t.json"},
        "run_dir": "run",
    }
    return Recipe.from_dict({**keys, "compose": compose})


@given(count=st.integers(1, 10**7), attempt=st.integers(0, 5))
def test_each_attempt_draws_and_drafts_twice_as_many_and_more_than_asked(
    count, attempt
):
    asked = recipe(sequences=count)
    assert (
        draws(asked.compose, attempt)
        == 2**attempt * draws(asked.compose)
        > 2**attempt * count
    )
    assert (
        sequence_limit(asked.compose, attempt)
        == 2**attempt * sequence_limit(asked.compose)
        > 2**attempt * count
    )
    assert sequence_limit(asked.compose) <= draws(asked.compose)


def test_all_is_no_number():
    assert draws(recipe(sequences="all").compose) is None
    assert sequence_limit(recipe(sequences="all").compose, 3) is None


@given(tokens=st.integers(1024, 2**22), chunk_chars=st.floats(16, 2048))
def test_a_meta_chunk_gets_candidates_for_a_whole_sequence(tokens, chunk_chars):
    asked = recipe(target_tokens=tokens)
    candidates = candidates_of(asked.compose, asked.mine, chunk_chars=chunk_chars)
    assert candidates >= tokens * asked.compose.draft_factor * 4 / chunk_chars
    assert math.log2(candidates).is_integer()


@given(neighbours=st.integers(1, 2**22))
def test_the_neighbours_of_a_task_fit_into_memory(neighbours):
    queries = queries_of_task(neighbours)
    assert 1 <= queries <= MOST_QUERIES
    assert queries == 1 or queries * neighbours <= 2**23


@given(documents=st.floats(0, 1e9), queries=st.floats(0, 1e9))
def test_no_task_searches_for_too_many_and_none_is_empty(documents, queries):
    tasks = blocks(documents, queries)
    assert tasks >= max(1.0, queries / MOST_QUERIES)
    assert tasks <= max(1.0, BLOCKS, queries / MOST_QUERIES)


@pytest.mark.parametrize(
    ("chunks", "meta_documents", "times"),
    [(1e9, 13, 2.0), (800, 1, 2.0), (600, 1, 1.5), (400, 1, 1.0), (10, 100, 1.0)],
    ids=[
        "large corpus",
        "just large enough",
        "between",
        "a draft needs as many",
        "tiny corpus",
    ],
)
def test_a_shortlist_has_one_to_two_times_the_chunks_of_a_draft_by_the_size_of_the_corpus(
    chunks, meta_documents, times
):
    compose, mine = (
        Compose(target_tokens=10_000, draft_factor=1.0),
        Mine(shortlist="bm25"),
    )
    sizes = {
        "chunks": chunks,
        "chunk_chars": 450.0,
        "meta_documents": meta_documents,
    }  # 100 chunks make a draft
    assert shortlist_chunks(compose, mine, **sizes) == times * 100
    assert (
        shortlist_chunks(compose, Mine(shortlist="bm25", shortlist_chunks=7), **sizes)
        == 7
    )


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({"encoder": {"model": "openai:m"}}, "encoder.openai.base_url"),
        ({"compose": {"method": "litelong"}}, "litelong.base_url"),
    ],
)
def test_a_url_without_a_scheme_is_refused(section, key):
    base = {
        "run_dir": "r",
        "ingest": {"sources": [{"path": "a.jsonl"}]},
        "tokenizer": {"train": 300},
    }
    assert Recipe.from_dict(base | section, overrides=[f"{key}=https://host/v1"])
    with pytest.raises(InvalidKeysError) as error:
        Recipe.from_dict(base | section, overrides=[f"{key}=localhost:8000"])
    assert error.value.keys == (key,)
