"""Loss: next-token loss of a row, without its logits of T × vocabulary.

In:  the decoder's last hidden states (1, T, width), and labels (1, T), not shifted,
     −100 where nothing is to be predicted.
Out: the loss of each token, or their sum divided by `num_items_in_batch`, float32.

At 131,072 tokens and 128,256 words the logits are 67 GB in float32, here 1 GB at a
time: the backward pass computes the logits of each block again, which takes under 1 %
of the operations of a step of Llama-3-8B at that length. Logits, cross entropy and the
sum of the head's gradient over the blocks are in float32 whatever the model computes in
(torch 2.11 has no `torch.nn.functional.linear_cross_entropy`, and that of 2.13 rounds
the gradient to bfloat16).
"""

from __future__ import annotations

from types import MethodType
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from nextlong.errors import RecipeError

IGNORED: Final = -100


def install_loss(model: PreTrainedModel, *, block_tokens: int = 2048) -> None:
    """Let a causal model of transformers compute its loss in blocks, given labels.

    `model(input_ids=…, labels=…, num_items_in_batch=n)` returns an output with `loss`
    and without logits; the mean over all labels where n is left out; each token's own,
    float32 (1, T), with `per_token=True`. Without labels the model is as before.
    `model.own_forward` is the forward pass as it was. Works under autocast and PEFT,
    because it is the model's own forward pass.
    """
    name = type(model).__name__
    if model.get_decoder() is model:
        raise RecipeError(
            where=name,
            problem="it has no decoder apart from its output head, which the loss in "
            "blocks needs",
            fix="use another model",
        )
    head = model.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear):
        raise RecipeError(
            where=name,
            problem=f"it has an output head of type {type(head).__name__}, not a "
            "linear layer",
            fix="use another model",
        )
    own_forward = model.forward

    def forward(
        self: PreTrainedModel,
        *arguments: Any,
        labels: Tensor | None = None,
        num_items_in_batch: int | None = None,
        per_token: bool = False,
        **options: Any,
    ) -> Any:
        if labels is None:
            return own_forward(*arguments, **options)
        options.pop("return_dict", None)
        # Not in the model's config, which is saved with it.
        options["use_cache"] = False
        hidden = self.get_decoder()(*arguments, **options).last_hidden_state
        losses = _token_losses(
            hidden,
            labels,
            head=self.get_output_embeddings(),
            scale=_logit_scale(self),
            block_tokens=block_tokens,
        )
        if per_token:
            return CausalLMOutputWithPast(loss=losses)
        if num_items_in_batch is None:
            # Nothing predicts the first token, whatever its label.
            is_predicted = labels[:, 1:] != IGNORED
            num_items_in_batch = int(is_predicted.sum())
        return CausalLMOutputWithPast(loss=losses.sum() / num_items_in_batch)

    model.own_forward = own_forward
    model.forward = MethodType(forward, model)


def _logit_scale(model: PreTrainedModel) -> float:
    """Return the factor of the model's logits (Granite, Cohere, Falcon-H1).

    Raises ValueError for soft-capped logits (Gemma 2).
    """
    config = model.config
    if getattr(config, "final_logit_softcapping", None):
        raise ValueError(
            "the logits are soft-capped (final_logit_softcapping), which this loss "
            "does not compute"
        )
    if getattr(config, "lm_head_multiplier", None):
        return float(config.lm_head_multiplier)
    if getattr(config, "logits_scaling", None):
        return 1.0 / float(config.logits_scaling)
    return float(getattr(config, "logit_scale", None) or 1.0)


def _token_losses(
    hidden: Tensor,
    labels: Tensor,
    *,
    head: torch.nn.Linear,
    scale: float,
    block_tokens: int,
) -> Tensor:
    """Return the loss of predicting each token, float32 (B, T), 0 without a label."""
    device = hidden.device.type
    is_mixed = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if is_mixed else head.weight.dtype
    # The state of a token predicts the next one: both are cut to B · (T − 1) tokens.
    states = hidden[:, :-1].flatten(0, 1)
    targets = labels[:, 1:].flatten()
    losses = _HeadLoss.apply(
        states, head.weight, head.bias, targets, scale, dtype, block_tokens
    )
    assert isinstance(losses, Tensor)
    rows = losses.view(len(labels), -1)
    return pad(rows, (1, 0))  # nothing predicts the first token


