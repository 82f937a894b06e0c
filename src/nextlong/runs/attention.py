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
from itertools import product
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


def rank_work(sequences: Sequence[NDArray[np.int64]], *, per_row: int) -> tuple[RankWork, ...]:
    """Return the imbalance by mask and number of ranks; `per_row` sequences fill a row, in their order."""
    imbalances: dict[tuple[str, int], list[float]] = {}
    for first in range(0, len(sequences), per_row):
        masks = _lengths_by_mask(sequences[first : first + per_row])
        for (mask, lengths), ranks in product(masks.items(), RANKS):
            imbalances.setdefault((mask, ranks), []).append(imbalance(lengths, ranks=ranks))
    return tuple(RankWork(*key, float(np.mean(rows)), float(np.max(rows))) for key, rows in imbalances.items())


def exposure(sequences: Sequence[NDArray[np.int64]]) -> tuple[Exposure, ...]:
    """Return the left contexts under each mask; under document masks only where a sequence holds several documents."""
    exposures = []
    for mask, lengths in _lengths_by_mask(sequences).items():
        values, counts = np.unique(lengths, return_counts=True)
        # (values, _BUCKETS) of a document of each length, the tokens in each bucket; the first token is no target.
        contexts = np.diff(np.minimum(values[:, None], _EDGES), axis=1)
        in_buckets = counts @ contexts
        if targets := int(in_buckets.sum()):
            bounds = zip(
                _EDGES.tolist(), (_EDGES[1:] - 1).tolist(), np.trim_zeros(in_buckets, "b").tolist(), strict=False
            )
            bins = tuple(Bin(float(least), float(most), count) for least, most, count in bounds)
            exposures.append(Exposure(mask, targets, int(counts @ (values * (values - 1) // 2)) / targets, bins))
    return tuple(exposures)


def _lengths_by_mask(sequences: Sequence[NDArray[np.int64]]) -> dict[str, NDArray[np.int64]]:
    """Return the lengths of what attention sees as one under each mask, given the document lengths of each sequence."""
    masks = {"sequence": np.array([lengths.sum() for lengths in sequences], np.int64)}
    if any(len(lengths) > 1 for lengths in sequences):
        masks["document"] = np.concatenate(sequences)
    return masks
