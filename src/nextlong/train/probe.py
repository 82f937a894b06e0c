"""Probe: does anything leak from one document of a row into another?

One token of one document is changed; every output of the other documents must stay as it was, bit for bit.

In:  a training recipe. Out: what `nextlong train RECIPE --check-attention` prints, with the recipe's model, kernel and rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import torch
from rich.console import Console

from nextlong.errors import RunError
from nextlong.train.recipe import TrainRecipe
from nextlong.train.rows import Row, TrainingRows, source_of

_LOOKED_AT: Final = 64  # rows, for one of several documents
_CHANGED: Final = 4  # documents, spread over the row


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


def show(recipe: TrainRecipe, console: Console) -> None:
    """Print what moves in a packed row of the recipe when a document is changed. Raises RunError if another document does."""
    from nextlong.train import model
    from nextlong.train.start import run_tokenizer_of, vocabulary_of

    run_tokenizer = run_tokenizer_of(recipe.data)
    tokenizer = model.tokenizer_of(recipe, run_tokenizer=run_tokenizer) if recipe.data.chat else None
    rows = TrainingRows(source_of(recipe.data, split="train", tokenizer=tokenizer), attention=recipe.attention)
    row = next((one for one in map(rows.__getitem__, range(min(len(rows), _LOOKED_AT))) if len(one.bounds) > 2), None)
    if row is None:
        console.print("each row is one document here (attention, data.pack): there is no other that it could leak into")
        return
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    assert device is not None
    made = model.make(recipe, longest=rows.longest_document, vocabulary=vocabulary_of(run_tokenizer), device=device)
    with torch.autocast(device.type, torch.bfloat16, enabled=recipe.training.precision == "bf16"):
        _show_row(made.model.to(device), row, device, console)


def _show_row(model: Any, row: Row, device: torch.device, console: Console) -> None:
    bounds = row.bounds.tolist()
    documents = len(bounds) - 1
    leaks = {}
    for document in sorted({place * (documents - 1) // (_CHANGED - 1) for place in range(_CHANGED)}):
        leaks[document] = moved = leak(model, row.input_ids[None].to(device), bounds, document=document)
        console.print(
            f"document {document + 1} of {documents}, tokens {bounds[document]:,} to {bounds[document + 1]:,}, its first changed: "
            f"{moved.moved_inside:,} outputs of its own moved, {moved.moved_outside:,} of the others",
            highlight=False,
            soft_wrap=True,
        )
    if any(moved.moved_outside or not moved.moved_inside for moved in leaks.values()):
        raise RunError("attention does not keep documents apart here; set attention_kernel=sdpa, and tell us of it")
