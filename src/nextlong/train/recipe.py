"""Training recipe: model, data and training settings. YAML in, frozen models out; unknown keys are refused.

The defaults are correct for every model, but tuned for none. Presets are published settings, each with its source
(`presets.yaml`). A recipe is written as YAML with meanings and sources as comments.
A trainer declares the keys that it supports; `check_supported` refuses a recipe that the trainer would silently train differently.
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
from nextlong.text import Json

_Share = Annotated[float, Field(ge=0, lt=1)]
Attention = Literal["sequence", "document", "row"]
# YAML 1.1 reads a bare `on` or `off` as a Boolean.
_Switch = Annotated[
    Literal["off", "on"],
    BeforeValidator(
        lambda value: ("off", "on")[value] if isinstance(value, bool) else value
    ),
]


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
        "sequence packing: tokens of a row that holds several whole sequences; for chat: of each row",
    )
    validation: _Share = keyed(
        0.01, "share of the sequences held out, by meta-document"
    )
    shared_chunks: Literal["keep", "leave-out"] = keyed(
        "keep",
        "leave-out: do not train on sequences that share a chunk with the held-out ones",
    )
    split_seed: int = keyed(
        0, "seed of the train-validation split; use the same for the same documents"
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = [key for key in ("runs", "parquet", "chat") if getattr(self, key)]
        if len(kinds) != 1:
            held = " and ".join(f"data.{key}" for key in kinds) or "none of them"
            raise ValueError(
                f"name one of data.runs, data.parquet and data.chat (set: {held})"
            )
        if self.chat and not self.pack:
            raise ValueError(
                "data.chat needs data.pack, the tokens of a row of conversations, such as 65536"
            )
        if self.mix and len(self.mix) != len(self.runs):
            raise ValueError(
                f"data.mix has {len(self.mix)} proportions for {len(self.runs)} runs; give one for each"
            )
        if self.parquet and (self.pack or self.mix):
            raise ValueError(
                "data.pack and data.mix arrange runs; the rows of an export are fixed when it is written"
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
        if self.hidden_size % (
            2 * self.heads
        ):  # RoPE turns pairs of a head's dimensions
            raise ValueError(
                f"hidden_size={self.hidden_size} is not a multiple of 2 × heads={self.heads}; make it one"
            )
        if self.heads % self.key_value_heads:
            problem = f"heads={self.heads} is not a multiple of key_value_heads={self.key_value_heads}"
            raise ValueError(f"{problem}; make it one")
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
                "name either model.path (a folder that from_pretrained loads) or model.scratch (sizes)"
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
            problem = (
                f"warmup_steps={self.warmup_steps} is not less than steps={self.steps}"
            )
            raise ValueError(f"{problem}; lower warmup_steps or raise steps")
        return self

    @property
    def tokens(self) -> int:
        """Tokens of all steps."""
        return self.steps * self.tokens_per_step

    def lr_at(self, step: int) -> float:
        """Return the learning rate of step 1, 2, …: a linear warm-up, then the schedule.

        It would reach `min_lr_ratio` one step after the last, so that no step is
        computed for nothing.
        """
        if step <= self.warmup_steps:
            return self.lr * step / self.warmup_steps
        done = (step - self.warmup_steps) / (self.steps + 1 - self.warmup_steps)
        left = {
            "constant": 1.0,
            "linear": 1 - done,
            "cosine": (1 + math.cos(math.pi * done)) / 2,
        }[self.schedule]
        return self.lr * (self.min_lr_ratio + (1 - self.min_lr_ratio) * left)

    def lr_share(self, done: int) -> float:
        """Return the share of `lr` for the step after `done` steps, as PyTorch's LambdaLR takes it."""
        return self.lr_at(min(done + 1, self.steps)) / self.lr


class _Memory(Section):
    """Settings that reduce peak memory."""

    checkpointing: Literal["none", "layers", "offload"] = keyed(
        "layers",
        "activation checkpointing: keep only each layer's input; offload: in main memory",
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
        "stop when the loss of a step exceeds this multiple of the median of the last 20; null: never",
    )


class _Devices(Section):
    """Devices: --dry-run plans for them, and more than one are trained on by torchtitan."""

    device: Literal["this", "H100", "H200", "A100", "B200"] = keyed(
        "this", "for --dry-run; this: time is measured here"
    )
    count: Positive = keyed(1, "number of devices; more than one: --engine torchtitan")
    ranks_per_row: Positive = keyed(
        1, "devices that share a row (context or sequence parallelism)"
    )


class _Torchtitan(Section):
    """Further options of the engine torchtitan."""

    float8: _Switch = keyed("off", "on: products in float8 (needs torchao, an H100)")
    options: tuple[str, ...] = keyed(
        (),
        'options of its command line, such as ["--profiler.enable_profiling"]; they override the recipe',
    )


