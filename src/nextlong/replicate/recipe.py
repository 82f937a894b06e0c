"""Replication recipe: corpus, data, model, training, measurements, seeds. YAML in, frozen models out; unknown keys are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from nextlong.recipe.keys import Compose, Named, Positive, Section, Source
from nextlong.recipe.lengths import PositiveLength
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
    """documents → what is trained on, and what is kept out."""

    sources: tuple[Source, ...] = Field(
        (), description="as ingest.sources of a data recipe; none: Python's own documentation"
    )
    held_out: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.1, description="share of the documents that no model sees, drawn by their content"
    )
    held_out_chars: Positive = Field(
        4_000_000, description="keep at most this many characters of them; the rest is left out"
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
    """training documents → sequences."""

    vocabulary: Annotated[int, Field(ge=300)] = Field(
        4096, description="entries of the BPE that is trained on the corpus"
    )
    tokenizer: str | None = Field(None, description="instead: a tokenizer.json, a folder with one, or a hub name")
    max_chars: PositiveLength = Field(2048, description="granularity s of the methods (chunk.max_chars)")
    sequences: Positive = Field(64, description="of each method, all of extend.tokens tokens")
    encoder: str = Field("lsa", description="as encoder.model of a data recipe")
    settings: Mapping[str, Any] = Field(
        {}, description="further keys of every data recipe, dotted, such as {mine.near_copies: 0.8}"
    )


class Phase(Section):
    """A training: rows of `tokens` tokens, so many steps."""

    tokens: PositiveLength = Field(512, description="of a row")
    steps: Positive = 100
    tokens_per_step: PositiveLength = 16_384
    lr: Annotated[float, Field(gt=0)] = 1e-3
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    warmup_steps: Annotated[int, Field(ge=0)] = 10
    rope_base: Annotated[float, Field(gt=1)] = 10_000.0
    micro_batch_rows: Positive = Field(1, description="rows computed at once; does not change the result")

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
    """models → results."""

    tasks: tuple[str, ...] = Field(
        ("needle", "json_kv", "niah_single_1", "vt", "key_values", "copying", "attention"),
        description="tasks and probes of `nextlong evaluate`, measured at each length",
    )
    lengths: tuple[PositiveLength, ...] = Field((1024, 2048), description="tokens, answer included")
    samples: Positive = Field(20, description="of a task and length")
    sequences: Positive = Field(16, description="held-out sequences of the dependency probe")
    batch_tokens: Positive = Field(16_384, description="answered together at most")


class Replication(RecipeFile):
    """What to compare, on what, how."""

    INIT: ClassVar[str] = "nextlong replicate init {} --preset smoke"

    out: Named = Field(description="where everything goes")
    preset: PresetName | None = Field(
        None, description="the preset that this was made from; the report says what that can show"
    )
    seeds: tuple[int, ...] = Field(
        (0, 1, 2), description="of initial weights and of the order of rows; the spread is over them"
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
    precision: Literal["bf16", "fp32"] = Field("bf16", description="of computing; weights and optimiser stay float32")
    measure: Measure = Measure()

    def usual_value(self, experiment: Experiment) -> Any:
        """Return the value that nextlong has without the experiment; it stands in every one of them."""
        return (
            self.data.max_chars if experiment == "granularity" else getattr(Compose(), KEYS[experiment].split(".")[1])
        )

    def values(self, experiment: Experiment) -> tuple[Any, ...]:
        """Return what an experiment compares."""
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
