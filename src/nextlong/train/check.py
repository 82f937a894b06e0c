"""Check: faults of a model that would stay silent, found before the first step, or by `nextlong train RECIPE --check-attention`.

A small packed batch goes through the model. No document may change the outputs of another (convolutions and state-space layers
read across borders): the first and last token of a document are changed, and every output of the other documents must stay the
same, bit for bit. And the loss must be the one that the model's own forward pass gives for each document alone (it may scale its
logits or add an auxiliary loss that a training loop does not know).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import torch
from rich.console import Console

from nextlong.errors import RecipeError, RunError
from nextlong.report import tables
from nextlong.train.device import accelerator, autocast
from nextlong.train.loss import IGNORED
from nextlong.train.model import make_model, tokenizer_of
from nextlong.train.prepare import run_tokenizer_of, vocabulary_of
from nextlong.train.recipe import TrainRecipe
from nextlong.train.rows import TrainingRows, source_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_BOUNDS: Final = (0, 24, 64)
_TOLERANCES: Final = {torch.float32: 1e-4, torch.bfloat16: 2e-2}  # relative, of the loss
_SEARCHED_ROWS: Final = 64  # for one of several documents
_CHANGED_DOCUMENTS: Final = 4  # spread over the row


@dataclass(frozen=True)
class Leak:
    """A changed document of a row (its number from 1), and the outputs that moved: its own, which should, and those of others."""

    document: int
    documents: int
    token_start: int
    token_end: int
    moved_inside: int
    moved_outside: int


def check_model(model: PreTrainedModel, recipe: TrainRecipe, *, device: torch.device, is_packed: bool) -> str:
    """Return what was compared, in words; `is_packed`: rows hold several documents.

    Raises RecipeError if documents leak or the losses differ.
    """
    bare = model.get_base_model() if hasattr(model, "peft_config") else model
    bounds = _BOUNDS if is_packed else _BOUNDS[:2]
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(bare.config.vocab_size, (1, bounds[-1]), generator=generator).to(device)
    name = type(bare).__name__
    try:
        if is_packed:
            with autocast(recipe, device):
                moved = measure_leak(bare, ids, bounds, document=0).moved_outside
            if moved:
                raise RecipeError(
                    f"{name} lets the documents of a packed row see each other: changing one moved {moved} outputs of the next; "
                    "leave out data.pack, set training.micro_batch_rows=1 and attention=sequence or row"
                )
        bare.eval()
        with torch.no_grad():
            ours, own = _packed_loss(bare, ids, bounds), _own_loss(bare, ids, bounds)
        bare.train()
    except ValueError as error:  # attention or loss that cannot do what this model needs
        raise RecipeError(f"{error}; train another model, or with another engine") from None
    difference = abs(ours - own) / max(abs(own), 1e-6)
    if not difference <= _TOLERANCES[next(bare.parameters()).dtype]:
        raise RecipeError(
            f"{name}: the loss of a small batch is {ours:.5f} here and {own:.5f} by the model's own forward pass, which scales "
            "its logits or adds an auxiliary loss that this loop does not compute (for a mixture of experts, set "
            "output_router_logits to false in config.json); or train with another engine"
        )
    leaks = "no leak between documents, " if is_packed else ""
    return f"check: {leaks}relative difference to the loss of the model's own forward pass {difference:.0e}"


def _packed_inputs(ids: torch.Tensor, bounds: Sequence[int]) -> dict[str, torch.Tensor]:
    positions = torch.cat([torch.arange(last - first) for first, last in pairwise(bounds)])[None].to(ids.device)
    return {"input_ids": ids, "position_ids": positions, "cu_seq_lens_q": torch.tensor(bounds, dtype=torch.int32)}


def _packed_loss(model: PreTrainedModel, ids: torch.Tensor, bounds: Sequence[int]) -> float:
    """Return the mean loss over the predicted tokens of the packed row, by the forward pass that trains."""
    labels = ids.clone()
    labels[0, list(bounds[:-1])] = IGNORED
    inputs = _packed_inputs(ids, bounds)
    inputs["cu_seq_lens_q"] = inputs["cu_seq_lens_q"].to(ids.device)
    return float(model(**inputs, labels=labels, document_bounds=bounds).loss)


def _own_loss(model: PreTrainedModel, ids: torch.Tensor, bounds: Sequence[int]) -> float:
    """Return the same mean by the model's own forward pass with transformers' attention, a document at a time."""
    ours = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        total = 0.0
        for first, last in pairwise(bounds):
            document = ids[:, first:last]
            loss = model.own_forward(input_ids=document, labels=document, use_cache=False).loss
            total += float(loss) * (last - first - 1)
    finally:
        model.set_attn_implementation(ours)
    return total / (bounds[-1] - len(bounds) + 1)


def measure_leak(model: PreTrainedModel, input_ids: torch.Tensor, bounds: Sequence[int], *, document: int) -> Leak:
    """Change the first and last token of a document (from 0) between `bounds` of a row (1, T); count the outputs that move."""
    first, last = bounds[document], bounds[document + 1]
    changed = input_ids.clone()
    ends = [first, last - 1]  # attention remembers the first from afar, a convolution reads the last
    changed[0, ends] = (changed[0, ends] + 1) % model.config.vocab_size
    was_training = model.training
    model.eval()
    with torch.no_grad():
        before, after = (
            model.get_decoder()(**_packed_inputs(ids, bounds), use_cache=False).last_hidden_state
            for ids in (input_ids, changed)
        )
    model.train(was_training)
    moved = (before != after).any(dim=-1)[0]
    inside = int(moved[first:last].sum())
    return Leak(document + 1, len(bounds) - 1, first, last, inside, int(moved.sum()) - inside)


def measure_leaks(recipe: TrainRecipe) -> Iterator[Leak]:
    """Change some documents of a packed row of the recipe, one after the other; yield nothing where every row is one document."""
    run_tokenizer = run_tokenizer_of(recipe.data)
    tokenizer = tokenizer_of(recipe, run_tokenizer=run_tokenizer) if recipe.data.chat else None
    rows = TrainingRows(source_of(recipe.data, split="train", tokenizer=tokenizer), attention=recipe.attention)
    searched = (rows[number] for number in range(min(len(rows), _SEARCHED_ROWS)))
    row = next((one for one in searched if len(one.bounds) > 2), None)
    if row is None:
        return
    device, bounds = accelerator(), row.bounds.tolist()
    model, _ = make_model(recipe, longest=rows.longest_document, vocabulary=vocabulary_of(run_tokenizer), device=device)
    model, ids = model.to(device), row.input_ids[None].to(device)
    last = len(bounds) - 2
    with autocast(recipe, device):
        for document in sorted({place * last // (_CHANGED_DOCUMENTS - 1) for place in range(_CHANGED_DOCUMENTS)}):
            yield measure_leak(model, ids, bounds, document=document)


def show_leaks(recipe: TrainRecipe, console: Console) -> None:
    """Print what moves in a packed row of the recipe when a document is changed. Raises RunError if another document does."""
    leaks = []
    for one in measure_leaks(recipe):
        leaks.append(one)
        tables.say(
            f"document {one.document} of {one.documents}, tokens {one.token_start:,} to {one.token_end:,}, first and last changed: "
            f"{one.moved_inside:,} outputs of its own moved, {one.moved_outside:,} of the others",
            console,
        )
    if not leaks:
        tables.say(
            "each row is one document here (attention, data.pack), so no other document can leak into it", console
        )
    check_leaks(recipe, leaks)


def check_leaks(recipe: TrainRecipe, leaks: Sequence[Leak]) -> None:
    """Raise RunError if another document moved, or the changed one did not."""
    if not any(one.moved_outside or not one.moved_inside for one in leaks):
        return
    kernel = recipe.attention_kernel
    is_sdpa = kernel == "sdpa" or (kernel == "auto" and accelerator().type != "cuda")
    advice = "do not train with it" if is_sdpa else "set attention_kernel=sdpa"
    raise RunError(
        f"attention ({'sdpa' if is_sdpa else kernel}) does not keep documents apart here; {advice}, and please report it with the "
        "training recipe, the lines above and what `nextlong doctor` prints"
    )
