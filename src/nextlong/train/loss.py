"""Loss: next-token cross entropy in blocks, or by Liger's fused kernel, so that logits of T × vocabulary are never whole.

In:  the decoder's last hidden states (1, T, width), labels (1, T), not shifted, −100 where nothing is to be predicted.
Out: the sum of the tokens' losses divided by `num_items_in_batch`, float32.

At 131,072 tokens and 128,256 words the logits are 67 GB in float32, here 1 GB at a time: each block is checkpointed, so the
backward pass computes its logits again. Cross entropy is in float32 whatever the model computes in
(`torch.nn.functional.linear_cross_entropy` was 2 to 4 % off in bfloat16).

Liger computes the gradients with the loss, a part of the logits at a time, so the backward pass needs no logits. It is used
where it is installed, runs on the device, and equals ours on a block of random states over the model's vocabulary.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from types import MethodType
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import torch
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from nextlong.errors import RecipeError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BLOCK_TOKENS: Final = 2048
IGNORED: Final = -100
_LossSum = Callable[..., torch.Tensor]  # (hidden, labels, *, head, scale, block_tokens) → float32 scalar

# Relative, of the loss and of the gradients by their norms. Logits in bfloat16 are rounded to 2⁻⁸ = 0.4 %, by either.
_TOLERANCES: Final = {torch.float32: (1e-5, 1e-5), torch.bfloat16: (1e-3, 1e-2)}
_COMPARED_TOKENS: Final = 64
_COMPARED_WIDTH: Final = 256  # at most: the head of an 8B model would be 2 GB


def install(model: PreTrainedModel, *, block_tokens: int = BLOCK_TOKENS, summed_by: _LossSum | None = None) -> None:
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
        self: PreTrainedModel,
        *arguments: Any,
        labels: torch.Tensor | None = None,
        num_items_in_batch: int | None = None,
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


def layers_of(model: PreTrainedModel) -> torch.nn.ModuleList:
    """Return the layers of a model's decoder, whatever their name is."""
    return next(one for one in model.get_decoder().children() if isinstance(one, torch.nn.ModuleList))


def count_labels(labels: torch.Tensor) -> int:
    """Return how many tokens of the rows (B, T) are predicted: every label but the first of a row, and those of −100."""
    return int((labels[:, 1:] != IGNORED).sum())


def logit_scale(model: PreTrainedModel) -> float:
    """Return the factor of the model's logits (Granite, Cohere, Falcon-H1). Raises ValueError for soft-capped ones (Gemma 2)."""
    config = model.config
    if getattr(config, "final_logit_softcapping", None):
        raise ValueError(
            f"{type(model).__name__} soft-caps its logits (final_logit_softcapping), which this loss does not"
        )
    if getattr(config, "lm_head_multiplier", None):
        return float(config.lm_head_multiplier)
    if getattr(config, "logits_scaling", None):
        return 1.0 / float(config.logits_scaling)
    return float(getattr(config, "logit_scale", None) or 1.0)


