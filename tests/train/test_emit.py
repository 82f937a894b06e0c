"""No key of a recipe is dropped silently by an emitter: it is in the emitted files, or it is refused."""

import argparse
import importlib.util
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from tests.support.llama_config import LLAMA

from nextlong import pipeline
from nextlong.errors import RecipeError
from nextlong.plugins import TRAINERS
from nextlong.runs.run import Run
from nextlong.train.emit import Settings, Trainer, emit, files_of
from nextlong.train.recipe import TrainRecipe, _leaves, check_supported, recipe_from


@pytest.fixture
def recipe(ended_run, tmp_path):
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text(json.dumps(LLAMA))

    def make(*overrides):
        changes = [
            "training.tokens_per_step=65536",
            "hardware.count=16",
            "hardware.ranks_per_row=4",
            *overrides,
        ]
        return recipe_from(
            "paper-128k",
            out=str(tmp_path / "out"),
            data={"runs": [str(ended_run)]},
            model=str(tmp_path / "llama"),
            overrides=tuple(changes),
        )

    return make


EVERY = TRAINERS.declarations(Trainer)
ALONE = {"trl": ("hardware.ranks_per_row=1",)}  # it has no context parallelism


@pytest.mark.parametrize("name", EVERY)
def test_scripts_are_well_formed_and_data_lies_beside(recipe, quiet, tmp_path, name):
    emit(recipe(*ALONE.get(name, ())), name, tmp_path / name, quiet)
    subprocess.run(["bash", "-n", tmp_path / name / "launch.sh"], check=True)
    assert list((tmp_path / name / "data").rglob("*.*"))
    assert (tmp_path / name / "launch.sh").stat().st_mode & 0o111
    assert (
        yaml.safe_load((tmp_path / name / "recipe.yaml").read_text())["training"]["lr"]
        == 4e-5
    )


@pytest.mark.parametrize("name", ["prolong", "megatron"])
def test_paths_with_spaces_and_quotes_stay_whole(recipe, quiet, tmp_path, name):
    named = tmp_path / "my 'best' $model"
    named.mkdir()
    (named / "config.json").write_text(json.dumps(LLAMA))
    made = recipe()
    made = made.model_copy(
        update={"model": made.model.model_copy(update={"path": str(named)})}
    )
    emit(made, name, tmp_path / "my runs" / name, quiet)
    lines = (
        (tmp_path / "my runs" / name / "launch.sh").read_text().split("torchrun ", 1)[1]
    )
    words = shlex.split(lines.replace("\\\n", " "))
    assert str(named) in words
    if name == "megatron":
        assert str(tmp_path / "my runs" / name / "data" / "part-00000") in words


