"""Tally: how often each integer occurred, for counts, means and quantiles over a stream.

In:  arrays of integers, block by block. Out: the distinct ones, sorted, with how often each came; exact, in any order.
Memory is that of the distinct values, and merging costs a sort of what is new against what is there, amortised.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_PENDING = 1 << 20  # integers held back, at least, before they are merged


@dataclass(frozen=True)
class Spread:
    """A distribution in six numbers. The quantiles are values that occurred: at least that share is no larger."""

    count: int
    mean: float
    p10: float
    p50: float
    p90: float
    max: float


@dataclass(frozen=True)
class Bin:
    """`count` values lay between `least` and `most`, both included."""

    least: float
    most: float
    count: int


class Tally:
    """Counts of integers."""

    def __init__(self) -> None:
        self._values = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)
        self._pending: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._held = 0

    def add(self, values: NDArray[np.int64], counts: NDArray[np.int64] | None = None) -> None:
        """Count each of `values`, shape (n,), once, or `counts` (n,) times."""
        self._pending.append((values, np.ones(len(values), np.int64) if counts is None else counts))
        self._held += len(values)
        if self._held > max(_PENDING, len(self._values)):
            self._merge()

    def counted(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the distinct values, sorted, and how often each was counted, shape (d,) each."""
        self._merge()
        return self._values, self._counts

    def spread(self, *, unit: float = 1.0) -> Spread | None:
        """Return the distribution of the values times `unit`; None if nothing was counted."""
        values, counts = self.counted()
        total = int(counts.sum())
        if not total:
            return None
        # (d,) how many of what was counted are at most each value. Shares are counted in whole numbers, without rounding.
        upto = np.cumsum(counts)
        p10, p50, p90 = (values[np.searchsorted(upto, -(-percent * total // 100))] * unit for percent in (10, 50, 90))
        mean = float(values @ counts) / total * unit
        return Spread(total, mean, float(p10), float(p50), float(p90), float(values[-1] * unit))

    def histogram(self, *, edges: NDArray[np.int64], unit: float = 1.0) -> tuple[Bin, ...]:
        """Return the values times `unit` by bins, the k-th of which begins at edges[k] and ends before edges[k + 1].

        Empty bins before the first value and behind the last are left out. Values outside of the edges are not counted.
        """
        values, counts = self.counted()
        # (d,) the bin of each distinct value; −1, or the last edge's number, lies outside.
        place = np.searchsorted(edges, values, side="right") - 1
        inside = (place >= 0) & (place < len(edges) - 1)
        sums = np.bincount(place[inside], weights=counts[inside], minlength=len(edges) - 1).astype(np.int64)
        (filled,) = np.nonzero(sums)
        shown = range(filled[0], filled[-1] + 1) if len(filled) else range(0)
        return tuple(Bin(float(edges[k] * unit), float((edges[k + 1] - 1) * unit), int(sums[k])) for k in shown)

    def _merge(self) -> None:
        values, counts = zip((self._values, self._counts), *self._pending, strict=True)
        self._values, back = np.unique(np.concatenate(values), return_inverse=True)
        sums = np.zeros(len(self._values), np.int64)
        np.add.at(sums, back, np.concatenate(counts))
        self._counts = sums
        self._pending, self._held = [], 0
