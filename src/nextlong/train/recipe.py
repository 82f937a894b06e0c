"""Training recipe: model, data and training settings.

In:  YAML, or the name of a preset; unknown keys are refused.
Out: frozen models, and YAML with meanings and sources as comments.

The defaults are correct for every model, but tuned for none. Presets are published
settings, each with its source (`presets.yaml`). A trainer declares the keys that it
supports; `check_supported` refuses a recipe that the trainer would silently train
differently.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    PositiveFloat,
    ValidationError,
    model_validator,
)

from nextlong.errors import RecipeError
from nextlong.recipe.keys import Positive, PositiveLength, Section, keyed
from nextlong.recipe.text import as_yaml, invalid_keys, merge, read_file
from nextlong.text import Json, counted

_Share = Annotated[float, Field(ge=0, lt=1)]
Attention = Literal["sequence", "document", "row"]


def _switch_of(value: object) -> object:
    """Return `on` or `off` where YAML 1.1 has read a bare one as a Boolean."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return value


_Switch = Annotated[Literal["off", "on"], BeforeValidator(_switch_of)]


class Data(Section):
    """Rows to train on."""

    runs: tuple[str, ...] = keyed((), "run directories; no export is needed")
    parquet: tuple[str, ...] = keyed(
        (), "instead of runs: exported Parquet files or folders"
    )
    chat: str | None = keyed(
        None, "instead of runs: JSON Lines with `messages`, to fine-tune on answers"
    )
    mix: tuple[PositiveFloat, ...] | None = keyed(
        None, "proportions of several runs; null: use everything"
    )
    by: Literal["sequences", "tokens"] = keyed("sequences", "unit of the mix")
    pack: PositiveLength | None = keyed(
        None,
        "sequence packing: tokens of a row that holds several whole sequences; "
        "for chat: of each row",
    )
    validation: _Share = keyed(
        0.01, "share of the sequences held out, by meta-document"
    )
    shared_chunks: Literal["keep", "leave-out"] = keyed(
        "keep",
        "leave-out: do not train on sequences that share a chunk with the held-out "
        "ones",
    )
    split_seed: int = keyed(
        0, "seed of the train-validation split; use the same for the same documents"
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = [key for key in ("runs", "parquet", "chat") if getattr(self, key)]
        if len(kinds) != 1:
            keys = " and ".join(f"data.{key}" for key in kinds) or "none of them"
            raise ValueError(
                f"name one of data.runs, data.parquet and data.chat (set: {keys})"
            )
        if self.chat and not self.pack:
            raise ValueError(
                "data.chat needs data.pack, the tokens of a row of conversations, such "
                "as 65536"
            )
        if self.mix and len(self.mix) != len(self.runs):
            raise ValueError(
                f"data.mix has {len(self.mix)} proportions for {len(self.runs)} runs; "
                "give one for each"
            )
        if self.parquet and (self.pack or self.mix):
            raise ValueError(
                "data.pack and data.mix arrange runs; the rows of an export are fixed "
                "when it is written"
            )
        return self


class _Scratch(Section):
    """The sizes of a Llama with random weights."""

    hidden_size: Positive = 128
    intermediate_size: Positive = 352
    layers: Positive = 4
    heads: Positive = 4
    key_value_heads: Positive = 2
    vocabulary: Positive | None = keyed(
        None, "number of token ids; null: those of the run's tokenizer"
    )

    @model_validator(mode="after")
    def _divides(self) -> Self:
        # RoPE turns pairs of a head's dimensions.
        if self.hidden_size % (2 * self.heads):
            raise ValueError(
                f"hidden_size={self.hidden_size} is not a multiple of 2 × "
                f"heads={self.heads}; make it one"
            )
        if self.heads % self.key_value_heads:
            raise ValueError(
                f"heads={self.heads} is not a multiple of "
                f"key_value_heads={self.key_value_heads}; make it one"
            )
        return self


class _Model(Section):
    """The model, and its context extension."""

    path: str | None = keyed(None, "a folder (or Hub name) that from_pretrained loads")
    scratch: _Scratch | None = keyed(
        None, "instead of path: a small Llama with random weights"
    )
    rope_base: Annotated[float, Field(gt=1)] | None = keyed(
        None, "RoPE base to train with; null: the model's"
    )
    rope_scaling: Literal["keep", "replace"] = keyed(
        "keep", "keep or drop the YaRN, linear or llama3 scaling of the source model"
    )
    lora_rank: Positive | None = keyed(
        None, "train LoRA adapters of this rank instead (needs peft)"
    )
    lora_alpha: Positive = 32

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.path is None) == (self.scratch is None):
            raise ValueError(
                "name either model.path (a folder that from_pretrained loads) or "
                "model.scratch (sizes)"
            )
        return self


