"""Statistics: how far a score may be from the one that more questions would give, and whether two scores differ.

Intervals are 95 % percentile bootstraps over questions. Differences are tested by a paired permutation test: under the null
hypothesis the difference of two models on a question has either sign with equal probability. Questions that belong together (HELMET
asks one question at several depths) are resampled, and change their sign, together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from nextlong.rng import rng_for

REPLICATES: Final = 1000
FLIPS: Final = 2000
SIGNIFICANT: Final = 0.05
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Sampled:
    """One task at one length: its score, and each question's outcome, shape (n,), in the unit of the score.

    `groups`, shape (n,), numbers the questions that share a context. `outcomes` is empty where the file holds none. `protocol` is
    what has to be equal for a comparison.
    """

    key: tuple[str, int | None]
    score: float
    outcomes: Floats
    groups: NDArray[np.int64]
    n: int
    refused: int = 0
    protocol: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def sums(self) -> tuple[Any, Any]:
        """The sum of outcomes and the number of questions of each group, shape (groups,)."""
        return np.bincount(self.groups, self.outcomes), np.bincount(self.groups).astype(np.float64)

    @cached_property
    def replicates(self) -> Floats:
        """The score over resampled groups, shape (REPLICATES,)."""
        return _resampled(*self.sums, key=str(self.key))


def _resampled(sums: NDArray[Any], counts: NDArray[Any], *, key: str) -> Floats:
    """Return the mean over resampled groups, shape (REPLICATES,), by the sum and the weight of each."""
    picked = rng_for(0, "bootstrap", f"{key} {len(sums)}").integers(len(sums), size=(REPLICATES, len(sums)))
    drawn: Floats = sums[picked].sum(1) / counts[picked].sum(1)
    return drawn


def weighted_interval(values: Floats, weights: Floats, groups: NDArray[np.int64]) -> tuple[float, float]:
    """Return the bootstrap 95 % interval of a weighted mean over groups; all arrays have shape (n,)."""
    drawn = _resampled(np.bincount(groups, values * weights), np.bincount(groups, weights), key="weighted")
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(low), float(high)


@dataclass(frozen=True, eq=False)
class Score:
    """A score in percent: that of one task at one length, or a weighted mean of several."""

    value: float
    parts: tuple[tuple[float, Sampled], ...] = ()

    @classmethod
    def of(cls, sampled: Sampled) -> Score:
        """Return the score of one task at one length."""
        return cls(sampled.score, ((1.0, sampled),))

    @classmethod
    def of_outcomes(cls, key: tuple[str, int | None], outcomes: Floats, protocol: Mapping[str, Any]) -> Score:
        """Return the mean of outcomes, shape (n,), that are independent of each other."""
        groups = np.arange(len(outcomes))
        return cls.of(Sampled(key, float(outcomes.mean()), outcomes, groups, len(outcomes), protocol=protocol))

    @classmethod
    def mean(cls, scores: Sequence[Score]) -> Score:
        """Return the mean of scores, each with the same weight."""
        share = 1 / len(scores)
        parts = tuple((share * weight, part) for one in scores for weight, part in one.parts)
        return cls(share * sum(one.value for one in scores), parts)

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """The bootstrap 95 % interval; None where the outcomes of a part are not known."""
        if not self.parts or any(not len(part.outcomes) for _, part in self.parts):
            return None
        low, high = np.quantile(sum(weight * part.replicates for weight, part in self.parts), (0.025, 0.975))
        return float(low), float(high)

    @property
    def n(self) -> int:
        """How many questions it is the mean of, refused ones included."""
        return sum(part.n for _, part in self.parts)

    @property
    def refused(self) -> int:
        """How many of them were not asked, because no prompt fits the length; they count as 0."""
        return sum(part.refused for _, part in self.parts)


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return in words what differs between two protocols; what only one of them states is not compared."""
    return [f"{name} {one[name]} and {other[name]}" for name in one if name in other and one[name] != other[name]]


def p_value(one: Score, other: Score) -> float | None:
    """Return the probability of a difference this great if the two do not differ, two-sided.

    None where they cannot be compared: other tasks, lengths or protocols, or unknown outcomes.
    """
    if [part.key for _, part in one.parts] != [part.key for _, part in other.parts] or not one.parts:
        return None
    observed, flipped = 0.0, np.zeros(FLIPS)
    for (weight, ours), (_, theirs) in zip(one.parts, other.parts, strict=True):
        if differences(ours.protocol, theirs.protocol) or not len(ours.outcomes):
            return None
        if not np.array_equal(ours.groups, theirs.groups):
            return None
        by_group = weight * (ours.sums[0] - theirs.sums[0]) / len(ours.outcomes)
        signs = rng_for(0, "permutation", str(ours.key)).integers(2, size=(FLIPS, len(by_group))) * 2 - 1
        observed += float(by_group.sum())
        flipped += signs @ by_group
    return float((1 + np.count_nonzero(np.abs(flipped) >= abs(observed) - 1e-9)) / (1 + FLIPS))


def is_better(one: Score, others: Sequence[Score]) -> bool:
    """Say whether a score is greater than each of the others, and significantly so."""
    return bool(others) and all(
        one.value > other.value and (p := p_value(one, other)) is not None and p < SIGNIFICANT for other in others
    )
