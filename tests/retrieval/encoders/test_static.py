"""The static encoder, with a small model that is made here."""

import sys

import numpy as np
import pytest
from tests.support.counted import counts_of

from nextlong import pipeline
from nextlong.errors import EncoderError
from nextlong.recipe import Encoder
from nextlong.retrieval.encoders.base import kind_of


def loaded(config, **settings):
    return kind_of(config).load(config, **settings)


WORDS = ["tide", "gull", "harbour", "pier", "sail", "line", "text", "about"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a model of eight words."""
    model2vec = pytest.importorskip("model2vec")
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.models.WordLevel(
        {word: n for n, word in enumerate(["[UNK]", *WORDS])}, unk_token="[UNK]"
    )
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    vectors = (
        np.random.default_rng(0)
        .standard_normal((1 + len(WORDS), 12))
        .astype(np.float32)
    )
    vectors[0] = 0
    folder = tmp_path_factory.mktemp("static") / "model"
    model2vec.StaticModel(
        vectors, tokenizer, config={}, normalize=True
    ).save_pretrained(folder)
    return folder, vectors


@pytest.mark.heavy
def test_a_vector_is_the_mean_of_its_words_at_unit_length(model):
    folder, vectors = model
    encoder = loaded(Encoder(model=f"static:{folder}"))
    text = " ".join(["tide gull"] * 600)  # longer than the library reads by default
    found = encoder.encode([text + " pier", "sail"])
    mean = 600 * vectors[1] + 600 * vectors[2] + vectors[4]
    np.testing.assert_allclose(found[0], mean / np.linalg.norm(mean), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    assert encoder.encode([]).shape == (0, encoder.dimensions)


@pytest.mark.heavy
def test_a_text_of_unknown_words_has_a_direction_of_its_own(model):
    encoder = loaded(Encoder(model=f"static:{model[0]}"))
    first, again, other = encoder.encode(["§§ ¶", "§§ ¶", ""])
    assert first.tolist() == again.tolist()
    assert abs(float(first @ other)) < 0.99


@pytest.mark.heavy
def test_a_run_embeds_with_it_and_knows_a_changed_model(model, recipe_for, tmp_path):
    folder, _ = model
    recipe = recipe_for(
        tmp_path / "run",
        f"encoder.model=static:{folder}",
        "encoder.static.dimensions=8",
    )
    done = pipeline.run(recipe)
    assert {counts["dimensions"] for counts in counts_of(done["embed"])} == {8}
    kind = kind_of(recipe.encoder)
    before = kind.depends_on(recipe.encoder, seed=0)
    (folder / "README.md").write_text("another")
    assert kind.depends_on(recipe.encoder, seed=0) != before
    assert kind.measure(recipe.encoder, ["tide"] * 8).chunk_s >= 0


@pytest.mark.heavy
def test_a_model_that_cannot_be_loaded_is_a_users_error(tmp_path):
    (tmp_path / "model.safetensors").write_text("no model")
    with pytest.raises(EncoderError) as error:
        loaded(Encoder(model=f"static:{tmp_path}"))
    assert error.value.where == "encoder.model"
    assert error.value.value == f"static:{tmp_path}"


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "model2vec", None)
    with pytest.raises(EncoderError) as error:
        loaded(Encoder(model="static:some/model"))
    assert error.value.fix == "pip install 'nextlong[static]'"
