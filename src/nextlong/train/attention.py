"""Attention: causal attention of packed rows, without a mask of T × T elements.

In:  queries, keys and values of one row of T tokens, and where its documents begin and
     end: `cu_seq_lens_q` is an int32 tensor (documents + 1,) on the device,
     `document_bounds` the same numbers as Python integers, made once per step.
Out: the attention output of the row, in which no token attends to another document.

transformers' `sdpa` builds a boolean T × T mask for such a row (17 GB at 131,072
tokens). Here the boundaries are an argument: without them, with a padding mask and with
a cache, this attention refuses to run. `sdpa` runs `scaled_dot_product_attention` with
`is_causal`, a document at a time; `varlen` is `torch.nn.attention.varlen`,
FlashAttention over all documents of a row at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import signature
from itertools import pairwise
from types import MethodType
from typing import Any, Final, Literal

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel, varlen
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

Kernel = Literal["auto", "sdpa", "varlen"]
_NAME: Final = "nextlong_documents"
# In torch 2.11 varlen attention has as many key-value heads as query heads.
_VARLEN_SHARES_HEADS: Final = "enable_gqa" in signature(varlen.varlen_attn).parameters
# Kernels without a T × T matrix, the fastest first.
_NO_SQUARE: Final = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
]


def register_attention(kernel: Kernel = "auto", *, is_packed: bool = True) -> str:
    """Register the attention with transformers; return its `attn_implementation` name.

    `is_packed`: rows may hold several documents. Then compiled layers have one graph
    for every number of documents. Otherwise they have one for rows of one document,
    whose attention is part of it.
    """
    name = _NAME if kernel == "auto" else f"{_NAME}_{kernel}"
    if not is_packed:
        name = f"{name}_alone"

    def attend(
        _module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        _mask: object,
        *,
        scaling: float | None = None,
        dropout: float = 0.0,
        cu_seq_lens_q: Tensor | None = None,
        document_bounds: Sequence[int] | Tensor | None = None,
        sliding_window: int | None = None,
        **__: object,
    ) -> tuple[Tensor, None]:
        """Return the output (1, T, heads, size), and no attention weights.

        Queries are (1, heads, T, size), keys and values (1, groups, T, size).
        """
        if cu_seq_lens_q is None:
            raise ValueError(
                "cu_seq_lens_q is missing: give the boundaries of the row's documents, "
                "[0, …, T]"
            )
        query, key, value = _as_autocast(query, key, value)

        is_compiling = torch.compiler.is_compiling()
        if is_compiling:
            # The values of a tensor are unknown here, so the documents are too.
            holds_several = is_packed or cu_seq_lens_q.shape[0] > 2
            longest = query.shape[2]
            bounds: Sequence[int] = [0, longest]
        else:
            bounds = _as_integers(document_bounds, cu_seq_lens_q)
            _check_bounds(query, bounds)
            holds_several = len(bounds) > 2
            longest = _longest_document(bounds)
        is_varlen = kernel == "varlen" or (
            kernel == "auto" and holds_several and _has_fast_varlen(query)
        )
        # One node of the graph for any number of documents, see `_attend_documents`.
        is_operator = is_compiling and holds_several and not is_varlen

        if dropout and (is_varlen or is_operator):
            raise ValueError(
                "attention of packed rows by varlen or in compiled layers has no "
                f"dropout, this model's is {dropout}; set attention_dropout=0"
            )
        if is_operator:
            out = torch.ops.nextlong.attend_documents(
                query, key, value, document_bounds, scaling, sliding_window
            )
            return out, None
        if sliding_window is not None:
            _check_window(sliding_window, longest)
        if is_varlen:
            out = _attend_varlen(
                query, key, value, cu_seq_lens_q, longest=longest, scale=scaling
            )
        else:
            out = _attend_each(
                query, key, value, bounds, scale=scaling, dropout=dropout
            )
        return out, None

    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, _no_mask)
    return name


def _no_mask(
    *, q_length: int, kv_length: int, attention_mask: Tensor | None = None, **_: object
) -> None:
    """Return None, transformers' "no mask"; refuse inputs that would need one."""
    if attention_mask is not None and not bool(attention_mask.all()):
        raise ValueError(
            "a padding mask was given, but packed documents have no padding; leave the "
            "mask out"
        )
    if q_length != kv_length:
        raise ValueError(
            f"{kv_length} keys for {q_length} queries: there is a cache; train with "
            "use_cache=False"
        )