def sum_of_losses(
    hidden: torch.Tensor,
    labels: torch.Tensor,
    *,
    head: torch.nn.Module,
    scale: float = 1.0,
    block_tokens: int = BLOCK_TOKENS,
) -> torch.Tensor:
    """Return the sum of the losses of all tokens that have a label, a float32 scalar."""

    def block_sum(states: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return cross_entropy(_logits(states, head, scale), targets, ignore_index=IGNORED, reduction="sum")

    total = hidden.new_zeros((), dtype=torch.float32)
    # The state of a token predicts the next one: states (B · (T − 1), width), targets (B · (T − 1),).
    states, targets = hidden[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    for block, target in zip(states.split(block_tokens), targets.split(block_tokens), strict=True):
        total = total + checkpoint(block_sum, block, target, use_reentrant=False)
    return total


def token_losses(
    hidden: torch.Tensor,
    labels: torch.Tensor,
    *,
    head: torch.nn.Module,
    scale: float = 1.0,
    block_tokens: int = BLOCK_TOKENS,
) -> torch.Tensor:
    """Return the loss of predicting each token of a row, float32 (T,), 0 where it has no label; without gradient."""
    losses = torch.zeros(labels.shape[1], device=hidden.device)
    states, targets = hidden[0, :-1], labels[0, 1:]
    for first in range(0, len(targets), block_tokens):
        part = slice(first, first + block_tokens)
        logits = _logits(states[part], head, scale)
        losses[1:][part] = cross_entropy(logits, targets[part], ignore_index=IGNORED, reduction="none")
    return losses


def _logits(states: torch.Tensor, head: torch.nn.Module, scale: float) -> torch.Tensor:
    logits: torch.Tensor = head(states).float()
    return logits if scale == 1.0 else logits * scale  # a product with 1 would take a sixth of a small model's step


def choose(
    kernel: Literal["auto", "blocks", "liger"], model: PreTrainedModel, *, device: torch.device, dtype: torch.dtype
) -> tuple[_LossSum, str]:
    """Return Liger's loss if it can be used and equals ours, else ours, and the reason in words.

    Raises RecipeError if `kernel` is liger and Liger's cannot be used.
    """
    difference = ""
    if kernel == "blocks":
        obstacle = "loss_kernel=blocks"
    elif importlib.util.find_spec("liger_kernel") is None:
        obstacle = "liger-kernel is not installed"
    elif device.type not in ("cuda", "xpu") and os.environ.get("TRITON_INTERPRET") != "1":
        obstacle = f"Liger's kernels do not run on a {device.type} device"
    elif type(model.get_output_embeddings()) is not torch.nn.Linear or logit_scale(model) != 1.0:
        obstacle = f"{type(model).__name__} computes its logits in another way than Liger does"
    else:
        obstacle, difference = _compare_liger(model.get_output_embeddings(), device, dtype)
    if not obstacle:
        return liger_sum_of_losses, f"loss: Liger's fused kernel ({difference})"
    if kernel == "liger":
        raise RecipeError(f"loss_kernel=liger: {obstacle}; set loss_kernel=auto")
    return sum_of_losses, f"loss: in blocks ({obstacle})"


def liger_sum_of_losses(
    hidden: torch.Tensor, labels: torch.Tensor, *, head: torch.nn.Module, **how: Any
) -> torch.Tensor:
    """Return what `sum_of_losses` returns, by Liger's kernel; without gradient it is `sum_of_losses`."""
    if not hidden.requires_grad:
        return sum_of_losses(hidden, labels, head=head, **how)
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    states, weight = hidden[:, :-1].flatten(0, 1), head.weight
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        states, weight = (one.to(torch.get_autocast_dtype(device)) for one in (states, weight))
    # Liger casts nothing under autocast, so states and weight already have its type.
    fused = LigerFusedLinearCrossEntropyLoss(reduction="sum", ignore_index=IGNORED, accum_dtype=torch.float32)
    with torch.autocast(device, enabled=False):
        return cast("torch.Tensor", fused(weight, states, labels[:, 1:].flatten(), head.bias))


def _compare_liger(head: torch.nn.Linear, device: torch.device, dtype: torch.dtype) -> tuple[str, str]:
    """Compare both losses on a block of random states; return the obstacle to using Liger's ("": equal), and the difference."""
    try:
        liger = f"liger-kernel {version('liger-kernel')}"
    except PackageNotFoundError:  # a checkout on PYTHONPATH
        liger = "liger-kernel of unknown version"
    generator = torch.Generator().manual_seed(0)
    words, width = head.out_features, min(head.in_features, _COMPARED_WIDTH)
    states = torch.randn(1, _COMPARED_TOKENS + 1, width, generator=generator).to(device, dtype)
    labels = torch.randint(words, (1, _COMPARED_TOKENS + 1), generator=generator)
    labels[:, ::9] = IGNORED  # tokens without a label must be skipped by both
    small = torch.nn.Linear(width, words, bias=head.bias is not None)
    with torch.no_grad():
        for parameter in small.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / width**0.5)
    small, labels = small.to(device, dtype), labels.to(device)

    def loss_and_gradients(summed: _LossSum) -> list[torch.Tensor]:
        inputs = states.clone().requires_grad_()
        small.zero_grad(set_to_none=True)
        total = summed(inputs, labels, head=small)
        (total / _COMPARED_TOKENS).backward()
        return [part.detach().float() for part in (total, inputs.grad, *(one.grad for one in small.parameters()))]

    try:
        ours, theirs = loss_and_gradients(sum_of_losses), loss_and_gradients(liger_sum_of_losses)
    except Exception as error:  # whatever its compiler has against this device
        return f"{liger} fails: {type(error).__name__}: {' '.join(str(error).split())[:120]}", ""
    loss, *gradients = (float((one - other).norm() / one.norm()) for one, other in zip(ours, theirs, strict=True))
    loss_tolerance, gradient_tolerance = _TOLERANCES[dtype]
    difference = (
        f"{liger}, on {_COMPARED_TOKENS} tokens: relative difference to ours {loss:.1e} of the loss and {max(gradients):.1e} of "
        f"the gradients, {loss_tolerance:g} and {gradient_tolerance:g} allowed"
    )
    is_equal = loss <= loss_tolerance and max(gradients) <= gradient_tolerance  # False for NaN
    return ("" if is_equal else difference), difference
