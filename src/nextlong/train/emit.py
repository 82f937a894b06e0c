"""Emit: the config, data set and launch script of the same training for other trainers.

In:  a training recipe over finished runs; axolotl, megatron, olmo, prolong or trl.
Out: a folder with `data/` (the exported rows), the trainer's config and `launch.sh`.

A trainer is a row of the table `TRAINER`: the format that it reads, and the keys of the
recipe that it supports. Its files are the templates in `emitted/NAME/`, filled in from
`Settings`. What a template cannot express it refuses.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import jinja2
import numpy as np
import yaml
from rich.console import Console

from nextlong.artifacts.results import TokenizerResult
from nextlong.engine import store
from nextlong.errors import RecipeError
from nextlong.export.arrange import RowFiles
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
# Built into the Llama of torchtitan, Megatron-LM and OLMo-core: they would silently
# compute a model with other values differently.
_BUILT_IN: Final = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "sliding_window": None,
}


class Trainer(NamedTuple):
    """A trainer: the export format it reads, and the keys of the recipe it supports.

    packs: nextlong packs its rows; otherwise it packs sequences itself
    cuts: it reads all ids as one stream, which it cuts every `row_tokens`
    has_own_llama: it computes Llama by its own code, without our model's variations
    package: the Python package whose folder `emitted/NAME` holds its templates
    """

    name: str
    format: str
    packs: bool
    keys: SupportedKeys
    cuts: bool = False
    has_own_llama: bool = False
    package: str = "nextlong.train"


_COMMON_KEYS: Final[SupportedKeys] = {
    "data.runs": None,
    "data.mix": None,
    "data.by": None,
    "data.pack": None,
    "data.validation": None,
    "data.shared_chunks": None,
    "data.split_seed": None,
    "seed": None,
    "training": None,
    "training.micro_batch_rows": (1,),
    "training.precision": ("bf16",),  # of FlashAttention
    "model.rope_base": None,
    "model.rope_scaling": None,
    "memory.checkpointing": ("layers", "none"),
    "checkpoints.every_steps": None,
}
TRAINER: Final = (
    Trainer(
        name="axolotl",
        format="axolotl",
        packs=False,
        keys={**_COMMON_KEYS, "checkpoints.keep_last": None},
    ),
    Trainer(
        name="prolong",
        format="prolong",
        packs=True,
        keys={
            **_COMMON_KEYS,
            "training.eps": (1e-8,),
            "training.schedule": ("cosine", "linear"),
            "memory.checkpointing": ("layers",),
        },
    ),
    Trainer(
        name="megatron",
        format="megatron",
        packs=True,
        keys={**_COMMON_KEYS, "attention": ("sequence", "row")},
        cuts=True,
        has_own_llama=True,
    ),
    Trainer(
        name="trl",
        format="parquet",
        packs=True,
        keys={
            **_COMMON_KEYS,
            "checkpoints.keep_last": None,
            "held_out.every_steps": None,
            "hardware.ranks_per_row": (1,),
        },
    ),
    Trainer(
        name="olmo",
        format="olmo",
        packs=False,
        keys={**_COMMON_KEYS, "checkpoints.keep_last": None, "data.pack": (None,)},
        cuts=True,
        has_own_llama=True,
    ),
)


@dataclass(frozen=True)
class Settings:
    """What the templates of a trainer read: a recipe, and what was exported for it.

    folder: of the emitted files
    sequence_tokens: tokens of the longest sequence
    row_tokens: tokens of a row
    tokens: tokens of all rows
    eos_id: the id that ends a sequence, if there is one

    Raises RecipeError if the devices do not fill machines, or cannot share a step's
    rows evenly.
    """

    recipe: TrainRecipe
    folder: Path
    sequence_tokens: int
    row_tokens: int
    tokens: int = 0
    eos_id: int | None = None

    def __post_init__(self) -> None:
        count = self.recipe.hardware.count
        if count > _GPUS_PER_NODE and count % _GPUS_PER_NODE:
            raise RecipeError(
                where="hardware.count",
                value=count,
                problem=f"does not fill machines of {_GPUS_PER_NODE} devices",
                fix=f"use a multiple of {_GPUS_PER_NODE}",
            )
        _ = self.accumulation

    @property
    def machines(self) -> str:
        """The options of torchrun: machines, devices of each, and where they meet."""
        count = self.recipe.hardware.count
        # Machines are full, or there is one.
        nodes = -(-count // _GPUS_PER_NODE)
        options = f"--nnodes {nodes} --nproc-per-node {min(_GPUS_PER_NODE, count)}"
        if nodes == 1:
            return options
        address = '"${HEAD_NODE:?address:port of the first machine}"'
        return f"{options} --rdzv-backend c10d --rdzv-endpoint {address}"

    @property
    def rows_per_step(self) -> int:
        """Rows of all ranks in a step."""
        return max(1, self.recipe.training.tokens_per_step // self.row_tokens)

    @property
    def accumulation(self) -> int:
        """Micro-batches of a step on each rank."""
        hardware = self.recipe.hardware
        return micro_batches(
            self.recipe,
            rows_per_step=self.rows_per_step,
            devices=hardware.count,
            ranks_per_row=hardware.ranks_per_row,
        )

    def data(self, split: str = "") -> Path:
        """Return the folder of the exported rows, or of those of a split."""
        folder = self.folder / "data"
        return folder / split if self.recipe.data.validation else folder

    @cached_property
    def model_config(self) -> Json:
        """The model's config.json.

        Raises RecipeError unless `model.path` is a folder.
        """
        path = self.recipe.model.path
        file = Path(path or "") / "config.json"
        if not file.is_file():
            raise RecipeError(
                where="model.path",
                value=repr(path),
                problem="has no config.json, and this trainer needs the model's sizes "
                "and RoPE",
                fix="name a local folder",
            )
        config: Json = json.loads(file.read_text(encoding="utf-8"))
        return {"num_key_value_heads": config.get("num_attention_heads"), **config}

    @property
    def max_positions(self) -> int:
        """The model's positions, or as many as its longest sequence needs."""
        # Never lowered: some RoPE scalings compute with it.
        own = self.model_config.get("max_position_embeddings") or 0
        return max(int(own), self.sequence_tokens)

    @cached_property
    def rope(self) -> tuple[float, Json | None]:
        """The RoPE base, and the model's scaling of Llama 3.1 if it is kept.

        Raises RecipeError for another kind of scaling.
        """
        model = self.recipe.model
        if model.rope_base is not None and model.rope_scaling == "replace":
            return model.rope_base, None
        config = self.model_config
        # transformers 5 writes one dictionary, transformers 4 two keys.
        parameters = config.get("rope_parameters") or {}
        scaling = dict(config.get("rope_scaling") or parameters)
        base = config.get("rope_theta") or parameters.get("rope_theta", 10_000.0)
        if model.rope_base is not None:
            base = model.rope_base
        kind = scaling.setdefault("rope_type", scaling.pop("type", "default"))
        if model.rope_scaling == "replace" or kind == "default":
            return float(base), None
        if kind != "llama3":
            raise RecipeError(
                where="model.rope_scaling",
                value="keep",
                problem=f"keeps a scaling that this trainer does not know: {kind}",
                fix="set model.rope_scaling=replace",
            )
        return float(base), scaling

    def blend(self, split: str) -> str:
        """Return the weights and prefixes of a split's files, as Megatron takes them.

        They are empty before the export, when the settings are only checked.
        """
        folder = self.data(split)
        blend = folder / "blend.txt"
        if not blend.exists():
            return ""
        arguments = []
        for line in blend.read_text(encoding="utf-8").splitlines():
            weight, prefix = line.split(" ")
            arguments += [weight, str(folder / prefix)]
        return shlex.join(arguments)

    @property
    def token_bits(self) -> int:
        """Bits of each id in the exported arrays of training."""
        files = self.data("train").glob("*.npy")
        size = sum(path.stat().st_size for path in files)
        return 8 * (size // self.tokens)


def check_llama(config: Json, *, path: str, trainer: str) -> None:
    """Raise RecipeError unless a trainer's Llama computes what a config describes."""
    kind = config.get("model_type")
    if kind not in ("llama", "mistral"):
        raise RecipeError(
            where="model.path",
            value=repr(path),
            problem=f"is a {kind}, and {trainer} trains llama and mistral",
            fix="train it on one device with --engine nextlong, or use --emit axolotl",
        )
    differing = {
        key: config[key]
        for key, built_in in _BUILT_IN.items()
        if config.get(key, built_in) != built_in
    }
    head_dim = config.get("head_dim")
    if head_dim not in (None, config["hidden_size"] // config["num_attention_heads"]):
        differing["head_dim"] = head_dim
    if differing:
        values = ", ".join(f"{key}={value!r}" for key, value in differing.items())
        raise RecipeError(
            where="model.path",
            value=repr(path),
            problem=f"has {values}, which {trainer} does not support",
            fix="use --emit axolotl",
        )


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


def emit(recipe: TrainRecipe, name: str, folder: Path, console: Console) -> None:
    """Write `folder` for the trainer `name`.

    Raises RecipeError for an unknown trainer, and for settings it does not support.
    """
    trainer = _trainer(name)
    _check_exportable(recipe)
    recipe = _as_trainers_read_it(recipe)
    check_supported(
        recipe,
        trainer.keys,
        trainer=f"--emit {name}",
        advice="leave these at the values shown, or use another trainer",
    )
    # If runs differ in their lengths, no refusal below depends on this one.
    tokens = Run(recipe.data.runs[0]).recipe.sequence_tokens
    settings = Settings(
        recipe=recipe,
        folder=folder.absolute(),
        sequence_tokens=tokens,
        row_tokens=recipe.data.pack or tokens,
        tokens=1,
    )
    # Templates refuse what they do not support before anything is written.
    files_of(trainer, settings)

    folder.mkdir(parents=True, exist_ok=True)
    settings = _export(trainer, settings)
    for file, text in files_of(trainer, settings).items():
        with store.explained(folder / file):
            store.write_file(folder / file, text)
    (folder / "launch.sh").chmod(0o755)
    store.write_file(folder / "recipe.yaml", recipe.dump())
    tables.say(f"wrote {folder}; inspect launch.sh, then run it there", console)


def _trainer(name: str) -> Trainer:
    """Return a trainer by its name. Raises RecipeError for an unknown one."""
    # Those of this package, and of others by entry points.
    trainers: dict[str, Trainer] = TRAINERS.declarations(Trainer)
    if name in trainers:
        return trainers[name]
    fix = f"choose from {', '.join(trainers)}"
    if name == "torchtitan":
        fix += "; torchtitan is an engine: --engine torchtitan"
    raise RecipeError(where="--emit", value=repr(name), problem="is not known", fix=fix)


def _check_exportable(recipe: TrainRecipe) -> None:
    """Raise RecipeError unless there are runs to export, and a model to load."""
    if not recipe.data.runs:
        raise RecipeError(
            where="data.runs",
            problem="it is empty, and --emit exports finished runs",
            fix="name them there",
        )
    if recipe.model.path is None:
        raise RecipeError(
            where="model.path",
            problem="it is empty, and --emit needs a model that other trainers can "
            "load",
            fix="set model.path instead of model.scratch",
        )


def _as_trainers_read_it(recipe: TrainRecipe) -> TrainRecipe:
    """Return the recipe as other trainers need it, with the same result."""
    # A row of one sequence attends to itself under either mask.
    if recipe.attention == "row" and not recipe.data.pack:
        recipe = recipe.model_copy(update={"attention": "sequence"})
    # launch.sh runs in a folder of its own; other names are of the Hub.
    path = Path(str(recipe.model.path)).expanduser()
    if path.exists():
        model = recipe.model.model_copy(update={"path": str(path.absolute())})
        recipe = recipe.model_copy(update={"model": model})
    return recipe


def _export(trainer: Trainer, settings: Settings) -> Settings:
    """Export the runs as the trainer reads them.

    Returns the settings of what was written. Raises RecipeError if the sequences have
    lengths that the trainer cannot keep apart.
    """
    data = settings.recipe.data
    # As JSON, because a path may have characters that YAML reads otherwise.
    overrides = [f"export.push={json.dumps(str(settings.folder / 'data'))}"]
    if data.pack and trainer.packs:
        overrides.append(f"export.pack={data.pack}")
    if data.validation:
        overrides += [
            f"export.validation={data.validation}",
            f"export.shared_chunks={data.shared_chunks}",
            f"export.split_seed={data.split_seed}",
        ]
    mixed: Json = {"mix": data.mix, "by": data.by} if data.mix else {}
    done = export.export(
        data.runs,
        formats=[trainer.format],
        overrides=overrides,
        stale="replace",
        **mixed,
    ).done
    index = np.load(RowFiles.of(done, "train").index, mmap_mode="r")
    lengths = index["length"]
    longest = int(lengths.max())
    _check_lengths(trainer, data.pack, shortest=int(lengths.min()), longest=longest)
    return replace(
        settings,
        sequence_tokens=longest,
        row_tokens=data.pack or longest,
        tokens=int(lengths.sum()),
        eos_id=done["tokenizer"].result(TokenizerResult).eos_id,
    )


def _check_lengths(
    trainer: Trainer, pack: int | None, *, shortest: int, longest: int
) -> None:
    """Raise RecipeError where sequences of these lengths would be cut elsewhere."""
    sequences = f"sequences of {shortest:,} to {longest:,} tokens"
    if not pack and shortest < longest:
        raise RecipeError(
            where="data.runs",
            problem=f"it has {sequences}, so rows would differ in length",
            fix=f"set data.pack={longest}, which puts several short ones into a row, "
            "or use runs of one length",
        )
    if pack and trainer.cuts and (shortest < longest or pack % longest):
        raise RecipeError(
            where="data.pack",
            value=pack,
            problem=f"does not keep {sequences} whole: {trainer.name} reads all "
            "sequences as one stream and cuts it at multiples of the row",
            fix="use sequences of one length that divides data.pack, or --emit axolotl",
        )


def files_of(trainer: Trainer, settings: Settings) -> Mapping[str, str]:
    """Return a trainer's files by name: its templates, filled in.

    Raises RecipeError for what they do not support.
    """
    if trainer.has_own_llama:
        check_llama(
            settings.model_config,
            path=str(settings.recipe.model.path),
            trainer=f"--emit {trainer.name}",
        )
    templates = _templates(trainer.package)
    folder = f"{trainer.name}/"
    names = templates.list_templates(filter_func=lambda name: name.startswith(folder))
    files = {}
    for name in names:
        files[Path(name).stem] = templates.get_template(name).render(
            settings=settings,
            recipe=settings.recipe,
            training=settings.recipe.training,
        )
    return files


@cache
def _templates(package: str) -> jinja2.Environment:
    """Return the templates of a package.

    They take longer to compile than to fill in.
    """
    templates = jinja2.Environment(
        # A plug-in has its templates in its own package.
        loader=jinja2.PackageLoader(package, "emitted"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # A misspelt name in a template is an error, not an empty string.
        undefined=jinja2.StrictUndefined,
    )
    templates.filters |= {"json": json.dumps, "yaml": _yaml, "quote": shlex.quote}
    templates.globals |= {"refuse": _refuse, "trainer_arguments": trainer_arguments}
    return templates


def _yaml(value: object) -> str:
    """Return a value as YAML, for a place behind a key or as lines of their own."""
    if isinstance(value, Path):
        value = str(value)
    text = yaml.safe_dump(value, sort_keys=False, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


def _refuse(**parts: Any) -> NoReturn:
    """Let a template say what it cannot express. Raises RecipeError."""
    raise RecipeError(**parts)
