"""What the trainer is given: batches, the model's sizes, and refusals of what torchtitan would compute otherwise."""

import io
import json
import sys
from types import SimpleNamespace

import pytest

from nextlong.errors import RecipeError

pytestmark = [pytest.mark.titan, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module", autouse=True)
def newer_torch():
    """Torch 2.13 lacks what torchtitan calls after the first step; nothing here takes one."""
    import torch

    if not hasattr(torch.distributed, "set_timeout"):
        torch.distributed.set_timeout = None


def row(ids, bounds):
    import torch

    positions = torch.cat(
        [torch.arange(length) for length in torch.tensor(bounds).diff().tolist()]
    )
    labels = torch.tensor(ids)
    labels[bounds[:-1]] = -100
    return SimpleNamespace(
        input_ids=torch.tensor(ids), position_ids=positions, labels=labels
    )


@pytest.mark.parametrize("extra", [0, 1], ids=["T tokens", "T+1 tokens"])
def test_the_last_token_of_a_document_has_no_target(extra):
    from nextlong.train.titan.config import _batch_of

    made = row([1, 2, 3, 4, 5, 6, 7][: 6 + extra], [0, 2, 6 + extra])
    inputs, labels = _batch_of([made], row_tokens=6, targets=[made.labels])
    assert inputs["input"].tolist() == [[1, 2, 3, 4, 5, 6]]
    assert inputs["positions"].tolist() == [[0, 1, 0, 1, 2, 3]]
    assert labels.tolist() == [[2, -100, 4, 5, 6, 7 if extra else -100]]


def test_a_short_row_is_padded_by_a_document_of_its_own():
    from nextlong.train.titan.config import _batch_of

    made = row([1, 2, 3], [0, 3])
    inputs, labels = _batch_of([made], row_tokens=5, targets=[made.labels])
    assert inputs["positions"].tolist() == [[0, 1, 2, 0, 1]]
    assert labels.tolist() == [[2, 3, -100, -100, -100]]


@pytest.mark.parametrize(
    ("row_tokens", "ranks_per_row", "read"),
    [
        (131_072, 8, 131_072),
        (131_073, 8, 131_072),
        (131_073, 1, 131_072),
        (1000, 1, 1024),
        (1000, 4, 1024),
        (1100, 4, 2048),
    ],
)
def test_rows_are_whole_blocks(row_tokens, ranks_per_row, read):
    from nextlong.train.titan.config import _input_tokens

    recipe = SimpleNamespace(hardware=SimpleNamespace(ranks_per_row=ranks_per_row))
    assert _input_tokens(SimpleNamespace(recipe=recipe, row_tokens=row_tokens)) == read


def llama_config(**changes):
    from transformers import LlamaConfig

    sizes = {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 3,
    }
    return LlamaConfig(
        **{
            **sizes,
            "intermediate_size": 96,
            "vocab_size": 300,
            "rms_norm_eps": 1e-3,
            **changes,
        }
    )


def test_every_size_is_the_configs():
    from torchtitan.models.common import RMSNorm

    from nextlong.train.titan import config

    spec = config._llama_spec(llama_config(), row_tokens=256, float8=False)
    model = spec.model.build()
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert (
        len({name.split(".")[1] for name in shapes if name.startswith("layers")}) == 3
    )
    assert (300, 64) in shapes.values()
    assert {norm.eps for norm in model.modules() if isinstance(norm, RMSNorm)} == {1e-3}


def test_rope_scaling_that_torchtitan_does_not_have():
    from nextlong.train.titan.config import _llama_spec

    scaled = llama_config(
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    )
    with pytest.raises(
        RecipeError, match=r"RoPE scaling linear.*set model\.rope_scaling=replace"
    ):
        _llama_spec(scaled, row_tokens=256, float8=False)


def test_an_old_torch_is_named(monkeypatch):
    import torch

    from nextlong.train.titan import versions

    monkeypatch.delattr(torch.distributed, "set_timeout")
    with pytest.raises(RecipeError) as error:
        versions.installed_version()
    assert error.value.where == f"torch {torch.__version__}"
    assert "torch.distributed.set_timeout" in error.value.problem


def test_another_version_is_named(monkeypatch):
    import torchtitan.config

    from nextlong.train.titan import versions

    monkeypatch.setattr(versions, "version_or_commit", lambda: "0.2.2")
    with pytest.raises(RecipeError) as error:
        versions.installed_version()
    assert error.value.where == "torchtitan 0.2.2"
    assert "0.3.0" in error.value.fix
    fields = {"max_context_length": None, "num_tokens_per_train_step": None}
    monkeypatch.setattr(
        torchtitan.config,
        "TrainingConfig",
        SimpleNamespace(__dataclass_fields__=fields),
    )
    # Main's fields without main's loaders.
    with pytest.raises(RecipeError) as error:
        versions.installed_version()
    assert error.value.where == "torchtitan 0.2.2"


MAIN = "b5bcd76f0f0b2b1a6c0a0e2f6a2f4f7b2b9a7e11"  # as pip records it


@pytest.mark.parametrize(
    ("version", "commit", "told"),
    [
        ("0.3.0", None, False),
        ("0.3.1", None, True),
        ("0.2.2", MAIN, False),
        ("0.2.2", "f" * 40, True),
    ],
)
def test_a_torchtitan_that_was_not_tried_is_said(
    monkeypatch, tmp_path, version, commit, told
):
    from rich.console import Console

    from nextlong.train.recipe import TrainRecipe
    from nextlong.train.titan import launch

    origin = (
        json.dumps({"url": "here", "vcs_info": {"commit_id": commit}})
        if commit
        else None
    )
    found = SimpleNamespace(version=version, read_text=lambda _: origin)
    monkeypatch.setattr("importlib.metadata.distribution", lambda _: found)
    monkeypatch.setattr(
        launch, "installed_version", lambda: "main" if commit else "0.3"
    )
    console = Console(record=True, width=200, quiet=False, file=io.StringIO())
    recipe = {
        "out": "out",
        "data": {"parquet": ["rows"]},
        "model": {"path": str(tmp_path)},
    }
    with pytest.raises(RecipeError) as error:
        launch.train(TrainRecipe.from_dict(recipe), console)
    assert error.value.where == "model.path"
    assert (
        "has not been tested with nextlong; 0.3.0 and b5bcd76 have"
        in console.export_text()
    ) == told


def test_context_parallelism_of_main_is_refused_under_its_untested_backend(monkeypatch):
    from nextlong.train.recipe import TrainRecipe
    from nextlong.train.titan import config

    plain = {
        "out": "out",
        "data": {"parquet": ["no-rows"]},
        "model": {"path": "model"},
        "hardware": {"count": 2, "ranks_per_row": 2},
    }
    monkeypatch.setattr(config, "_IS_MAIN", True)
    with pytest.raises(RecipeError) as error:
        config.config_of(TrainRecipe.from_dict(plain))
    assert (error.value.where, error.value.value) == ("hardware.ranks_per_row", "2")
    assert "torchtitan==0.3.0" in error.value.fix
    for allowed in (
        {"hardware": {"count": 2}},
        {"torchtitan": {"options": ["--parallelism.spmd_backend", "spmd_types"]}},
    ):
        with pytest.raises(
            RecipeError, match="no-rows|model"
        ):  # it looks for the model and the rows
            config.config_of(TrainRecipe.from_dict({**plain, **allowed}))


def test_more_devices_than_there_are(saved, tmp_path, monkeypatch):
    import shutil

    import torch
    from rich.console import Console

    from nextlong.train.titan.launch import train

    recipe, folder, _ = saved
    shutil.rmtree(folder.parents[1])
    recipe = recipe.model_copy(
        update={"hardware": recipe.hardware.model_copy(update={"count": 16})}
    )
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(RecipeError) as error:
        train(recipe, Console(quiet=True))
    assert (error.value.where, error.value.value) == ("hardware.count", "16")
    assert "--nnodes 2 --nproc-per-node 8" in error.value.fix
    assert not list((tmp_path / "out").glob("*.yaml"))
    (tmp_path / "llama" / "model.safetensors").unlink()
    with pytest.raises(RecipeError) as error:
        train(recipe, Console(quiet=True))
    assert error.value.where == "model.path"


def test_an_export_of_one_token_more_is_read_as_it_is(recipe_for, tmp_path):
    """Two data-parallel ranks share a step's rows; a state resumes on one."""
    import torch
    from transformers import AutoModelForCausalLM

    from nextlong import pipeline
    from nextlong.train.recipe import TrainRecipe
    from nextlong.train.titan.config import RowsLoader

    pipeline.run(
        recipe_for(
            tmp_path / "run", "compose.target_tokens=512", "export.formats=[torchtitan]"
        )
    )
    (rows,) = (tmp_path / "run").glob("*-torchtitan-*")
    AutoModelForCausalLM.from_config(llama_config(vocab_size=512)).save_pretrained(
        tmp_path / "llama"
    )
    plain = {
        "out": "out",
        "data": {"parquet": [str(rows)], "validation": 0},
        "model": {"path": str(tmp_path / "llama")},
    }
    recipe = TrainRecipe.from_dict({**plain, "training": {"tokens_per_step": 2 * 513}})
    config = RowsLoader.Config(recipe=recipe.model_dump_json())
    first, second = (
        iter(config.build(dp_world_size=2, dp_rank=rank)) for rank in range(2)
    )
    alone = config.build(dp_world_size=1, dp_rank=0)
    expected = iter(alone)
    for _ in range(2):
        for one in (first, second):
            (inputs, labels), (inputs_alone, labels_alone) = next(one), next(expected)
            assert inputs["input"].shape == (1, 512)
            assert torch.equal(inputs["input"], inputs_alone["input"])
            assert torch.equal(labels, labels_alone)
            assert torch.equal(labels[0, :-1], inputs["input"][0, 1:])
            assert labels[0, -1] != -100  # the token more
    resumed = config.build(dp_world_size=2, dp_rank=1)
    resumed.load_state_dict(alone.state_dict())
    next(expected)
    assert torch.equal(next(iter(resumed))[1], next(expected)[1])


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """A recipe, and the folder of torchtitan's last save of it: two shards, their index, and each rank's part of them."""
    import json
    from dataclasses import replace

    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    from nextlong.train import metrics
    from nextlong.train.prepare import Prepared
    from nextlong.train.recipe import TrainRecipe
    from nextlong.train.titan import config

    AutoModelForCausalLM.from_config(llama_config()).save_pretrained(tmp_path / "llama")
    plain = {
        "out": str(tmp_path / "out"),
        "data": {"runs": ["run"]},
        "model": {"path": str(tmp_path / "llama")},
    }
    recipe = TrainRecipe.from_dict({**plain, "training": {"steps": 4}})
    folder = tmp_path / "out/checkpoints/step-4"
    (folder / "sharded").mkdir(parents=True)
    weights = AutoModelForCausalLM.from_config(llama_config()).state_dict()
    names = {
        name: f"model-0000{1 + place % 2}-of-00002.safetensors"
        for place, name in enumerate(weights)
    }
    for shard in set(names.values()):
        save_file(
            {name: weights[name] for name in weights if names[name] == shard},
            folder / shard,
        )
    save_file({"part": torch.zeros(3)}, folder / "sharded/shard-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": names})
    )
    (tmp_path / "out" / metrics.STEPS).write_text('{"step": 4}\n')
    ready = Prepared(recipe, llama_config(), [], None, None, None, 8, None, "a")
    ready.begin(resumes=False)
    prepared = lambda text: replace(ready, recipe=TrainRecipe.model_validate_json(text))  # noqa: E731
    monkeypatch.setattr(config, "prepared", prepared)
    return recipe, folder, weights


