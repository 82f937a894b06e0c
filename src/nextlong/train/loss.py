"""Loss: next-token cross entropy in blocks, so that logits of T × vocabulary never stand whole.

In:  the decoder's last hidden states (1, T, width), labels (1, T), not shifted, −100 where nothing is to be predicted.
Out: the sum of the tokens' losses divided by `num_items_in_batch`, float32.

At 131,072 tokens and 128,256 words the logits are 67 GB in float32, here 1 GB at a time: each block is checkpointed, so the
backward pass makes its logits anew. Cross entropy is in float32 whatever the model computes in
(`torch.nn.functional.linear_cross_entropy` was 2 to 4 % off in bfloat16).
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any, Final

import torch
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from nextlong.errors import RecipeError

BLOCK_TOKENS: Final = 2048
IGNORED: Final = -100


def install(
    model: Any, *, block_tokens: int = BLOCK_TOKENS, summed_by: Callable[..., torch.Tensor] | None = None
) -> None:
    """Let a causal model of transformers compute its loss in blocks when it is given labels; without them it is as before.

    `summed_by` takes the place of `sum_of_losses`; `model.own_forward` is the forward pass as it was.

    `model(input_ids=…, labels=…, num_items_in_batch=n)` returns an output with `loss` and without logits; the mean over
    all labels where n is left out; each token's own, float32 (T,), with `per_token=True`.
    Works under autocast and PEFT, because it is the model's own forward pass.
    """
    if model.get_decoder() is model:
        raise RecipeError(
            f"{type(model).__name__} has no decoder apart from its output head, which the loss in blocks needs; use another model"
        )
    stock, summed = model.forward, summed_by or sum_of_losses

    def forward(
        self: Any,
        *arguments: Any,
        labels: Any = None,
        num_items_in_batch: Any = None,
        per_token: bool = False,
        **given: Any,
    ) -> Any:
        from transformers.modeling_outputs import CausalLMOutputWithPast

        if labels is None:
            return stock(*arguments, **given)
        given.pop("return_dict", None)
        given["use_cache"] = False  # not in the config, which is saved
        hidden = self.get_decoder()(*arguments, **given).last_hidden_state
        how = {"head": self.get_output_embeddings(), "scale": logit_scale(self), "block_tokens": block_tokens}
        if per_token:
            return CausalLMOutputWithPast(loss=token_losses(hidden, labels, **how))
        items = count_labels(labels) if num_items_in_batch is None else num_items_in_batch
        return CausalLMOutputWithPast(loss=summed(hidden, labels, **how) / items)

    model.own_forward, model.forward = stock, MethodType(forward, model)


def layers_of(model: Any) -> torch.nn.ModuleList:
    """Return the layers of a model's decoder, whatever their name is."""
    return next(one for one in model.get_decoder().children() if isinstance(one, torch.nn.ModuleList))


def count_labels(labels: torch.Tensor) -> int:
    """Return how many tokens of the rows (B, T) are predicted: every label but the first of a row, and those of −100."""
    return int((labels[:, 1:] != IGNORED).sum())


def logit_scale(model: Any) -> float:
    """Return the factor of the model's logits (Granite, Cohere, Falcon-H1). Raises ValueError if it bends them (Gemma 2)."""
    config = model.config
    if getattr(config, "final_logit_softcapping", None):
        raise ValueError(f"{type(model).__name__} bends its logits (final_logit_softcapping), which this loss does not")
    if getattr(config, "lm_head_multiplier", None):
        return float(config.lm_head_multiplier)
    if getattr(config, "logits_scaling", None):
        return 1.0 / float(config.logits_scaling)
    return float(getattr(config, "logit_scale", None) or 1.0)


def sum_of_losses(
    hidden: torch.Tensor, labels: torch.Tensor, *, head: Any, scale: float = 1.0, block_tokens: int = BLOCK_TOKENS
) -> torch.Tensor:
    """Return the sum of the losses of all tokens that have a label, a float32 scalar."""
    total = hidden.new_zeros((), dtype=torch.float32)
    states, targets = hidden[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    for block, target in zip(states.split(block_tokens), targets.split(block_tokens), strict=True):
        total = total + checkpoint(_block_sum, block, target, head, scale, use_reentrant=False)
    return total


def token_losses(
    hidden: torch.Tensor, labels: torch.Tensor, *, head: Any, scale: float = 1.0, block_tokens: int = BLOCK_TOKENS
) -> torch.Tensor:
    """Return the loss of predicting each token of a row, float32 (T,), 0 where it has no label; for measuring, without gradient."""
    losses = torch.zeros(labels.shape[1], device=hidden.device)
    states, targets = hidden[0, :-1], labels[0, 1:]
    for first in range(0, len(targets), block_tokens):
        part = slice(first, first + block_tokens)
        logits = _logits(states[part], head, scale)
        losses[1:][part] = cross_entropy(logits, targets[part], ignore_index=IGNORED, reduction="none")
    return losses


def _block_sum(states: torch.Tensor, targets: torch.Tensor, head: Any, scale: float) -> torch.Tensor:
    return cross_entropy(_logits(states, head, scale), targets, ignore_index=IGNORED, reduction="sum")


def _logits(states: torch.Tensor, head: Any, scale: float) -> torch.Tensor:
    logits: torch.Tensor = head(states).float()
    return logits if scale == 1.0 else logits * scale  # a product with 1 would take a sixth of a small model's step
