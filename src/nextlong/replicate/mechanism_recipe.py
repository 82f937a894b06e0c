"""Recipe of the mechanism experiment: the arms, the training of base models and of arms, and what is measured.

YAML in, frozen models out; unknown keys are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from nextlong.recipe.keys import Named, Positive, PositiveLength, Section
from nextlong.replicate.invented import Invented
from nextlong.train.recipe import RecipeFile

CRITERION_NEGATIVES: Final = 2  # of the probes that end the training of a base model; they fit a short row


@dataclass(frozen=True)
class Arm:
    """What a model is extended on: keys of the data recipe, documents, and the replay and lengths that differ from the others."""

    keys: Mapping[str, Any]
    replay: float | None = None
    lengths: tuple[int, ...] | None = None
    source: str = "train"  # the file of the corpus


def _method(name: str, **compose: Any) -> Arm:
    return Arm({"compose": {"method": name, **compose}})


ARMS: Final[Mapping[str, Arm]] = {
    "nextlong": _method("nextlong"),
    "random negatives": _method("nextlong", negatives="random-corpus"),
    "standard": _method("standard"),
    "knn": _method("knn"),
    "iclm": _method("iclm"),
    "quest": _method("quest"),
    "splice": _method("splice"),
    "self-repeat": _method("nextlong", negatives="self-repeat"),
    "nextlong, no replay": Arm({"compose": {"method": "nextlong"}}, replay=0.0),
    "random negatives, no replay": Arm({"compose": {"method": "nextlong", "negatives": "random-corpus"}}, replay=0.0),
    "short rows only": Arm({"compose": {"method": "standard"}}, replay=1.0),
    "long documents": Arm({"compose": {"method": "standard"}}, source="long"),
    "nextlong, 2K only": Arm({"compose": {"method": "nextlong"}}, lengths=(2048,)),
    "nextlong, chunks of 2 paragraphs": Arm({"compose": {"method": "nextlong"}, "chunk": {"max_chars": 320}}),
}


class Model(Section):
    """The sizes of a Llama with biases of queries and keys."""

    hidden_size: Positive = 64
    intermediate_size: Positive = 64
    layers: Positive = 2
    heads: Positive = 2


class Pretrain(Section):
    """Short rows until retrieval has formed: legs of `steps` steps, the first of echoes, until a leg ends with the recall."""

    echo_tokens: PositiveLength = Field(64, description="of a row of the first leg")
    tokens: PositiveLength = Field(256, description="of a row")
    tokens_per_step: PositiveLength = 1024
    models: Literal["one", "seed"] = Field("seed", description="seed: one a seed; one: that of the first seed for all")
    steps: Positive = Field(600, description="of a leg")
    constant_legs: Annotated[int, Field(ge=0)] = Field(2, description="of constant lr; those after them end at a tenth")
    most_legs: Positive = 12
    recall: Annotated[float, Field(ge=0, le=1)] = Field(
        0.95, description=f"of values across {CRITERION_NEGATIVES} hard negatives"
    )
    lr: Annotated[float, Field(gt=0)] = 5e-3


class Extend(Section):
    """Long rows."""

    row_tokens: PositiveLength = Field(
        2048, description="of a row, which packs sequences of the lengths and short ones"
    )
    lengths: tuple[PositiveLength, ...] = Field((512, 1024, 2048), description="of sequences, equal tokens of each")
    replay: Annotated[float, Field(ge=0, lt=1)] = Field(0.5, description="share of short rows, in tokens")
    steps: Positive = 1600
    tokens_per_step: PositiveLength = 2048
    data_tokens: PositiveLength = Field(
        1_638_400, description="of the sequences made for each arm, before they are mixed"
    )
    lr: Annotated[float, Field(gt=0)] = 3e-3

    @property
    def trained_tokens(self) -> int:
        """Tokens of all steps."""
        return self.steps * self.tokens_per_step


class Measure(Section):
    """What is measured of each model."""

    negatives: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (2, 4, 8, 16, 32, 60), description="paragraphs between the facts and the questions"
    )
    probes: Positive = Field(64, description="of each kind and number of negatives; each asks for four values")
    rows: Positive = Field(8, description="held-out rows whose loss is measured")


class Mechanism(RecipeFile):
    """The experiment."""

    INIT: ClassVar[str] = "nextlong replicate init {} --preset mechanism"

    out: Named = Field(description="where everything goes")
    preset: Literal["mechanism"] = "mechanism"
    seeds: tuple[int, ...] = Field((0, 1, 2, 3, 4), description="of weights and of the order of rows")
    arms: tuple[str, ...] = Field(tuple(ARMS), description="what is compared")
    corpus: Invented = Invented()
    model: Model = Model()
    pretrain: Pretrain = Pretrain()
    extend: Extend = Extend()
    measure: Measure = Measure()
    workers: Positive = Field(2, description="processes, a seed each, of one thread; does not change the results")

    @model_validator(mode="after")
    def _known(self) -> Self:
        for name, values in (("seeds", self.seeds), ("arms", self.arms)):
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name}={list(values)} is empty or names one twice; name each once")
        if unknown := [name for name in self.arms if name not in ARMS]:
            raise ValueError(f"arms: {unknown[0]!r} is not known; choose from {', '.join(ARMS)}")
        if self.extend.row_tokens < max(*self.extend.lengths, self.pretrain.tokens):
            raise ValueError(f"extend.row_tokens={self.extend.row_tokens} is shorter than a sequence; raise it")
        for phase, row in ((self.pretrain, self.pretrain.tokens), (self.extend, self.extend.row_tokens)):
            if phase.tokens_per_step % row:
                raise ValueError(
                    f"tokens_per_step={phase.tokens_per_step} is not a multiple of a row's {row}; make it one"
                )
        return self


def plan(recipe: Mechanism) -> Iterator[tuple[str, str]]:
    """Yield what the experiment will take, as facts."""
    seeds, arms = len(recipe.seeds), len(recipe.arms)
    leg = recipe.pretrain.steps * recipe.pretrain.tokens_per_step
    yield "models", f"{seeds} base models and {seeds * arms} extended ones: {', '.join(recipe.arms)}"
    yield (
        "training",
        f"legs of {leg:,} tokens until a base model recalls {100 * recipe.pretrain.recall:.0f} % of the values, "
        f"then {recipe.extend.trained_tokens:,} tokens an arm",
    )
    lengths = ", ".join(map(str, recipe.extend.lengths))
    yield "runs", f"sequences of {lengths} tokens an arm, from {recipe.corpus.documents:,} invented documents"
    yield "out", recipe.out
