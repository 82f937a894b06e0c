"""Replication recipe: corpus, data, model, training, measurements, seeds; and presets of it.

YAML in, frozen models out; unknown keys are refused. Each preset says what a replication of its size can and cannot show; the
report repeats both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from nextlong.errors import RecipeError
from nextlong.recipe.keys import Compose, Named, Positive, PositiveLength, Section, Source
from nextlong.train.recipe import RecipeFile, Scratch

Experiment = Literal["methods", "granularity", "position", "negatives"]
PresetName = Literal["smoke", "cpu-night", "one-gpu", "paper"]
# What an experiment changes of the data recipe.
KEYS: Final[Mapping[Experiment, str]] = {
    "methods": "compose.method",
    "granularity": "chunk.max_chars",
    "position": "compose.position",
    "negatives": "compose.negatives",
}


class Corpus(Section):
    """The documents, and the share that is held out."""

    sources: tuple[Source, ...] = Field(
        (), description="as ingest.sources of a data recipe; none: Python's own documentation"
    )
    held_out: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.1, description="share of the documents that no model sees, sampled by their content"
    )
    held_out_chars: Positive = Field(
        4_000_000, description="keep at most this many characters of them; the rest is dropped"
    )

    @model_validator(mode="after")
    def _whole_sources(self) -> Self:
        for source in self.sources:
            for key in ("weight", "max_documents", "max_chars"):
                if getattr(source, key) is not None:
                    raise ValueError(
                        f"sources: {source.label} has {key}, but all its documents are taken; leave it out"
                    )
        return self


class Data(Section):
    """Training documents → sequences."""

    vocabulary: Annotated[int, Field(ge=300)] = Field(
        4096, description="entries of the BPE that is trained on the corpus"
    )
    tokenizer: str | None = Field(None, description="instead: a tokenizer.json, a folder with one, or a hub name")
    max_chars: PositiveLength = Field(2048, description="granularity s of the methods (chunk.max_chars)")
    sequences: Positive = Field(64, description="sequences of each method, of extend.tokens tokens")
    encoder: str = Field("lsa", description="as encoder.model of a data recipe")
    settings: Mapping[str, Any] = Field(
        {}, description="further keys of every data recipe, dotted, such as {mine.near_duplicates: 0.8}"
    )


class Phase(Section):
    """A training on rows of `tokens` tokens."""

    tokens: PositiveLength = Field(512, description="tokens of a row")
    steps: Positive = 100
    tokens_per_step: PositiveLength = 16_384
    lr: Annotated[float, Field(gt=0)] = 1e-3
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    warmup_steps: Annotated[int, Field(ge=0)] = 10
    rope_base: Annotated[float, Field(gt=1)] = 10_000.0
    micro_batch_rows: Positive = Field(1, description="rows computed at once; the result is the same")

    @model_validator(mode="after")
    def _whole_rows(self) -> Self:
        if self.tokens_per_step % self.tokens:
            raise ValueError(
                f"tokens_per_step={self.tokens_per_step} is not a multiple of tokens={self.tokens}; make it one"
            )
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps={self.warmup_steps} is not less than steps={self.steps}; lower it")
        return self

    @property
    def trained_tokens(self) -> int:
        """Tokens of all steps."""
        return self.steps * self.tokens_per_step


class Measure(Section):
    """Models → results."""

    tasks: tuple[str, ...] = Field(
        ("needle", "json_kv", "niah_single_1", "vt", "key_values", "copying", "attention"),
        description="tasks and probes of `nextlong evaluate`, measured at each length",
    )
    lengths: tuple[PositiveLength, ...] = Field((1024, 2048), description="tokens, answer included")
    samples: Positive = Field(20, description="samples of a task and length")
    sequences: Positive = Field(16, description="held-out sequences of the dependency probe")
    batch_tokens: Positive = Field(16_384, description="tokens that are answered together, at most")


class Replication(RecipeFile):
    """A replication recipe."""

    INIT: ClassVar[str] = "nextlong replicate init {} --preset smoke"

    out: Named = Field(description="folder of all results")
    preset: PresetName | None = Field(
        None, description="preset that this was made from; the report says what it can show"
    )
    seeds: tuple[int, ...] = Field(
        (0, 1, 2), description="seeds of initial weights and row order; the spread is over them"
    )
    experiments: tuple[Experiment, ...] = Field(
        ("methods",), description="methods, and the ablations granularity, position, negatives"
    )
    methods: tuple[str, ...] = ("standard", "knn", "iclm", "quest", "nextlong")
    granularity: tuple[PositiveLength, ...] = Field(
        (512, 1024, 2048, 8192, 32_768), description="chunk.max_chars; the paper's five"
    )
    position: tuple[str, ...] = ("head", "tail", "random")
    negatives: tuple[str, ...] = ("top", "random-retrieved", "tail", "random-corpus", "self-repeat")
    corpus: Corpus = Corpus()
    data: Data = Data()
    model: Scratch = Scratch()
    pretrain: Phase = Phase()
    extend: Phase = Phase(tokens=2048, rope_base=200_000.0)
    precision: Literal["bf16", "fp32"] = Field(
        "bf16", description="of the computation; weights and optimizer states are float32"
    )
    measure: Measure = Measure()

    def usual_value(self, experiment: Experiment) -> Any:
        """Return nextlong's default value of an experiment's key; every experiment includes it."""
        return (
            self.data.max_chars if experiment == "granularity" else getattr(Compose(), KEYS[experiment].split(".")[1])
        )

    def values(self, experiment: Experiment) -> tuple[Any, ...]:
        """Return the values that an experiment compares."""
        values: tuple[Any, ...] = getattr(self, experiment)
        return values

    @model_validator(mode="after")
    def _comparable(self) -> Self:
        for name in ("seeds", "experiments", *self.experiments):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name}={list(values)} is empty or names one twice; name each once")
        if self.extend.tokens <= self.pretrain.tokens:
            raise ValueError(
                f"extend.tokens={self.extend.tokens} is no longer than pretrain.tokens={self.pretrain.tokens}; raise it"
            )
        if longer := [length for length in self.measure.lengths if length > self.extend.tokens]:
            raise ValueError(
                f"measure.lengths holds {longer[0]}, longer than extend.tokens={self.extend.tokens}; leave it out"
            )
        return self


@dataclass(frozen=True)
class Preset:
    """The keys of a recipe, and what a replication of this size can and cannot show.

    `hardware`: what its time is planned for. `is_plan`: this command only prints the plan and the commands.
    """

    keys: Mapping[str, Any]
    shows: str
    cannot: str
    hardware: Literal["here", "H100"] = "here"
    is_plan: bool = False


_SMOKE: Final = Preset(
    keys={
        "data": {"max_chars": 512, "sequences": 16, "settings": {"executor": "serial"}},
        "model": {"hidden_size": 64, "intermediate_size": 160, "layers": 2, "heads": 2, "key_value_heads": 1},
        "pretrain": {
            "tokens": 256,
            "steps": 24,
            "tokens_per_step": 4096,
            "lr": 5e-3,
            "warmup_steps": 4,
            "micro_batch_rows": 4,
        },
        "extend": {
            "tokens": 2048,
            "steps": 6,
            "tokens_per_step": 4096,
            "lr": 2e-3,
            "warmup_steps": 2,
            "rope_base": 80_000.0,
            "micro_batch_rows": 2,
        },
        "precision": "fp32",
        "granularity": [256, 512, 1024],
        "corpus": {"held_out_chars": 400_000},
        "measure": {
            "tasks": ["needle", "json_kv", "niah_single_1", "key_values", "copying", "attention"],
            "lengths": [1024, 2048],
            "samples": 3,
            "sequences": 4,
        },
    },
    shows="that every part works: data, training, measuring, resuming and reporting, with the numbers of this very run.",
    cannot="which method is better. A model of some 0.4 million parameters that has read 0.1 million tokens cannot answer "
    "questions; differences between its rows are noise.",
)

_CPU_NIGHT: Final = Preset(
    keys={
        "data": {"max_chars": 1024, "sequences": 768},
        "model": {"hidden_size": 256, "intermediate_size": 688, "layers": 4, "heads": 4, "key_value_heads": 2},
        "pretrain": {
            "tokens": 512,
            "steps": 500,
            "tokens_per_step": 16_384,
            "lr": 2e-3,
            "warmup_steps": 50,
            "micro_batch_rows": 4,
        },
        "extend": {
            "tokens": 4096,
            "steps": 192,
            "tokens_per_step": 16_384,
            "lr": 1e-3,
            "warmup_steps": 20,
            "rope_base": 200_000.0,
        },
        "granularity": [256, 512, 1024, 2048, 4096],
        "measure": {"lengths": [1024, 2048, 4096], "samples": 40, "sequences": 40},
    },
    shows="whether the methods differ in what models of this size can do: the loss of meta-chunks by the distance to the "
    "previous one, copying a distant passage, and choosing a value by its key.",
    cannot="benchmark scores: models of four million parameters are too small for needles, JSON KV and RULER, so scores of "
    "zero there are not evidence about the data. Nor does it show that an order found here holds at 8 "
    "billion parameters and 128K tokens.",
)

_ONE_GPU: Final = Preset(
    keys={
        "data": {"vocabulary": 16_384, "max_chars": 1024, "sequences": 1024},
        "model": {"hidden_size": 512, "intermediate_size": 1408, "layers": 8, "heads": 8, "key_value_heads": 4},
        "pretrain": {
            "tokens": 1024,
            "steps": 600,
            "tokens_per_step": 65_536,
            "lr": 1.5e-3,
            "warmup_steps": 60,
            "micro_batch_rows": 32,
        },
        "extend": {
            "tokens": 8192,
            "steps": 128,
            "tokens_per_step": 65_536,
            "lr": 8e-4,
            "warmup_steps": 12,
            "rope_base": 500_000.0,
            "micro_batch_rows": 4,
        },
        "granularity": [512, 1024, 2048, 4096, 8192],
        "measure": {"lengths": [2048, 4096, 8192], "samples": 50, "sequences": 50, "batch_tokens": 262_144},
    },
    shows="the order of the methods on copying, on choosing a value by its key and on the loss by distance, at 8K tokens; whether "
    "needles and RULER's simplest tasks rise above 0 in models of this size, its report says.",
    cannot="the paper's table: a model of some 30 million parameters that has read 40 million tokens has learned too little "
    "to answer its questions. The preset is sized for 30 minutes of one modern GPU by its count of operations, and has not "
    "been run on one yet.",
    hardware="H100",
)

_PAPER: Final = Preset(
    keys={
        "data": {"tokenizer": "meta-llama/Meta-Llama-3-8B", "max_chars": 2048, "sequences": 32_000},
        "model": {
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "layers": 32,
            "heads": 32,
            "key_value_heads": 8,
            "vocabulary": 128_256,
        },
        "pretrain": {"tokens": 8192, "steps": 1, "tokens_per_step": 8192, "warmup_steps": 0, "rope_base": 500_000.0},
        "extend": {
            "tokens": 131_072,
            "steps": 1000,
            "tokens_per_step": 4_194_304,
            "lr": 4e-5,
            "min_lr_ratio": 0.0,
            "warmup_steps": 200,
            "rope_base": 200_000_000.0,
        },
        "measure": {"lengths": [8192, 16_384, 32_768, 65_536, 131_072], "samples": 100, "sequences": 100},
    },
    shows="the paper's own comparison (Table 1), at its size.",
    cannot="be run by this command: it prints the plan, and the commands that carry it out on a cluster.",
    hardware="H100",
    is_plan=True,
)

PRESETS: Final[Mapping[str, Preset]] = {"smoke": _SMOKE, "cpu-night": _CPU_NIGHT, "one-gpu": _ONE_GPU, "paper": _PAPER}


def preset_of(recipe: Replication) -> Preset | None:
    """Return the preset that a recipe was made from."""
    return PRESETS.get(recipe.preset or "")


def is_only_planned(recipe: Replication) -> bool:
    """Return whether this command only prints the plan of a recipe, and the commands to run it elsewhere."""
    preset = preset_of(recipe)
    return preset is not None and preset.is_plan


def recipe_from(name: str, *, out: str, sources: Sequence[str] = (), overrides: Sequence[str] = ()) -> Replication:
    """Return the recipe of a preset over the user's files (none: Python's own documentation).

    Raises RecipeError for an unknown preset.
    """
    if name not in PRESETS:
        raise RecipeError(f"--preset {name!r} is not known; choose from {', '.join(PRESETS)}, mechanism")
    keys = {**PRESETS[name].keys, "out": out, "preset": name}
    corpus = {**keys.get("corpus", {}), "sources": [{"path": path} for path in sources]}
    return Replication.from_dict({**keys, "corpus": corpus}, overrides=overrides, origin=f"--preset {name}")