def test_a_relative_model_is_found_from_the_launch_folder(
    recipe, quiet, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    emit(recipe("model.path=llama"), "axolotl", Path("a"), quiet)
    assert yaml.safe_load((tmp_path / "a" / "axolotl.yaml").read_text())[
        "base_model"
    ] == str(tmp_path / "llama")


OTHER = {  # another value of each key that may differ
    "seed": 5, "attention": "document", "attention_kernel": "sdpa", "compile": "on",
    "model.rope_base": 5e6, "model.rope_scaling": "replace", "model.lora_rank": 8, "model.lora_alpha": 16, "training.steps": 777,
    "training.tokens_per_step": 131_072, "training.micro_batch_rows": 2, "training.lr": 3e-4, "training.min_lr_ratio": 0.3,
    "training.schedule": "constant", "training.warmup_steps": 7, "training.beta1": 0.8, "training.beta2": 0.99,
    "training.eps": 1e-6, "training.weight_decay": 0.3, "training.clip": 0.7, "training.precision": "fp32",
    "memory.checkpointing": "none", "memory.loss_block_tokens": 1024,
    "checkpoints.every_steps": 13, "checkpoints.keep_last": 7, "held_out.every_steps": 3, "held_out.rows": 3,
    "watch.spike": 9.0, "hardware.count": 32, "hardware.ranks_per_row": 8,
    "torchtitan.float8": "on", "torchtitan.options": ["--compile.enable"],
}  # fmt: skip


def text_of(recipe, name, folder):
    check_supported(recipe, EVERY[name].keys, trainer=name, advice="")
    settings = Settings(
        recipe=recipe, folder=folder, sequence_tokens=2048, row_tokens=2048, tokens=1
    )
    return files_of(EVERY[name], settings)


def with_key(recipe, key, value):
    plain = recipe.model_dump(mode="json")
    section, _, name = key.rpartition(".")
    (plain[section] if section else plain)[name] = value
    return TrainRecipe.from_dict(plain)


def test_another_value_stands_here_for_each_key(recipe):
    elsewhere = (
        "out",
        "hardware.device",
        "data.",
        "model.path",
        "model.scratch",
    )  # where it goes, planned for, exported
    known = {key for key, _, _ in _leaves(recipe()) if not key.startswith(elsewhere)}
    assert known <= set(OTHER)


@pytest.mark.parametrize("name", EVERY)
def test_a_key_is_emitted_or_refused(recipe, tmp_path, name):
    made = recipe(*ALONE.get(name, ()))
    before = text_of(made, name, tmp_path)
    for key in OTHER.keys() - {"model.rope_scaling"}:
        try:
            text = text_of(with_key(made, key, OTHER[key]), name, tmp_path)
        except RecipeError as error:
            text, said = None, str(error)
        assert key in said if text is None else text != before, key


@pytest.mark.parametrize(
    ("overrides", "name", "where", "value"),
    [
        ((), "deepspeed", "--emit", "'deepspeed'"),
        ((), "torchtitan", "--emit", "'torchtitan'"),
        (("data.runs=[]", "data.parquet=[rows]"), "prolong", "data.runs", None),
        (("model.path=null", "model.scratch={}"), "prolong", "model.path", None),
        (("model.path=some/where",), "megatron", "model.path", "'some/where'"),
        (
            ("training.min_lr_ratio=0.1", "training.schedule=linear"),
            "axolotl",
            "training.min_lr_ratio",
            "0.1",
        ),
        (
            (
                "hardware.ranks_per_row=1",
                "training.min_lr_ratio=0.1",
                "training.schedule=linear",
            ),
            "trl",
            "training.min_lr_ratio",
            "0.1",
        ),
        (
            ("hardware.count=24", "hardware.ranks_per_row=24"),
            "megatron",
            "hardware.ranks_per_row",
            "24",
        ),
        (("hardware.ranks_per_row=16",), "olmo", "hardware.ranks_per_row", "16"),
        (("hardware.count=33",), "axolotl", "hardware.count", "33"),
        (("training.tokens_per_step=4096",), "axolotl", "hardware.count", "16"),
        (("data.pack=5120",), "megatron", "data.pack", "5120"),
    ],
)
def test_what_a_trainer_cannot_do(
    recipe, quiet, tmp_path, overrides, name, where, value
):
    with pytest.raises(RecipeError) as error:
        emit(recipe(*overrides), name, tmp_path / "x", quiet)
    assert (error.value.where, error.value.value) == (where, value)
    # Only the lengths of sequences are not known before the export.
    assert not (tmp_path / "x").exists() or where == "data.pack"


@pytest.mark.parametrize(
    ("overrides", "name", "keys"),
    [
        (
            ("attention=document",),
            "prolong",
            "attention=document (only sequence)",
        ),
        (
            ("model.lora_rank=8", "training.eps=1e-6"),
            "prolong",
            "model.lora_rank=8 (only null); training.eps=1e-06 (only 1e-08)",
        ),
        (("watch.spike=3",), "megatron", "watch.spike=3.0 (only 2.0)"),
        (
            ("attention=row", "data.pack=8192"),
            "axolotl",
            "attention=row (only sequence)",
        ),
        (
            ("attention=row", "data.pack=8192"),
            "prolong",
            "attention=row (only sequence)",
        ),
        (
            ("training.precision=fp32",),
            "axolotl",
            "training.precision=fp32 (only bf16)",
        ),
        (("data.pack=8192",), "olmo", "data.pack=8192 (only null)"),
        (("hardware.ranks_per_row=4",), "trl", "hardware.ranks_per_row=4 (only 1)"),
    ],
)
def test_keys_that_a_trainer_lacks_are_named(
    recipe, quiet, tmp_path, overrides, name, keys
):
    with pytest.raises(RecipeError) as error:
        emit(recipe(*overrides), name, tmp_path / "x", quiet)
    assert error.value.where == f"--emit {name}"
    assert error.value.problem.endswith(keys)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", ["megatron", "olmo"])
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "qwen3"}, "is a qwen3"),
        ({"attention_bias": True}, "has attention_bias=True"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"head_dim": 32}, "head_dim=32"),
    ],
)
def test_a_model_that_the_trainers_llama_computes_differently(
    recipe, quiet, tmp_path, name, changes, named
):
    made = recipe()
    (tmp_path / "llama" / "config.json").write_text(json.dumps({**LLAMA, **changes}))
    with pytest.raises(RecipeError) as error:
        emit(made, name, tmp_path / name, quiet)
    assert error.value.where == "model.path"
    assert named in error.value.problem
    assert f"--emit {name}" in error.value.problem
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["axolotl", "prolong"])
def test_a_row_of_one_sequence_attends_to_itself_under_either_mask(
    recipe, quiet, tmp_path, name
):
    for attention in ("sequence", "row"):
        emit(recipe(f"attention={attention}"), name, tmp_path / name / attention, quiet)
    one, other = (
        {
            path.name: path.read_text().replace(str(path.parent), "")
            for path in (tmp_path / name / attention).glob("*.*")
        }
        for attention in ("sequence", "row")
    )
    assert one == other


