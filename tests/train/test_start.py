import json
from pathlib import Path

import pytest

from nextlong import errors

pytestmark = pytest.mark.heavy


def train(recipe, console):
    from nextlong.train.start import train as start

    return start(recipe, console)


@pytest.fixture
def model_folder(tmp_path):
    """A function of vocabulary and positions that saves a small Llama, with no tokenizer, or the run's with two words swapped."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    def save(vocabulary=512, *, positions=2048, run=None):
        config = LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=positions,
        )
        AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
        if run is not None:
            (found,) = Path(run).glob("*-tokenizer-*/*.tokenizer.json")
            tokenizer = json.loads(found.read_text())
            words = tokenizer["model"]["vocab"]
            first, second = sorted(words)[:2]
            words[first], words[second] = words[second], words[first]
            (tmp_path / "model" / "tokenizer.json").write_text(json.dumps(tokenizer))
            (tmp_path / "model" / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
        return str(tmp_path / "model")

    return save


def test_a_model_that_knows_fewer_words(train_recipe, model_folder, quiet):
    with pytest.raises(errors.TokenizerError, match=r"ids up to 511, and .* knows 300; .*tokenizer\.source="):
        train(train_recipe({"model.scratch": None, "model.path": model_folder(300)}), quiet)


def test_a_model_with_another_tokenizer(train_recipe, model_folder, shared_run, quiet):
    with pytest.raises(errors.TokenizerError, match=r"2 of 512 words have another id .*tokenizer\.source="):
        train(train_recipe({"model.scratch": None, "model.path": model_folder(run=shared_run)}), quiet)


def test_exported_rows_of_another_tokenizer(train_recipe, shared_run, quiet):
    import nextlong

    files = [str(path) for path in nextlong.open(shared_run).exported("parquet")]
    changes = {"data.runs": [], "data.parquet": files, "data.validation": 0.0}
    with pytest.raises(errors.RecipeError, match=r"model\.scratch\.vocabulary=null .* and there is no run"):
        train(train_recipe(changes), quiet)
    with pytest.raises(errors.TokenizerError, match=r"row \d+ of data holds the id \d+, and the model knows 300"):
        train(train_recipe({**changes, "model.scratch.vocabulary": 300}), quiet)


def test_rows_longer_than_the_model(train_recipe, model_folder, quiet):
    with pytest.raises(
        errors.RecipeError, match=r"rows have 2,048 tokens and the model was made for 1,024; set model.rope_base"
    ):
        train(train_recipe({"model.scratch": None, "model.path": model_folder(positions=1024)}), quiet)


def test_a_folder_that_is_no_model(train_recipe, tmp_path, quiet):
    with pytest.raises(
        errors.RecipeError, match=r"model\.path=.* is not a model: it has no config\.json; name a folder with"
    ):
        train(train_recipe({"model.scratch": None, "model.path": str(tmp_path)}), quiet)
    (tmp_path / "config.json").write_text('{"model_type": "no-such-type"}')
    with pytest.raises(
        errors.RecipeError, match=r"is not a model that transformers can load \(.*no-such-type.*\); name a"
    ):
        train(train_recipe({"model.scratch": None, "model.path": str(tmp_path)}), quiet)


def test_a_model_without_weights(train_recipe, model_folder, quiet):
    folder = model_folder()
    (Path(folder) / "model.safetensors").unlink()
    with pytest.raises(errors.RecipeError, match=r"model\.path=.* cannot be loaded: .*name a folder with weights"):
        train(train_recipe({"model.scratch": None, "model.path": folder}), quiet)
