"""What is emitted holds the recipe's numbers, runs where it can, and brings its data along."""

import ast
import json
import shlex
import subprocess

import pytest
import yaml

from nextlong import pipeline
from nextlong.errors import RecipeError
from nextlong.train.emit import TRAINERS, emit
from nextlong.train.presets import recipe_from

LLAMA = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14_336, "num_attention_heads": 32,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def ended_run(recipe_for, tmp_path_factory):
    """A run whose sequences end in EOS, which Megatron wants."""
    run_dir = tmp_path_factory.mktemp("ended") / "run"
    pipeline.run(recipe_for(run_dir, "tokenizer.eos=<|endoftext|>", "export.formats=[parquet]"))
    return run_dir


@pytest.fixture
def recipe(ended_run, tmp_path):
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text(json.dumps(LLAMA))

    def make(*overrides):
        changes = ["training.tokens_per_step=65536", "hardware.count=16", "hardware.ranks_per_row=4", *overrides]
        return recipe_from(
            "paper-128k",
            out=str(tmp_path / "out"),
            data={"runs": [str(ended_run)]},
            model=str(tmp_path / "llama"),
            overrides=tuple(changes),
        )

    return make


@pytest.fixture
def console():
    from rich.console import Console

    return Console(quiet=True)


@pytest.mark.parametrize("name", TRAINERS)
def test_scripts_are_well_formed_and_data_lies_beside(recipe, console, tmp_path, name):
    emit(recipe(), name, tmp_path / name, console)
    subprocess.run(["bash", "-n", tmp_path / name / "launch.sh"], check=True)
    assert list((tmp_path / name / "data").rglob("*.*"))
    assert (tmp_path / name / "launch.sh").stat().st_mode & 0o111
    assert yaml.safe_load((tmp_path / name / "recipe.yaml").read_text())["training"]["lr"] == 4e-5


def test_axolotl(recipe, console, tmp_path):
    emit(recipe("data.validation=0.3", "training.min_lr_ratio=0.1"), "axolotl", tmp_path / "a", console)
    launch = (tmp_path / "a" / "launch.sh").read_text()
    assert '--nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint "${HEAD_NODE:?' in launch
    config = yaml.safe_load((tmp_path / "a" / "axolotl.yaml").read_text())
    assert config["model_config"]["rope_parameters"] == {"rope_type": "default", "rope_theta": 200_000_000.0}
    assert (config["fsdp_version"], config["dp_shard_size"], config["context_parallel_size"]) == (2, 4, 4)
    assert config["gradient_accumulation_steps"] * 16 // 4 == 65_536 // 2048
    assert (config["learning_rate"], config["warmup_steps"], config["max_steps"]) == (4e-5, 200, 1000)
    assert config["cosine_min_lr_ratio"] == 0.1
    assert config["sample_packing"] is False
    assert list((tmp_path / "a" / "data" / "validation").iterdir())


def test_packed_rows_are_packed_by_axolotl_itself(recipe, console, tmp_path):
    emit(recipe("data.pack=8192"), "axolotl", tmp_path / "a", console)
    config = yaml.safe_load((tmp_path / "a" / "axolotl.yaml").read_text())
    assert (config["sample_packing"], config["sequence_len"]) == (True, 8192)


def test_torchtitan(recipe, console, tmp_path):
    emit(recipe("data.pack=8192"), "torchtitan", tmp_path / "t", console)
    text = (tmp_path / "t" / "nextlong_titan.py").read_text()
    module = ast.parse(text)
    (config,) = (node for node in module.body if getattr(node, "name", "") == "nextlong")
    said = ast.unparse(config)
    for words in (
        "theta=200000000.0",
        "scaling='none'",
        "seq_len = 8192",
        "global_batch_size = 8",
        "max_norm = 1.0",
        "'8B'",
    ):
        assert words in said


def test_megatron_and_neox(recipe, console, tmp_path):
    emit(recipe("data.pack=8192"), "megatron", tmp_path / "m", console)
    launch = (tmp_path / "m" / "launch.sh").read_text()
    for words in (
        "--rotary-base 200000000",
        "--reset-position-ids --reset-attention-mask",
        "--context-parallel-size 4",
        "--lr 4e-05",
    ):
        assert words in launch
    neox = yaml.safe_load((tmp_path / "m" / "neox.yaml").read_text())
    assert (neox["rotary_emb_base"], neox["reset_attention_mask"], neox["train_iters"], neox["warmup"]) == (
        200_000_000,
        True,
        1000,
        0.2,
    )
    assert all((tmp_path / "m" / "data").glob("*.idx"))
    assert all(path in launch for path in neox["train_data_paths"])


