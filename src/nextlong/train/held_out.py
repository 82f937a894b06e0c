"""Held out: the loss of sequences that are never trained on, by role, by position, and by distance to the previous meta-chunk.

In:  a model, held-out rows with their spans.
Out: mean loss and number of tokens of each group.

A loss of meta-chunks that falls at long distances, while that of negatives does not fall alone, is what the method is for: a
meta-chunk depends on the previous one, thousands of tokens back.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from numpy.typing import NDArray

from nextlong.schemas import META, ROLES
from nextlong.train.loss import IGNORED
from nextlong.train.metrics import HeldOutLoss
from nextlong.train.rows import TrainingRow, TrainingRows, flat, on_device

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_POSITION_BINS: Final = 8
_NEAREST: Final = 512  # tokens; each distance bin is twice as far as the one before
_DISTANCE_BINS: Final = 12
DISTANCES: Final = (
    "first",
    f"<{_NEAREST}",
    *(f"{_NEAREST << place}–{_NEAREST << (place + 1)}" for place in range(_DISTANCE_BINS - 2)),
)
# All groups are counted in one array: all tokens, then roles, positions and distances.
_FIRST_ROLE: Final = 1
_FIRST_POSITION: Final = _FIRST_ROLE + len(ROLES)
_FIRST_DISTANCE: Final = _FIRST_POSITION + _POSITION_BINS
_GROUPS: Final = _FIRST_DISTANCE + len(DISTANCES)


def measure(model: PreTrainedModel, rows: TrainingRows, *, most: int, device: torch.device) -> HeldOutLoss:
    """Return the losses of the first `most` rows."""
    totals = np.zeros((2, _GROUPS))
    model.eval()
    with torch.no_grad():
        for number in range(min(most, len(rows))):
            row = rows[number]
            losses = model(**on_device(flat([row]), device), per_token=True).loss[0].double().cpu().numpy()
            totals += tally(row, losses, longest=rows.source.row_tokens)
    model.train()
    return means(totals, longest=rows.source.row_tokens)


def tally(row: TrainingRow, losses: NDArray[np.float64], *, longest: int) -> NDArray[np.float64]:
    """Return the sums of losses (T,) and the tokens of each group, (2, groups), of the row's targets."""
    is_target = row.labels.numpy() != IGNORED
    totals = np.zeros((2, _GROUPS))
    totals[:, 0] = losses[is_target].sum(), is_target.sum()
    # Each token counts once by role, once by position and, in a meta-chunk, once by distance.
    for groups in _groups_of(row, longest=longest):
        counted = is_target & (groups >= 0)
        totals[0] += np.bincount(groups[counted], losses[counted], minlength=_GROUPS)
        totals[1] += np.bincount(groups[counted], minlength=_GROUPS)
    return totals


def _groups_of(row: TrainingRow, *, longest: int) -> NDArray[np.int64]:
    """Return the group of each token by role, position and distance, (3, T); −1: none."""
    groups = np.full((3, len(row.input_ids)), -1)
    groups[1] = _FIRST_POSITION + row.position_ids.numpy() * _POSITION_BINS // longest
    if row.spans is None:
        return groups
    spans = row.spans
    lengths = spans["last"] - spans["first"]
    groups[0] = _FIRST_ROLE + np.repeat(spans["role"].astype(np.int64), lengths)
    # The distance bin of each span, from the tokens between a meta-chunk and the previous one of its sequence (0: it is the first).
    bins = np.full(len(spans), -1)
    meta_places = np.flatnonzero(spans["role"] == META)
    meta_spans = spans[meta_places]
    has_previous = np.concatenate([[False], np.diff(meta_spans["sequence"]) == 0])[: len(meta_spans)]
    # Tokens from the end of each meta-chunk to the next one; those between two sequences count for nothing (`has_previous`).
    gaps = meta_spans["first"][1:] - meta_spans["last"][:-1]
    places = np.zeros(len(meta_spans), np.int64)
    far = np.floor(np.log2(np.maximum(gaps, 1) / _NEAREST)).astype(np.int64) + 2
    places[1:] = np.clip(far, 1, len(DISTANCES) - 1)
    bins[meta_places] = _FIRST_DISTANCE + np.where(has_previous, places, 0)
    groups[2] = np.repeat(bins, lengths)
    return groups


def means(totals: NDArray[np.float64], *, longest: int) -> HeldOutLoss:
    """Return the mean losses of added tallies."""
    sums, counts = totals
    edges = [longest * place // _POSITION_BINS for place in range(_POSITION_BINS + 1)]

    def by_name(names: Sequence[str], first: int) -> dict[str, tuple[float, int]]:
        return {
            name: (float(sums[place] / counts[place]), int(counts[place]))
            for place, name in enumerate(names, start=first)
            if counts[place]
        }

    return HeldOutLoss(
        loss=float(sums[0] / counts[0]),
        role=by_name(ROLES, _FIRST_ROLE),
        position=by_name([f"{first}–{last}" for first, last in pairwise(edges)], _FIRST_POSITION),
        distance=by_name(DISTANCES, _FIRST_DISTANCE),
    )