class Training(Section):
    """Steps, learning rate, optimizer."""

    steps: Positive = 100
    tokens_per_step: PositiveLength = keyed(
        131_072, "batch size in tokens, over all devices"
    )
    micro_batch_rows: Positive = keyed(
        1, "rows computed at once; the result is the same"
    )
    lr: PositiveFloat = 1e-5
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = keyed(
        0.0, "share of lr at the end of the schedule, one step after the last"
    )
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    beta1: _Share = 0.9
    beta2: _Share = 0.95
    eps: PositiveFloat = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = keyed(
        0.1, "weight decay of matrices; norms and biases never decay"
    )
    clip: PositiveFloat | None = keyed(
        1.0, "maximum norm of the gradient; null: no clipping"
    )
    precision: Literal["bf16", "fp32"] = keyed(
        "bf16", "type of the computation; weights and optimizer states are float32"
    )

    @model_validator(mode="after")
    def _warms_up(self) -> Self:
        if self.warmup_steps >= self.steps:
            raise ValueError(
                f"warmup_steps={self.warmup_steps} is not less than "
                f"steps={self.steps}; lower warmup_steps or raise steps"
            )
        return self

    @property
    def tokens(self) -> int:
        """Tokens of all steps."""
        return self.steps * self.tokens_per_step

    def lr_at(self, step: int) -> float:
        """Return the learning rate of step 1, 2, ….

        It is a linear warm-up, then the schedule. It would reach `min_lr_ratio` one
        step after the last, so that no step is computed for nothing.
        """
        # Counted from 1, so that the first step has a rate above 0.
        if step <= self.warmup_steps:
            return self.lr * step / self.warmup_steps
        # One step more than there are, so that no step has a rate of 0.
        done = (step - self.warmup_steps) / (self.steps + 1 - self.warmup_steps)
        left = {
            "constant": 1.0,
            "linear": 1 - done,
            "cosine": (1 + math.cos(math.pi * done)) / 2,
        }[self.schedule]
        return self.lr * (self.min_lr_ratio + (1 - self.min_lr_ratio) * left)

    def lr_share(self, done: int) -> float:
        """Return the share of `lr` for the step after `done` steps, for LambdaLR."""
        step = min(done + 1, self.steps)
        return self.lr_at(step) / self.lr


class _Memory(Section):
    """Settings that reduce peak memory."""

    checkpointing: Literal["none", "layers", "offload"] = keyed(
        "layers",
        "activation checkpointing: keep only each layer's input; offload: in main "
        "memory",
    )
    loss_block_tokens: PositiveLength = keyed(
        2048, "tokens whose logits are in memory at a time"
    )


class _Checkpoints(Section):
    every_steps: Positive = 50
    keep_last: Positive = keyed(2, "number of checkpoints to keep")


class _HeldOut(Section):
    every_steps: Positive = 50
    rows: Positive = keyed(16, "number of held-out rows to measure, at most")


class Watch(Section):
    spike: Annotated[float, Field(gt=1)] | None = keyed(
        2.0,
        "stop when the loss of a step exceeds this multiple of the median of the last "
        "20; null: never",
    )


class _Devices(Section):
    """Devices: --dry-run plans for them, and torchtitan trains on more than one."""

    device: Literal["this", "H100", "H200", "A100", "B200"] = keyed(
        "this", "for --dry-run; this: time is measured here"
    )
    count: Positive = keyed(1, "number of devices; more than one: --engine torchtitan")
    ranks_per_row: Positive = keyed(
        1, "devices that share a row (context or sequence parallelism)"
    )


class _Torchtitan(Section):
    """Further options of the engine torchtitan."""

    float8: _Switch = keyed(
        "off", "on: matrix products in float8 (needs torchao, an H100)"
    )
    options: tuple[str, ...] = keyed(
        (),
        'options of its command line, such as ["--profiler.enable_profiling"]; they '
        "override the recipe",
    )


