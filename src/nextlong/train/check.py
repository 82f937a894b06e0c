"""Check: faults of a model that would stay silent, found before the first step.

A small packed batch goes through the model. No document may change the outputs of another (convolutions and state-space layers
read across borders): the first and last token of a document are changed, and every output of the other documents must stay the
same, bit for bit. And the loss must be the one that the model's own forward pass gives for each document alone (it may scale its
logits or add an auxiliary loss that a training loop does not know).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from nextlong.errors import RecipeError
from nextlong.train.model import autocast
from nextlong.train.recipe import TrainRecipe
from nextlong.train.rows import on_device, packed_batch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_BOUNDS: Final = (0, 24, 64)
_TOLERANCES: Final = {torch.float32: 1e-4, torch.bfloat16: 2e-2}  # relative, of the loss


class Leak(NamedTuple):
    """The outputs that moved when a document was changed: its own, which should, and those of others, which must not."""

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
    name, name_of_ours = type(bare).__name__, bare.config._attn_implementation
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
            # The mean over the predicted tokens of the packed row, by the forward pass that trains.
            ours = float(bare(**on_device(packed_batch(ids, bounds), device)).loss)
            # The same mean by the model's own forward pass with transformers' attention, a document at a time.
            bare.set_attn_implementation("eager")
            total = 0.0
            for first, last in pairwise(bounds):
                document = ids[:, first:last]
                loss = bare.own_forward(input_ids=document, labels=document, use_cache=False).loss
                total += float(loss) * (last - first - 1)
            own = total / (bounds[-1] - len(bounds) + 1)
        bare.set_attn_implementation(name_of_ours)
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


def measure_leak(model: PreTrainedModel, input_ids: torch.Tensor, bounds: Sequence[int], *, document: int) -> Leak:
    """Change the first and last token of a document (from 0) between `bounds` of a row (1, T); count the outputs that move."""
    first, last = bounds[document], bounds[document + 1]
    changed = input_ids.clone()
    ends = [first, last - 1]  # attention remembers the first from afar, a convolution reads the last
    changed[0, ends] = (changed[0, ends] + 1) % model.config.vocab_size
    was_training = model.training
    model.eval()

    def outputs(ids: torch.Tensor) -> torch.Tensor:
        batch = on_device(packed_batch(ids, bounds), ids.device)
        del batch["labels"]
        states: torch.Tensor = model.get_decoder()(**batch, use_cache=False).last_hidden_state
        return states

    with torch.no_grad():
        moved = (outputs(input_ids) != outputs(changed)).any(dim=-1)[0]  # (T,)
    model.train(was_training)
    inside = int(moved[first:last].sum())
    return Leak(inside, int(moved.sum()) - inside)
