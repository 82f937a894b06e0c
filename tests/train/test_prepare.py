"""Each mistake of a user ends in one message that names place, value and cure, and exit code 2."""

import json
import os
import re
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
    with pytest.raises(errors.RunError) as error:
        train(train_recipe(), quiet)
    assert error.value.where == "out of GPU memory"
    assert "memory.checkpointing=layers" in error.value.fix


def test_no_main_memory_left_says_which_knob(train_recipe, quiet, monkeypatch):
    import torch

    from nextlong.train import loop

    monkeypatch.setattr(loop._Training, "_step", lambda *_: torch.empty(1 << 50))
    with pytest.raises(errors.RunError) as error:
        train(train_recipe(), quiet)
    assert error.value.where == "out of memory"
    assert "memory.checkpointing=layers" in error.value.fix


@pytest.mark.filterwarnings("ignore:.*holds 2 variants:UserWarning")
def test_a_run_that_has_changed_since(train_recipe, recipe_for, own_run, quiet):
    """Its recipe was run again, with another seed."""
    from nextlong import pipeline

    recipe = train_recipe({"data.runs": [str(own_run)]})
    train(recipe, quiet)
    pipeline.run(recipe_for(own_run, "compose.seed=5"))
    with pytest.raises(errors.RunError) as error:
        train(recipe, quiet)
    assert error.value.where == recipe.out
    assert "data" in error.value.problem


def test_a_checkpoint_of_another_recipe(train_recipe, quiet):
    train(train_recipe(), quiet)
    with pytest.raises(errors.RunError) as error:
        train(train_recipe({"training.lr": 0.5}), quiet)
    assert "training.lr was 0.01 and is 0.5" in error.value.problem


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
    with pytest.raises(errors.RecipeError) as error:
        train(train_recipe({"data.runs": runs, "data.mix": [1, 2]}), quiet)
    assert error.value.where == "data.runs"
    assert "data.pack=2048" in error.value.fix
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
    with pytest.raises(errors.RecipeError) as error:
        train(train_recipe({"training.tokens_per_step": 5000}), quiet)
    assert error.value.where == "training.tokens_per_step"
    assert (error.value.value, error.value.fix) == ("5,000", "use 4096")


def test_too_few_rows_for_a_step(train_recipe, quiet):
    with pytest.raises(errors.CorpusError) as error:
        train(train_recipe({"training.tokens_per_step": 204_800}), quiet)
    assert error.value.where == "training.tokens_per_step"
    assert error.value.value == "204,800"


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
    with pytest.raises(errors.RunError) as error:
        train(recipe, Console(file=told))
    assert error.value.where.endswith("trainer.json")
    assert "no other checkpoint" in error.value.problem


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
    with pytest.raises(errors.RecipeError) as error:
        train(train_recipe(changes), quiet)
    assert f"{error.value.where}={error.value.value}" == told


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
    with pytest.raises(errors.TokenizerError) as error:
        train(
            train_recipe({"model.scratch": None, "model.path": model_folder(300)}),
            quiet,
        )
    assert error.value.where == "the runs' tokenizer"
    assert "tokenizer.source=" in error.value.fix


def test_a_model_with_another_tokenizer(train_recipe, model_folder, shared_run, quiet):
    with pytest.raises(errors.TokenizerError) as error:
        train(
            train_recipe(
                {"model.scratch": None, "model.path": model_folder(run=shared_run)}
            ),
            quiet,
        )
    assert error.value.where == "the runs' tokenizer"
    assert "2 of 512" in error.value.problem


def test_exported_rows_of_another_tokenizer(train_recipe, shared_run, quiet):
    import nextlong

    files = [str(path) for path in nextlong.open(shared_run).exported("parquet")]
    changes = {"data.runs": [], "data.parquet": files, "data.validation": 0.0}
    with pytest.raises(errors.RecipeError) as error:
        train(train_recipe(changes), quiet)
    assert error.value.where == "model.scratch.vocabulary"
    with pytest.raises(errors.TokenizerError) as error:
        train(train_recipe({**changes, "model.scratch.vocabulary": 300}), quiet)
    assert re.fullmatch(r"row \d+ of data", error.value.where)


def test_rows_longer_than_the_model(train_recipe, model_folder, quiet):
    with pytest.raises(errors.RecipeError) as error:
        train(
            train_recipe(
                {"model.scratch": None, "model.path": model_folder(positions=1024)}
            ),
            quiet,
        )
    assert error.value.where == "model.rope_base"


def test_a_folder_that_is_no_model(train_recipe, tmp_path, quiet):
    with pytest.raises(errors.RecipeError) as error:
        train(train_recipe({"model.scratch": None, "model.path": str(tmp_path)}), quiet)
    assert error.value.where == "model.path"
    assert "config.json" in error.value.problem
    (tmp_path / "config.json").write_text('{"model_type": "no-such-type"}')
    with pytest.raises(errors.RecipeError) as error:
        train(train_recipe({"model.scratch": None, "model.path": str(tmp_path)}), quiet)
    assert error.value.where == "model.path"
    assert "no-such-type" in error.value.problem


def test_a_model_without_weights(train_recipe, model_folder, quiet):
    folder = model_folder()
    (Path(folder) / "model.safetensors").unlink()
    with pytest.raises(errors.RecipeError) as error:
        train(train_recipe({"model.scratch": None, "model.path": folder}), quiet)
    assert error.value.where == "model.path"
    assert error.value.value == repr(folder)