class _HeadLoss(torch.autograd.Function):  # type: ignore[misc]
    """The losses (N,) of states (N, D) by an output head of weights (V, D), in blocks.

    Both passes compute the logits of a block, (block_tokens, V). Products take inputs
    of `dtype`, give float32, and the weights' gradient is summed in float32: in
    bfloat16, the sum over 256 blocks was 2.7 % off.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        scale: float,
        dtype: torch.dtype,
        block_tokens: int,
    ) -> Tensor:
        ctx.save_for_backward(states, weight, bias, targets)
        ctx.scale = scale
        ctx.dtype = dtype
        ctx.block_tokens = block_tokens
        blocks = zip(
            states.split(block_tokens), targets.split(block_tokens), strict=True
        )
        losses = []
        with torch.autocast(states.device.type, enabled=False):
            # The head is rounded once, each block when it is its turn.
            factor = _factor(weight, dtype)
            for block, target in blocks:
                logits = _logits(_factor(block, dtype), factor, bias, scale)
                block_losses = cross_entropy(
                    logits, target, ignore_index=IGNORED, reduction="none"
                )
                losses.append(block_losses)
        return torch.cat(losses)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, bias, targets = ctx.saved_tensors
        (loss_gradients,) = upstream
        trains_states, trains_weight, trains_bias = ctx.needs_input_grad[:3]
        state_gradients = []
        # Sums over blocks lose too much in bfloat16, whatever the weights are.
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32)
        bias_gradient = None
        if bias is not None:
            bias_gradient = torch.zeros_like(bias, dtype=torch.float32)
        blocks = zip(
            states.split(ctx.block_tokens),
            targets.split(ctx.block_tokens),
            loss_gradients.split(ctx.block_tokens),
            strict=True,
        )
        with torch.autocast(states.device.type, enabled=False):
            factor = _factor(weight, ctx.dtype)
            for block, target, loss_gradient in blocks:
                block_factor = _factor(block, ctx.dtype)
                logits = _logits(block_factor, factor, bias, ctx.scale)
                weights = loss_gradient * (target != IGNORED) * ctx.scale
                logit_gradient = _logit_gradient(logits, target, weights)
                # Blocks of logits are the largest tensors here: free them at once.
                del logits
                if bias_gradient is not None:
                    bias_gradient += logit_gradient.sum(dim=0)
                rounded = _factor(logit_gradient, ctx.dtype)
                del logit_gradient
                if trains_states:
                    state_gradient = _product(rounded, factor)
                    state_gradients.append(state_gradient.to(states.dtype))
                if trains_weight:
                    weight_gradient += _product(rounded.T, block_factor)
                del rounded
        if bias_gradient is not None:
            bias_gradient = bias_gradient.to(bias.dtype)
        return (
            torch.cat(state_gradients) if trains_states else None,
            weight_gradient.to(weight.dtype) if trains_weight else None,
            bias_gradient if trains_bias else None,
            None,
            None,
            None,
            None,
        )


def _logits(block: Tensor, weight: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Return the logits of a block of states, float32 (block_tokens, V)."""
    logits = _product(block, weight.T)
    if bias is not None:
        logits += bias
    # A product with 1 would take a sixth of a small model's step.
    if scale != 1.0:
        logits *= scale
    return logits


def _logit_gradient(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Return the gradient of weighted cross entropy, float32 (block_tokens, V).

    It is the probabilities, less 1 at the target.
    """
    gradient = logits.softmax(dim=-1)
    columns = targets.clamp(min=0).unsqueeze(1)
    at_targets = gradient.gather(1, columns) - 1
    gradient.scatter_(1, columns, at_targets)
    gradient *= weights.unsqueeze(1)
    return gradient


def _factor(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor rounded to `dtype`, for `_product`.

    Only NVIDIA's GPUs multiply numbers of 16 bits into float32; elsewhere the rounded
    numbers are float32 again.
    """
    rounded = tensor.to(dtype)
    is_nvidia = tensor.is_cuda and torch.version.hip is None
    return rounded if is_nvidia else rounded.float()


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Return a product of matrices in float32, no sum of which is rounded to less."""
    if left.dtype == torch.float32:
        return left @ right
    return torch.mm(left, right, out_dtype=torch.float32)
