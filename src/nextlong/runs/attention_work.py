"""Attention work: how evenly the devices that share a row by context parallelism share its attention.

In:  the documents of rows; which tokens see each other.
Out: for 2, 4 and 8 devices, the work of the busiest one relative to the mean: 1 is even, and a step takes that much longer.

A row is cut into 2n slices, and device r of n takes slices r and 2n − 1 − r (head-tail balancing, as torch, Megatron-LM and
Transformer Engine do). For one document a row that is even; documents of a row that see themselves alone make it uneven.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.runs.spans import Block

RANKS: Final = (2, 4, 8)


@dataclass(frozen=True)
class RankWork:
    """The mean and the largest over all rows of the busiest device's work, relative to the mean device's."""

    mask: str
    ranks: int
    mean: float
    worst: float


def imbalance(lengths: NDArray[np.int64], *, ranks: int) -> float:
    """Return the busiest device's attention work over the mean, of a row of documents of these lengths (documents,)."""
    ends = np.cumsum(lengths)
    works = np.concatenate([[0.0], np.cumsum(lengths * (lengths + 1.0) / 2)])  # before each document
    cuts = np.linspace(0, ends[-1], 2 * ranks + 1)
    document = np.minimum(np.searchsorted(ends, cuts, side="right"), len(lengths) - 1)
    inside = cuts - (ends - lengths)[document]
    slices = np.diff(works[document] + inside * (inside + 1) / 2)
    of_ranks = slices[:ranks] + slices[: ranks - 1 : -1]
    return float(of_ranks.max() / of_ranks.mean())


class Counting:
    """The imbalance of rows so far; `per_row` sequences fill a row, in their order."""

    def __init__(self, *, per_row: int) -> None:
        self._per_row = per_row
        self._waiting: list[NDArray[np.int64]] = []  # document lengths of the sequences of a row that is not full
        self._found: dict[tuple[str, int], list[float]] = {}

    def add(self, sequences: Sequence[NDArray[np.int64]]) -> None:
        """Count sequences, each given by the lengths of its documents."""
        for lengths in sequences:
            self._waiting.append(lengths)
            if len(self._waiting) == self._per_row:
                self._add_row()

    def result(self) -> tuple[RankWork, ...]:
        """Return the imbalance by mask and number of devices, the last row too if it is not full."""
        if self._waiting:
            self._add_row()
        return tuple(
            RankWork(mask, ranks, float(np.mean(found)), float(np.max(found)))
            for (mask, ranks), found in self._found.items()
        )

    def _add_row(self) -> None:
        masks = {"sequence": np.array([lengths.sum() for lengths in self._waiting])}
        if any(len(lengths) > 1 for lengths in self._waiting):
            masks["document"] = np.concatenate(self._waiting)
        for mask, lengths in masks.items():
            for ranks in RANKS:
                self._found.setdefault((mask, ranks), []).append(imbalance(lengths, ranks=ranks))
        self._waiting = []


def documents(block: Block) -> list[NDArray[np.int64]]:
    """Return the lengths of the documents of each sequence of a block."""
    return [_documents(block, first, last) for first, last in zip(*_bounds(block.sequence), strict=True)]


def _bounds(sequence: NDArray[np.int64]) -> tuple[list[int], list[int]]:
    firsts = np.flatnonzero(np.diff(sequence, prepend=-1)).tolist()
    return firsts, [*firsts[1:], len(sequence)]


def _documents(block: Block, first: int, last: int) -> NDArray[np.int64]:
    """Return the tokens of each document of a sequence, of which spans [first, last) are; an extended one is one document."""
    whole = np.flatnonzero(block.roles[first:last] == schemas.DOCUMENT) + first
    is_new = np.diff(block.groups[whole]) != 0
    starts = np.concatenate([[0], block.starts[whole[1:]][is_new], block.ends[last - 1 : last]])
    lengths: NDArray[np.int64] = np.diff(starts)
    return lengths
