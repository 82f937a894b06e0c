"""Each mistake of a user ends in one message that names place, value and cure, and exit code 2."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from nextlong import errors
from nextlong.engine import store

pytestmark = pytest.mark.heavy


def train(recipe, console):
    from nextlong.train.loop import train as start

    return start(recipe, console)


def test_no_memory_left_says_which_knob(train_recipe, quiet, monkeypatch):
    """A GPU's error, raised by hand: there may be none here."""
    import torch

    from nextlong.train import loop

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    monkeypatch.setattr(loop._Training, "_step", full)
    with pytest.raises(
        errors.RunError,
        match=r"out of GPU memory \(CUDA out of memory\); set memory.checkpointing=layers; or",
    ):
        train(train_recipe(), quiet)


def test_no_main_memory_left_says_which_knob(train_recipe, quiet, monkeypatch):
    import torch

    from nextlong.train import loop

    monkeypatch.setattr(loop._Training, "_step", lambda *_: torch.empty(1 << 50))
    with pytest.raises(
        errors.RunError, match=r"out of memory .*set memory.checkpointing=layers"
    ):
        train(train_recipe(), quiet)


@pytest.mark.filterwarnings("ignore:.*holds 2 variants:UserWarning")
def test_a_run_that_has_changed_since(train_recipe, recipe_for, own_run, quiet):
    """Its recipe was run again, with another seed."""
    from nextlong import pipeline

    recipe = train_recipe({"data.runs": [str(own_run)]})
    train(recipe, quiet)
    pipeline.run(recipe_for(own_run, "compose.seed=5"))
    with pytest.raises(
        errors.RunError,
        match="the training data have changed since .*choose another `out`",
    ):
        train(recipe, quiet)


def test_a_checkpoint_of_another_recipe(train_recipe, quiet):
    train(train_recipe(), quiet)
    with pytest.raises(
        errors.RunError,
        match=r"was trained with another recipe: training.lr was 0.01 and is 0.5; restore",
    ):
        train(train_recipe({"training.lr": 0.5}), quiet)


def test_a_kill_while_the_final_model_is_written(train_recipe, quiet, monkeypatch):
    from nextlong.train.loop import _Training

    recipe, write = train_recipe(), _Training._write_model

    def killed(training, folder, *parts):
        write(training, folder, *parts)
        if folder.parent == Path(recipe.out):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(_Training, "_write_model", killed)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, quiet)
    assert (train(recipe, quiet) / "config.json").exists()


def test_keys_that_do_not_decide_the_weights_may_change(train_recipe, quiet):
    train(train_recipe(), quiet)
    train(
        train_recipe({"checkpoints.every_steps": 5, "memory.checkpointing": "layers"}),
        quiet,
    )


def test_a_mix_of_different_lengths(
    train_recipe, shared_run, recipe_for, tmp_path, quiet
):
    from nextlong import pipeline

    shorter = recipe_for(
        tmp_path / "shorter",
        "compose.target_tokens=1024",
        "tokenizer.source=" + _tokenizer(shared_run),
        "tokenizer.train=null",
    )
    pipeline.run(shorter)
    runs = [str(shared_run), str(tmp_path / "shorter")]
    with pytest.raises(
        errors.RecipeError,
        match=r"sequences of 1,024 to 2,048 tokens, .*set data.pack=2048",
    ):
        train(train_recipe({"data.runs": runs, "data.mix": [1, 2]}), quiet)
    train(
        train_recipe(
            {
                "data.runs": runs,
                "data.mix": [1, 2],
                "data.by": "tokens",
                "data.pack": 2048,
            }
        ),
        quiet,
    )


def _tokenizer(run):
    return str(next(Path(run).glob("*-tokenizer-*/*.tokenizer.json")))


def test_tokens_that_are_no_whole_rows(train_recipe, quiet):
    with pytest.raises(
        errors.RecipeError,
        match=r"tokens_per_step=5,000 is not a multiple of a row's 2,048 tokens; use 4096",
    ):
        train(train_recipe({"training.tokens_per_step": 5000}), quiet)


def test_too_few_rows_for_a_step(train_recipe, quiet):
    with pytest.raises(
        errors.CorpusError, match=r"rows to train on and a step needs 100"
    ):
        train(train_recipe({"training.tokens_per_step": 204_800}), quiet)