class RecipeFile(Section):
    """A recipe in a file: `load(path)` reads YAML, `dump()` writes it; `INIT` is the command that creates such a file."""

    INIT: ClassVar[str]

    @classmethod
    def load(cls, path: str | Path, *, overrides: Sequence[str] = ()) -> Self:
        """Read a YAML recipe and apply overrides such as `training.steps=50`. Raises RecipeError."""
        return cls.from_dict(
            read_file(Path(path), init=cls.INIT), overrides=overrides, origin=str(path)
        )

    @classmethod
    def from_dict(
        cls,
        data: Mapping[str, Any],
        *,
        overrides: Sequence[str] = (),
        origin: str = "recipe",
    ) -> Self:
        """Validate a plain dictionary, with overrides applied; `origin` names it in errors. Raises RecipeError."""
        try:
            return cls.model_validate(merge(data, overrides))
        except ValidationError as error:
            raise invalid_keys(error, cls, origin=origin) from None

    def dump(self) -> str:
        """Return the resolved recipe, every key named, as YAML that `load` reads back to an equal recipe."""
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
        "document mask: attend within a sequence (the paper's setting), an original document (a NExtLong sequence "
        "is one), or the whole row",
    )
    attention_kernel: Literal["auto", "sdpa", "varlen"] = keyed(
        "auto",
        "auto: varlen attention for packed rows in bf16 on a GPU, else sdpa per document",
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
        """Return the keys that determine the trained weights; the others may change before a training resumes."""
        return self.model_dump(
            mode="json", include={"seed", "data", "model", "attention", "training"}
        )


# The values of a key, or of a whole section, that a trainer supports; None: all values.
SupportedKeys = Mapping[str, tuple[object, ...] | None]
_ALWAYS_SUPPORTED = (
    "out",
    "hardware.device",
    "hardware.count",
    "hardware.ranks_per_row",
    "model.path",
)
_OF_ENGINES = "data seed attention model.rope_base model.rope_scaling training checkpoints compile"
ENGINE_KEYS: SupportedKeys = {
    **dict.fromkeys(_OF_ENGINES.split()),
    "memory.checkpointing": ("layers", "none"),
}


def check_supported(
    recipe: TrainRecipe, keys: SupportedKeys, *, trainer: str, advice: str
) -> None:
    """Raise RecipeError that names every key which differs from its default and which `trainer` does not support."""
    unsupported, supported = [], {**dict.fromkeys(_ALWAYS_SUPPORTED), **keys}
    for key, value, default in _leaves(recipe):
        values = (
            supported[key]
            if key in supported
            else supported.get(key.split(".")[0], (default,))
        )
        if values is not None and value not in values:
            shown, *only = [
                "null" if one is None else str(one) for one in (value, *values)
            ]
            unsupported.append(f"{key}={shown} (only {' or '.join(only)})")
    if unsupported:
        raise RecipeError(
            f"{trainer} does not support {'; '.join(unsupported)}; {advice}"
        )


def _leaves(
    section: BaseModel, *, above: str = ""
) -> Iterator[tuple[str, object, object]]:
    """Yield each key, its value and its default."""
    for name, field in type(section).model_fields.items():
        value, default = (
            getattr(section, name),
            field.get_default(call_default_factory=True),
        )
        if (
            isinstance(value, BaseModel) and default is not None
        ):  # a section; model.scratch is a value
            yield from _leaves(value, above=f"{above}{name}.")
        else:
            yield f"{above}{name}", value, default


def micro_batches(
    recipe: TrainRecipe, *, rows_per_step: int, devices: int, ranks_per_row: int
) -> int:
    """Return the micro-batches of a step on each group of devices. Raises RecipeError if they cannot share its rows evenly."""
    (groups, rest), at_once = (
        divmod(devices, ranks_per_row),
        recipe.training.micro_batch_rows,
    )
    if rest or rows_per_step % (groups * at_once):
        rows = f"the {rows_per_step} rows of a step evenly ({at_once} at once)"
        keys = "hardware.count, hardware.ranks_per_row, training.micro_batch_rows or training.tokens_per_step"
        raise RecipeError(
            f"{devices} devices, {ranks_per_row} per row, cannot share {rows}; change {keys}"
        )
    return rows_per_step // (groups * at_once)


def nearest_multiple(tokens_per_step: int, *, row_tokens: int) -> int:
    """Return the nearest number of tokens that fills whole rows, at least one."""
    return max(1, round(tokens_per_step / row_tokens)) * row_tokens


@cache
def preset(name: str) -> Mapping[str, tuple[Any, str]]:
    """Return each key of a preset with its value and the source of it. Raises RecipeError for an unknown name."""
    presets = yaml.safe_load(
        Path(__file__).with_name("presets.yaml").read_text(encoding="utf-8")
    )
    if name not in presets:
        raise RecipeError(
            f"--preset {name!r}: unknown preset; choose from {', '.join(presets)}"
        )
    return {
        key: (tuple(value) if isinstance(value, list) else value, source)
        for source, keys in presets[name].items()
        for key, value in keys.items()
    }


# The fewest and the most tokens of a row for which the settings of a preset were
# published or measured; the other presets set `data.pack`.
_PRESET_ROW_TOKENS: Final = {"paper-128k": (131_072, 131_072), "tiny": (1, 8_192)}


def row_warning(name: str, row_tokens: int) -> list[str]:
    """Return a warning where a preset was made for rows of another length, else nothing."""
    fewest, most = _PRESET_ROW_TOKENS.get(name, (row_tokens, row_tokens))
    if fewest <= row_tokens <= most:
        return []
    made_for = f"{most:,}" if fewest == most else f"up to {most:,}"
    promise = "its batch size and learning rate are published for that length"
    if name == "tiny":
        times = row_tokens / most
        promise = f"training takes at least {times:.0f} times its two minutes"
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
    """Return the recipe of a preset, or of the defaults, over the user's data and model."""
    unused = {"data.mix", "data.by"} if len(data.get("runs", ())) == 1 else set()
    unused |= {"model.scratch"} if model is not None else set()
    keys = preset(name) if name else {}
    of_preset = [
        f"{key}={json.dumps(value)}"
        for key, (value, _) in keys.items()
        if key not in unused
    ]
    plain = {
        "out": out,
        "data": data,
        **({} if model is None else {"model": {"path": model}}),
    }
    return TrainRecipe.from_dict(plain, overrides=[*of_preset, *overrides])