def test_prolong(recipe, console, tmp_path):
    emit(recipe(), "prolong", tmp_path / "p", console)
    launch = (tmp_path / "p" / "launch.sh").read_text()
    for words in (
        '"rope_theta=200000000"',
        "--seq_parallel_size 4",
        "--learning_rate 4e-05",
        "--per_device_max_tokens 2048",
    ):
        assert words in launch
    assert (tmp_path / "p" / "data" / "index.json").exists()


@pytest.mark.parametrize(
    ("overrides", "name", "told"),
    [
        ((), "deepspeed", "--emit 'deepspeed' is not known; choose from torchtitan, axolotl"),
        (("attention=document",), "prolong", "attention: document is not what prolong can be told"),
        (("model.path=somewhere/else",), "megatron", "is told the model's sizes and RoPE; name a folder here"),
        (("hardware.count=24", "hardware.ranks_per_row=24"), "megatron", "do not go evenly into the 48 slices"),
        (("hardware.count=33",), "axolotl", "hardware.count=33 does not fill machines of 8 devices"),
        (("training.tokens_per_step=4096",), "axolotl", "16 devices, 4 a row, cannot share 2 rows a step evenly"),
        (("attention=row", "data.pack=8192"), "torchtitan", "attention: row with data.pack is not what torchtitan"),
        (("data.runs=[]", "data.parquet=[rows]"), "prolong", "exports finished runs"),
        (("model.path=null", "model.scratch={}"), "prolong", r"set model\.path instead of model\.scratch"),
    ],
)
def test_what_a_trainer_cannot_do(recipe, console, tmp_path, overrides, name, told):
    with pytest.raises(RecipeError, match=told):
        emit(recipe(*overrides), name, tmp_path / "x", console)


LLAMA3_SCALING = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip


def rescale(tmp_path, **changes):
    scaling = {**LLAMA3_SCALING, **changes}
    (tmp_path / "llama" / "config.json").write_text(json.dumps({**LLAMA, "rope_scaling": scaling}))


def test_the_scaling_of_the_source_model_is_kept(recipe, console, tmp_path):
    made = recipe()
    rescale(tmp_path)
    emit(made, "axolotl", tmp_path / "a", console)
    config = yaml.safe_load((tmp_path / "a" / "axolotl.yaml").read_text())
    assert config["model_config"]["rope_parameters"] == {**LLAMA3_SCALING, "rope_theta": 200_000_000.0}
    emit(made, "megatron", tmp_path / "m", console)
    assert "--use-rope-scaling --rope-scaling-factor 8.0" in (tmp_path / "m" / "launch.sh").read_text()
    assert not (tmp_path / "m" / "neox.yaml").exists()
    with pytest.raises(RecipeError, match="ProLong computes RoPE from its base alone"):
        emit(made, "prolong", tmp_path / "p", console)
    rescale(tmp_path, high_freq_factor=8.0)
    with pytest.raises(RecipeError, match=r"the model has \{'high_freq_factor': 8.0\}"):
        emit(made, "megatron", tmp_path / "m", console)


@pytest.mark.parametrize("name", ["prolong", "megatron"])
def test_paths_with_spaces_and_quotes_stay_whole(recipe, console, tmp_path, name):
    named = tmp_path / "my 'best' $model"
    named.mkdir()
    (named / "config.json").write_text(json.dumps(LLAMA))
    made = recipe()
    made = made.model_copy(update={"model": made.model.model_copy(update={"path": str(named)})})
    emit(made, name, tmp_path / "my runs" / name, console)
    lines = (tmp_path / "my runs" / name / "launch.sh").read_text().split("torchrun ", 1)[1]
    words = shlex.split(lines.replace("\\\n", " "))
    assert str(named) in words
    if name == "megatron":
        assert str(tmp_path / "my runs" / name / "data" / "part-00000") in words
