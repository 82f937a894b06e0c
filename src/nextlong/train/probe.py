"""Probe: does anything leak from one document of a row into another?

One token of one document is changed; every output of the other documents must stay as it was, bit for bit.

In:  a training recipe. Out: what `nextlong train RECIPE --check-attention` prints, with the recipe's model, kernel and rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import torch
from rich.console import Console

from nextlong.errors import RunError
from nextlong.report import tables
from nextlong.train.device import autocast, here
from nextlong.train.recipe import TrainRecipe
from nextlong.train.rows import Row, TrainingRows, source_of

_LOOKED_AT: Final = 64  # rows, for one of several documents
_CHANGED: Final = 4  # documents, spread over the row


@dataclass(frozen=True)
class Leak:
    """Outputs outside the changed document that moved, and outputs within it, which should."""

    moved_outside: int
    moved_inside: int


@dataclass(frozen=True)
class Changed:
    """A document of a row whose first and last token were changed, by its number from 1 and its tokens, and what moved."""

    document: int
    documents: int
    token_start: int
    token_end: int
    moved_inside: int
    moved_outside: int


def leak(model: Any, input_ids: torch.Tensor, bounds: Sequence[int], *, document: int) -> Leak:
    """Change the first and last token of a document between `bounds` of a row (1, T); count the outputs that move."""
    first, last = list(pairwise(bounds))[document]
    changed = input_ids.clone()
    ends = [first, last - 1]  # what is remembered from far, and what a convolution reads
    changed[0, ends] = (changed[0, ends] + 1) % model.config.vocab_size
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


def measured(recipe: TrainRecipe) -> Iterator[Changed]:
    """Change some documents of a packed row of the recipe, one after the other; yield nothing where every row is one document."""
    from nextlong.train import model
    from nextlong.train.prepare import run_tokenizer_of, vocabulary_of

    run_tokenizer = run_tokenizer_of(recipe.data)
    tokenizer = model.tokenizer_of(recipe, run_tokenizer=run_tokenizer) if recipe.data.chat else None
    rows = TrainingRows(source_of(recipe.data, split="train", tokenizer=tokenizer), attention=recipe.attention)
    row = next((one for one in map(rows.__getitem__, range(min(len(rows), _LOOKED_AT))) if len(one.bounds) > 2), None)
    if row is None:
        return
    device = here()
    made = model.make(recipe, longest=rows.longest_document, vocabulary=vocabulary_of(run_tokenizer), device=device)
    with autocast(recipe, device):
        yield from _in_row(made.model.to(device), row, device)


def _in_row(model: Any, row: Row, device: torch.device) -> Iterator[Changed]:
    bounds = row.bounds.tolist()
    documents = len(bounds) - 1
    for document in sorted({place * (documents - 1) // (_CHANGED - 1) for place in range(_CHANGED)}):
        moved = leak(model, row.input_ids[None].to(device), bounds, document=document)
        yield Changed(
            document + 1, documents, bounds[document], bounds[document + 1], moved.moved_inside, moved.moved_outside
        )


def show(recipe: TrainRecipe, console: Console) -> None:
    """Print what moves in a packed row of the recipe when a document is changed. Raises RunError if another document does."""
    leaks = []
    for one in measured(recipe):
        leaks.append(one)
        tables.say(
            f"document {one.document} of {one.documents}, tokens {one.token_start:,} to {one.token_end:,}, first and last changed: "
            f"{one.moved_inside:,} outputs of its own moved, {one.moved_outside:,} of the others",
            console,
        )
    if not leaks:
        tables.say(
            "each row is one document here (attention, data.pack): there is no other that it could leak into", console
        )
    check(recipe, leaks)


def check(recipe: TrainRecipe, leaks: Sequence[Changed]) -> None:
    """Raise RunError if another document moved, or the changed one did not."""
    if not any(one.moved_outside or not one.moved_inside for one in leaks):
        return
    kernel = recipe.attention_kernel
    is_sdpa = kernel == "sdpa" or (kernel == "auto" and here().type != "cuda")
    cure = "train nothing with it" if is_sdpa else "set attention_kernel=sdpa"
    raise RunError(
        f"attention ({'sdpa' if is_sdpa else kernel}) does not keep documents apart here; {cure}, and please report it with the "
        "training recipe, the lines above and what `nextlong doctor` prints"
    )