@pytest.fixture(scope="module")
def shorter(recipe_for, started, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("shorter") / "run"
    pipeline.run(
        recipe_for(
            started(run_dir),
            "tokenizer.eos=<|endoftext|>",
            "compose.target_tokens=1024",
        )
    )
    return run_dir


@pytest.mark.parametrize("name", EVERY)
def test_sequences_of_several_lengths(
    shorter, recipe, ended_run, quiet, tmp_path, name
):
    """A Megatron or OLMo-core that cuts one stream at equal distances would cut through sequences."""
    runs = [str(ended_run), str(shorter)]
    made = recipe(f"data.runs={json.dumps(runs)}", *ALONE.get(name, ()))
    with pytest.raises(RecipeError) as error:
        emit(made, name, tmp_path / name, quiet)
    assert error.value.where == "data.runs"
    assert "1,024 to 2,048" in error.value.problem
    packed = recipe(
        f"data.runs={json.dumps(runs)}", "data.pack=4096", *ALONE.get(name, ())
    )
    if name in ("megatron", "olmo"):
        with pytest.raises(RecipeError) as error:
            emit(packed, name, tmp_path / name, quiet)
        where = {"megatron": "data.pack", "olmo": "--emit olmo"}
        assert error.value.where == where[name]
    else:
        emit(packed, name, tmp_path / name, quiet)


LLAMA3_SCALING = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip


def rescale(tmp_path, **changes):
    scaling = {**LLAMA3_SCALING, **changes}
    (tmp_path / "llama" / "config.json").write_text(
        json.dumps({**LLAMA, "rope_scaling": scaling})
    )


def test_the_scaling_of_the_source_model_is_kept(recipe, quiet, tmp_path):
    made = recipe()
    rescale(tmp_path)
    emit(made, "axolotl", tmp_path / "a", quiet)
    config = yaml.safe_load((tmp_path / "a" / "axolotl.yaml").read_text())
    assert config["model_config"]["rope_parameters"] == {
        **LLAMA3_SCALING,
        "rope_theta": 200_000_000.0,
    }
    emit(made, "megatron", tmp_path / "m", quiet)
    assert (
        "--use-rope-scaling --rope-scaling-factor 8.0"
        in (tmp_path / "m" / "launch.sh").read_text()
    )
    emit(made, "olmo", tmp_path / "o", quiet)
    mixer = json.loads((tmp_path / "o" / "olmo.json").read_text())["model"]["block"][
        "sequence_mixer"
    ]
    scaling = {
        "factor": 8.0,
        "low_freq_proportion": 0.0,
        "high_freq_proportion": 0.25,
        "old_context_len": 8192,
    }
    assert mixer["rope"]["scaling"] == {
        "_CLASS_": "olmo_core.nn.rope.StepwiseRoPEScalingConfig",
        **scaling,
    }
    with pytest.raises(RecipeError) as error:
        emit(made, "prolong", tmp_path / "p", quiet)
    assert error.value.where == "model.rope_scaling"
    rescale(tmp_path, high_freq_factor=8.0)
    with pytest.raises(RecipeError) as error:
        emit(made, "megatron", tmp_path / "m", quiet)
    assert "high_freq_factor=8.0" in error.value.problem


def max_positions(folder, name):
    """Return the positions that a trainer writes into the config of the model."""
    if name == "megatron":
        words = shlex.split((folder / "launch.sh").read_text().replace("\\\n", " "))
        return int(words[words.index("--max-position-embeddings") + 1])
    config = yaml.safe_load((folder / f"{name}.yaml").read_text())
    changes = config["model_init_kwargs" if name == "trl" else "model_config"]
    return changes["max_position_embeddings"]


@pytest.mark.parametrize("name", ["axolotl", "trl", "megatron"])
@pytest.mark.parametrize(("own", "expected"), [(8192, 8192), (1024, 2048)])
def test_a_model_keeps_its_positions_or_gets_those_of_its_rows(
    recipe, quiet, tmp_path, name, own, expected
):
    made = recipe(*ALONE.get(name, ()))
    config = {**LLAMA, "max_position_embeddings": own}
    (tmp_path / "llama" / "config.json").write_text(json.dumps(config))
    emit(made, name, tmp_path / name, quiet)
    assert max_positions(tmp_path / name, name) == expected


def test_megatron_has_positions_for_a_row_of_several_sequences(emitted):
    made = emitted("megatron", "data.pack=8192", "training.tokens_per_step=131072")
    assert max_positions(made, "megatron") == 8192


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(
    ("devices", "machines", "devices_each"),
    [(1, 1, 1), (4, 1, 4), (8, 1, 8), (16, 2, 8)],
)
def test_only_several_machines_of_8_devices_need_the_address_of_the_first(
    recipe, quiet, tmp_path, name, devices, machines, devices_each
):
    keys = (f"hardware.count={devices}", "hardware.ranks_per_row=1")
    emit(recipe(*keys), name, tmp_path / name, quiet)
    launch = (tmp_path / name / "launch.sh").read_text()
    assert f"--nnodes {machines} --nproc-per-node {devices_each} " in launch.replace(
        "\n", " "
    )
    assert ("HEAD_NODE" in launch) == (machines > 1)
    assert ("--rdzv-endpoint" in launch) == (machines > 1)


def test_axolotl(recipe, quiet, tmp_path):
    emit(
        recipe("data.validation=0.3", "training.min_lr_ratio=0.1"),
        "axolotl",
        tmp_path / "a",
        quiet,
    )
    launch = (tmp_path / "a" / "launch.sh").read_text()
    assert (
        '--nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint "${HEAD_NODE:?'
        in launch
    )
    config = yaml.safe_load((tmp_path / "a" / "axolotl.yaml").read_text())
    assert config["model_config"]["rope_parameters"] == {
        "rope_type": "default",
        "rope_theta": 200_000_000.0,
    }
    assert (
        config["fsdp_version"],
        config["dp_shard_size"],
        config["context_parallel_size"],
    ) == (2, 4, 4)
    assert config["gradient_accumulation_steps"] * 16 // 4 == 65_536 // 2048
    assert (config["learning_rate"], config["warmup_steps"], config["max_steps"]) == (
        4e-5,
        200,
        1000,
    )
    assert config["cosine_min_lr_ratio"] == 0.1
    assert config["sample_packing"] is False
    assert list((tmp_path / "a" / "data" / "validation").iterdir())


def test_sequences_that_share_chunks_with_validation_are_left_out_of_train(emitted):
    rows = {}
    for how in ("keep", "leave-out"):
        folder = (
            emitted("axolotl", "data.validation=0.1", f"data.shared_chunks={how}")
            / "data"
            / "train"
        )
        rows[how] = sum(
            pq.read_metadata(path).num_rows for path in folder.glob("*.parquet")
        )
    assert rows["keep"] > rows["leave-out"] > 0


def test_packed_rows_are_packed_by_axolotl_itself(recipe, quiet, tmp_path):
    emit(recipe("data.pack=8192"), "axolotl", tmp_path / "a", quiet)
    config = yaml.safe_load((tmp_path / "a" / "axolotl.yaml").read_text())
    assert (config["sample_packing"], config["sequence_len"]) == (True, 8192)


# Only arguments that trainers know, for those that no package installs. Names and
# defaults are taken from NVIDIA/Megatron-LM, megatron/training/arguments.py;
# princeton-nlp/ProLong, training/train_language_model.py, training/trainer.py and
# train_512K.sh. A new argument of ours fails here until it was looked up there.
SWITCHES = [
    "use-rotary-position-embeddings", "use-rope-scaling", "group-query-attention", "swiglu", "disable-bias-linear",
    "untie-embeddings-and-output-weights", "use-distributed-optimizer", "eod-mask-loss", "bf16", "reset-position-ids",
    "reset-attention-mask", "finetune",
]  # fmt: skip
MEGATRON = {
    "train-data-path": "+", "valid-data-path": "+", "tokenizer-type": {"HuggingFaceTokenizer"}, "tokenizer-model": str,
    "seq-length": int, "max-position-embeddings": int, "position-embedding-type": {"rope"}, "rotary-base": int,
    "rope-scaling-factor": float, "num-layers": int, "hidden-size": int, "ffn-hidden-size": int, "num-attention-heads": int,
    "num-query-groups": int, "normalization": {"LayerNorm", "RMSNorm"}, "norm-epsilon": float, "context-parallel-size": int,
    "micro-batch-size": int, "global-batch-size": int, "attention-backend": {"flash", "fused", "unfused", "local", "auto"},
    "attention-dropout": float, "hidden-dropout": float, "recompute-granularity": {"full", "selective"},
    "recompute-method": {"uniform", "block"}, "recompute-num-layers": int, "train-iters": int, "lr": float, "min-lr": float,
    "lr-decay-style": {"constant", "linear", "cosine", "inverse-square-root", "WSD"}, "lr-decay-iters": int,
    "lr-warmup-iters": int, "adam-beta1": float, "adam-beta2": float, "adam-eps": float, "weight-decay": float,
    "clip-grad": float, "seed": int, "load": str, "save": str, "save-interval": int,
}  # fmt: skip
PROLONG_SWITCHES = ["do_train", "bf16", "gradient_checkpointing", "cuda_empty_cache"]
PROLONG = {
    "report_to": str, "run_name": str, "model_name": str, "tokenizer_name": str, "output_dir": str, "config_overrides": str,
    "per_device_train_batch_size": int, "gradient_accumulation_steps": int, "per_device_max_tokens": int,
    "seq_parallel_size": int, "learning_rate": float, "min_lr_ratio": float, "lr_scheduler_type": {"cosine", "linear", "constant"},
    "warmup_steps": int, "max_steps": int, "adam_beta1": float, "adam_beta2": float, "weight_decay": float, "max_grad_norm": float,
    "optim": {"adamw_torch"}, "seed": int, "save_steps": int, "logging_steps": int, "disable_tqdm": {"true"},
    "dataloader_num_workers": int, "remove_unused_columns": {"false"}, "ddp_find_unused_parameters": {"false"},
    "fsdp": {"auto_wrap"}, "tokenized_mds_train": "+",
}  # fmt: skip


def parser(switches, options):
    found = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for name in switches:
        found.add_argument(f"--{name}", action="store_true")
    for name, kind in options.items():
        how = (
            {"nargs": "+"}
            if kind == "+"
            else {"choices": kind}
            if isinstance(kind, set)
            else {"type": kind}
        )
        found.add_argument(f"--{name}", **how)
    return found


def read(script, program, switches, options):
    """Parse what the launch script hands to a program, as a shell would cut it."""
    words = shlex.split(script.read_text().split(program, 1)[1].replace("\\\n", " "))
    return vars(parser(switches, options).parse_args(words))


@pytest.fixture
def emitted(recipe, quiet, tmp_path):
    """A function that emits a recipe for a trainer; returns the folder."""

    def write(name, *overrides):
        emit(recipe(*overrides), name, tmp_path / name, quiet)
        return tmp_path / name

    return write


EVERYTHING = ("data.pack=8192", "data.validation=0.3", "training.min_lr_ratio=0.1")


@pytest.mark.parametrize("overrides", [(), EVERYTHING])
def test_megatron(emitted, overrides):
    given = read(
        emitted("megatron", *overrides) / "launch.sh",
        'pretrain_gpt.py"',
        SWITCHES,
        MEGATRON,
    )
    assert (given["attention_dropout"], given["hidden_dropout"]) == (
        0.0,
        0.0,
    )  # 0.1 where it is left out
    assert (
        given["recompute_granularity"],
        given["recompute_method"],
        given["recompute_num_layers"],
    ) == (
        "full",
        "uniform",
        1,
    )
    assert (
        given["lr"],
        given["adam_beta2"],
        given["adam_eps"],
        given["clip_grad"],
    ) == (4e-5, 0.95, 1e-8, 1.0)
    assert (given["rotary_base"], given["num_query_groups"], given["norm_epsilon"]) == (
        200_000_000,
        8,
        1e-5,
    )
    assert given["context_parallel_size"] == 4
    assert (
        given["reset_attention_mask"] == given["reset_position_ids"] == bool(overrides)
    )


def test_megatron_gets_each_prefix_with_its_tokens_as_the_weight(emitted):
    folder = emitted("megatron")
    launch = folder / "launch.sh"
    given = read(launch, 'pretrain_gpt.py"', SWITCHES, MEGATRON)["train_data_path"]
    listed = (folder / "data" / "blend.txt").read_text().split()
    assert given[0::2] == listed[0::2]
    assert given[1::2] == [str(folder / "data" / name) for name in listed[1::2]]


def test_megatron_with_every_layer_kept(emitted):
    launch = emitted("megatron", "memory.checkpointing=none") / "launch.sh"
    assert (
        read(launch, 'pretrain_gpt.py"', SWITCHES, MEGATRON)["recompute_granularity"]
        is None
    )


@pytest.mark.parametrize("overrides", [(), EVERYTHING])
def test_prolong(emitted, overrides):
    made = emitted("prolong", *overrides)
    given = read(made / "launch.sh", "train_language_model", PROLONG_SWITCHES, PROLONG)
    assert (given["learning_rate"], given["adam_beta2"], given["max_steps"]) == (
        4e-5,
        0.95,
        1000,
    )
    assert (given["config_overrides"], given["seq_parallel_size"]) == (
        "rope_theta=200000000",
        4,
    )
    assert given["per_device_max_tokens"] == (8192 if overrides else 2048)
    assert given["bf16"]
    assert given["gradient_checkpointing"]
    assert list((made / "data").rglob("index.json"))


def test_olmo(emitted):
    made = emitted(
        "olmo",
        "data.validation=0.3",
        "training.schedule=linear",
        "training.min_lr_ratio=0.1",
    )
    config = json.loads((made / "olmo.json").read_text())
    assert config["dataset"]["paths"] == [str(made / "data" / "train" / "*.npy")]
    assert (config["dataset"]["dtype"], config["dataset"]["sequence_length"]) == (
        "uint16",
        2048,
    )
    assert config["train_module"]["scheduler"]["alpha_f"] == 0.1
    assert config["train_module"]["scheduler"]["t_max"] == 1001
    assert config["data_loader"]["global_batch_size"] == 65_536
    assert (
        "[[ -e converted/.metadata ]] || { echo 'on one machine first: "
        in (made / "launch.sh").read_text()
    )
    alone = emitted("olmo", "hardware.count=8")
    assert (
        "[[ -e converted/.metadata ]] || python train.py convert\n"
        in (alone / "launch.sh").read_text()
    )


needs_trl = pytest.mark.skipif(
    importlib.util.find_spec("trl") is None, reason="trl is not installed"
)


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore")  # not ours to mend
@needs_trl
def test_trl_knows_every_key(emitted):
    from trl import (
        DatasetMixtureConfig,
        ModelConfig,
        ScriptArguments,
        SFTConfig,
        TrlParser,
    )

    made = emitted(
        "trl",
        "hardware.ranks_per_row=1",
        "data.validation=0.3",
        "data.pack=8192",
        "training.tokens_per_step=131072",
        "training.min_lr_ratio=0.1",
    )
    parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig, DatasetMixtureConfig))
    cpu = ["--use_cpu", "true", "--bf16", "false", "--fsdp_config", "{}", "--fsdp", ""]
    script, sft, model, _ = parser.parse_args_and_config(
        ["--config", str(made / "trl.yaml"), *cpu]
    )  # refuses unknown keys
    assert (script.dataset_test_split, sft.eval_steps, sft.max_length) == (
        "validation",
        50,
        None,
    )
    assert (sft.padding_free, sft.max_steps, sft.warmup_steps, sft.learning_rate) == (
        True,
        1000,
        200,
        4e-5,
    )
    assert (sft.lr_scheduler_type, sft.lr_scheduler_kwargs) == (
        "cosine_with_min_lr",
        {"min_lr_rate": 0.1},
    )
    assert sft.model_init_kwargs["rope_parameters"] == {
        "rope_type": "default",
        "rope_theta": 200_000_000.0,
    }
    assert model.attn_implementation == "flash_attention_2"
    plain = yaml.safe_load((made / "trl.yaml").read_text())
    assert plain["fsdp_config"]["activation_checkpointing"]
    assert not plain["gradient_checkpointing"]


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore")  # not ours to mend
@needs_trl
def test_trl_trains_on_what_is_emitted(train_recipe, ended_run, llama, quiet, tmp_path):
    """Each step reads all rows, so that its loss does not depend on their order."""
    from transformers import AutoTokenizer

    from nextlong.train import loop
    from nextlong.train.metrics import read

    tokenizer = AutoTokenizer.from_pretrained(llama)
    tokenizer.eos_token = "<|endoftext|>"
    tokenizer.save_pretrained(llama)
    rows = len(Run(ended_run))
    keys = {
        "data.runs": [str(ended_run)],
        "data.validation": 0.0,
        "model.scratch": None,
        "model.path": llama,
    }
    keys |= {
        "training.tokens_per_step": rows * 2048,
        "training.steps": 3,
        "training.warmup_steps": 0,
        "training.lr": 0.003,
    }
    keys |= {
        "training.schedule": "constant",
        "model.rope_base": 5e5,
        "held_out.every_steps": 50,
        "held_out.rows": 16,
    }
    ours = train_recipe(keys, out="ours")
    loop.train(ours, quiet)
    bf16 = ours.training.model_copy(update={"precision": "bf16"})
    emit(ours.model_copy(update={"training": bf16}), "trl", tmp_path / "trl", quiet)
    cpu = [
        "--use_cpu",
        "true",
        "--bf16",
        "false",
        "--attn_implementation",
        "sdpa",
        "--padding_free",
        "false",
    ]
    command = [sys.executable, "-m", "trl.scripts.sft", "--config", "trl.yaml", *cpu]
    subprocess.run(command, cwd=tmp_path / "trl", check=True, capture_output=True)
    (state,) = (tmp_path / "trl" / "out").glob("checkpoint-3/trainer_state.json")
    theirs = [
        step["loss"]
        for step in json.loads(state.read_text())["log_history"]
        if "loss" in step
    ]
    assert theirs == pytest.approx(
        [step["loss"] for step in read(Path(ours.out) / "metrics.jsonl")], abs=1e-4
    )
