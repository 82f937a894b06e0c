"""Attention: causal attention within each document of a packed row, without a mask of T × T.

In:  queries, keys and values of one row of T tokens; `cu_seq_lens_q`, int32 (documents + 1,), where its documents begin and end.
Out: the attention output of the row; no token has seen another document.

transformers' `sdpa` builds a boolean T × T mask for such a row (17 GB at 131,072 tokens) and reads the borders from `position_ids`,
which it does not do with a cache or a 2-D mask. Here the borders are an argument: without them, and with a padding mask or a
cache, this attention refuses to run.

Kernels: `sdpa` runs `scaled_dot_product_attention` a document at a time, so time and memory grow with the number of documents;
`flash` is flash-attention's varlen kernel; `flex` is PyTorch's flex attention with a block mask. `auto`: flash or flex on a
GPU, sdpa elsewhere.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, Literal, cast

import torch
from torch.nn.functional import scaled_dot_product_attention

NAME: Final = "nextlong_documents"
Kernel = Literal["auto", "sdpa", "flash", "flex"]


def register(kernel: Kernel = "auto") -> str:
    """Register the attention with transformers; return its name for `attn_implementation`."""
    from transformers import AttentionInterface, AttentionMaskInterface

    name = NAME if kernel == "auto" else f"{NAME}_{kernel}"
    chosen = {"auto": _auto, "sdpa": _sdpa, "flash": _flash, "flex": _flex}[kernel]

    def attend(module: torch.nn.Module, query: Any, key: Any, value: Any, _: Any, **given: Any) -> tuple[Any, None]:
        return _attend(chosen, module, query, key, value, **given), None

    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, _no_mask)
    return name


def _no_mask(*, q_length: int, kv_length: int, attention_mask: torch.Tensor | None = None, **_: Any) -> None:
    """Return None, which is what transformers takes for "no mask"; refuse what would need one."""
    if attention_mask is not None and not bool(attention_mask.all()):
        raise ValueError("a padding mask was given, but documents lie end to end without padding; leave the mask out")
    if q_length != kv_length:
        raise ValueError(f"{kv_length} keys for {q_length} queries: there is a cache; train with use_cache=False")


def _attend(
    kernel: Any,
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    cu_seq_lens_q: torch.Tensor | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> torch.Tensor:
    """Return the output, shape (1, T, heads, head size), of queries (1, heads, T, size), keys and values (1, groups, T, size)."""
    if cu_seq_lens_q is None:
        raise ValueError("cu_seq_lens_q is missing: say where each document of the row begins and ends, [0, …, T]")
    if query.shape[0] != 1 or int(cu_seq_lens_q[-1]) != query.shape[2]:
        raise ValueError(
            f"rows are given one after the other, shape (1, T, …); these are {query.shape[0]} rows of {query.shape[2]} tokens "
            f"with documents up to {int(cu_seq_lens_q[-1])}"
        )
    if sliding_window is not None and sliding_window < int(cu_seq_lens_q.diff().max()):
        raise ValueError(
            f"{type(module).__name__} slides a window of {sliding_window} tokens, less than a document has"
        )
    device = query.device.type
    if torch.is_autocast_enabled(device):  # RoPE's cosines are float32, so queries and keys are; the values are not
        query, key, value = (part.to(torch.get_autocast_dtype(device)) for part in (query, key, value))
    return cast(torch.Tensor, kernel(query, key, value, cu_seq_lens_q, scaling, dropout))


def _auto(query: torch.Tensor, *rest: Any) -> torch.Tensor:
    if not query.is_cuda:
        return _sdpa(query, *rest)
    has_flash = importlib.util.find_spec("flash_attn") and query.dtype in (torch.bfloat16, torch.float16)
    return (_flash if has_flash else _flex)(query, *rest)


def _sdpa(
    query: Any, key: Any, value: Any, bounds: torch.Tensor, scaling: float | None, dropout: float
) -> torch.Tensor:
    outputs = [
        scaled_dot_product_attention(
            query[:, :, first:last],
            key[:, :, first:last],
            value[:, :, first:last],
            is_causal=True,
            scale=scaling,
            dropout_p=dropout,
            enable_gqa=query.shape[1] != key.shape[1],
        ).transpose(1, 2)
        for first, last in pairwise(bounds.tolist())
    ]
    return torch.cat(outputs, dim=1)


def _flash(
    query: Any, key: Any, value: Any, bounds: torch.Tensor, scaling: float | None, dropout: float
) -> torch.Tensor:
    from flash_attn import flash_attn_varlen_func

    longest = int(bounds.diff().max())
    tokens = (part[0].transpose(0, 1) for part in (query, key, value))
    on_device = bounds.to(query.device, torch.int32)
    out = flash_attn_varlen_func(
        *tokens, on_device, on_device, longest, longest, dropout_p=dropout, softmax_scale=scaling, causal=True
    )
    return cast(torch.Tensor, out[None])


def _flex(
    query: Any, key: Any, value: Any, bounds: torch.Tensor, scaling: float | None, dropout: float
) -> torch.Tensor:
    if dropout:
        raise ValueError(
            f"flex attention has no dropout, and this model asks for {dropout}; set attention_dropout to 0"
        )
    out = _flex_function(query.device.type)(
        query,
        key,
        value,
        block_mask=_block_mask(tuple(bounds.tolist()), str(query.device)),
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return cast(torch.Tensor, out.transpose(1, 2))


@lru_cache(maxsize=1)
def _flex_function(device: str) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention) if device == "cuda" else flex_attention


@lru_cache(maxsize=2)  # one for all layers of a row
def _block_mask(bounds: tuple[int, ...], device: str) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    lengths = torch.tensor(bounds, device=device).diff()
    document = torch.repeat_interleave(torch.arange(len(lengths), device=device), lengths)

    def sees(_batch: Any, _head: Any, q: Any, k: Any) -> Any:
        return (document[q] == document[k]) & (q >= k)

    return create_block_mask(sees, None, None, bounds[-1], bounds[-1], device=device)
