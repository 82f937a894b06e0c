"""Fused loss: Liger's linear cross entropy, where it is installed, runs on the device, and gives what ours gives.

In:  a model, the device that it will train on, the type that it will compute in.
Out: who sums the losses, and why, in words.

Before it is trusted it is compared with `loss.sum_of_losses`: loss and gradients of a block of random states, over as many words
as the model knows, in the type that will be computed in. Liger makes the gradients with the loss, a part of the logits at a time,
so that the logits need not be computed again for the backward pass. Sums of weight gradients are kept in float32.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Literal, cast

import torch

from nextlong.errors import RecipeError
from nextlong.train import loss

Kernel = Literal["auto", "blocks", "liger"]

# Relative: of the loss, and of the gradients by their norms. Logits in bfloat16 are rounded to 2⁻⁸ = 0.4 %, by either.
TOLERANCES: Final = {torch.float32: (1e-5, 1e-5), torch.bfloat16: (1e-3, 1e-2)}
_CHECKED_TOKENS: Final = 64
_CHECKED_WIDTH: Final = 256  # at most: the head of an 8B model would be 2 GB


@dataclass(frozen=True)
class Choice:
    """Who sums the losses of a row, and why."""

    sum_of_losses: Callable[..., torch.Tensor]
    why: str


def choose(kernel: Kernel, model: Any, *, device: torch.device, dtype: torch.dtype) -> Choice:
    """Return Liger's loss if it can be used and equals ours, else ours. Raises RecipeError if `kernel` insists on Liger's."""
    against = "loss_kernel=blocks" if kernel == "blocks" else _obstacle(model, device)
    if not against:
        against, differences = _difference(model.get_output_embeddings(), device, dtype)
        if not against:
            return Choice(sum_of_losses, f"loss: Liger's fused kernel ({differences})")
    if kernel == "liger":
        raise RecipeError(f"loss_kernel=liger: {against}; set loss_kernel=auto")
    return Choice(loss.sum_of_losses, f"loss: in blocks ({against})")


def sum_of_losses(hidden: torch.Tensor, labels: torch.Tensor, *, head: Any, **how: Any) -> torch.Tensor:
    """Return the sum of the losses of all tokens that have a label, as `loss.sum_of_losses` does; without gradient it is that."""
    if not hidden.requires_grad:
        return loss.sum_of_losses(hidden, labels, head=head, **how)
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    states, weight = hidden[:, :-1].flatten(0, 1), head.weight
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        states, weight = (one.to(torch.get_autocast_dtype(device)) for one in (states, weight))
    fused = LigerFusedLinearCrossEntropyLoss(reduction="sum", ignore_index=loss.IGNORED, accum_dtype=torch.float32)
    with torch.autocast(device, enabled=False):
        return cast(torch.Tensor, fused(weight, states, labels[:, 1:].flatten(), head.bias))


def _obstacle(model: Any, device: torch.device) -> str:
    """Say why Liger's loss cannot be tried; nothing if it can."""
    if importlib.util.find_spec("liger_kernel") is None:
        return "liger-kernel is not installed"
    if device.type not in ("cuda", "xpu") and os.environ.get("TRITON_INTERPRET") != "1":
        return f"Liger's kernels do not run on a {device.type} device"
    if type(model.get_output_embeddings()) is not torch.nn.Linear or loss.logit_scale(model) != 1.0:
        return f"{type(model).__name__} makes its logits in another way than Liger does"
    return ""


def _difference(head: torch.nn.Linear, device: torch.device, dtype: torch.dtype) -> tuple[str, str]:
    """Compare both on a block; return what speaks against Liger's (nothing: they are equal), and what was found."""
    named = f"liger-kernel {_version()}"
    try:
        ours, theirs = (_loss_and_gradients(one, head, device, dtype) for one in (loss.sum_of_losses, sum_of_losses))
    except Exception as error:  # whatever its compiler has against this device
        return f"{named} fails: {type(error).__name__}: {' '.join(str(error).split())[:120]}", ""
    differences = [float((one - other).norm() / one.norm()) for one, other in zip(ours, theirs, strict=True)]
    allowed = TOLERANCES[dtype]
    gradients = max(differences[1:])
    difference = (
        f"{named}, on {_CHECKED_TOKENS} tokens: loss {differences[0]:.1e} and gradients {gradients:.1e} off ours"
    )
    difference += f", {allowed[0]:g} and {allowed[1]:g} allowed"
    is_equal = differences[0] <= allowed[0] and gradients <= allowed[1]  # NaN is not
    return ("" if is_equal else difference), difference


def _version() -> str:
    """Return Liger's version; a checkout on PYTHONPATH is imported, but has none."""
    try:
        return version("liger-kernel")
    except PackageNotFoundError:
        return "of no version"


def _loss_and_gradients(
    sum_losses: Callable[..., torch.Tensor], head: torch.nn.Linear, device: torch.device, dtype: torch.dtype
) -> list[torch.Tensor]:
    """Return the loss of a block of random states, and its gradients by the states and by the head's parameters, in float32."""
    generator = torch.Generator().manual_seed(0)
    words, width = head.out_features, min(head.in_features, _CHECKED_WIDTH)
    states = torch.randn(1, _CHECKED_TOKENS + 1, width, generator=generator).to(device, dtype).requires_grad_()
    labels = torch.randint(words, (1, _CHECKED_TOKENS + 1), generator=generator)
    labels[:, ::9] = loss.IGNORED
    small = torch.nn.Linear(width, words, bias=head.bias is not None)
    with torch.no_grad():
        for parameter in small.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / width**0.5)
    small = small.to(device, dtype)
    total = sum_losses(states, labels.to(device), head=small)
    (total / _CHECKED_TOKENS).backward()
    assert states.grad is not None
    return [part.detach().float() for part in (total, states.grad, *(one.grad for one in small.parameters()))]
