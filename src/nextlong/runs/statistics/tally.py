"""Tally: counts of integers, with their mean, quantiles and histogram.

In:  arrays of integers, block by block. Out: `Spread`, `Bin` and `Distribution`, in
units that the caller chooses. Memory grows with the distinct values alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from nextlong.arrays import Ints

# A tally holds back at least so many integers before it merges them: merging sorts all
# distinct values.
_PENDING: Final = 1 << 20


@dataclass(frozen=True)
class Bin:
    """`count` values lay between `low` and `high`, both included."""

    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Spread:
    """A distribution in six numbers.

    A quantile is the smallest value that occurred of which at least that share of the
    values is no larger.
    """

    count: int
    mean: float
    p10: float
    p50: float
    p90: float
    max: float


@dataclass(frozen=True)
class Distribution(Spread):
    """A distribution in six numbers and as a histogram."""

    histogram: tuple[Bin, ...]


class Tally:
    """How often each integer occurred, in any order."""

    def __init__(self) -> None:
        self._values = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)
        self._pending: list[tuple[Ints, Ints]] = []
        self._num_pending = 0

    def add(self, values: Ints, counts: Ints | None = None) -> None:
        """Count each of `values`, shape (n,), once, or `counts` (n,) times."""
        if counts is None:
            counts = np.ones(len(values), np.int64)
        self._pending.append((values, counts))
        self._num_pending += len(values)
        if self._num_pending > max(_PENDING, len(self._values)):
            self._merge()

    def counted(self) -> tuple[Ints, Ints]:
        """Return the distinct values, sorted, and the count of each, both (d,)."""
        self._merge()
        return self._values, self._counts

    def spread(self, *, unit: float = 1.0) -> Spread | None:
        """Return the spread of the values times `unit`; None if nothing was counted."""
        values, counts = self.counted()
        total = int(counts.sum())
        if not total:
            return None
        # (d,) how many counted values are no larger than each value. What a quantile
        # needs is computed in integers, rounded up, so none depends on floating point.
        up_to = np.cumsum(counts)
        quantiles = []
        for percent in (10, 50, 90):
            needed = -(-percent * total // 100)
            quantile = values[np.searchsorted(up_to, needed)]
            quantiles.append(float(quantile * unit))
        p10, p50, p90 = quantiles
        return Spread(
            count=total,
            mean=float(values @ counts) / total * unit,
            p10=p10,
            p50=p50,
            p90=p90,
            max=float(values[-1] * unit),
        )

    def histogram(self, *, edges: Ints, unit: float = 1.0) -> tuple[Bin, ...]:
        """Return the values times `unit` by bins: bin k is [edges[k], edges[k + 1]).

        Empty bins before the first value and behind the last are left out. Values
        outside of the edges are not counted.
        """
        values, counts = self.counted()
        # (d,) the bin of each distinct value; −1, or the last edge's index, is outside.
        bins = np.searchsorted(edges, values, side="right") - 1
        num_bins = len(edges) - 1
        is_inside = (bins >= 0) & (bins < num_bins)
        sums = np.bincount(
            bins[is_inside], weights=counts[is_inside], minlength=num_bins
        ).astype(np.int64)

        (filled,) = np.nonzero(sums)
        if not len(filled):
            return ()
        histogram = []
        for k in range(filled[0], filled[-1] + 1):
            low = float(edges[k] * unit)
            high = float((edges[k + 1] - 1) * unit)
            histogram.append(Bin(low, high, int(sums[k])))
        return tuple(histogram)

    def distribution(self, *, edges: Ints, unit: float = 1.0) -> Distribution | None:
        """Return spread and histogram in one; None if nothing was counted."""
        spread = self.spread(unit=unit)
        if spread is None:
            return None
        histogram = self.histogram(edges=edges, unit=unit)
        return Distribution(**vars(spread), histogram=histogram)

    def _merge(self) -> None:
        values, counts = zip((self._values, self._counts), *self._pending, strict=True)
        self._values, index = np.unique(np.concatenate(values), return_inverse=True)
        self._counts = np.zeros(len(self._values), np.int64)
        np.add.at(self._counts, index, np.concatenate(counts))
        self._pending = []
        self._num_pending = 0
