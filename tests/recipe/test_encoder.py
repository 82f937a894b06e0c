"""Keys of the encoder: which kind a name means, and what of its options sets the vectors."""

import pytest
from pydantic import ValidationError

from nextlong.recipe.recipe import Encoder
from nextlong.retrieval.encoders.lsa import LsaOptions
from nextlong.retrieval.encoders.openai import OpenAIOptions
from nextlong.retrieval.encoders.sentence_transformers import (
    SentenceTransformersOptions,
)


@pytest.mark.parametrize(
    ("model", "section", "name", "options"),
    [
        ("lsa", "lsa", "", LsaOptions),
        (
            "sentence-transformers:a/b:c",
            "sentence_transformers",
            "a/b:c",
            SentenceTransformersOptions,
        ),
        (
            "openai:text-embedding-3-small",
            "openai",
            "text-embedding-3-small",
            OpenAIOptions,
        ),
    ],
)
def test_a_model_is_a_kind_and_a_name_behind_a_colon(model, section, name, options):
    encoder = Encoder.from_dict({"model": model})
    assert (encoder.section, encoder.name) == (section, name)
    assert type(encoder.options) is options


def test_options_are_those_of_the_kind_that_is_chosen():
    both = {"lsa": {"dimensions": 7}, "openai": {"dimensions": 9}}
    assert Encoder.from_dict({"model": "lsa"} | both).options.dimensions == 7
    assert Encoder.from_dict({"model": "openai:m"} | both).options.dimensions == 9
    assert Encoder.from_dict({"model": "lsa", "openai": {}}) == Encoder.from_dict(
        {"model": "lsa"}
    )


@pytest.mark.parametrize(
    "model",
    [
        "",
        "lsa:x",
        "openai",
        "openai:",
        "sentence-transformers",
        "model:x",
        "word2vec:x",
    ],
)
def test_what_is_no_kind_or_lacks_its_name_is_refused(model):
    with pytest.raises(
        ValidationError,
        match="'lsa', 'openai:<model>', 'sentence-transformers:<name",
    ):
        Encoder(model=model)


def identity(**options):
    return SentenceTransformersOptions(**options).identity()


def test_how_fast_vectors_are_made_is_no_part_of_what_they_are():
    assert identity(batch_size=8) == identity(batch_size=64)
    assert identity(max_tokens=8) != identity()
    assert identity(revision="v2") != identity()
    assert (
        OpenAIOptions(concurrency=1, timeout_s=3, api_key_env="MINE").identity()
        == OpenAIOptions().identity()
    )
    assert OpenAIOptions(dimensions=8).identity() != OpenAIOptions().identity()


def test_a_device_counts_only_where_it_chooses_the_precision_and_then_by_its_kind():
    assert identity(device="cuda:1") == identity(device="cuda")
    assert identity(device="cuda") != identity(device="cpu") != identity()
    assert (
        identity(device="cuda", dtype="float32")
        == identity(device="cpu", dtype="float32")
        == identity(dtype="float32")
    )
