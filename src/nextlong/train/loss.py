"""Loss: next-token cross entropy in blocks, so that logits of T × vocabulary are never whole.

In:  the decoder's last hidden states (1, T, width), labels (1, T), not shifted, −100 where nothing is to be predicted.
Out: the loss of each token, or their sum divided by `num_items_in_batch`, float32.

At 131,072 tokens and 128,256 words the logits are 67 GB in float32, here 1 GB at a time: each block is checkpointed, so the
backward pass computes its logits again, which takes under 1 % of the operations of a step of Llama-3-8B at that length. Cross
entropy is in float32 whatever the model computes in (`torch.nn.functional.linear_cross_entropy` was 2 to 4 % off in bfloat16).
"""

from __future__ import annotations

from types import MethodType
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from nextlong.errors import RecipeError

_BLOCK_TOKENS: Final = 2048
IGNORED: Final = -100


def install(model: PreTrainedModel, *, block_tokens: int = _BLOCK_TOKENS) -> None:
    """Let a causal model of transformers compute its loss in blocks when it is given labels; without them it is as before.

    `model(input_ids=…, labels=…, num_items_in_batch=n)` returns an output with `loss` and without logits; the mean over
    all labels where n is left out; each token's own, float32 (1, T), with `per_token=True`. `model.own_forward` is the forward
    pass as it was. Works under autocast and PEFT, because it is the model's own forward pass.
    """
    if model.get_decoder() is model:
        raise RecipeError(
            f"{type(model).__name__} has no decoder apart from its output head, which the loss in blocks needs; use another model"
        )
    stock = model.forward

    def forward(
        self: PreTrainedModel,
        *arguments: Any,
        labels: Tensor | None = None,
        num_items_in_batch: int | None = None,
        per_token: bool = False,
        **given: Any,
    ) -> Any:
        if labels is None:
            return stock(*arguments, **given)
        given.pop("return_dict", None)
        given["use_cache"] = False  # not in the config, which is saved
        hidden = self.get_decoder()(*arguments, **given).last_hidden_state
        head, scale = self.get_output_embeddings(), logit_scale(self)
        losses = token_losses(hidden, labels, head=head, scale=scale, block_tokens=block_tokens)
        if per_token:
            return CausalLMOutputWithPast(loss=losses)
        items = count_labels(labels) if num_items_in_batch is None else num_items_in_batch
        return CausalLMOutputWithPast(loss=losses.sum() / items)

    model.own_forward, model.forward = stock, MethodType(forward, model)


def layers_of(model: PreTrainedModel) -> torch.nn.ModuleList:
    """Return the layers of a model's decoder, whatever their name is."""
    return next(one for one in model.get_decoder().children() if isinstance(one, torch.nn.ModuleList))


def count_labels(labels: Tensor) -> int:
    """Return how many tokens of the rows (B, T) are predicted: every label but the first of a row, and those of −100."""
    return int((labels[:, 1:] != IGNORED).sum())


def logit_scale(model: PreTrainedModel) -> float:
    """Return the factor of the model's logits (Granite, Cohere, Falcon-H1). Raises ValueError for soft-capped ones (Gemma 2)."""
    config = model.config
    if getattr(config, "final_logit_softcapping", None):
        raise ValueError(f"{type(model).__name__} soft-caps its logits (final_logit_softcapping); this loss does not")
    if getattr(config, "lm_head_multiplier", None):
        return float(config.lm_head_multiplier)
    if getattr(config, "logits_scaling", None):
        return 1.0 / float(config.logits_scaling)
    return float(getattr(config, "logit_scale", None) or 1.0)


def token_losses(
    hidden: Tensor, labels: Tensor, *, head: torch.nn.Module, scale: float = 1.0, block_tokens: int = _BLOCK_TOKENS
) -> Tensor:
    """Return the loss of predicting each token, float32 (B, T), 0 where it has no label."""

    def block_losses(states: Tensor, targets: Tensor) -> Tensor:
        logits: Tensor = head(states).float()
        logits = logits if scale == 1.0 else logits * scale  # a product with 1 takes a sixth of a small model's step
        return cross_entropy(logits, targets, ignore_index=IGNORED, reduction="none")

    # The state of a token predicts the next one: states (B · (T − 1), width), targets (B · (T − 1),).
    states, targets = hidden[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    losses = [
        checkpoint(block_losses, block, target, use_reentrant=False)
        for block, target in zip(states.split(block_tokens), targets.split(block_tokens), strict=True)
    ]
    return pad(torch.cat(losses).view(len(labels), -1), (1, 0))  # nothing predicts the first token
