"""Check: what can be wrong with a model in silence, looked at once before the first step.

In:  the model as it will be trained, its device, and whether its rows hold several documents.
Out: a line for the log, or a RecipeError.

A small packed batch goes through the model: no document may move the outputs of another (convolutions and state-space layers
read across borders), and the loss must be the one that the model's own forward pass gives for each document alone (it may scale
its logits or add an auxiliary loss that a training loop does not know).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import torch

from nextlong.errors import RecipeError
from nextlong.train.device import autocast
from nextlong.train.probe import leak
from nextlong.train.recipe import TrainRecipe

_BOUNDS: Final = (0, 24, 64)
_TOLERANCES: Final = {torch.float32: 1e-4, torch.bfloat16: 2e-2}  # relative, of the loss


def check(model: Any, recipe: TrainRecipe, *, device: torch.device, is_packed: bool) -> str:
    """Return what was compared, in words. Raises RecipeError if documents leak or the losses differ."""
    try:
        return _checked(model, recipe, device=device, is_packed=is_packed)
    except ValueError as error:  # attention or loss that cannot do what this model asks for
        raise RecipeError(f"{error}; train another model, or with another engine") from None


def _checked(model: Any, recipe: TrainRecipe, *, device: torch.device, is_packed: bool) -> str:
    bare = model.get_base_model() if hasattr(model, "peft_config") else model
    bounds = _BOUNDS if is_packed else _BOUNDS[:2]
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(bare.config.vocab_size, (1, bounds[-1]), generator=generator).to(device)
    name = type(bare).__name__
    if is_packed:
        with autocast(recipe, device):
            moved = leak(bare, ids, bounds, document=0).moved_outside
        if moved:
            raise RecipeError(
                f"{name} lets the documents of a packed row see each other: changing one moved {moved} outputs of the next; "
                "leave out data.pack, set training.micro_batch_rows=1 and attention=sequence or row"
            )
    bare.eval()
    with torch.no_grad():
        ours, own = _our_loss(bare, ids, bounds), _own_loss(bare, ids, bounds)
    bare.train()
    difference = abs(ours - own) / max(abs(own), 1e-6)
    if not difference <= _TOLERANCES[next(bare.parameters()).dtype]:
        raise RecipeError(
            f"{name}: the loss of a small batch is {ours:.5f} here and {own:.5f} by the model's own forward pass, which scales "
            "its logits or adds an auxiliary loss that this loop does not compute (for a mixture of experts, set "
            "output_router_logits to false in config.json); or train with another engine"
        )
    return f"check: {'no leak between documents, ' if is_packed else ''}loss {difference:.0e} off the model's own forward pass"


def not_finite(model: Any) -> str | None:
    """Return the name of a weight that holds a NaN or an infinity, if there is one."""
    return next((name for name, one in model.named_parameters() if not bool(torch.isfinite(one).all())), None)


def _our_loss(model: Any, ids: torch.Tensor, bounds: tuple[int, ...]) -> float:
    """Return the mean over the predicted tokens of the packed row, by the forward pass that trains."""
    ends = torch.tensor(bounds, dtype=torch.int32, device=ids.device)
    labels = ids.clone()
    labels[0, list(bounds[:-1])] = -100
    positions = torch.cat([torch.arange(last - first) for first, last in pairwise(bounds)])[None].to(ids.device)
    given = {"position_ids": positions, "cu_seq_lens_q": ends, "document_bounds": bounds}
    return float(model(input_ids=ids, labels=labels, **given).loss)


def _own_loss(model: Any, ids: torch.Tensor, bounds: tuple[int, ...]) -> float:
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