def prepared(recipe):
    from nextlong.train.titan import config

    return config.prepared(recipe.model_dump_json())


def test_checkpoints_of_another_recipe_are_refused(saved, monkeypatch):
    from rich.console import Console

    from nextlong.errors import RunError
    from nextlong.train.titan import launch

    recipe, folder, _ = saved
    other = recipe.model_copy(update={"seed": 5})
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(
        RunError, match="was trained with another recipe: seed was 0 and is 5"
    ):
        launch.train(other, Console(quiet=True))
    (folder / "model.safetensors.index.json").unlink()
    for name, value in {"WORLD_SIZE": "1", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        RunError, match="was trained with another recipe: seed was 0 and is 5"
    ):
        launch.train(other, Console(quiet=True))


def check_final(recipe, folder, weights):
    from pathlib import Path

    import torch
    from transformers import AutoModelForCausalLM

    final = Path(recipe.out) / "final"
    model = AutoModelForCausalLM.from_pretrained(final, dtype=torch.float32)
    assert all(
        torch.equal(tensor, weights[name])
        for name, tensor in model.state_dict().items()
    )
    assert not (final / "sharded").exists()
    assert not folder.exists()
    assert not list(final.parent.glob(".*tmp")) + list(final.parent.glob(".work-*"))


@pytest.mark.parametrize("renames", range(2))
def test_a_kill_while_finishing_loses_no_weight(saved, monkeypatch, renames):
    """Killed at its first or second rename, with the `final/` of another training in its place."""
    from pathlib import Path

    from nextlong.train.titan import launch

    recipe, folder, weights = saved
    (Path(recipe.out) / "final").mkdir()
    replace, left = Path.replace, [renames]

    def killed(path, target):
        if path.name.endswith(".tmp") or path.parent == folder:
            return replace(path, target)
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return replace(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            launch._finish(prepared(recipe))
    launch._finish(prepared(recipe))
    check_final(recipe, folder, weights)
    launch._finish(
        prepared(recipe)
    )  # as the process that started torchtitan's does after them
    check_final(recipe, folder, weights)


@pytest.mark.parametrize("rank", [None, 0, 1])
def test_a_training_killed_after_its_last_save_is_finished_without_torchtitan(
    saved, monkeypatch, rank
):
    from rich.console import Console

    from nextlong.train.titan import launch

    recipe, folder, weights = saved
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for name, value in (
        {} if rank is None else {"WORLD_SIZE": "1", "RANK": str(rank)}.items()
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(
        launch,
        "_start_processes",
        lambda *_: pytest.fail("torchtitan cannot resume from these"),
    )
    monkeypatch.setitem(
        sys.modules,
        "torchtitan.train",
        SimpleNamespace(main=lambda: pytest.fail("nor here")),
    )
    launch.train(recipe, Console(quiet=True))
    assert folder.exists() == (rank == 1)
    if rank != 1:
        check_final(recipe, folder, weights)


def test_weights_that_are_missing_or_torn_are_named(saved):
    from nextlong.errors import RunError
    from nextlong.train.titan import launch

    recipe, folder, _ = saved
    shard = folder / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(RunError) as error:
        launch._finish(prepared(recipe))
    assert error.value.where == str(shard)
    assert str(folder) in error.value.fix
    shard.unlink()
    with pytest.raises(RunError) as error:
        launch._finish(prepared(recipe))
    assert error.value.where == str(shard)
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(RunError) as error:
        launch._finish(prepared(recipe))
    assert error.value.where == str(folder.parent)
    assert (folder / "model-00001-of-00002.safetensors").exists()


def final_of(recipe, *, data):
    """Write the finished model of a recipe."""
    from pathlib import Path

    from nextlong.engine import store

    final = Path(recipe.out) / "final"
    final.mkdir()
    store.write_json(
        final / "trainer.json", {"recipe": recipe.trained_keys(), "data": data}
    )


def test_a_final_model_of_another_training_is_not_taken_for_this_one(
    saved, monkeypatch
):
    """The checkpoints were deleted and the recipe was changed; what torchtitan then leaves nothing of is an error."""
    import shutil

    from rich.console import Console

    from nextlong.errors import RunError
    from nextlong.train.titan import launch

    recipe, folder, _ = saved
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    final_of(recipe, data="a")
    shutil.rmtree(folder.parent)
    started = []
    monkeypatch.setattr(launch, "_start_processes", lambda *_: started.append(True))
    launch.train(recipe, Console(quiet=True))
    assert not started  # all steps are done
    other = recipe.model_copy(update={"seed": 5})
    with pytest.raises(RunError) as error:
        launch.train(other, Console(quiet=True))
    assert error.value.where == f"{recipe.out}/checkpoints"
    assert started
    shutil.rmtree(folder.parents[1] / "final")
    final_of(recipe, data="b")
    with pytest.raises(RunError) as error:
        launch.train(recipe, Console(quiet=True))
    assert error.value.where.endswith("final")


def test_parts_of_a_save_that_was_killed_are_not_read_as_weights(saved, monkeypatch):
    """torch joins every part in the folder, also one of a rank that there is no longer; the last it reads wins."""
    import glob
    import shutil
    from pathlib import Path

    import torch
    from rich.console import Console
    from safetensors.torch import load_file, save_file
    from torch.distributed.checkpoint._consolidate_hf_safetensors import (
        consolidate_safetensors_files,
    )

    from nextlong.train.titan import launch

    recipe, folder, weights = saved
    shutil.rmtree(folder)
    name = "model.norm.weight"

    def write_part(rank, tensor):
        (folder / "sharded").mkdir(parents=True, exist_ok=True)
        metadata = {
            "DCP_SHARDING_INFO": f'{{"{name}": {{"saved_offsets": [0]}}}}',
            "DCP_VERSION": "1.0",
        }
        path = folder / f"sharded/shard-{rank:05}-model-00001-of-00001.safetensors"
        save_file({name: tensor}, path, metadata=metadata)

    def save():
        write_part(1, weights[name])
        consolidate_safetensors_files(str(folder / "sharded"), str(folder), {name: 1})

    listed = glob.glob
    monkeypatch.setattr(glob, "glob", lambda pattern: sorted(listed(pattern)))
    stale = torch.full_like(weights[name], 7.0)
    write_part(2, stale)
    save()  # without removing the stale part: its numbers are the weights
    assert torch.equal(
        load_file(folder / "model-00001-of-00001.safetensors")[name], stale
    )
    (folder / "model.safetensors.index.json").unlink()
    monkeypatch.setitem(sys.modules, "torchtitan.train", SimpleNamespace(main=save))
    for key, value in {"WORLD_SIZE": "1", "RANK": "0"}.items():
        monkeypatch.setenv(key, value)
    launch.train(recipe, Console(quiet=True))
    final = load_file(Path(recipe.out) / "final/model-00001-of-00001.safetensors")
    assert torch.equal(final[name], weights[name])
