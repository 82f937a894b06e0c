"""Emit: the config, data set and launch script of the same training for another trainer.

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
from functools import cached_property, partial
from pathlib import Path
from typing import Final, NamedTuple

import jinja2
import numpy as np
import yaml
from rich.console import Console

from nextlong.artifacts.finished import TokenizerResult
from nextlong.engine import store
from nextlong.errors import RecipeError
from nextlong.plugins import TRAINERS
from nextlong.report import tables
from nextlong.runs import export
from nextlong.runs.run import Run
from nextlong.text import Json
from nextlong.train.recipe import (
    SupportedKeys,
    TrainRecipe,
    check_supported,
    micro_batches,
)

_GPUS_PER_NODE: Final = 8
_COMMON_KEYS: Final[SupportedKeys] = {
    **dict.fromkeys(
        f"data.{key}"
        for key in [
            "runs",
            "mix",
            "by",
            "pack",
            "validation",
            "shared_chunks",
            "split_seed",
        ]
    ),
    **dict.fromkeys(
        (
            "seed",
            "training",
            "model.rope_base",
            "model.rope_scaling",
            "checkpoints.every_steps",
        )
    ),
    "training.micro_batch_rows": (1,),
    "training.precision": ("bf16",),  # of FlashAttention
    "memory.checkpointing": ("layers", "none"),
}
# What Megatron-LM has built in of Llama 3.1's RoPE scaling; it takes the factor as an argument.
_MEGATRON_SCALING: Final = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
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
        cure = "train it on one device with --engine nextlong, or use --emit axolotl"
        raise RecipeError(
            f"model.path={path!r} is a {kind}; {trainer} trains llama and mistral: {cure}"
        )
    differing = {
        key: value
        for key, built_in in _BUILT_IN.items()
        if (value := config.get(key, built_in)) != built_in
    }
    head_dim = config.get("head_dim")
    if head_dim not in (None, config["hidden_size"] // config["num_attention_heads"]):
        differing["head_dim"] = head_dim
    if differing:
        values = ", ".join(f"{key}={value!r}" for key, value in differing.items())
        raise RecipeError(
            f"model.path={path!r} has {values}, which {trainer} does not support; use --emit axolotl"
        )


@dataclass(frozen=True)
class Settings:
    """A recipe, the folder of its files, the tokens of its longest sequence, of a row, and in total; the id of EOS.

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
            cure = f"use a multiple of {_GPUS_PER_NODE}"
            raise RecipeError(
                f"hardware.count={count} does not fill machines of {_GPUS_PER_NODE} devices; {cure}"
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
        return micro_batches(
            self.recipe,
            rows_per_step=self.rows_per_step,
            devices=count,
            ranks_per_row=ranks,
        )

    def data(self, split: str = "") -> Path:
        """Return the folder of the exported rows, or of those of a split."""
        return self.folder / "data" / (split if self.recipe.data.validation else "")

    @cached_property
    def model_config(self) -> Json:
        """The model's config.json. Raises RecipeError if `model.path` is no local folder."""
        path = self.recipe.model.path
        if not (file := Path(path or "") / "config.json").is_file():
            cure = "name a local folder"
            raise RecipeError(
                f"model.path={path!r}: this trainer needs the model's sizes and RoPE; {cure}"
            )
        config: Json = json.loads(file.read_text(encoding="utf-8"))
        return {"num_key_value_heads": config.get("num_attention_heads"), **config}

    @property
    def max_positions(self) -> int:
        """The model's positions, or as many as its longest sequence needs."""
        own = self.model_config.get("max_position_embeddings") or 0
        return max(int(own), self.sequence_tokens)

    def rope(self) -> tuple[float, Json | None]:
        """Return the RoPE base, and the model's scaling of Llama 3.1 if it is kept. Raises RecipeError for another kind."""
        model = self.recipe.model
        if model.rope_base is not None and model.rope_scaling == "replace":
            return model.rope_base, None
        config = self.model_config
        own = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
        base = config.get("rope_theta") or (config.get("rope_parameters") or {}).get(
            "rope_theta", 10_000.0
        )
        kind = own.setdefault("rope_type", own.pop("type", "default"))
        if model.rope_scaling == "keep" and kind not in ("default", "llama3"):
            cure = "set model.rope_scaling=replace"
            raise RecipeError(
                f"model.rope_scaling=keep: {kind} is not known to this trainer; {cure}"
            )
        is_kept = model.rope_scaling == "keep" and kind == "llama3"
        return float(
            base if model.rope_base is None else model.rope_base
        ), own if is_kept else None


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
        engine = (
            "; torchtitan is an engine: --engine torchtitan"
            if name == "torchtitan"
            else ""
        )
        raise RecipeError(
            f"--emit {name!r} is not known; choose from {', '.join(trainers)}{engine}"
        )
    trainer, data = trainers[name], recipe.data
    if not data.runs:
        raise RecipeError("--emit exports finished runs; name them under data.runs")
    if recipe.model.path is None:
        raise RecipeError(
            "--emit needs a model that other trainers can load; set model.path instead of model.scratch"
        )
    advice = "leave these at the values shown, or use another trainer"
    if recipe.attention == "row" and not data.pack:  # a row is one sequence
        recipe = recipe.model_copy(update={"attention": "sequence"})
    check_supported(recipe, trainer.keys, trainer=f"--emit {name}", advice=advice)
    if (
        local := Path(str(recipe.model.path)).expanduser()
    ).exists():  # launch.sh runs in a folder of its own
        recipe = recipe.model_copy(
            update={
                "model": recipe.model.model_copy(update={"path": str(local.absolute())})
            }
        )
    tokens = Run(
        data.runs[0]
    ).recipe.sequence_tokens  # if runs differ in it, no refusal below depends on it
    settings = Settings(
        recipe,
        folder.absolute(),
        sequence_tokens=tokens,
        row_tokens=data.pack or tokens,
        tokens=1,
    )
    trainer.files(
        settings
    )  # refuses what it does not support before anything is written
    overrides = [f"export.push={json.dumps(str(settings.folder / 'data'))}"]
    if data.pack and trainer.packs:
        overrides.append(f"export.pack={data.pack}")
    if data.validation:
        overrides += [
            f"export.{key}={getattr(data, key)}"
            for key in ("validation", "shared_chunks", "split_seed")
        ]
    folder.mkdir(parents=True, exist_ok=True)
    mixed: Json = {"mix": data.mix, "by": data.by} if data.mix else {}
    done = export.export(
        data.runs,
        formats=[trainer.format],
        overrides=overrides,
        stale="replace",
        **mixed,
    ).done
    index = np.load(done["rows"].file(".train.index.npy"), mmap_mode="r")
    shortest, longest = int(index["length"].min()), int(index["length"].max())
    if not data.pack and shortest < longest:
        problem = f"data.runs has sequences of {shortest:,} to {longest:,} tokens, so rows would differ in length"
        cure = f"set data.pack={longest}, which puts several short ones into a row, or use runs of one length"
        raise RecipeError(f"{problem}; {cure}")
    if data.pack and trainer.cuts and (shortest < longest or data.pack % longest):
        reason = f"{name} reads all sequences as one stream and cuts it at multiples of the row"
        cure = "sequences must have one length that divides data.pack; or use --emit axolotl"
        sequences = f"sequences of {shortest:,} to {longest:,} tokens"
        raise RecipeError(
            f"data.pack={data.pack} with {sequences}: {reason}, so {cure}"
        )
    tokens, eos_id = (
        int(index["length"].sum()),
        done["tokenizer"].result(TokenizerResult).eos_id,
    )
    settings = Settings(
        recipe, settings.folder, longest, data.pack or longest, tokens, eos_id
    )
    for file, text in trainer.files(settings).items():
        with store.explained(folder / file):
            store.write_file(folder / file, text)
    (folder / "launch.sh").chmod(0o755)
    store.write_file(folder / "recipe.yaml", recipe.dump())
    tables.say(f"wrote {folder}; inspect launch.sh, then run it there", console)


def _filled(trainer: str, settings: Settings, **values: object) -> Mapping[str, str]:
    """Return a trainer's files by name: `emitted/TRAINER/`, filled in from settings, recipe, training, `machines`, `values`."""
    count, recipe = settings.recipe.hardware.count, settings.recipe
    machines = f"--nnodes {-(-count // _GPUS_PER_NODE)} --nproc-per-node {min(_GPUS_PER_NODE, count)}"
    if count > _GPUS_PER_NODE:
        machines += ' --rdzv-backend c10d --rdzv-endpoint "${HEAD_NODE:?address:port of the first machine}"'
    known = {
        "settings": settings,
        "recipe": recipe,
        "training": recipe.training,
        "machines": machines,
        **values,
    }
    names = _TEMPLATES.list_templates(
        filter_func=lambda name: name.startswith(f"{trainer}/")
    )
    return {
        Path(name).stem: _TEMPLATES.get_template(name).render(known) for name in names
    }


def _yaml(value: object) -> str:
    plain = str(value) if isinstance(value, Path) else value
    return (
        yaml.safe_dump(plain, sort_keys=False, width=10_000)
        .removesuffix("\n")
        .removesuffix("\n...")
    )


# One for all, because it keeps its templates, which take longer to compile than to fill in.
_TEMPLATES: Final = jinja2.Environment(
    loader=jinja2.PackageLoader("nextlong.train", "emitted"),
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    undefined=jinja2.StrictUndefined,
)
_TEMPLATES.filters |= {"json": json.dumps, "yaml": _yaml, "quote": shlex.quote}


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


def _of_transformers(settings: Settings, *, name: str) -> Mapping[str, str]:
    """Return the config of axolotl or `trl sft`, and a launch script. Raises RecipeError for schedules that transformers lacks."""
    training, (base, scaling) = settings.recipe.training, settings.rope()
    if training.schedule != "cosine" and training.min_lr_ratio:
        both = f"training.min_lr_ratio={training.min_lr_ratio} with training.schedule={training.schedule}"
        raise RecipeError(
            f"--emit {name} does not support {both}; set it to 0, or use the schedule cosine"
        )
    schedule: str = (
        "constant_with_warmup" if training.schedule == "constant" else training.schedule
    )
    schedule = (
        "cosine_with_min_lr" if name == "trl" and training.min_lr_ratio else schedule
    )
    rope = (scaling or {"rope_type": "default"}) | {"rope_theta": base}
    positions = {
        "rope_parameters": rope,
        "max_position_embeddings": settings.max_positions,
    }
    arguments = {
        "model_init_kwargs" if name == "trl" else "model_config": positions,
        "lr_scheduler" if name == "axolotl" else "lr_scheduler_type": schedule,
        "warmup_steps": training.warmup_steps,
        "attn_implementation": "flash_attention_2",
        "output_dir": str(settings.folder / "out"),
        **trainer_arguments(settings.recipe, accumulation=settings.accumulation),
    }
    return _filled(name, settings, arguments=arguments)


def _prolong(settings: Settings) -> Mapping[str, str]:
    """Return a script for ProLong's train_language_model, as its train_512K.sh; MDS's `indices` keep sequences of a row apart."""
    base, scaling = settings.rope()
    if scaling:
        raise RecipeError(
            "model.rope_scaling=keep: ProLong computes RoPE from its base alone; use axolotl, torchtitan"
        )
    return _filled("prolong", settings, base=base)


def _megatron(settings: Settings) -> Mapping[str, str]:
    """Return a script for Megatron-LM's pretrain_gpt.py; MEGATRON names a checkout."""
    recipe, ranks, (base, scaling) = (
        settings.recipe,
        settings.recipe.hardware.ranks_per_row,
        settings.rope(),
    )
    check_llama(
        settings.model_config, path=str(recipe.model.path), trainer="--emit megatron"
    )
    if settings.sequence_tokens % (
        2 * ranks
    ):  # context parallelism gives each rank two slices of a document
        slices = f"the {2 * ranks} slices of context parallelism over {ranks} ranks"
        problem = f"sequences of {settings.sequence_tokens:,} tokens do not divide evenly into {slices}"
        raise RecipeError(f"{problem}; change hardware.ranks_per_row or the length")
    scaled = scaling or _MEGATRON_SCALING
    if other := {
        key: scaled.get(key)
        for key, own in _MEGATRON_SCALING.items()
        if scaled.get(key) != own
    }:
        problem = (
            f"Megatron-LM has {_MEGATRON_SCALING} built in, and the model has {other}"
        )
        raise RecipeError(
            f"model.rope_scaling=keep: {problem}; set model.rope_scaling=replace, or use axolotl"
        )
    names = (
        {"train": "train", "valid": "validation"}
        if recipe.data.validation
        else {"train": "train"}
    )
    data = {name: _blend(settings.data(split)) for name, split in names.items()}
    return _filled(
        "megatron",
        settings,
        sizes=settings.model_config,
        base=base,
        scaling=scaling,
        data=data,
    )


def _blend(folder: Path) -> str:
    """Return the weights and prefixes of the files in `folder`, as Megatron takes them.

    They are empty before the export, when the settings are only checked.
    """
    blend = folder / "blend.txt"
    if not blend.exists():
        return ""
    arguments = []
    for line in blend.read_text(encoding="utf-8").splitlines():
        weight, prefix = line.split(" ")
        arguments += [weight, str(folder / prefix)]
    return shlex.join(arguments)


def _olmo(settings: Settings) -> Mapping[str, str]:
    """Return OLMo-core's config, the script that trains on it, and its launch script, which first converts the weights.

    OLMo-core cuts the exported ids every `sequence_length` tokens, so an instance is one sequence, and attends within it.
    """
    recipe, ranks, sizes = (
        settings.recipe,
        settings.recipe.hardware.ranks_per_row,
        settings.model_config,
    )
    base, scaling = settings.rope()
    check_llama(sizes, path=str(recipe.model.path), trainer="--emit olmo")
    if sizes["num_key_value_heads"] % ranks:
        heads = f"the {sizes['num_key_value_heads']} key-value heads of the model by the ranks that share a row"
        raise RecipeError(
            f"hardware.ranks_per_row={ranks}: OLMo-core divides {heads}; change it to a divisor of that"
        )
    width = (
        sum(path.stat().st_size for path in settings.data("train").glob("*.npy"))
        // settings.tokens
    )
    return _filled(
        "olmo", settings, sizes=sizes, base=base, scaling=scaling, bits=8 * width
    )


_AXOLOTL_KEYS: Final[SupportedKeys] = {**_COMMON_KEYS, "checkpoints.keep_last": None}
_OLMO_KEYS: Final[SupportedKeys] = {**_AXOLOTL_KEYS, "data.pack": (None,)}
_PROLONG_KEYS: Final[SupportedKeys] = {
    **_COMMON_KEYS,
    "training.eps": (1e-8,),
    "training.schedule": ("cosine", "linear"),
    "memory.checkpointing": ("layers",),
}
_TRL_KEYS: Final[SupportedKeys] = {
    **_AXOLOTL_KEYS,
    "held_out.every_steps": None,
    "hardware.ranks_per_row": (1,),
}
TRAINER: Final = (
    Trainer(
        "axolotl",
        "axolotl",
        False,
        _AXOLOTL_KEYS,
        partial(_of_transformers, name="axolotl"),
    ),
    Trainer("prolong", "prolong", True, _PROLONG_KEYS, _prolong),
    Trainer(
        "megatron",
        "megatron",
        True,
        {**_COMMON_KEYS, "attention": ("sequence", "row")},
        _megatron,
        cuts=True,
    ),
    Trainer("trl", "parquet", True, _TRL_KEYS, partial(_of_transformers, name="trl")),
    Trainer("olmo", "olmo", False, _OLMO_KEYS, _olmo, cuts=True),
)
