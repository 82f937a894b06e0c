"""Mixtures: the components of a data set, their weights and their order.

In:  options or a preset.
Out: a `Mixture`, which `components` applies to sequences.

The words are those of Levanter and marin: a mixture has components with weights. A
component is a run, a length bucket ("8k-16k": 2¹³ to 2¹⁴ − 1 tokens, as marin names the
buckets of Longmino), a source, or a value of a metadata column such as the language.
A temperature τ weights a component of n tokens with n^τ (Conneau and Lample 2019): 1
keeps the sizes, 0 makes all components equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from nextlong.errors import RecipeError

Unit = Literal["sequences", "tokens"]
ORDERS: Final = ("interleaved", "curriculum")


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Which share of a data set each component has, and in which order.

    components: "runs", "lengths", "sources", or a metadata column of the documents
    weights: of the runs in order, or of the components `names`; (): all sequences
    temperature: instead of weights, n^τ of the size n of each component
    repeat: how often each training sequence may be used
    order: "curriculum" puts shorter length buckets first
    """

    components: str = "runs"
    names: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()
    temperature: float | None = None
    by: Unit = "sequences"
    repeat: int = 1
    order: Literal["interleaved", "curriculum"] = "interleaved"

    @property
    def has_weights(self) -> bool:
        """Whether components have other shares than their sizes."""
        return bool(self.weights) or self.temperature is not None

    @property
    def is_of_runs(self) -> bool:
        """Whether it only interleaves runs, or takes them in proportions."""
        return self == Mixture(weights=self.weights, by=self.by)


EVERYTHING: Final = Mixture()
MIXTURES: Final[Mapping[str, Mixture]] = {
    # Olmo 3 (arXiv 2512.13961), table 11: 34 % long documents, 66 % of the data of the
    # stage before. The first run is the long one.
    "replay-66": Mixture(weights=(34, 66), by="tokens"),
    # Ours: as many tokens of each length bucket.
    "balanced-lengths": Mixture(components="lengths", temperature=0.0, by="tokens"),
}


def check_mixture(mixture: Mixture) -> None:
    """Raise RecipeError for settings that contradict each other."""
    if mixture.temperature is not None:
        _check_temperature(mixture, mixture.temperature)
    has_names = bool(mixture.names)
    if mixture.weights and has_names == (mixture.components == "runs"):
        raise RecipeError(
            where=f"--components {mixture.components}",
            problem="proportions of runs are given in the order of the runs, those of "
            "other components by name",
            fix="write --mix 1,2, or --mix 8k-16k=1,16k-32k=2 --components lengths",
        )
    needs_weights = mixture.components != "runs" or mixture.repeat > 1
    if needs_weights and not mixture.has_weights:
        raise RecipeError(
            where=f"--components {mixture.components} --repeat {mixture.repeat}",
            problem="they change nothing, because no component has a weight",
            fix="add --mix NAME=WEIGHT,… or --temperature 0.3",
        )
    if has_names and len(set(mixture.names)) != len(mixture.weights):
        raise RecipeError(
            where="--mix",
            problem="each component by name needs one weight",
            fix="write NAME=WEIGHT once for each, such as 8k-16k=1,16k-32k=2",
        )
    numbers = (mixture.repeat, *mixture.weights)
    if not all(0 < number < math.inf for number in numbers):
        raise RecipeError(
            where="--mix and --repeat",
            problem="every weight, and the number of repetitions, must be above 0",
            fix="to exclude a component, give it no weight",
        )


def _check_temperature(mixture: Mixture, temperature: float) -> None:
    if mixture.weights:
        raise RecipeError(
            where="--temperature",
            value=temperature,
            problem="cannot be combined with --mix, because both set the weights",
            fix="remove one of the two options",
        )
    if not 0 <= temperature <= 1:
        raise RecipeError(
            where="--temperature",
            value=temperature,
            problem="is not between 0 (equal components) and 1 (their sizes)",
            fix="choose a value between 0 and 1, such as 0.3",
        )
