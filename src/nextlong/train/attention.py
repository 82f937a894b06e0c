"""Attention: causal attention within each document of a packed row, without a mask of T × T.

In:  queries, keys and values of one row of T tokens; where its documents begin and end, `document_bounds` as Python integers
     (documents + 1,), made once a step, and `cu_seq_lens_q`, the same numbers as an int32 tensor on the device.
Out: the attention output of the row; no token attends to another document.

transformers' `sdpa` builds a boolean T × T mask for such a row (17 GB at 131,072 tokens). Here the boundaries are an argument:
without them, with a padding mask and with a cache, this attention refuses to run. `sdpa` runs `scaled_dot_product_attention` with
`is_causal`, a document at a time; `varlen` is `torch.nn.attention.varlen`, FlashAttention over all documents of a row at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Final, Literal

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

_NAME: Final = "nextlong_documents"
_Kernel = Literal["auto", "sdpa", "varlen"]
_NO_SQUARE: Final = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]


def register(kernel: _Kernel = "auto") -> str:
    """Register the attention with transformers; return its name for `attn_implementation`."""
    name = _NAME if kernel == "auto" else f"{_NAME}_{kernel}"

    def attend(
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        _: object,
        *,
        scaling: float | None = None,
        dropout: float = 0.0,
        cu_seq_lens_q: Tensor | None = None,
        document_bounds: Sequence[int] | None = None,
        sliding_window: int | None = None,
        **__: object,
    ) -> tuple[Tensor, None]:
        """Return the output (1, T, heads, head size) of queries (1, heads, T, size), keys and values (1, groups, T, size)."""
        if cu_seq_lens_q is None:
            raise ValueError("cu_seq_lens_q is missing: give the boundaries of the row's documents, [0, …, T]")
        bounds = cu_seq_lens_q.tolist() if document_bounds is None else document_bounds
        if query.shape[0] != 1 or bounds[-1] != query.shape[2]:
            raise ValueError(
                f"rows are laid end to end, shape (1, T, …); these are {query.shape[0]} rows of {query.shape[2]} tokens with "
                f"documents up to {bounds[-1]}"
            )
        longest = max(last - first for first, last in pairwise(bounds))
        if sliding_window is not None and sliding_window < longest:
            name = type(module).__name__
            raise ValueError(f"{name} has a sliding window of {sliding_window} tokens, less than a document has")
        device = query.device.type
        if torch.is_autocast_enabled(device):  # RoPE's cosines are float32, so queries and keys are; the values are not
            query, key, value = (part.to(torch.get_autocast_dtype(device)) for part in (query, key, value))
        is_packed = len(bounds) > 2
        if kernel == "varlen" or (kernel == "auto" and is_packed and query.is_cuda and query.dtype != torch.float32):
            if dropout:
                raise ValueError(f"varlen attention has no dropout, this model's is {dropout}; set attention_dropout=0")
            from torch.nn.attention.varlen import varlen_attn

            tokens, ends, causal = (part[0].transpose(0, 1) for part in (query, key, value)), cu_seq_lens_q, (-1, 0)
            out = varlen_attn(*tokens, ends, ends, longest, longest, scale=scaling, window_size=causal, enable_gqa=True)
            assert isinstance(out, Tensor)
            return out[None], None
        groups = query.shape[1] // key.shape[1]
        # Kernels without a T × T matrix cannot share key-value heads in float32.
        if groups > 1 and query.is_cuda and query.dtype == torch.float32:
            key, value, groups = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1), 1
        options = {"is_causal": True, "scale": scaling, "dropout_p": dropout, "enable_gqa": groups > 1}
        # One call per document, shape (1, heads, its tokens, head size): `is_causal` then needs no mask.
        with sdpa_kernel(_NO_SQUARE) if query.is_cuda else nullcontext():
            outputs = []
            for first, last in pairwise(bounds):
                parts = (part[:, :, first:last] for part in (query, key, value))
                outputs.append(scaled_dot_product_attention(*parts, **options).transpose(1, 2))
        return (torch.cat(outputs, dim=1) if is_packed else outputs[0]), None

    def no_mask(*, q_length: int, kv_length: int, attention_mask: Tensor | None = None, **_: object) -> None:
        """Return None, transformers' "no mask"; refuse inputs that would need one."""
        if attention_mask is not None and not bool(attention_mask.all()):
            raise ValueError("a padding mask was given, but packed documents have no padding; leave the mask out")
        if q_length != kv_length:
            raise ValueError(f"{kv_length} keys for {q_length} queries: there is a cache; train with use_cache=False")

    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, no_mask)
    return name
