"""Attention: causal attention of packed rows, without a mask of T × T elements.

In:  queries, keys and values of one row of T tokens, and the boundaries of its
     documents, [0, …, T]: `cu_seq_lens_q` is an int32 tensor (documents + 1,) on the
     device, `document_bounds` has the same numbers as Python integers, made once per
     step.
Out: the attention output of the row, in which no token attends to another document.

transformers' `sdpa` builds a boolean T × T mask for such a row (17 GB at 131,072
tokens). Here the boundaries are an argument: without them, with a padding mask or with
a cache, this attention refuses to run. Its kernel `sdpa` calls
`scaled_dot_product_attention` with `is_causal`, a document at a time; `varlen` calls
`torch.nn.attention.varlen`, FlashAttention over all documents of a row at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import signature
from itertools import pairwise
from types import MethodType
from typing import Any, Final, Literal

import torch
from torch import Tensor, library
from torch.nn.attention import SDPBackend, sdpa_kernel, varlen
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

Kernel = Literal["auto", "sdpa", "varlen"]
_NAME: Final = "nextlong_documents"
# In torch 2.11, varlen attention must have as many key-value heads as query heads.
_VARLEN_SHARES_HEADS: Final = "enable_gqa" in signature(varlen.varlen_attn).parameters
# Kernels without a T × T matrix, the fastest first.
_NO_SQUARE: Final = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
]


def register_attention(kernel: Kernel = "auto", *, is_packed: bool = True) -> str:
    """Register the attention with transformers; return its `attn_implementation` name.

    `is_packed` says that rows may hold several documents. Compiled layers then have a
    single graph, for rows of any number of documents, in which attention is one call.
    Otherwise their graph is for rows of one document, and contains its attention.
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
            # While a graph is made, the boundaries have no values. Unless there may be
            # several documents, one fills the row.
            may_hold_several = is_packed or cu_seq_lens_q.shape[0] > 2
            max_document_tokens = query.shape[2]
            bounds: Sequence[int] = [0, max_document_tokens]
        else:
            bounds = _as_integers(document_bounds, cu_seq_lens_q)
            _check_bounds(query, bounds)
            may_hold_several = len(bounds) > 2
            max_document_tokens = _longest_document(bounds)
        uses_varlen = kernel == "varlen" or (
            kernel == "auto" and may_hold_several and _has_fast_varlen(query)
        )
        # A loop over documents would be part of the graph, see `_attend_documents`.
        uses_operator = is_compiling and may_hold_several and not uses_varlen

        if dropout and (uses_varlen or uses_operator):
            raise ValueError(
                "attention of packed rows by varlen or in compiled layers has no "
                f"dropout, this model's is {dropout}; set attention_dropout=0"
            )
        if uses_operator:
            # The operator checks boundaries and window itself, where they are known.
            out = torch.ops.nextlong.attend_documents(
                query, key, value, document_bounds, scaling, sliding_window
            )
            return out, None
        if sliding_window is not None:
            _check_window(sliding_window, max_document_tokens)
        if uses_varlen:
            out = _attend_varlen(
                query,
                key,
                value,
                cu_seq_lens_q,
                max_document_tokens=max_document_tokens,
                scale=scaling,
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

    Without this, queries and keys would be float32, because RoPE multiplies them with
    float32 cosines, but values would not.
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
    """Raise ValueError unless documents fill the one row of queries.

    Queries are (1, heads, T, size).
    """
    rows, _, tokens, _ = query.shape
    if rows != 1 or bounds[-1] != tokens:
        raise ValueError(
            f"rows must be concatenated, shape (1, T, …); got {rows} rows of {tokens} "
            f"tokens with documents up to {bounds[-1]}"
        )


def _longest_document(bounds: Sequence[int]) -> int:
    """Return the tokens of the longest document."""
    return max(end - start for start, end in pairwise(bounds))


def _check_window(sliding_window: int, max_document_tokens: int) -> None:
    """Raise ValueError if attention would have to leave out part of a document."""
    if sliding_window < max_document_tokens:
        raise ValueError(
            f"the model has a sliding window of {sliding_window} tokens, less than a "
            "document has"
        )


def _has_fast_varlen(query: Tensor) -> bool:
    """Return whether FlashAttention can run: on a GPU, on numbers of 16 bits."""
    return bool(query.is_cuda) and query.dtype != torch.float32


def _attend_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_lens: Tensor,
    *,
    max_document_tokens: int,
    scale: float | None,
) -> Tensor:
    """Return the output (1, T, heads, size) by FlashAttention over all documents."""
    if _VARLEN_SHARES_HEADS:
        options = {"enable_gqa": True}
    else:
        options = {}
        key, value = _one_group_per_head(query, key, value)
    out = varlen.varlen_attn(
        # (T, heads, size): FlashAttention takes the documents one after the other,
        # without a dimension of rows.
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        cu_seq_lens,
        cu_seq_lens,
        max_document_tokens,
        max_document_tokens,
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

    # Split once: the gradient of a slice is as large as the whole row, so slicing each
    # document took a sixth of the step of a small model with 12 documents in a row.
    lengths = [end - start for start, end in pairwise(bounds)]
    documents = zip(
        query.split(lengths, dim=2),
        key.split(lengths, dim=2),
        value.split(lengths, dim=2),
        strict=True,
    )
    outputs = []
    with _square_kernels_off(query):
        for query_document, key_document, value_document in documents:
            # (1, heads, document tokens, size). One document alone needs no mask but
            # `is_causal`.
            output = scaled_dot_product_attention(
                query_document,
                key_document,
                value_document,
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
    """Allow only kernels without a T × T matrix; on the CPU all are without."""
    if not query.is_cuda:
        return nullcontext()
    kernels: AbstractContextManager[None] = sdpa_kernel(_NO_SQUARE, set_priority=True)
    return kernels


# The attention of packed rows in compiled layers is an operator of its own. In a graph
# it is one node, and the number of documents is a size that may change. A loop over the
# documents would need another graph for each number of them.


@library.custom_op("nextlong::attend_documents", mutates_args=())  # type: ignore[untyped-decorator]
def _attend_documents(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Tensor,
    scale: float | None,
    sliding_window: int | None,
) -> Tensor:
    """Return the output (1, T, heads, size), computed document by document."""
    document_bounds = bounds.tolist()
    _check_bounds(query, document_bounds)
    if sliding_window is not None:
        _check_window(sliding_window, _longest_document(document_bounds))
    output = _attend_each(query, key, value, document_bounds, scale=scale)
    return output.contiguous()


@_attend_documents.register_fake  # type: ignore[untyped-decorator]
def _(
    query: Tensor,
    key: Tensor,  # noqa: ARG001
    value: Tensor,  # noqa: ARG001
    bounds: Tensor,  # noqa: ARG001
    scale: float | None,  # noqa: ARG001
    sliding_window: int | None,  # noqa: ARG001
) -> Tensor:
    """Return a tensor like the output, from which a graph learns its shape."""
    rows, heads, tokens, size = query.shape
    return query.new_empty(rows, tokens, heads, size)


@library.custom_op("nextlong::attend_documents_backward", mutates_args=())  # type: ignore[untyped-decorator]
def _attend_documents_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Tensor,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values.

    The output of each document is computed again instead of being kept.
    """
    query_gradient = torch.empty_like(query)
    key_gradient = torch.empty_like(key)
    value_gradient = torch.empty_like(value)
    for start, end in pairwise(bounds.tolist()):
        with _autograd_in_operator():
            q = query[:, :, start:end].detach().requires_grad_()
            k = key[:, :, start:end].detach().requires_grad_()
            v = value[:, :, start:end].detach().requires_grad_()
            # The document as a row of its own.
            output = _attend_each(q, k, v, [0, end - start], scale=scale)
            # Outputs have the tokens before the heads, queries, keys and values behind.
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
    """Return tensors like the gradients, from which a graph learns their shapes."""
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


@contextmanager
def _autograd_in_operator() -> Iterator[None]:
    """Let the body of an operator use autograd, which torch disables there."""
    keys = torch._C.DispatchKey
    # The dispatcher excludes autograd inside an operator; False includes it again.
    set_excluded = torch._C._SetExcludeDispatchKeyGuard
    with (
        set_excluded(keys.AutogradFunctionality, False),
        set_excluded(keys.ADInplaceOrView, False),
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
    # Boundaries, scale and window have no gradient.
    return *gradients, None, None, None


_attend_documents.register_autograd(
    _gradients_of_inputs, setup_context=_save_for_backward
)


def compile_layers(
    model: PreTrainedModel, *, backend: str, is_packed: bool = True
) -> None:
    """Compile each layer of a model.

    `is_packed` is that of `register_attention`: the graph is to serve rows of any
    number of documents.
    """
    # Layers instead of the whole model, because one graph serves all of them.
    for layer in layers_of(model):
        layer.compile(backend=backend)

    def with_dynamic_bounds(
        _: torch.nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Give the boundaries as tensors: a graph depends on each number of a tuple."""
        cu_seq_lens = options.get("cu_seq_lens_q")
        # Without boundaries, the model has another attention.
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
    """Let each document of a row have the rotary embedding that it would have alone.

    The RoPE scalings `dynamic` and `longrope` choose their frequencies by the highest
    position of a call, `dynamic` also by those of earlier calls. So a short document
    would get the frequencies of the longest one in its row, or in an earlier row.
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
        # Positions rise within a document, and begin again with the next one.
        begins_next = position_ids[0].diff() <= 0
        starts = (begins_next.nonzero().flatten() + 1).tolist()
        cosines = []
        sines = []
        for start, end in pairwise([0, *starts, tokens]):
            if kind == "dynamic":
                # Forget the longer documents of earlier calls.
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
