"""Check: compare a model with its own forward pass before the first step.

In:  a model that is ready to train, the device.
Out: what was compared; an error where documents of a packed row see each other, or
     where the losses differ.

The check finds faults that would stay silent, on a small packed batch. No document may
change the outputs of another (convolutions and state-space layers read across borders):
the first and last token of a document are changed, and every output of the other
documents must stay the same, bit for bit. And the loss must be the one of the model's
own forward pass for each document alone: it may scale its logits or add an auxiliary
loss that a training loop does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Final, NamedTuple

import torch
from transformers import PreTrainedModel

from nextlong.errors import RecipeError
from nextlong.train.model import autocast
from nextlong.train.recipe import TrainRecipe
from nextlong.train.rows import on_device, packed_batch

_BOUNDS: Final = (0, 24, 64)
# Relative, of the loss.
_TOLERANCES: Final = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


class Leak(NamedTuple):
    """The outputs that changed with a document.

    moved_inside: its own, which should change
    moved_outside: those of other documents, which must not
    """

    moved_inside: int
    moved_outside: int


def check_model(
    model: PreTrainedModel,
    recipe: TrainRecipe,
    *,
    device: torch.device,
    is_packed: bool,
) -> str:
    """Return what was compared, in words.

    Raises RecipeError if documents of a packed row leak, or if the losses differ.
    """
    bare = model.get_base_model() if hasattr(model, "peft_config") else model
    name = type(bare).__name__
    bounds = _BOUNDS if is_packed else _BOUNDS[:2]
    generator = torch.Generator().manual_seed(0)
    shape = (1, bounds[-1])
    ids = torch.randint(bare.config.vocab_size, shape, generator=generator).to(device)
    try:
        if is_packed:
            with autocast(recipe, device):
                leak = measure_leak(bare, ids, bounds, document=0)
            if leak.moved_outside:
                raise RecipeError(
                    where=name,
                    problem="it lets the documents of a packed row see each other: "
                    f"changing one moved {leak.moved_outside} outputs of the next",
                    fix="leave out data.pack, set training.micro_batch_rows=1 and "
                    "attention=sequence or row",
                )
        ours, own = _losses(bare, ids, bounds, recipe=recipe)
    except ValueError as error:
        # Attention or loss that cannot do what this model needs.
        raise RecipeError(
            where=name,
            problem=str(error),
            fix="train another model, or use another --engine",
        ) from None
    difference = abs(ours - own) / max(abs(own), 1e-6)
    dtype = next(bare.parameters()).dtype
    if recipe.attention_kernel == "varlen":
        dtype = torch.bfloat16
    # Not `>`: a NaN is no agreement.
    if not difference <= _TOLERANCES[dtype]:
        raise RecipeError(
            where=name,
            problem=f"the loss of a small batch is {ours:.5f} here and {own:.5f} by "
            "the model's own forward pass, which scales its logits or adds an "
            "auxiliary loss that this loop does not compute",
            fix="for a mixture of experts, set output_router_logits to false in "
            "config.json; or train with another engine",
        )
    leaks = "no leak between documents, " if is_packed else ""
    return (
        f"check: {leaks}relative difference to the loss of the model's own forward "
        f"pass {difference:.0e}"
    )


def _losses(
    model: PreTrainedModel,
    ids: torch.Tensor,
    bounds: Sequence[int],
    *,
    recipe: TrainRecipe,
) -> tuple[float, float]:
    """Return the mean loss of a packed row (1, T), by our and by the own forward pass.

    In float32, where a scaled or an added loss shows best, but for varlen attention,
    which computes in 16 bits only.
    """
    device = ids.device
    is_mixed = recipe.attention_kernel == "varlen"
    our_attention = model.config._attn_implementation
    model.eval()
    with torch.no_grad(), autocast(recipe, device) if is_mixed else nullcontext():
        batch = on_device(packed_batch(ids, bounds), device)
        ours = float(model(**batch).loss)

        # By the model's own forward pass, with transformers' attention, a document at a
        # time. The first token of a document is not predicted.
        model.set_attn_implementation("eager")
        total = 0.0
        for start, end in pairwise(bounds):
            document = ids[:, start:end]
            output = model.own_forward(
                input_ids=document, labels=document, use_cache=False
            )
            total += float(output.loss) * (end - start - 1)
        predicted_tokens = bounds[-1] - (len(bounds) - 1)
    model.set_attn_implementation(our_attention)
    model.train()
    return ours, total / predicted_tokens


def measure_leak(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    bounds: Sequence[int],
    *,
    document: int,
) -> Leak:
    """Change the first and last token of a document, and count the outputs that move.

    The document, counted from 0, is one of those between `bounds` of a row (1, T).
    """
    start = bounds[document]
    end = bounds[document + 1]
    # Attention remembers the first from afar, a convolution reads the last.
    ends = [start, end - 1]
    changed_ids = input_ids.clone()
    changed_ids[0, ends] = (changed_ids[0, ends] + 1) % model.config.vocab_size
    was_training = model.training
    model.eval()
    states = []
    with torch.no_grad():
        for ids in (input_ids, changed_ids):
            batch = on_device(packed_batch(ids, bounds), ids.device)
            del batch["labels"]
            output = model.get_decoder()(**batch, use_cache=False)
            states.append(output.last_hidden_state)
    model.train(was_training)
    before, after = states
    is_moved = (before != after).any(dim=-1)[0]  # (T,)
    moved_inside = int(is_moved[start:end].sum())
    return Leak(moved_inside, int(is_moved.sum()) - moved_inside)
