"""Replication recipe: corpus, arms, model, training, measurements, seeds.

YAML in, frozen models out; unknown keys are refused. `presets.yaml` lists the arms and
the presets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated, ClassVar, Final, Literal, Self

import yaml
from pydantic import Field, NonNegativeInt, PositiveFloat, model_validator

from experiments.replicate.corpora import Invented, RealDocuments
from nextlong.errors import RecipeError
from nextlong.recipe.keys import Named, Positive, PositiveLength, Section, keyed
from nextlong.text import Json
from nextlong.train.recipe import RecipeFile

# Of the probes that end the training of a base model; they fit a short row.
CRITERION_NEGATIVES: Final = 2


@dataclass(frozen=True)
class Arm:
    """What a model is extended on.

    compose: keys of the data recipe
    replay: share of short rows
    lengths: of its sequences, in tokens; else those of all arms
    chunks: the corpus's chunk size is multiplied by it
    source: the file of the corpus
    """

    compose: Mapping[str, str]
    replay: float | None = None
    lengths: Sequence[int] | None = None
    chunks: int = 1
    source: str = "train"


_FILE: Final = files(__package__) / "presets.yaml"
_DATA: Final = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
PRESETS: Final[Mapping[str, Json]] = _DATA["presets"]
ARMS: Final[Mapping[str, Arm]] = {
    name: Arm(**keys) for name, keys in _DATA["arms"].items()
}


class _ModelSizes(Section):
    """The sizes of a Llama with biases of queries and keys."""

    hidden_size: Positive = 64
    intermediate_size: Positive = 64
    layers: Positive = 2
    heads: Positive = 2


class _Pretrain(Section):
    """Short rows until retrieval has formed.

    Legs of `steps` steps, the first of echoes, until a leg ends with the recall.
    """

    echo_tokens: PositiveLength = keyed(64, "tokens of a row of the first leg")
    tokens: PositiveLength = keyed(256, "tokens of a row")
    tokens_per_step: PositiveLength = 1024
    models: Literal["one", "seed"] = keyed(
        "seed", "seed: one base model per seed; one: that of the first seed for all"
    )
    steps: Positive = keyed(600, "steps of a leg")
    constant_legs: NonNegativeInt = keyed(
        2, "first legs, of constant lr; in later ones lr falls to a tenth"
    )
    most_legs: Positive = 12
    recall: Annotated[float, Field(ge=0, le=1)] = keyed(
        0.95, f"share of values recalled across {CRITERION_NEGATIVES} hard negatives"
    )
    lr: PositiveFloat = 5e-3


class _Extend(Section):
    """Long rows."""

    row_tokens: PositiveLength = keyed(
        2048, "tokens of a row, which packs sequences of the lengths and short ones"
    )
    lengths: tuple[PositiveLength, ...] = keyed(
        (512, 1024, 2048),
        "tokens of a sequence; each length gets the same share of the tokens",
    )
    replay: Annotated[float, Field(ge=0, lt=1)] = keyed(
        0.5, "share of short rows, in tokens"
    )
    steps: Positive = 1600
    tokens_per_step: PositiveLength = 2048
    data_tokens: PositiveLength = keyed(
        1_638_400, "tokens of the sequences of each arm, before they are mixed"
    )
    lr: PositiveFloat = 3e-3

    @property
    def trained_tokens(self) -> int:
        return self.steps * self.tokens_per_step


class _Measure(Section):
    """What is measured of each model."""

    negatives: tuple[NonNegativeInt, ...] = keyed(
        (2, 4, 8, 16, 32, 60), "paragraphs between the facts and the questions"
    )
    probes: Positive = keyed(
        64,
        "probes of each kind and number of negatives; each has four values to recall",
    )
    rows: Positive = keyed(8, "held-out rows whose loss is measured")


class Replication(RecipeFile):
    """A replication recipe."""

    INIT: ClassVar[str] = "python -m experiments.replicate init {} --preset smoke"

    out: Named = Field(description="folder of all results")
    preset: str = keyed(
        "mechanism",
        "preset that this was made from; the defaults are those of mechanism",
    )
    seeds: tuple[int, ...] = keyed(
        (0, 1, 2, 3, 4), "seeds of the weights and of the order of rows"
    )
    arms: tuple[str, ...] = keyed(tuple(ARMS), "what is compared")
    corpus: Annotated[Invented | RealDocuments, Field(discriminator="kind")] = (
        Invented()
    )
    model: _ModelSizes = _ModelSizes()
    pretrain: _Pretrain = _Pretrain()
    extend: _Extend = _Extend()
    measure: _Measure = _Measure()
    workers: Positive = keyed(
        2, "processes of one thread, one seed each; does not change the results"
    )

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        for name, values in (("seeds", self.seeds), ("arms", self.arms)):
            if not values or len(set(values)) < len(values):
                raise ValueError(
                    f"{name}={list(values)} is empty or names one twice; name each once"
                )
        return self

    @model_validator(mode="after")
    def _known(self) -> Self:
        _check_known("preset", [self.preset], PRESETS)
        _check_known("arms", self.arms, ARMS)
        return self

    @model_validator(mode="after")
    def _divisible(self) -> Self:
        width = self.model.hidden_size
        heads = self.model.heads
        # RoPE turns pairs of a head's dimensions.
        if width % (2 * heads):
            raise ValueError(
                f"model.hidden_size={width} is not a multiple of "
                f"2 × model.heads={heads}; make it one"
            )
        row_tokens = self.extend.row_tokens
        if row_tokens < max(*self.extend.lengths, self.pretrain.tokens):
            raise ValueError(
                f"extend.row_tokens={row_tokens} is shorter than a sequence; raise it"
            )
        _check_whole_rows(self.pretrain.tokens_per_step, self.pretrain.echo_tokens)
        _check_whole_rows(self.pretrain.tokens_per_step, self.pretrain.tokens)
        _check_whole_rows(self.extend.tokens_per_step, row_tokens)
        return self

    @model_validator(mode="after")
    def _measured_beyond_a_short_row(self) -> Self:
        negatives = self.measure.negatives
        short_row = self.pretrain.tokens
        negative_tokens = self.corpus.negative_tokens
        if max(negatives, default=0) * negative_tokens <= short_row:
            min_negatives = short_row // negative_tokens + 1
            raise ValueError(
                f"measure.negatives={list(negatives)}: the hypotheses are about more "
                f"negatives than a row of pretrain.tokens={short_row} holds; add a "
                f"number of at least {min_negatives}"
            )
        return self


def _check_known(key: str, names: Sequence[str], known: Mapping[str, object]) -> None:
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"{key}: {unknown[0]!r} is not known; choose from {', '.join(known)}"
        )


def _check_whole_rows(tokens_per_step: int, row_tokens: int) -> None:
    if tokens_per_step % row_tokens:
        raise ValueError(
            f"tokens_per_step={tokens_per_step} is not a multiple of a row's "
            f"{row_tokens}; make it one"
        )


def recipe_from(
    name: str, *, out: str, sources: Sequence[str] = (), overrides: Sequence[str] = ()
) -> Replication:
    """Return the recipe of a preset over the user's files.

    Raises RecipeError for an unknown preset.
    """
    if name not in PRESETS:
        raise RecipeError(
            where=f"--preset {name!r}",
            problem="unknown preset",
            fix=f"choose from {', '.join(PRESETS)}",
        )
    keys = {**PRESETS[name], "out": out, "preset": name}
    if sources:
        corpus = keys["corpus"]
        if corpus["kind"] == "invented":
            raise RecipeError(
                where=f"--preset {name}",
                problem="it invents its corpus",
                fix="remove --corpus",
            )
        keys["corpus"] = {**corpus, "sources": [{"path": path} for path in sources]}
    return Replication.from_dict(keys, overrides=overrides, origin=f"--preset {name}")
