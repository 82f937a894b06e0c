"""Probe: does anything leak from one document of a row into another?

One token of one document is changed; every output of the other documents must stay as it was, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch


@dataclass(frozen=True)
class Leak:
    """Outputs outside the changed document that moved, and outputs within it, which should."""

    moved_outside: int
    moved_inside: int


def leak(model: Any, input_ids: torch.Tensor, bounds: Sequence[int], *, document: int) -> Leak:
    """Change the first token of a document of a row (1, T) whose documents lie between `bounds`; count the outputs that move."""
    first, last = list(pairwise(bounds))[document]
    changed = input_ids.clone()
    changed[0, first] = (changed[0, first] + 1) % model.config.vocab_size
    before, after = (_outputs(model, ids, bounds) for ids in (input_ids, changed))
    moved = (before != after).any(dim=-1)[0]
    inside = int(moved[first:last].sum())
    return Leak(int(moved.sum()) - inside, inside)


def _outputs(model: Any, input_ids: torch.Tensor, bounds: Sequence[int]) -> torch.Tensor:
    ends = torch.tensor(bounds, dtype=torch.int32)
    lengths = ends.diff().tolist()
    positions = torch.cat([torch.arange(length, device=input_ids.device) for length in lengths])[None]
    was_training = model.training
    model.eval()
    with torch.no_grad():
        out = model.get_decoder()(input_ids=input_ids, position_ids=positions, cu_seq_lens_q=ends, use_cache=False)
    model.train(was_training)
    hidden: torch.Tensor = out.last_hidden_state
    return hidden