def _as_autocast(
    query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values in the precision of autocast, if it is on.

    RoPE's cosines are float32, so queries and keys are; the values are not.
    """
    device = query.device.type
    if not torch.is_autocast_enabled(device):
        return query, key, value
    dtype = torch.get_autocast_dtype(device)
    return query.to(dtype), key.to(dtype), value.to(dtype)


def _as_integers(
    document_bounds: Sequence[int] | Tensor | None, cu_seq_lens: Tensor
) -> Sequence[int]:
    """Return the boundaries of the documents as Python integers."""
    if document_bounds is None:
        document_bounds = cu_seq_lens
    if isinstance(document_bounds, Tensor):
        bounds: list[int] = document_bounds.tolist()
        return bounds
    return document_bounds


def _check_bounds(query: Tensor, bounds: Sequence[int]) -> None:
    """Raise ValueError unless documents fill the one row of queries (1, heads, T, size)."""
    rows, _, tokens, _ = query.shape
    if rows != 1 or bounds[-1] != tokens:
        raise ValueError(
            f"rows must be concatenated, shape (1, T, …); got {rows} rows of {tokens} "
            f"tokens with documents up to {bounds[-1]}"
        )


def _longest_document(bounds: Sequence[int]) -> int:
    return max(end - start for start, end in pairwise(bounds))


def _check_window(sliding_window: int, longest: int) -> None:
    """Raise ValueError if attention would have to leave out part of a document."""
    if sliding_window < longest:
        raise ValueError(
            f"the model has a sliding window of {sliding_window} tokens, less than a "
            "document has"
        )


def _has_fast_varlen(query: Tensor) -> bool:
    """Tell whether FlashAttention can run: on a GPU, on numbers of 16 bits."""
    return bool(query.is_cuda) and query.dtype != torch.float32


def _attend_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_lens: Tensor,
    *,
    longest: int,
    scale: float | None,
) -> Tensor:
    """Return the output (1, T, heads, size) by FlashAttention over all documents."""
    if _VARLEN_SHARES_HEADS:
        options = {"enable_gqa": True}
    else:
        options = {}
        key, value = _one_group_per_head(query, key, value)
    out = varlen.varlen_attn(
        # (T, heads, size): FlashAttention reads the documents of a row as one sequence.
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        cu_seq_lens,
        cu_seq_lens,
        longest,
        longest,
        scale=scale,
        window_size=(-1, 0),  # causal
        **options,
    )
    assert isinstance(out, Tensor)
    return out[None]


def _attend_each(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Sequence[int],
    *,
    scale: float | None,
    dropout: float = 0.0,
) -> Tensor:
    """Return the output (1, T, heads, size), computed document by document."""
    # Kernels without a T × T matrix cannot share key-value heads in float32.
    if query.is_cuda and query.dtype == torch.float32:
        key, value = _one_group_per_head(query, key, value)
    # Grouped-query attention: several query heads share keys and values.
    shares_heads = key.shape[1] < query.shape[1]

    outputs = []
    with _square_kernels_off(query):
        for start, end in pairwise(bounds):
            # (1, heads, its tokens, size): `is_causal` of a document alone is no mask.
            output = scaled_dot_product_attention(
                query[:, :, start:end],
                key[:, :, start:end],
                value[:, :, start:end],
                is_causal=True,
                scale=scale,
                dropout_p=dropout,
                enable_gqa=shares_heads,
            )
            outputs.append(output.transpose(1, 2))
    if len(outputs) == 1:
        return outputs[0]
    return torch.cat(outputs, dim=1)


def _one_group_per_head(
    query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    """Return keys and values repeated for each query head that shares them."""
    heads_per_group = query.shape[1] // key.shape[1]
    if heads_per_group == 1:
        return key, value
    keys = key.repeat_interleave(heads_per_group, 1)
    values = value.repeat_interleave(heads_per_group, 1)
    return keys, values


def _square_kernels_off(query: Tensor) -> AbstractContextManager[None]:
    """Allow only kernels without a T × T matrix; the CPU has no other."""
    if not query.is_cuda:
        return nullcontext()
    kernels: AbstractContextManager[None] = sdpa_kernel(_NO_SQUARE, set_priority=True)
    return kernels


# What compiled layers call for the documents of a row: their graph holds one node, for
# which the number of documents is a size that may change, where a loop over documents
# would be another graph for each number.


@torch.library.custom_op("nextlong::attend_documents", mutates_args=())  # type: ignore[untyped-decorator]
def _attend_documents(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Tensor,
    scale: float | None,
    sliding_window: int | None,
) -> Tensor:
    ends = bounds.tolist()
    _check_bounds(query, ends)
    if sliding_window is not None:
        _check_window(sliding_window, _longest_document(ends))
    return _attend_each(query, key, value, ends, scale=scale).contiguous()


@_attend_documents.register_fake  # type: ignore[untyped-decorator]
def _(
    query: Tensor,
    key: Tensor,  # noqa: ARG001
    value: Tensor,  # noqa: ARG001
    bounds: Tensor,  # noqa: ARG001
    scale: float | None,  # noqa: ARG001
    sliding_window: int | None,  # noqa: ARG001
) -> Tensor:
    rows, heads, tokens, size = query.shape
    return query.new_empty(rows, tokens, heads, size)


@torch.library.custom_op("nextlong::attend_documents_backward", mutates_args=())  # type: ignore[untyped-decorator]
def _attend_documents_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Tensor,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values, computing each document again."""
    query_gradient = torch.empty_like(query)
    key_gradient = torch.empty_like(key)
    value_gradient = torch.empty_like(value)
    for start, end in pairwise(bounds.tolist()):
        with _autograd_in_operator():
            q = query[:, :, start:end].detach().requires_grad_()
            k = key[:, :, start:end].detach().requires_grad_()
            v = value[:, :, start:end].detach().requires_grad_()
            output = _attend_each(q, k, v, [0, end - start], scale=scale)
            dq, dk, dv = torch.autograd.grad(output, (q, k, v), gradient[:, start:end])
        query_gradient[:, :, start:end] = dq
        key_gradient[:, :, start:end] = dk
        value_gradient[:, :, start:end] = dv
    return query_gradient, key_gradient, value_gradient


@_attend_documents_backward.register_fake  # type: ignore[untyped-decorator]
def _(
    gradient: Tensor,  # noqa: ARG001
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Tensor,  # noqa: ARG001
    scale: float | None,  # noqa: ARG001
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


@contextmanager
def _autograd_in_operator() -> Iterator[None]:
    """Let the body of an operator use autograd, which torch disables there."""
    keys = torch._C.DispatchKey
    include = torch._C._SetExcludeDispatchKeyGuard
    with (
        include(keys.AutogradFunctionality, False),
        include(keys.ADInplaceOrView, False),
        torch.enable_grad(),
    ):
        yield


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    query, key, value, bounds, scale, _ = inputs
    ctx.save_for_backward(query, key, value, bounds)
    ctx.scale = scale


def _gradients_of_inputs(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    gradients = torch.ops.nextlong.attend_documents_backward(
        gradient, *ctx.saved_tensors, ctx.scale
    )
    return *gradients, None, None, None


_attend_documents.register_autograd(
    _gradients_of_inputs, setup_context=_save_for_backward
)


def compile_layers(
    model: PreTrainedModel, *, backend: str, is_packed: bool = True
) -> None:
    """Compile each layer of a model.

    `is_packed`, as for `register_attention`: in one graph for any number of documents.
    """
    # Layers, not the whole model: one graph serves all of them.
    for layer in layers_of(model):
        layer.compile(backend=backend)

    def with_dynamic_bounds(
        _: torch.nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Give the boundaries as tensors: a graph depends on each number of a tuple."""
        cu_seq_lens = options.get("cu_seq_lens_q")
        # Another attention than ours.
        if cu_seq_lens is None:
            return arguments, options
        document_bounds = options.get("document_bounds", cu_seq_lens)
        bounds = torch.as_tensor(document_bounds, device="cpu")
        if is_packed:
            torch._dynamo.mark_dynamic(cu_seq_lens, 0)
            torch._dynamo.mark_dynamic(bounds, 0)
        return arguments, {**options, "document_bounds": bounds}

    decoder = model.get_decoder()
    decoder.register_forward_pre_hook(with_dynamic_bounds, with_kwargs=True)


def install_positions(model: PreTrainedModel) -> None:
    """Let each document of a row have the rotary positions that it has alone.

    The RoPE scalings `dynamic` and `longrope` choose their frequencies by the highest
    position of a call, `dynamic` also by those of earlier calls. So a short document
    would be rotated as the longest one of its row, or of a row before.
    """
    rotary = getattr(model.get_decoder(), "rotary_emb", None)
    kind = getattr(rotary, "rope_type", None)
    if rotary is None or kind not in ("dynamic", "longrope"):
        return
    own_forward = rotary.forward

    def forward(
        self: torch.nn.Module, x: Tensor, position_ids: Tensor, **options: Any
    ) -> tuple[Tensor, Tensor]:
        """Return the cosines and sines of the positions (1, T) of a row."""
        tokens = position_ids.shape[1]
        # Positions rise by 1 within a document, so any other step begins the next one.
        restarts = position_ids[0].diff() <= 0
        starts = (restarts.nonzero().flatten() + 1).tolist()
        cosines = []
        sines = []
        for start, end in pairwise([0, *starts, tokens]):
            # Forget the longer documents of earlier calls.
            if kind == "dynamic":
                self.max_seq_len_cached = self.original_max_seq_len
                self.inv_freq = self.original_inv_freq.to(position_ids.device)
            cosine, sine = own_forward(x, position_ids[:, start:end], **options)
            cosines.append(cosine)
            sines.append(sine)
        return torch.cat(cosines, dim=1), torch.cat(sines, dim=1)

    rotary.forward = MethodType(forward, rotary)


def layers_of(model: PreTrainedModel) -> torch.nn.ModuleList:
    """Return the layers of a model's decoder, whatever their name is."""
    modules = model.get_decoder().children()
    return next(module for module in modules if isinstance(module, torch.nn.ModuleList))
