"""Held out: the loss of sequences that are never trained on, by role, by position, and by distance to the meta-chunk before.

In:  a model, held-out rows with their spans.
Out: mean loss and number of tokens of each group.

Loss of meta-chunks that falls at long distances, and not of negatives alone, is what the method is for: a meta-chunk depends
on the one before it, thousands of tokens back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from nextlong.schemas import META, ROLES
from nextlong.train.rows import Row, TrainingRows, flat, on_device

POSITION_BINS: Final = 8
_NEAREST: Final = 512  # tokens; each distance bin is twice as far as the one before
_DISTANCE_BINS: Final = 12
DISTANCES: Final = (
    "first",
    f"<{_NEAREST}",
    *(f"{_NEAREST << place}–{_NEAREST << (place + 1)}" for place in range(_DISTANCE_BINS - 2)),
)
_ROLE_AT: Final = 1
_POSITION_AT: Final = _ROLE_AT + len(ROLES)
_DISTANCE_AT: Final = _POSITION_AT + POSITION_BINS
_GROUPS: Final = _DISTANCE_AT + len(DISTANCES)


@dataclass(frozen=True)
class HeldOutLoss:
    """Mean loss, nats a token, and tokens of each group that has any."""

    loss: float
    role: dict[str, tuple[float, int]]
    position: dict[str, tuple[float, int]]
    distance: dict[str, tuple[float, int]]


def measure(model: Any, rows: TrainingRows, *, most: int, device: torch.device) -> HeldOutLoss:
    """Return the losses of the first `most` rows."""
    totals = np.zeros((2, _GROUPS))
    model.eval()
    with torch.no_grad():
        for number in range(min(most, len(rows))):
            row = rows[number]
            losses = model(**on_device(flat([row]), device), per_token=True).loss.double().cpu().numpy()
            totals += tally(row, losses, longest=rows.source.row_tokens)
    model.train()
    return means(totals, longest=rows.source.row_tokens)


def groups_of(row: Row, *, longest: int) -> NDArray[np.int64]:
    """Return the group of each token by role, position and distance, (3, T); −1: none."""
    groups = np.full((3, len(row.input_ids)), -1)
    groups[1] = _POSITION_AT + row.position_ids.numpy() * POSITION_BINS // longest
    if row.spans is None:
        return groups
    lengths = row.spans["last"] - row.spans["first"]
    groups[0] = _ROLE_AT + np.repeat(row.spans["role"].astype(np.int64), lengths)
    groups[2] = np.repeat(_distance_groups(row.spans), lengths)
    return groups


def _distance_groups(spans: NDArray[Any]) -> NDArray[np.int64]:
    """Return the distance group of each span: tokens between a meta-chunk and the one before; −1 where it is no meta-chunk."""
    groups = np.full(len(spans), -1)
    meta_places = np.flatnonzero(spans["role"] == META)
    meta_spans = spans[meta_places]
    has_before = np.concatenate([[False], np.diff(meta_spans["sequence"]) == 0])[: len(meta_spans)]
    gaps = meta_spans["first"][1:] - meta_spans["last"][:-1]
    places = np.zeros(len(meta_spans), np.int64)
    far = np.floor(np.log2(np.maximum(gaps, 1) / _NEAREST)).astype(np.int64) + 2
    places[1:] = np.clip(far, 1, len(DISTANCES) - 1)
    groups[meta_places] = _DISTANCE_AT + np.where(has_before, places, 0)
    return groups


def tally(row: Row, losses: NDArray[np.float64], *, longest: int) -> NDArray[np.float64]:
    """Return the sums of losses (T,) and the tokens of each group, (2, groups), of the row's targets."""
    is_target = row.labels.numpy() != -100
    totals = np.zeros((2, _GROUPS))
    totals[:, 0] = losses[is_target].sum(), is_target.sum()
    for groups in groups_of(row, longest=longest):
        counted = is_target & (groups >= 0)
        totals[0] += np.bincount(groups[counted], losses[counted], minlength=_GROUPS)
        totals[1] += np.bincount(groups[counted], minlength=_GROUPS)
    return totals


def means(totals: NDArray[np.float64], *, longest: int) -> HeldOutLoss:
    """Return the mean losses of added tallies."""
    sums, counts = totals
    edges = [longest * place // POSITION_BINS for place in range(POSITION_BINS + 1)]
    positions = [f"{first}–{last}" for first, last in pairwise(edges)]

    def named(names: Sequence[str], at: int) -> dict[str, tuple[float, int]]:
        return {
            name: (float(sums[place] / counts[place]), int(counts[place]))
            for place, name in enumerate(names, start=at)
            if counts[place]
        }

    return HeldOutLoss(
        loss=float(sums[0] / counts[0]),
        role=named(ROLES, _ROLE_AT),
        position=named(positions, _POSITION_AT),
        distance=named(DISTANCES, _DISTANCE_AT),
    )
