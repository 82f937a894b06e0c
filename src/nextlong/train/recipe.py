"""Training recipe: what to train, on what, how. YAML in, frozen models out; unknown keys are refused.

`presets.py` has the paper's numbers, each with its source; a recipe that names none gets the defaults below, which train nothing
well but everything correctly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from nextlong.errors import RecipeError
from nextlong.plain_data import Json
from nextlong.recipe.lengths import PositiveLength
from nextlong.recipe.read import read_file
from nextlong.recipe.text import explain, merge

Positive = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
Attention = Literal["sequence", "document", "row"]
Checkpointing = Literal["none", "layers", "offload"]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


class Data(Section):
    """Which rows."""

    runs: tuple[str, ...] = Field((), description="run directories; nothing needs to be exported")
    parquet: tuple[str, ...] = Field((), description="instead of runs: exported Parquet files or folders")
    mds: tuple[str, ...] = Field((), description="instead of runs: folders of exported MDS shards")
    chat: str | None = Field(
        None, description="instead of runs: JSON lines with `messages`, for fine-tuning on answers"
    )
    mix: tuple[Annotated[float, Field(gt=0)], ...] | None = Field(
        None, description="proportions of several runs; null: use everything"
    )
    by: Literal["sequences", "tokens"] = Field("sequences", description="what the mix counts")
    pack: PositiveLength | None = Field(
        None, description="tokens of a row that holds several whole sequences; for chat: of each row"
    )
    validation: Share = Field(0.01, description="share of the sequences held out, by meta-document, never trained on")
    shared_chunks: Literal["keep", "leave-out"] = Field(
        "keep", description="leave-out: do not train on what shares a chunk with the held-out part"
    )
    split_seed: int = Field(0, description="of the split, the same in every training over the same texts")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [key for key in ("runs", "parquet", "mds", "chat") if getattr(self, key)]
        if len(given) != 1:
            held = " and ".join(f"data.{key}" for key in given) or "none of them"
            raise ValueError(f"name one of data.runs, data.parquet, data.mds and data.chat (there is {held})")
        if self.chat and not self.pack:
            raise ValueError("data.chat needs data.pack: how many tokens a row of conversations has, such as 65536")
        if self.mix and len(self.mix) != len(self.runs):
            raise ValueError(f"data.mix has {len(self.mix)} proportions for {len(self.runs)} runs; give one for each")
        if (self.parquet or self.mds) and (self.pack or self.mix):
            raise ValueError(
                "data.pack and data.mix arrange runs; an export is read as it was arranged when it was made"
            )
        return self


class Scratch(Section):
    """The sizes of a Llama with random weights."""

    hidden_size: Positive = 128
    intermediate_size: Positive = 352
    layers: Positive = 4
    heads: Positive = 4
    key_value_heads: Positive = 2
    vocabulary: Positive | None = Field(None, description="null: the run's tokenizer's")


class Model(Section):
    """Which model, and how far it is stretched."""

    path: str | None = Field(None, description="a folder (or Hub name) that from_pretrained loads")
    scratch: Scratch | None = Field(None, description="instead of path: a small Llama with random weights")
    rope_base: Annotated[float, Field(gt=1)] | None = Field(
        None, description="RoPE base to train with; null: the model's"
    )
    rope_scaling: Literal["keep", "replace"] = Field(
        "keep", description="YaRN, linear or llama3 scaling of the source model"
    )
    lora_rank: Positive | None = Field(
        None, description="train adapters of this rank instead of the weights (needs peft)"
    )
    lora_alpha: Positive = 32

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.path is None) == (self.scratch is None):
            raise ValueError(
                "name either model.path (a folder that from_pretrained loads) or model.scratch (its sizes)"
            )
        return self


class Training(Section):
    """Steps, learning rate, optimiser."""

    steps: Positive = 100
    tokens_per_step: PositiveLength = Field(131_072, description="of all devices together")
    micro_batch_rows: Positive = Field(1, description="rows computed at once; does not change the result")
    lr: Annotated[float, Field(gt=0)] = 1e-5
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = Field(0.0, description="of lr, where the schedule ends")
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    beta1: Share = 0.9
    beta2: Share = 0.95
    eps: Annotated[float, Field(gt=0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.1, description="of matrices; never of norms and biases")
    clip: Annotated[float, Field(gt=0)] | None = Field(1.0, description="norm of the gradient; null: as it is")
    precision: Literal["bf16", "fp32"] = Field("bf16", description="of computing; weights and optimiser stay float32")

    @model_validator(mode="after")
    def _warms_up(self) -> Self:
        if self.warmup_steps >= self.steps:
            raise ValueError(
                f"training.warmup_steps={self.warmup_steps} is not less than training.steps={self.steps}; lower it"
            )
        return self


class Memory(Section):
    """What to do where a GPU is too small."""

    checkpointing: Checkpointing = Field(
        "layers", description="keep only each layer's input; offload: in the main memory"
    )
    optimizer: Literal["adamw", "adamw-8bit"] = Field(
        "adamw", description="adamw-8bit: states in 8 bits (needs bitsandbytes)"
    )
    loss_block_tokens: PositiveLength = Field(2048, description="tokens whose logits are held at a time")


class Checkpoints(Section):
    every_steps: Positive = 50
    keep_last: Positive = Field(2, description="older ones are deleted once a new one is whole")


class HeldOut(Section):
    every_steps: Positive = 50
    rows: Positive = Field(16, description="at most; the first of the held-out part")


def _switch(value: Any) -> Any:
    """Return the word for what YAML reads from a bare `on` or `off`."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


