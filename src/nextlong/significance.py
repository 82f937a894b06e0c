"""Significance: intervals by resampling, and p-values of several tests at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from nextlong.arrays import Doubles, Ints
from nextlong.rng import rng_for

REPLICATES: Final = 1000
FLIPS: Final = 2000
# Lets rounding break no tie.
_TIE: Final = 1e-9
_Groups = Ints


def resampled_means(
    values: Doubles, weights: Doubles, groups: _Groups, *, key: str
) -> Doubles:
    """Return the weighted mean of values over resampled groups.

    values, weights, groups: shape (n,); the mean: shape (REPLICATES,)
    """
    # Of each group, shape (groups,).
    sums = np.bincount(groups, values * weights)
    counts = np.bincount(groups, weights)
    # Which groups each replicate holds, drawn with replacement, shape (REPLICATES,
    # groups). The generator depends on the key and the number of groups, so an interval
    # is the same in every report.
    rng = rng_for(0, "bootstrap", f"{key} {len(sums)}")
    count = len(sums)
    picked = rng.integers(count, size=(REPLICATES, count))
    # A ratio of sums, since groups differ in their number of values.
    return np.asarray(sums[picked].sum(1) / counts[picked].sum(1))


def middle_95(replicates: Doubles) -> tuple[float, float]:
    """Return the ends of the middle 95 % of some numbers."""
    low, high = np.quantile(replicates, (0.025, 0.975))
    return float(low), float(high)


def weighted_interval(
    values: Doubles, weights: Doubles, groups: _Groups
) -> tuple[float, float]:
    """Return the bootstrap 95 % interval of a weighted mean over groups.

    All arrays have shape (n,).
    """
    return middle_95(resampled_means(values, weights, groups, key="weighted"))


def flipped_sums(gains: NDArray[np.floating[Any]], *, key: str) -> Doubles:
    """Return the sums of gains of random signs, shape (FLIPS,).

    gains: what each group adds to a difference, shape (groups,)
    """
    # The sign of each group in each flip, −1 or 1, shape (FLIPS, groups).
    rng = rng_for(0, "permutation", key)
    signs = rng.integers(2, size=(FLIPS, len(gains))) * 2 - 1
    return np.asarray(signs @ gains)


def share_as_great(flipped: Doubles, observed: float) -> float:
    """Return the two-sided p-value of an observed sum among those of random signs."""
    # The observed signs are one of the flips, so p is never 0.
    is_as_great = np.abs(flipped) >= abs(observed) - _TIE
    as_great = np.count_nonzero(is_as_great)
    return float((1 + as_great) / (1 + len(flipped)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p corrected for the number of tests by Holm's procedure, in order.

    The probability that any corrected p of a true hypothesis is below a level is at
    most that level, however the hypotheses depend on each other (Holm 1979).
    """
    corrected = [0.0] * len(p_values)
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, p_values[index] * (len(p_values) - rank)))
        corrected[index] = highest
    return corrected
