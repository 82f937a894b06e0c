"""Keys of the encoder: which kind a name means, and what of its options sets the vectors."""

import pytest
from pydantic import ValidationError

from nextlong.recipe.encoder import Encoder, Lsa, OpenAI, SentenceTransformers


@pytest.mark.parametrize(
    ("model", "kind", "name", "options"),
    [
        ("lsa", "lsa", "", Lsa),
        ("sentence-transformers:a/b:c", "sentence-transformers", "a/b:c", SentenceTransformers),
        ("openai:text-embedding-3-small", "openai", "text-embedding-3-small", OpenAI),
    ],
)
def test_a_model_is_a_kind_and_a_name_behind_a_colon(model, kind, name, options):
    encoder = Encoder(model=model)
    assert (encoder.kind, encoder.name) == (kind, name)
    assert encoder.section == kind.replace("-", "_")
    assert type(encoder.options) is options


def test_options_are_those_of_the_kind_that_is_chosen():
    both = {"lsa": {"dimensions": 7}, "openai": {"dimensions": 9}}
    assert Encoder(model="lsa", **both).options.dimensions == 7
    assert Encoder(model="openai:m", **both).options.dimensions == 9


@pytest.mark.parametrize("model", ["", "lsa:x", "openai", "openai:", "sentence-transformers", "model:x", "word2vec:x"])
def test_what_is_no_kind_or_lacks_its_name_is_refused(model):
    with pytest.raises(ValidationError, match="it must be 'lsa', 'sentence-transformers:<name or path>' or 'openai:"):
        Encoder(model=model)


def identity(**options):
    return SentenceTransformers(**options).identity()


def test_how_fast_vectors_are_made_is_no_part_of_what_they_are():
    assert identity(batch_size=8) == identity(batch_size=64)
    assert identity(max_tokens=8) != identity()
    assert identity(revision="v2") != identity()
    assert OpenAI(concurrency=1, timeout_s=3, api_key_env="MINE").identity() == OpenAI().identity()
    assert OpenAI(dimensions=8).identity() != OpenAI().identity()


def test_a_device_counts_only_where_it_chooses_the_precision_and_then_by_its_kind():
    assert identity(device="cuda:1") == identity(device="cuda")
    assert identity(device="cuda") != identity(device="cpu") != identity()
    assert (
        identity(device="cuda", dtype="float32") == identity(device="cpu", dtype="float32") == identity(dtype="float32")
    )
    assert "device" not in identity(device="cpu", backend="onnx")


@pytest.mark.parametrize(
    ("options", "is_refused"),
    [
        ({"dtype": "bfloat16"}, True),
        ({"device": "cuda"}, True),
        ({"device": "cpu"}, False),
        ({"dtype": "float32"}, False),
        ({}, False),
    ],
)
def test_other_backends_run_on_a_processor_in_float32(options, is_refused):
    if is_refused:
        with pytest.raises(ValidationError, match="leave these out, or take backend: torch"):
            SentenceTransformers(backend="onnx", **options)
    else:
        assert SentenceTransformers(backend="onnx", **options).backend == "onnx"
    assert SentenceTransformers(backend="torch", **options).backend == "torch"
