"""Exposure: how many tokens a model sees before each token that it predicts.

In:  the documents of sequences; which tokens see each other.
Out: for each mask, how many targets have an effective left context of 1–7, 8–15, 16–31, … tokens.

The effective left context of a token is the visible part of its document before it, so it is short in most tokens of a packed row
even where the row is long. The buckets are those of "Where Does Long-Context Supervision Actually Go?" (arXiv 2605.10544).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nextlong.runs.tally import Bin

_FIRST_EDGE: Final = 8  # tokens; each further bucket is twice as wide
_BUCKETS: Final = 40
_EDGES: Final = np.concatenate([[1], _FIRST_EDGE << np.arange(_BUCKETS, dtype=np.int64)])  # first of each bucket


@dataclass(frozen=True)
class Exposure:
    """The targets by effective left context under a mask: `sequence`, or `document` where sequences hold several."""

    mask: str
    targets: int
    mean: float  # tokens
    histogram: tuple[Bin, ...]


class Counting:
    """The left contexts of the sequences so far."""

    def __init__(self) -> None:
        self._counts = {mask: np.zeros(_BUCKETS, np.int64) for mask in ("sequence", "document")}
        self._sums = dict.fromkeys(self._counts, 0)
        self._has_documents = False

    def add(self, sequences: Sequence[NDArray[np.int64]]) -> None:
        """Count sequences, each given by the lengths of its documents."""
        for lengths in sequences:
            self._has_documents |= len(lengths) > 1
            for mask, visible in (("sequence", lengths.sum(keepdims=True)), ("document", lengths)):
                self._counts[mask] += histogram(visible)
                self._sums[mask] += int((visible * (visible - 1) // 2).sum())

    def result(self) -> tuple[Exposure, ...]:
        """Return the histogram of each mask; of documents only where a sequence holds several."""
        masks = ("sequence", "document") if self._has_documents else ("sequence",)
        return tuple(self._of(mask) for mask in masks if self._counts[mask].any())

    def _of(self, mask: str) -> Exposure:
        counts = self._counts[mask]
        bins = tuple(
            Bin(float(_EDGES[place]), float(_EDGES[place + 1] - 1), int(counts[place]))
            for place in range(int(np.flatnonzero(counts)[-1]) + 1)
        )
        return Exposure(mask, int(counts.sum()), self._sums[mask] / int(counts.sum()), bins)


def histogram(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many tokens of documents of these lengths fall into each bucket, (_BUCKETS,); the first token is no target."""
    below = np.minimum(lengths[:, None], _EDGES)  # tokens 0 … length − 1 have as many before them
    counts: NDArray[np.int64] = np.diff(below, axis=1).sum(axis=0)
    return counts