def test_a_disk_that_fills_while_saving_leaves_the_checkpoint_before(
    train_recipe, tmp_path
):
    """Really: files may grow to 100 KB, so the weights do not fit and the logs do."""
    recipe = train_recipe({"model.scratch.hidden_size": 64})
    (tmp_path / "recipe.yaml").write_text(recipe.dump())

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    done = subprocess.run(
        [sys.executable, "-m", "nextlong", "train", str(tmp_path / "recipe.yaml")],
        preexec_fn=limit,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 2, done.stderr
    assert "exceeds the file size limit of this process" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((Path(recipe.out) / "checkpoints").glob("step-*"))


def test_training_resumes_before_a_damaged_checkpoint_and_ends_as_if_it_had_not_been_damaged(
    train_recipe,
):
    from io import StringIO

    from rich.console import Console

    recipe, told = train_recipe(), StringIO()
    final = train(recipe, Console(file=told))
    checkpoints = Path(recipe.out) / "checkpoints"
    damaged, weights = (
        checkpoints / "step-000006" / "model.safetensors",
        (final / "model.safetensors").read_bytes(),
    )
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    train(recipe, Console(file=told, width=10_000))
    assert (
        "was altered since it was saved; it is now damaged-step-000006"
        in told.getvalue()
    )
    assert "resuming after step 4 of 6" in told.getvalue()
    assert (final / "model.safetensors").read_bytes() == weights
    assert sorted(path.name for path in checkpoints.glob("step-*")) == [
        "step-000004",
        "step-000006",
    ]
    for path in checkpoints.glob("step-*"):
        (path / "trainer.json").write_text("{")
    with pytest.raises(
        errors.RunError,
        match="trainer.json is damaged .* there is no other checkpoint; delete",
    ):
        train(recipe, Console(file=told))


def test_a_second_trainer_in_one_folder(train_recipe, quiet):
    recipe = train_recipe()
    with (
        store.locked(Path(recipe.out)),
        pytest.raises(errors.RunError, match="is in use by process"),
    ):
        train(recipe, quiet)


@pytest.mark.parametrize(
    ("changes", "processes", "told"),
    [({"hardware.count": 8}, "1", "hardware.count=8"), ({}, "2", "WORLD_SIZE=2")],
)
def test_more_than_one_device_is_for_torchtitan(
    train_recipe, quiet, monkeypatch, changes, processes, told
):
    monkeypatch.setenv("WORLD_SIZE", processes)
    with pytest.raises(
        errors.RecipeError,
        match=f"{told}: .* one device; use --engine torchtitan for several",
    ):
        train(train_recipe(changes), quiet)


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
            (tmp_path / "model" / "tokenizer_config.json").write_text(
                '{"tokenizer_class": "PreTrainedTokenizerFast"}'
            )
        return str(tmp_path / "model")

    return save


def test_a_model_that_knows_fewer_words(train_recipe, model_folder, quiet):
    with pytest.raises(
        errors.TokenizerError,
        match=r"ids up to 511, .* knows 300; .*tokenizer\.source=",
    ):
        train(
            train_recipe({"model.scratch": None, "model.path": model_folder(300)}),
            quiet,
        )


def test_a_model_with_another_tokenizer(train_recipe, model_folder, shared_run, quiet):
    with pytest.raises(
        errors.TokenizerError,
        match=r"2 of 512 words have other ids .*tokenizer\.source=",
    ):
        train(
            train_recipe(
                {"model.scratch": None, "model.path": model_folder(run=shared_run)}
            ),
            quiet,
        )


def test_exported_rows_of_another_tokenizer(train_recipe, shared_run, quiet):
    import nextlong

    files = [str(path) for path in nextlong.open(shared_run).exported("parquet")]
    changes = {"data.runs": [], "data.parquet": files, "data.validation": 0.0}
    with pytest.raises(
        errors.RecipeError,
        match=r"model\.scratch\.vocabulary=null .* and there is no run",
    ):
        train(train_recipe(changes), quiet)
    with pytest.raises(
        errors.TokenizerError,
        match=r"row \d+ of data holds the id \d+, and the model knows 300",
    ):
        train(train_recipe({**changes, "model.scratch.vocabulary": 300}), quiet)


def test_rows_longer_than_the_model(train_recipe, model_folder, quiet):
    with pytest.raises(
        errors.RecipeError,
        match=r"rows have 2,048 tokens and the model was made for 1,024; set model.rope_base",
    ):
        train(
            train_recipe(
                {"model.scratch": None, "model.path": model_folder(positions=1024)}
            ),
            quiet,
        )


def test_a_folder_that_is_no_model(train_recipe, tmp_path, quiet):
    with pytest.raises(
        errors.RecipeError,
        match=r"model\.path=.* is not a model: it has no config\.json; use a folder with",
    ):
        train(train_recipe({"model.scratch": None, "model.path": str(tmp_path)}), quiet)
    (tmp_path / "config.json").write_text('{"model_type": "no-such-type"}')
    with pytest.raises(
        errors.RecipeError,
        match=r"is not a model that transformers can load \(.*no-such-type.*\); use a",
    ):
        train(train_recipe({"model.scratch": None, "model.path": str(tmp_path)}), quiet)


def test_a_model_without_weights(train_recipe, model_folder, quiet):
    folder = model_folder()
    (Path(folder) / "model.safetensors").unlink()
    with pytest.raises(
        errors.RecipeError,
        match=r"model\.path=.* cannot be loaded: .*name another folder",
    ):
        train(train_recipe({"model.scratch": None, "model.path": folder}), quiet)
