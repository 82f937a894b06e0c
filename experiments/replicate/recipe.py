"""Replication recipe: corpus, arms, model, training, measurements, seeds.

YAML in, frozen models out; unknown keys are refused. `presets.yaml` lists the arms and
the presets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Annotated, Any, ClassVar, Final, Self

import yaml
from pydantic import Field, NonNegativeInt, PositiveFloat, model_validator

from experiments.replicate.corpus import ECHO_TOKENS, Corpus
from nextlong.errors import RecipeError
from nextlong.recipe.keys import Named, Positive, PositiveLength, Section, keyed
from nextlong.text import Json
from nextlong.train.recipe import RecipeFile

# Of the probes that end the training of a base model.
CRITERION_NEGATIVES: Final = 2

_Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class Arm:
    """What a model is extended on: keys of the sections of the data recipe."""

    compose: Mapping[str, Any]
    mine: Mapping[str, Any] = field(default_factory=dict)


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
    """Short rows until the base model tells some look-alikes apart.

    A leg of echoes, then legs of `steps` steps over rows of which half are documents.
    """

    echo_steps: Positive = keyed(900, "steps of the first leg, at a constant lr")
    echo_lr: PositiveFloat = 5e-3
    tokens: PositiveLength = keyed(128, "tokens of a row of the later legs")
    tokens_per_step: PositiveLength = 2048
    steps: Positive = keyed(50, "steps of a later leg, whose lr falls to a tenth")
    most_legs: Positive = keyed(20, "later legs after which a seed is left out")
    recall: tuple[_Share, _Share] = keyed(
        (0.4, 0.6),
        f"share of values recalled across {CRITERION_NEGATIVES} look-alikes: the first "
        "leg with at least the lower one ends the training, and a seed above the upper "
        "one is left out",
    )
    lr: PositiveFloat = 3e-3


class _Extend(Section):
    """Long rows, each a sequence, and short ones."""

    row_tokens: PositiveLength = keyed(256, "tokens of a row")
    replay: Annotated[float, Field(ge=0, lt=1)] = keyed(
        0.5, "share of short rows, in tokens, half of them echoes"
    )
    steps: Positive = 680
    tokens_per_step: PositiveLength = 2048
    sequences: Positive = keyed(2400, "sequences of an arm, repeated as needed")
    lr: PositiveFloat = 3e-3

    @property
    def trained_tokens(self) -> int:
        return self.steps * self.tokens_per_step


class _Measure(Section):
    """What is measured of each model."""

    negatives: tuple[NonNegativeInt, ...] = keyed(
        (1, 2, 4, 8, 12), "paragraphs between the facts and the questions"
    )
    probes: Positive = keyed(
        64, "probes of each kind and number of negatives, with five values to recall"
    )
    rows: Positive = keyed(64, "held-out rows whose loss is measured")


class Replication(RecipeFile):
    """A replication recipe."""

    INIT: ClassVar[str] = "python -m experiments.replicate init {} --preset smoke"

    out: Named = Field(description="folder of all results")
    preset: str = keyed(
        "mechanism",
        "preset that this was made from; the defaults are those of mechanism",
    )
    seeds: tuple[int, ...] = keyed(
        tuple(range(8)), "seeds of the weights and of the order of rows"
    )
    arms: tuple[str, ...] = keyed(tuple(ARMS), "what is compared")
    corpus: Corpus = Corpus()
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
        pretrain = self.pretrain
        extend = self.extend
        if extend.row_tokens % pretrain.tokens:
            raise ValueError(
                f"extend.row_tokens={extend.row_tokens} is not a multiple of "
                f"pretrain.tokens={pretrain.tokens}; make it one"
            )
        _check_whole_rows(pretrain.tokens_per_step, ECHO_TOKENS)
        _check_whole_rows(pretrain.tokens_per_step, pretrain.tokens)
        _check_whole_rows(extend.tokens_per_step, extend.row_tokens)
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


def recipe_from(name: str, *, out: str, overrides: Sequence[str] = ()) -> Replication:
    """Return the recipe of a preset.

    Raises RecipeError for an unknown preset.
    """
    if name not in PRESETS:
        raise RecipeError(
            where=f"--preset {name!r}",
            problem="unknown preset",
            fix=f"choose from {', '.join(PRESETS)}",
        )
    keys = {**PRESETS[name], "out": out, "preset": name}
    return Replication.from_dict(keys, overrides=overrides, origin=f"--preset {name}")
