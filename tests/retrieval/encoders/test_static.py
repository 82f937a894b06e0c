"""The static encoder, with a small model that is made here."""

import json
import sys

import numpy as np
import pytest
import tokenizers
from tests.support.bert_like_tokenizer import bert_like
from tests.support.counted import counts_of
from tests.support.llama_like_tokenizer import TEXT, llama_like

from nextlong import pipeline
from nextlong.errors import EncoderError
from nextlong.recipe import Encoder
from nextlong.retrieval.encoders import static
from nextlong.retrieval.encoders.base import kind_of


def loaded(config, **settings):
    return kind_of(config).load(config, **settings)


WORDS = ["tide", "gull", "harbour", "pier", "sail", "line", "text", "about"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a model of eight words."""
    model2vec = pytest.importorskip("model2vec")
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
def test_vectors_by_words_of_bert_have_the_bits_of_model2vec(tmp_path):
    model2vec = pytest.importorskip("model2vec")
    tokenizer = bert_like()
    vectors = np.random.default_rng(0).standard_normal(
        (tokenizer.get_vocab_size(), 12), np.float32
    )
    for normalize in (True, False):
        folder = tmp_path / str(normalize)
        model = model2vec.StaticModel(vectors, tokenizer, normalize=normalize)
        model.save_pretrained(folder)
        encoder = loaded(Encoder(model=f"static:{folder}"))
        assert encoder._words is not None
        texts = ["The tide, the anchors-4. " * 300, "café [PAD]日本\n the", "tide"]
        expected = model.encode(texts, max_length=None)
        expected = static.unit_or_drawn(expected, texts, min_length=1e-30)
        assert encoder.encode(texts).tobytes() == expected.tobytes()
        # A text of unknown words has a direction of its own.
        assert np.linalg.norm(encoder.encode([" \n", "§"]), axis=1) == pytest.approx(1)


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


@pytest.fixture
def packaged(tmp_path, monkeypatch):
    """A package wordllama of a small tokenizer, with its vectors."""
    tokenizer = llama_like()
    vectors = np.random.default_rng(1).standard_normal(
        (tokenizer.get_vocab_size(), 6), np.float32
    )
    vectors = vectors.astype(np.float16)
    folder = tmp_path / "wordllama"
    for name in ("weights", "tokenizers"):
        (folder / name).mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('it is not imported')\n")
    entry = {
        "dtype": "F16",
        "shape": vectors.shape,
        "data_offsets": [0, vectors.nbytes],
    }
    header = json.dumps({"embedding.weight": entry}).encode()
    weights = len(header).to_bytes(8, "little") + header + vectors.tobytes()
    (folder / "weights/l2_supercat_256.safetensors").write_bytes(weights)
    tokenizer.save(str(folder / "tokenizers/l2_supercat_tokenizer_config.json"))
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder, tokenizer, vectors.astype(np.float32)


def test_wordllama_is_read_from_its_package(packaged):
    folder, tokenizer, vectors = packaged
    config = Encoder(model="static:wordllama")
    kind = kind_of(config)
    kind.check_installed(config)
    found = loaded(config).encode([TEXT, "tide"])
    for text, vector in zip([TEXT, "tide"], found, strict=True):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        mean = vectors[ids].mean(axis=0)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-5)
    shorter = Encoder.from_dict(
        {"model": "static:wordllama", "static": {"dimensions": 3}}
    )
    assert loaded(shorter).encode(["tide"]).shape == (1, 3)
    assert kind.measure(config, ["tide"] * 8).dimensions == 6
    before = kind.depends_on(config, seed=0)
    weights = folder / "weights/l2_supercat_256.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    assert kind.depends_on(config, seed=0) != before


def test_a_run_embeds_with_wordllama(packaged, recipe_for, tmp_path):
    done = pipeline.run(recipe_for(tmp_path / "run", "encoder.model=static:wordllama"))
    assert {counts["dimensions"] for counts in counts_of(done["embed"])} == {6}


def test_another_version_of_wordllama(packaged):
    folder, tokenizer, _ = packaged
    tokenizer.normalizer = tokenizers.normalizers.Lowercase()
    path = folder / "tokenizers/l2_supercat_tokenizer_config.json"
    tokenizer.save(str(path))
    for damage in (lambda: None, path.unlink):
        damage()
        with pytest.raises(EncoderError) as error:
            loaded(Encoder(model="static:wordllama"))
        assert error.value.value == "static:wordllama"


def test_wordllama_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(static.importlib.util, "find_spec", lambda name: None)
    config = Encoder(model="static:wordllama")
    with pytest.raises(EncoderError, match=r"nextlong\[wordllama\]"):
        kind_of(config).check_installed(config)


@pytest.mark.heavy
def test_the_package_itself_gives_the_same_vectors():
    wordllama = pytest.importorskip("wordllama.inference")
    weights, tokenizer = static._wordllama_files()
    model = wordllama.WordLlamaInference(
        static._read_vectors(weights), tokenizers.Tokenizer.from_file(str(tokenizer))
    )
    texts = [TEXT, "Anchors hold.", "日本 🙂 déjà vu ² <s> x"]
    ours = loaded(Encoder(model="static:wordllama")).encode(texts)
    np.testing.assert_allclose(ours, model.embed(texts, norm=True), atol=1e-5)
