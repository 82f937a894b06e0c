"""Attention: what attention masks and context parallelism make of the sequences.

In:  the lengths of the documents of each sequence. Out: attention work by mask and
number of ranks, and the effective left context of the targets.

Attention work is that of the busiest context-parallel rank over the mean (1 is even; a
step takes that much longer). A row is cut into 2n slices, and rank r of n takes slices
r and 2n − 1 − r (head-tail balancing, as torch, Megatron-LM and Transformer Engine do).
One document per row is even; document masks make the ranks uneven.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from nextlong.arrays import Ints
from nextlong.runs.statistics.stats import Exposure, RankWork
from nextlong.runs.statistics.tally import Bin

# Numbers of ranks for which the work is told.
RANKS: Final = (2, 4, 8)
_BUCKETS: Final = 40
# (_BUCKETS + 1,) the first left context of each bucket: 1, 8, 16, 32 …
_EDGES: Final = np.concatenate([[1], 8 << np.arange(_BUCKETS, dtype=np.int64)])


def rank_work(sequences: Sequence[Ints], *, per_row: int) -> tuple[RankWork, ...]:
    """Return the imbalance by mask and number of ranks.

    `sequences` has the lengths of the documents of each. `per_row` of them fill a row,
    in their order.
    """
    # By mask and number of ranks, the imbalance of each row.
    imbalances: dict[tuple[str, int], list[float]] = {}
    for first in range(0, len(sequences), per_row):
        row = sequences[first : first + per_row]
        for mask, lengths in _lengths_by_mask(row).items():
            for ranks in RANKS:
                row_imbalances = imbalances.setdefault((mask, ranks), [])
                row_imbalances.append(imbalance(lengths, ranks=ranks))
    work = []
    for (mask, ranks), row_imbalances in imbalances.items():
        mean = float(np.mean(row_imbalances))
        worst = float(np.max(row_imbalances))
        work.append(RankWork(mask=mask, ranks=ranks, mean=mean, worst=worst))
    return tuple(work)


def imbalance(lengths: Ints, *, ranks: int) -> float:
    """Return the busiest rank's attention work over the mean, for one row.

    `lengths` (documents,) are those of the documents in the row.
    """
    # A document of n tokens takes 1 + 2 + … + n = n (n + 1) / 2 units of work.
    ends = np.cumsum(lengths)
    work = np.cumsum(lengths * (lengths + 1.0) / 2)
    work_before = np.concatenate([[0.0], work])
    # (2 · ranks + 1,) the borders of the slices, as positions in the row; the document
    # that each border cuts; and how many tokens of it are before the border.
    cuts = np.linspace(0, ends[-1], 2 * ranks + 1)
    document = np.searchsorted(ends, cuts, side="right")
    document = np.minimum(document, len(lengths) - 1)
    starts = ends - lengths
    inside = cuts - starts[document]
    work_before_cut = work_before[document] + inside * (inside + 1) / 2
    # Rank r has slices r and −1 − r, the pairing of context-parallel attention.
    slices = np.diff(work_before_cut)
    work_of_ranks = slices[:ranks] + slices[: ranks - 1 : -1]
    return float(work_of_ranks.max() / work_of_ranks.mean())


def exposure(sequences: Sequence[Ints]) -> tuple[Exposure, ...]:
    """Return the left contexts under each mask, without masks that have no target."""
    exposures = []
    for mask, lengths in _lengths_by_mask(sequences).items():
        exposed = _exposure(mask, lengths)
        if exposed is not None:
            exposures.append(exposed)
    return tuple(exposures)


def _exposure(mask: str, lengths: Ints) -> Exposure | None:
    """Return the left contexts in documents of some lengths; None without a target."""
    # The first token is no target, so the targets of a document of n tokens have the
    # left contexts 1 to n − 1. (values, _BUCKETS) how many of them are in each bucket,
    # for each distinct length.
    values, counts = np.unique(lengths, return_counts=True)
    contexts = np.diff(np.minimum(values[:, None], _EDGES), axis=1)
    in_buckets = counts @ contexts
    targets = int(in_buckets.sum())
    if not targets:
        return None
    bins = []
    for bucket, count in enumerate(np.trim_zeros(in_buckets, "b").tolist()):
        low = float(_EDGES[bucket])
        high = float(_EDGES[bucket + 1] - 1)
        bins.append(Bin(low, high, count))
    total = int(counts @ (values * (values - 1) // 2))
    return Exposure(
        mask=mask,
        targets=targets,
        mean=total / targets,
        histogram=tuple(bins),
    )


def _lengths_by_mask(
    sequences: Sequence[Ints],
) -> dict[str, Ints]:
    """Return, by mask, the lengths of what it lets attention see at once.

    A document mask is left out where no sequence holds several documents.
    """
    masks = {"sequence": np.array([lengths.sum() for lengths in sequences], np.int64)}
    if any(len(lengths) > 1 for lengths in sequences):
        masks["document"] = np.concatenate(sequences)
    return masks