class Watch(Section):
    tensorboard: Annotated[Literal["off", "on"], BeforeValidator(_switch)] = "off"
    wandb: Annotated[Literal["off", "offline"], BeforeValidator(_switch)] = "off"
    spike: Annotated[float, Field(gt=1)] | None = Field(
        2.0, description="stop when a step's loss is more than this many times the median of the last 20; null: never"
    )


class Hardware(Section):
    """What to train on: --dry-run plans for it, and more than one device is trained on by torchtitan."""

    device: Literal["this", "H100", "H200", "A100", "B200"] = Field(
        "this", description="for --dry-run; this: measured here, on this machine"
    )
    count: Positive = Field(1, description="devices in all; more than one: --engine torchtitan")
    ranks_per_row: Positive = Field(1, description="devices that share a row (context or sequence parallelism)")


class Torchtitan(Section):
    """What the engine torchtitan is asked for beyond the keys above."""

    float8: Annotated[Literal["off", "on"], BeforeValidator(_switch)] = Field(
        "off", description="on: matrices multiply in 8 bits (needs torchao, H100 or later)"
    )
    options: tuple[str, ...] = Field(
        (),
        description='of its own command line, such as ["--profiler.enable_profiling"]; they override what the recipe says',
    )


class RecipeFile(Section):
    """A whole request: `load(path)` reads YAML, `dump()` writes it; `INIT` is the command that makes such a file."""

    INIT: ClassVar[str]

    @classmethod
    def load(cls, path: str | Path, *, overrides: Sequence[str] = ()) -> Self:
        """Read a YAML recipe and apply overrides such as `training.steps=50`. Raises RecipeError."""
        return cls.from_dict(read_file(Path(path), init=cls.INIT), overrides=overrides, origin=str(path))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, overrides: Sequence[str] = (), origin: str = "recipe") -> Self:
        """Validate a plain dictionary, with overrides applied; `origin` names it in errors. Raises RecipeError."""
        try:
            return cls.model_validate(merge(data, overrides))
        except ValidationError as error:
            raise RecipeError("\n".join(f"{origin}: {line}" for line in explain(error, cls, methods=tuple))) from None

    def dump(self) -> str:
        """Return the resolved recipe, every key named, as YAML that `load` reads back to an equal recipe."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, width=120)


class TrainRecipe(RecipeFile):
    """What to train, on what, how."""

    INIT: ClassVar[str] = "nextlong train init {} --data RUN --model PATH"

    out: Annotated[str, Field(min_length=1)] = Field(description="where checkpoints, metrics and pictures go")
    seed: int = Field(0, description="of initial weights and of the order of rows")
    data: Data
    model: Model
    attention: Attention = Field(
        "sequence",
        description="which tokens see each other: those of a sequence (the paper's), of an original document, or of the "
        "whole row; a NExtLong sequence is one document in any case",
    )
    attention_kernel: Literal["auto", "sdpa", "varlen"] = Field(
        "auto", description="auto: torch's varlen attention for packed rows in bf16 on a GPU, else sdpa by document"
    )
    compile: Annotated[Literal["off", "on"], BeforeValidator(_switch)] = Field(
        "off", description="on: torch.compile of the layers; faster steps on a GPU after minutes of compiling"
    )
    loss_kernel: Literal["auto", "blocks", "liger"] = Field(
        "auto",
        description="auto: Liger's fused loss where it is installed, runs, and equals ours; else ours, in blocks",
    )
    training: Training = Training()
    memory: Memory = Memory()
    checkpoints: Checkpoints = Checkpoints()
    held_out: HeldOut = HeldOut()
    watch: Watch = Watch()
    hardware: Hardware = Hardware()
    torchtitan: Torchtitan = Torchtitan()

    def trained_keys(self) -> Json:
        """Return the keys that decide which weights come out; the others may change between a kill and going on."""
        everything = self.model_dump(mode="json")
        return {key: everything[key] for key in _DECIDING} | {"memory": {"optimizer": self.memory.optimizer}}


_DECIDING: Final = ("seed", "data", "model", "attention", "training")
