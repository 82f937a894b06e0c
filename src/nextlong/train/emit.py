"""Emit: the same training for another trainer: its config, its data set, its launch script.

In:  a training recipe over finished runs; axolotl, megatron, olmo, prolong or trl.
Out: a folder with `data/` (the exported rows), the trainer's config and `launch.sh`.

`TRAINER` declares trainers: the format that each reads, the recipe's keys that it supports, and the function that
renders its files from `Settings`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

import jinja2
import numpy as np
import yaml
from rich.console import Console

from nextlong.artifacts.results import TokenizerResult
from nextlong.engine import store
from nextlong.errors import RecipeError
from nextlong.plugins import TRAINERS
from nextlong.report import tables
from nextlong.runs import export
from nextlong.runs.run import Run
from nextlong.text import Json
from nextlong.train.recipe import SupportedKeys, TrainRecipe, check_supported, micro_batches

_GPUS_PER_NODE: Final = 8
_COMMON_KEYS: Final[SupportedKeys] = {
    **dict.fromkeys(
        f"data.{key}" for key in ["runs", "mix", "by", "pack", "validation", "shared_chunks", "split_seed"]
    ),
    **dict.fromkeys(("seed", "training", "model.rope_base", "model.rope_scaling", "checkpoints.every_steps")),
    "training.micro_batch_rows": (1,),
    "training.precision": ("bf16",),  # of FlashAttention
    "memory.checkpointing": ("layers", "none"),
}
# What Megatron-LM has built in of Llama 3.1's RoPE scaling; it takes the factor as an argument.
_MEGATRON_SCALING: Final = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_OLMO_SCHEDULES: Final = {"cosine": "CosWithWarmup", "linear": "LinearWithWarmup", "constant": "ConstantWithWarmup"}
# Built into the Llama of torchtitan, Megatron-LM and OLMo-core: they would silently compute a model with other values differently.
_BUILT_IN: Final = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "sliding_window": None,
}


def check_llama(config: Json, *, path: str, trainer: str) -> None:
    """Raise RecipeError unless `trainer`'s Llama computes the same as the model of a config.json."""
    if (kind := config.get("model_type")) not in ("llama", "mistral"):
        raise RecipeError(
            f"model.path={path!r} is a {kind}; {trainer} trains llama and mistral: train it on one device with --engine nextlong, "
            "or use --emit axolotl"
        )
    differing = {key: value for key, built_in in _BUILT_IN.items() if (value := config.get(key, built_in)) != built_in}
    head_dim = config.get("head_dim")
    if head_dim not in (None, config["hidden_size"] // config["num_attention_heads"]):
        differing["head_dim"] = head_dim
    if differing:
        values = ", ".join(f"{key}={value!r}" for key, value in differing.items())
        raise RecipeError(f"model.path={path!r} has {values}, which {trainer} does not support; use --emit axolotl")


@dataclass(frozen=True)
class Settings:
    """A recipe, the folder of its files, the tokens of its longest sequence and row, and in all; the id of EOS.

    Raises RecipeError if the devices do not fill machines, or cannot share a step's rows evenly.
    """

    recipe: TrainRecipe
    folder: Path
    sequence_tokens: int
    row_tokens: int
    tokens: int = 0
    eos_id: int | None = None

    def __post_init__(self) -> None:
        count = self.recipe.hardware.count
        if count % min(_GPUS_PER_NODE, count):
            raise RecipeError(
                f"hardware.count={count} does not fill machines of {_GPUS_PER_NODE} devices; use a multiple"
            )
        _ = self.accumulation

    @property
    def rows_per_step(self) -> int:
        """Rows of all ranks in a step."""
        return max(1, self.recipe.training.tokens_per_step // self.row_tokens)

    @property
    def accumulation(self) -> int:
        """Micro-batches of a step on each rank."""
        count, ranks = self.recipe.hardware.count, self.recipe.hardware.ranks_per_row
        return micro_batches(self.recipe, rows_per_step=self.rows_per_step, devices=count, ranks_per_row=ranks)

    def data(self, split: str = "") -> Path:
        """Return the folder of the exported rows, or of those of a split."""
        return self.folder / "data" / (split if self.recipe.data.validation else "")

    @cached_property
    def model_config(self) -> Json:
        """The model's config.json. Raises RecipeError if `model.path` is no local folder."""
        path = self.recipe.model.path
        if not (file := Path(path or "") / "config.json").is_file():
            raise RecipeError(
                f"model.path={path!r}: this trainer needs the model's sizes and RoPE; name a local folder"
            )
        config: Json = json.loads(file.read_text(encoding="utf-8"))
        return {"num_key_value_heads": config.get("num_attention_heads"), **config}

    def rope(self) -> tuple[float, Json | None]:
        """Return the RoPE base, and the model's scaling of Llama 3.1 if it is kept. Raises RecipeError for another kind."""
        model = self.recipe.model
        if model.rope_base is not None and model.rope_scaling == "replace":
            return model.rope_base, None
        config = self.model_config
        own = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
        base = config.get("rope_theta") or (config.get("rope_parameters") or {}).get("rope_theta", 10_000.0)
        kind = own.setdefault("rope_type", own.pop("type", "default"))
        if model.rope_scaling == "keep" and kind not in ("default", "llama3"):
            raise RecipeError(
                f"model.rope_scaling=keep: {kind} is not known to this trainer; set model.rope_scaling=replace"
            )
        is_kept = model.rope_scaling == "keep" and kind == "llama3"
        return float(base if model.rope_base is None else model.rope_base), own if is_kept else None

    def transformers_arguments(self, name: str) -> Json:
        """Return what both axolotl and TRL take. Raises RecipeError for a schedule that transformers lacks."""
        recipe, training, (base, scaling) = self.recipe, self.recipe.training, self.rope()
        if training.schedule != "cosine" and training.min_lr_ratio:
            raise RecipeError(
                f"--emit {name} does not support training.min_lr_ratio={training.min_lr_ratio} with training.schedule="
                f"{training.schedule}; set it to 0, or use the schedule cosine"
            )
        schedule = "constant_with_warmup" if training.schedule == "constant" else training.schedule
        rope = (scaling or {"rope_type": "default"}) | {"rope_theta": base}
        positions = {"rope_parameters": rope, "max_position_embeddings": self.sequence_tokens}
        return {
            "model_init_kwargs" if name == "trl" else "model_config": positions,
            "lr_scheduler" if name == "axolotl" else "lr_scheduler_type": schedule,
            "warmup_steps": training.warmup_steps,
            "attn_implementation": "flash_attention_2",
            "output_dir": str(self.folder / "out"),
            **trainer_arguments(recipe, accumulation=self.accumulation),
        }


class Trainer(NamedTuple):
    """A trainer: the export format that it reads, whether we pack its rows, the keys it supports, and its files by name.

    `cuts`: it reads all ids as one stream, which it cuts every `row_tokens`.
    """

    name: str
    format: str
    packs: bool
    keys: SupportedKeys
    files: Callable[[Settings], Mapping[str, str]]
    cuts: bool = False


def emit(recipe: TrainRecipe, name: str, folder: Path, console: Console) -> None:
    """Write `folder` for the trainer `name`. Raises RecipeError for an unknown trainer, and for settings it does not support."""
    trainers: dict[str, Trainer] = TRAINERS.declarations(Trainer)
    if name not in trainers:
        engine = "; torchtitan is an engine: --engine torchtitan" if name == "torchtitan" else ""
        raise RecipeError(f"--emit {name!r} is not known; choose from {', '.join(trainers)}{engine}")
    trainer, data = trainers[name], recipe.data
    if not data.runs:
        raise RecipeError("--emit exports finished runs; name them under data.runs")
    if recipe.model.path is None:
        raise RecipeError("--emit needs a model that other trainers can load; set model.path instead of model.scratch")
    advice = "leave these at the values shown, or use another trainer"
    if recipe.attention == "row" and not data.pack:  # a row is one sequence
        recipe = recipe.model_copy(update={"attention": "sequence"})
    check_supported(recipe, trainer.keys, trainer=f"--emit {name}", advice=advice)
    if (local := Path(str(recipe.model.path)).expanduser()).exists():  # launch.sh runs in a folder of its own
        model = recipe.model.model_copy(update={"path": str(local.absolute())})
        recipe = recipe.model_copy(update={"model": model})
    tokens = Run(data.runs[0]).recipe.sequence_tokens  # if runs differ in it, no refusal below depends on it
    settings = Settings(recipe, folder.absolute(), sequence_tokens=tokens, row_tokens=data.pack or tokens, tokens=1)
    trainer.files(settings)  # refuses what it does not support before anything is written
    overrides = [f"export.push={json.dumps(str(settings.folder / 'data'))}"]
    if data.pack and trainer.packs:
        overrides.append(f"export.pack={data.pack}")
    if data.validation:
        overrides += [f"export.{key}={getattr(data, key)}" for key in ("validation", "shared_chunks", "split_seed")]
    folder.mkdir(parents=True, exist_ok=True)
    mixed: Json = {"mix": data.mix, "by": data.by} if data.mix else {}
    done = export.export(data.runs, formats=[trainer.format], overrides=overrides, stale="replace", **mixed).done
    index = np.load(done["rows"].file(".train.index.npy"), mmap_mode="r")
    shortest, longest = int(index["length"].min()), int(index["length"].max())
    if not data.pack and shortest < longest:
        raise RecipeError(
            f"data.runs has sequences of {shortest:,} to {longest:,} tokens, so rows would differ in length; set "
            f"data.pack={longest}, which puts several short ones into a row, or use runs of one length"
        )
    if data.pack and trainer.cuts and (shortest < longest or data.pack % longest):
        raise RecipeError(
            f"data.pack={data.pack} with sequences of {shortest:,} to {longest:,} tokens: {name} reads all sequences as one stream "
            "and cuts it at multiples of the row, so sequences must have one length that divides data.pack; or use --emit axolotl"
        )
    tokens, eos_id = int(index["length"].sum()), done["tokenizer"].result(TokenizerResult).eos_id
    settings = Settings(recipe, settings.folder, longest, data.pack or longest, tokens, eos_id)
    for file, text in trainer.files(settings).items():
        with store.explained(folder / file):
            store.write_file(folder / file, text)
    (folder / "launch.sh").chmod(0o755)
    store.write_file(folder / "recipe.yaml", recipe.dump())
    tables.say(f"wrote {folder}; inspect launch.sh, then run it there", console)


def _launch_script(settings: Settings, commands: str, **values: object) -> str:
    """Return a bash script for all machines that runs `commands` in its own folder.

    `commands` is a template: `machines` are torchrun's options; `settings`, `recipe`, `training` and `model`, its path, as well as
    `values` are known by name.
    """
    count, recipe = settings.recipe.hardware.count, settings.recipe
    nodes, per_node = -(-count // _GPUS_PER_NODE), min(_GPUS_PER_NODE, count)
    machines = f"--nnodes {nodes} --nproc-per-node {per_node}"
    if nodes > 1:
        machines += ' --rdzv-backend c10d --rdzv-endpoint "${HEAD_NODE:?address:port of the first machine}"'
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    script = environment.from_string(f'#!/usr/bin/env bash\nset -euo pipefail\ncd "$(dirname "$0")"\n{commands}')
    known = {"settings": settings, "recipe": recipe, "training": recipe.training, "machines": machines}
    return script.render(known, model=shlex.quote(str(recipe.model.path)), **values) + "\n"


def trainer_arguments(recipe: TrainRecipe, *, accumulation: int) -> Json:
    """Return arguments of the trainer of transformers."""
    training = recipe.training
    return {
        "gradient_accumulation_steps": accumulation,
        "max_steps": training.steps,
        "learning_rate": training.lr,
        "adam_beta1": training.beta1,
        "adam_beta2": training.beta2,
        "adam_epsilon": training.eps,
        "weight_decay": training.weight_decay,
        "max_grad_norm": training.clip or 0.0,  # 0: no clipping
        "bf16": training.precision == "bf16",
        "save_steps": recipe.checkpoints.every_steps,
        "save_total_limit": recipe.checkpoints.keep_last,
        "seed": recipe.seed,
    }


def _axolotl(settings: Settings) -> Mapping[str, str]:
    """Return axolotl's config, with names as in axolotl 0.21. Sequences are exported unpacked; axolotl packs them itself."""
    recipe, data = settings.recipe, str(settings.data())
    is_packed, ranks = recipe.data.pack is not None, recipe.hardware.ranks_per_row
    config: Json = {
        "base_model": recipe.model.path,
        "datasets": [{"path": data, "split": "train", "type": None}],  # no type: already tokenized
        "sequence_len": settings.row_tokens,
        "excess_length_strategy": "raise",
        "sample_packing": is_packed,
        "pad_to_sequence_len": is_packed,
        "fsdp_version": 2,
        "fsdp_config": {
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "reshard_after_forward": True,
            "state_dict_type": "FULL_STATE_DICT",
            "activation_checkpointing": recipe.memory.checkpointing != "none",
        },
        "dp_shard_size": recipe.hardware.count // ranks,
        "context_parallel_size": ranks,
        "ring_attn_func": "varlen_llama3",  # batch_ring gave loss × 1.83; 0.21 warns that it chooses by itself now
        "micro_batch_size": 1,
        "optimizer": "adamw_torch_fused",
        **settings.transformers_arguments("axolotl"),
    }
    if recipe.training.min_lr_ratio:
        config["cosine_min_lr_ratio"] = recipe.training.min_lr_ratio
    if recipe.data.validation:
        config["test_datasets"] = [{"path": data, "split": "validation", "type": None}]
    launch = _launch_script(settings, "axolotl train axolotl.yaml --launcher torchrun -- {{ machines }}")
    return {"axolotl.yaml": yaml.safe_dump(config, sort_keys=False, width=120), "launch.sh": launch}


def _trl(settings: Settings) -> Mapping[str, str]:
    """Return the config of `trl sft`, with names as in TRL 1.16. `seq_lengths` of a row give its positions and borders."""
    recipe, is_recomputed = settings.recipe, settings.recipe.memory.checkpointing != "none"
    config: Json = {
        "model_name_or_path": recipe.model.path,
        "dataset_name": str(settings.data()),
        "dataset_kwargs": {"skip_prepare_dataset": True},  # rows hold ids already
        "padding_free": True,
        "max_length": None,
        "per_device_train_batch_size": 1,
        "optim": "adamw_torch_fused",
        "logging_steps": 1,
        "eval_steps": recipe.held_out.every_steps,
        **settings.transformers_arguments("trl"),
        "gradient_checkpointing": is_recomputed,
    }
    if ratio := recipe.training.min_lr_ratio:
        config |= {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": ratio}}
    if recipe.hardware.count > 1:  # FSDP2 checkpoints activations itself
        wrap = {"version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "activation_checkpointing": is_recomputed}
        config |= {"fsdp": True, "fsdp_config": wrap, "gradient_checkpointing": False}
    if recipe.data.validation:
        config |= {"dataset_test_split": "validation", "eval_strategy": "steps", "per_device_eval_batch_size": 1}
    launch = _launch_script(settings, "torchrun {{ machines }} -m trl.scripts.sft --config trl.yaml")
    return {"trl.yaml": yaml.safe_dump(config, sort_keys=False, width=120), "launch.sh": launch}


def _prolong(settings: Settings) -> Mapping[str, str]:
    """Return a script for ProLong's train_language_model, as its train_512K.sh; MDS's `indices` keep sequences of a row apart."""
    base, scaling = settings.rope()
    if scaling:
        raise RecipeError("model.rope_scaling=keep: ProLong computes RoPE from its base alone; use axolotl, torchtitan")
    commands = Path(__file__).with_name("prolong.sh.jinja").read_text(encoding="utf-8")
    return {"launch.sh": _launch_script(settings, commands, base=base)}


def _megatron(settings: Settings) -> Mapping[str, str]:
    """Return a script for Megatron-LM's pretrain_gpt.py; MEGATRON names a checkout."""
    recipe, ranks, (base, scaling) = settings.recipe, settings.recipe.hardware.ranks_per_row, settings.rope()
    check_llama(settings.model_config, path=str(recipe.model.path), trainer="--emit megatron")
    if settings.sequence_tokens % (2 * ranks):  # context parallelism gives each rank two slices of a document
        raise RecipeError(
            f"sequences of {settings.sequence_tokens:,} tokens do not divide evenly into the {2 * ranks} slices of context "
            f"parallelism over {ranks} ranks; change hardware.ranks_per_row or the length"
        )
    if scaling and (
        other := {key: scaling.get(key) for key, value in _MEGATRON_SCALING.items() if scaling.get(key) != value}
    ):
        raise RecipeError(
            f"model.rope_scaling=keep: Megatron-LM has {_MEGATRON_SCALING} built in, and the model has {other}; set "
            "model.rope_scaling=replace, or use axolotl"
        )
    names = {"train": "train", "valid": "validation"} if recipe.data.validation else {"train": "train"}
    data = {
        name: shlex.join(str(path.with_suffix("")) for path in sorted(settings.data(split).glob("*.bin")))
        for name, split in names.items()
    }
    commands = Path(__file__).with_name("megatron.sh.jinja").read_text(encoding="utf-8")
    known = {"sizes": settings.model_config, "base": base, "scaling": scaling, "data": data}
    return {"launch.sh": _launch_script(settings, commands, **known)}


def _olmo_class(name: str, **values: object) -> Json:
    """Return the values of a class of OLMo-core, named for `Config.from_dict`."""
    return {"_CLASS_": f"olmo_core.{name}", **values}


def _olmo(settings: Settings) -> Mapping[str, str]:
    """Return OLMo-core's config, with names as in ai2-olmo-core 3.0, the script that trains on it, and its launch script.

    OLMo-core cuts the exported ids every `sequence_length` tokens, so an instance is one sequence, and attends within it. The
    launch script first converts the weights, on one machine.
    """
    recipe, training, ranks = settings.recipe, settings.recipe.training, settings.recipe.hardware.ranks_per_row
    sizes, tokens, (base, scaling) = settings.model_config, settings.row_tokens, settings.rope()
    check_llama(sizes, path=str(recipe.model.path), trainer="--emit olmo")
    if sizes["num_key_value_heads"] % ranks:
        raise RecipeError(
            f"hardware.ranks_per_row={ranks}: OLMo-core divides the {sizes['num_key_value_heads']} key-value heads of the model "
            "by the ranks that share a row; change it to a divisor of that"
        )
    if scaling is not None:  # shares of the spectrum instead of the factors of config.json
        shares = {"low_freq_proportion": 1 - 1 / scaling["low_freq_factor"]}
        shares |= {"high_freq_proportion": 1 / scaling["high_freq_factor"]}
        lengths = {"factor": scaling["factor"], "old_context_len": scaling["original_max_position_embeddings"]}
        scaling = _olmo_class("nn.rope.StepwiseRoPEScalingConfig", **lengths, **shares)
    norm = {"name": "rms", "eps": sizes["rms_norm_eps"], "bias": False}
    attention = {"n_heads": sizes["num_attention_heads"], "n_kv_heads": sizes["num_key_value_heads"], "bias": False}
    rope = {"theta": round(base), "scaling": scaling}
    block = {
        "sequence_mixer": _olmo_class("nn.attention.AttentionConfig", **attention, rope=rope),
        "feed_forward": {"hidden_size": sizes["intermediate_size"], "bias": False},
        "layer_norm": norm,
    }
    folder, vocabulary = settings.data("train"), sizes["vocab_size"]
    width = sum(path.stat().st_size for path in folder.glob("*.npy")) // settings.tokens
    adamw = {"lr": training.lr, "betas": [training.beta1, training.beta2], "eps": training.eps}
    norms = {"params": ["*norm.weight"], "opts": {"weight_decay": 0.0}}
    least_lr = {} if training.schedule == "constant" else {"alpha_f": training.min_lr_ratio}
    kept: Json = {"save_interval": recipe.checkpoints.every_steps, "max_checkpoints": recipe.checkpoints.keep_last}
    kept["pre_train_checkpoint"] = False
    config = {
        "seed": recipe.seed,
        "model_path": recipe.model.path,
        "model": {
            "d_model": sizes["hidden_size"],
            "vocab_size": vocabulary,
            "n_layers": sizes["num_hidden_layers"],
            "block": _olmo_class("nn.transformer.TransformerBlockConfig", **block),
            "lm_head": {"layer_norm": norm, "bias": False},
            "tie_word_embeddings": sizes.get("tie_word_embeddings", False),
        },
        "dataset": {
            "paths": [str(folder / "*.npy")],
            "expand_glob": True,
            "sequence_length": tokens,
            "tokenizer": {"vocab_size": vocabulary, "eos_token_id": settings.eos_id, "pad_token_id": settings.eos_id},
            "dtype": f"uint{8 * width}",
            "work_dir": str(settings.folder / "work"),
        },
        "data_loader": {"global_batch_size": settings.rows_per_step * tokens, "seed": recipe.seed, "num_workers": 2},
        "train_module": {
            "rank_microbatch_size": tokens,
            "max_sequence_length": tokens,
            "optim": _olmo_class(
                "optim.AdamWConfig", **adamw, weight_decay=training.weight_decay, group_overrides=[norms]
            ),
            "scheduler": _olmo_class(
                f"optim.{_OLMO_SCHEDULES[training.schedule]}", warmup=training.warmup_steps, **least_lr
            ),
            "max_grad_norm": training.clip,
            "dp_config": {"name": "fsdp", "param_dtype": "bfloat16", "reduce_dtype": "float32"},
            "cp_config": {"degree": ranks, "uly": {}} if ranks > 1 else None,
            "ac_config": {"mode": "full"} if recipe.memory.checkpointing != "none" else None,
        },
        "trainer": {
            "save_folder": str(settings.folder / "out"),
            "load_path": str(settings.folder / "converted"),
            "load_strategy": "always",  # an error where the converted weights are missing, instead of random ones
            "max_duration": {"value": training.steps, "unit": "steps"},
            "callbacks": {"checkpointer": _olmo_class("train.callbacks.CheckpointerCallback", **kept)},
        },
    }
    convert = "python train.py convert"
    if (
        recipe.hardware.count > _GPUS_PER_NODE
    ):  # each machine would clear what another one is writing to a shared folder
        convert = "{ echo 'on one machine first: python train.py convert' >&2; exit 1; }"
    once = f"[[ -e converted/.metadata ]] || {convert}"  # written last
    launch = _launch_script(settings, f"{once}\ntorchrun {{{{ machines }}}} train.py")
    script = Path(__file__).with_name("olmo_train.txt").read_text(encoding="utf-8")
    return {"olmo.json": json.dumps(config, indent=1), "train.py": script, "launch.sh": launch}


_OLMO_KEYS: Final[SupportedKeys] = {**_COMMON_KEYS, "data.pack": (None,), "checkpoints.keep_last": None}
_PROLONG_KEYS: Final[SupportedKeys] = {
    **_COMMON_KEYS,
    "training.eps": (1e-8,),
    "training.schedule": ("cosine", "linear"),
    "memory.checkpointing": ("layers",),
}
_TRL_KEYS: Final[SupportedKeys] = {
    **_COMMON_KEYS,
    **dict.fromkeys(("checkpoints.keep_last", "held_out.every_steps")),
    "hardware.ranks_per_row": (1,),
}
TRAINER: Final = (
    Trainer("axolotl", "axolotl", False, {**_COMMON_KEYS, "checkpoints.keep_last": None}, _axolotl),
    Trainer("prolong", "prolong", True, _PROLONG_KEYS, _prolong),
    Trainer("megatron", "megatron", True, {**_COMMON_KEYS, "attention": ("sequence", "row")}, _megatron, cuts=True),
    Trainer("trl", "parquet", True, _TRL_KEYS, _trl),
    Trainer("olmo", "olmo", False, _OLMO_KEYS, _olmo, cuts=True),
)
