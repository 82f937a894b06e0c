"""Attention: what documents of a row mean for context-parallel training and for the context that tokens see.

In:  the lengths of the documents of each sequence. Out: `RankWork`, `Exposure`.

`RankWork`: the attention work of the busiest context-parallel rank over the mean (1 is even; a step takes that much longer).
A row is cut into 2n slices, and rank r of n takes slices r and 2n − 1 − r (head-tail balancing, as torch, Megatron-LM and
Transformer Engine do). One document a row is even; document masks make the ranks uneven.
`Exposure`: over how many tokens of left context each target is predicted, with and without document masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nextlong.runs.tally import Bin

RANKS: Final = (2, 4, 8)
_BUCKETS: Final = 40
# (_BUCKETS + 1,) the first left context of each bucket: 1, 8, 16, 32 …
_EDGES: Final = np.concatenate([[1], 8 << np.arange(_BUCKETS, dtype=np.int64)])


@dataclass(frozen=True)
class RankWork:
    """The mean and the largest imbalance over all rows, for a mask and a number of context-parallel ranks."""

    mask: str
    ranks: int
    mean: float
    worst: float


@dataclass(frozen=True)
class Exposure:
    """The targets by effective left context under a mask: `sequence`, or `document` where sequences hold several."""

    mask: str
    targets: int
    mean: float  # tokens
    histogram: tuple[Bin, ...]


def imbalance(lengths: NDArray[np.int64], *, ranks: int) -> float:
    """Return the busiest rank's attention work over the mean, for a row of documents of these lengths (documents,)."""
    ends = np.cumsum(lengths)
    works = np.concatenate([[0.0], np.cumsum(lengths * (lengths + 1.0) / 2)])  # (documents + 1,) before each document
    # (2 · ranks + 1,) the borders of the slices: their token, the document that they cut, and the tokens of it before them.
    cuts = np.linspace(0, ends[-1], 2 * ranks + 1)
    document = np.minimum(np.searchsorted(ends, cuts, side="right"), len(lengths) - 1)
    inside = cuts - (ends - lengths)[document]
    # (2 · ranks,) the work of each slice. Rank r has slices r and −1 − r, the pairing of context-parallel attention.
    slices = np.diff(works[document] + inside * (inside + 1) / 2)
    of_ranks = slices[:ranks] + slices[: ranks - 1 : -1]
    return float(of_ranks.max() / of_ranks.mean())


class AttentionCounter:
    """Accumulates the imbalance of rows and the left contexts of tokens; `per_row` sequences fill a row, in their order."""

    def __init__(self, *, per_row: int) -> None:
        self._per_row = per_row
        self._waiting: list[NDArray[np.int64]] = []  # document lengths of the sequences of a row that is not full
        self._imbalances: dict[tuple[str, int], list[float]] = {}
        self._contexts = {mask: np.zeros(_BUCKETS, np.int64) for mask in ("sequence", "document")}
        self._sums = dict.fromkeys(self._contexts, 0)
        self._has_documents = False

    def add(self, sequences: Sequence[NDArray[np.int64]]) -> None:
        """Count sequences, each given by the lengths of its documents."""
        for lengths in sequences:
            self._has_documents |= len(lengths) > 1
            for mask, visible in (("sequence", lengths.sum(keepdims=True)), ("document", lengths)):
                self._contexts[mask] += context_histogram(visible)
                self._sums[mask] += int((visible * (visible - 1) // 2).sum())
            self._waiting.append(lengths)
            if len(self._waiting) == self._per_row:
                self._add_row()

    def _add_row(self) -> None:
        masks = {"sequence": np.array([lengths.sum() for lengths in self._waiting])}
        if any(len(lengths) > 1 for lengths in self._waiting):
            masks["document"] = np.concatenate(self._waiting)
        for mask, lengths in masks.items():
            for ranks in RANKS:
                self._imbalances.setdefault((mask, ranks), []).append(imbalance(lengths, ranks=ranks))
        self._waiting = []

    def work(self) -> tuple[RankWork, ...]:
        """Return the imbalance by mask and number of ranks, including the last row if it is not full."""
        if self._waiting:
            self._add_row()
        return tuple(
            RankWork(mask, ranks, float(np.mean(rows)), float(np.max(rows)))
            for (mask, ranks), rows in self._imbalances.items()
        )

    def exposure(self) -> tuple[Exposure, ...]:
        """Return the left contexts under each mask; under document masks only where a sequence holds several documents."""
        exposures = []
        for mask in ("sequence", "document") if self._has_documents else ("sequence",):
            counts = self._contexts[mask]
            if targets := int(counts.sum()):
                last = int(np.flatnonzero(counts)[-1])
                edges = zip(_EDGES[: last + 1].tolist(), _EDGES[1 : last + 2].tolist(), counts.tolist(), strict=False)
                bins = tuple(Bin(float(low), float(high - 1), count) for low, high, count in edges)
                exposures.append(Exposure(mask, targets, self._sums[mask] / targets, bins))
        return tuple(exposures)


def context_histogram(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many tokens of documents of these lengths fall into each bucket, (_BUCKETS,); the first token is no target."""
    below = np.minimum(lengths[:, None], _EDGES)  # tokens 0 … length − 1 have as many before them
    counts: NDArray[np.int64] = np.diff(below, axis=1).sum(axis=0)
    return counts