class RecipeFile(Section):
    """A recipe in a file: `load(path)` reads YAML, `dump()` writes it.

    `INIT` is the command that creates such a file.
    """

    INIT: ClassVar[str]

    @classmethod
    def load(cls, path: str | Path, *, overrides: Sequence[str] = ()) -> Self:
        """Read a YAML recipe and apply overrides such as `training.steps=50`.

        Raises RecipeError.
        """
        data = read_file(Path(path), init=cls.INIT)
        return cls.from_dict(data, overrides=overrides, origin=str(path))

    @classmethod
    def from_dict(
        cls,
        data: Mapping[str, Any],
        *,
        overrides: Sequence[str] = (),
        origin: str = "recipe",
    ) -> Self:
        """Validate a plain dictionary, with overrides applied.

        `origin` names it in errors. Raises RecipeError.
        """
        try:
            return cls.model_validate(merge(data, overrides))
        except ValidationError as error:
            raise invalid_keys(error, cls, origin=origin) from None

    def dump(self) -> str:
        """Return the recipe as YAML, with every key; `load` reads back an equal one."""
        return as_yaml(self.model_dump(mode="json"))


class TrainRecipe(RecipeFile):
    """A training recipe."""

    INIT: ClassVar[str] = "nextlong train init {} --data RUN --model PATH"

    out: Annotated[str, Field(min_length=1)] = Field(
        description="folder of checkpoints, logs and figures"
    )
    seed: int = keyed(0, "seed of initial weights and row order")
    data: Data
    model: _Model
    attention: Attention = keyed(
        "sequence",
        "document mask: attend within a sequence (the paper's setting), an original "
        "document (a NExtLong sequence is one), or the whole row",
    )
    attention_kernel: Literal["auto", "sdpa", "varlen"] = keyed(
        "auto",
        "auto: varlen attention for packed rows in bf16 on a GPU, else sdpa per "
        "document",
    )
    compile: _Switch = keyed("off", "on: torch.compile of the layers, for a GPU")
    training: Training = Training()
    memory: _Memory = _Memory()
    checkpoints: _Checkpoints = _Checkpoints()
    held_out: _HeldOut = _HeldOut()
    watch: Watch = Watch()
    hardware: _Devices = _Devices()
    torchtitan: _Torchtitan = _Torchtitan()

    def trained_keys(self) -> Json:
        """Return the keys that determine the trained weights.

        The others may change before a training resumes.
        """
        return self.model_dump(
            mode="json", include={"seed", "data", "model", "attention", "training"}
        )


# The values of a key, or of a whole section, that a trainer supports; None: all values.
SupportedKeys = Mapping[str, tuple[object, ...] | None]
_ALWAYS_SUPPORTED: Final[SupportedKeys] = {
    "out": None,
    "hardware.device": None,
    "hardware.count": None,
    "hardware.ranks_per_row": None,
    "model.path": None,
}
ENGINE_KEYS: Final[SupportedKeys] = {
    "data": None,
    "seed": None,
    "attention": None,
    "model.rope_base": None,
    "model.rope_scaling": None,
    "training": None,
    "checkpoints": None,
    "compile": None,
    "memory.checkpointing": ("layers", "none"),
}


def check_supported(
    recipe: TrainRecipe, keys: SupportedKeys, *, trainer: str, advice: str
) -> None:
    """Raise RecipeError that names every key that `trainer` does not support.

    A key that is not in `keys` may have its default.
    """
    supported = {**_ALWAYS_SUPPORTED, **keys}
    unsupported = []
    for key, value, default in _leaves(recipe):
        # A section in `keys` stands for all of its keys.
        section = key.split(".")[0]
        values = supported.get(section, (default,))
        if key in supported:
            values = supported[key]
        if values is not None and value not in values:
            choices = " or ".join(map(_as_yaml_value, values))
            unsupported.append(f"{key}={_as_yaml_value(value)} (only {choices})")
    if unsupported:
        raise RecipeError(
            where=trainer,
            problem=f"it does not support {'; '.join(unsupported)}",
            fix=advice,
        )


def _as_yaml_value(value: object) -> str:
    return "null" if value is None else str(value)


def _leaves(
    section: BaseModel, *, above: str = ""
) -> Iterator[tuple[str, object, object]]:
    """Yield each key, its value and its default."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        default = field.get_default(call_default_factory=True)
        # model.scratch, which is null by default, is a value; others are sections.
        is_section = isinstance(value, BaseModel) and default is not None
        if is_section:
            yield from _leaves(value, above=f"{above}{name}.")
        else:
            yield f"{above}{name}", value, default


def micro_batches(
    recipe: TrainRecipe, *, rows_per_step: int, devices: int, ranks_per_row: int
) -> int:
    """Return the micro-batches of a step on each group of devices that shares a row.

    Raises RecipeError if the groups cannot share the rows of a step evenly.
    """
    groups, ungrouped = divmod(devices, ranks_per_row)
    rows_at_once = recipe.training.micro_batch_rows
    if ungrouped or rows_per_step % (groups * rows_at_once):
        raise RecipeError(
            where="hardware.count",
            value=devices,
            problem=f"cannot share the {rows_per_step} rows of a step evenly, with "
            f"{counted(ranks_per_row, 'device')} per row "
            f"({counted(rows_at_once, 'row')} at once)",
            fix="change hardware.count, hardware.ranks_per_row, "
            "training.micro_batch_rows or training.tokens_per_step",
        )
    return rows_per_step // (groups * rows_at_once)


def nearest_multiple(tokens_per_step: int, *, row_tokens: int) -> int:
    """Return the nearest number of tokens that fills whole rows, at least one."""
    return max(1, round(tokens_per_step / row_tokens)) * row_tokens


@cache
def preset(name: str) -> Mapping[str, tuple[Any, str]]:
    """Return each key of a preset with its value and the source of it.

    Raises RecipeError for an unknown name.
    """
    path = Path(__file__).with_name("presets.yaml")
    presets = yaml.safe_load(path.read_text(encoding="utf-8"))
    if name not in presets:
        raise RecipeError(
            where="--preset",
            value=repr(name),
            problem="is not known",
            fix=f"choose from {', '.join(presets)}",
        )
    values = {}
    for source, keys in presets[name].items():
        for key, value in keys.items():
            # Recipes are frozen, so their lists are tuples.
            frozen = tuple(value) if isinstance(value, list) else value
            values[key] = (frozen, source)
    return values


# The fewest and the most tokens of a row for which the settings of a preset were
# published or measured; the other presets set `data.pack`.
_PRESET_ROW_TOKENS: Final = {
    "paper-128k": (131_072, 131_072),
    "authors-64k": (65_536, 65_536),
    "tiny": (1, 8_192),
}


def row_warning(name: str, row_tokens: int) -> list[str]:
    """Return a warning where a preset was made for rows of another length."""
    shortest, longest = _PRESET_ROW_TOKENS.get(name, (row_tokens, row_tokens))
    if shortest <= row_tokens <= longest:
        return []
    made_for = f"{longest:,}" if shortest == longest else f"up to {longest:,}"
    if name == "tiny":
        times = row_tokens / longest
        promise = f"training takes at least {times:.0f} times its two minutes"
    else:
        promise = "its batch size and learning rate are published for that length"
    return [
        f"warning: preset {name} is made for rows of {made_for} tokens, and these have "
        f"{row_tokens:,}; {promise}"
    ]


def recipe_from(
    name: str | None,
    *,
    out: str,
    data: Mapping[str, Any],
    model: str | None,
    overrides: tuple[str, ...] = (),
) -> TrainRecipe:
    """Return a preset's recipe, or the defaults, over the user's data and model."""
    unused = set()
    # One run has no mix, and a named model replaces the one from scratch.
    if len(data.get("runs", ())) == 1:
        unused |= {"data.mix", "data.by"}
    if model is not None:
        unused.add("model.scratch")
    keys = preset(name) if name else {}
    # What the user gives comes later, and wins.
    preset_overrides = [
        f"{key}={json.dumps(value)}"
        for key, (value, _) in keys.items()
        if key not in unused
    ]
    values: dict[str, Any] = {"out": out, "data": data}
    if model is not None:
        values["model"] = {"path": model}
    return TrainRecipe.from_dict(values, overrides=[*preset_overrides, *overrides])
