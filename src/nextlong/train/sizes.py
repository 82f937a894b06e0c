"""Sizes: a model's parameters and widths, and the operations of training on a row.

In:  a config of transformers, the lengths of documents; no weights.
Out: `Sizes`, and FLOPs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model.

    parameters: all of them
    multiplied: those that each token is multiplied with
    layer_parameters: those of one layer
    attention_width, key_value_width: of all heads' queries, and of their keys
    feed_forward_width: of the feed-forward layer, or of the experts of a token
    is_tied: whether embedding and output head share their weights
    """

    parameters: int
    multiplied: int
    layer_parameters: int
    layers: int
    width: int
    heads: int
    attention_width: int
    key_value_width: int
    feed_forward_width: int
    vocabulary: int
    is_tied: bool


def sizes_of(config: PretrainedConfig) -> Sizes:
    """Return the sizes of the model that a config describes; nothing is allocated."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    # Tied weights are one tensor, and `parameters()` yields it once.
    parameters = sum(tensor.numel() for tensor in model.parameters())
    embedding = model.get_input_embeddings().weight
    is_tied = model.get_output_embeddings().weight is embedding
    untied = 0 if is_tied else embedding.numel()

    heads = config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    # Models without grouped-query attention name none.
    key_value_heads = getattr(config, "num_key_value_heads", None) or heads
    return Sizes(
        parameters=parameters,
        multiplied=parameters - untied,
        layer_parameters=(parameters - embedding.numel() - untied)
        // config.num_hidden_layers,
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=heads,
        attention_width=heads * head_size,
        key_value_width=key_value_heads * head_size,
        feed_forward_width=_feed_forward_width(config),
        vocabulary=config.vocab_size,
        is_tied=is_tied,
    )


def _feed_forward_width(config: PretrainedConfig) -> int:
    """Return the width of the feed-forward layer, or of all experts of a token."""
    # Where none is named it is four times as wide, as in GPT-2.
    width = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    width = getattr(config, "moe_intermediate_size", None) or width
    experts = getattr(config, "num_experts_per_tok", None) or 1
    return int(width * experts)


def flops(sizes: Sizes, document_lengths: Sequence[int]) -> float:
    """Return the operations of training on one row.

    They are 6 per parameter and token, and causal attention within each document.
    """
    tokens = sum(document_lengths)
    per_squared_token = 6.0 * sizes.attention_width * sizes.layers
    attention = sum(per_squared_token * length * length for length in document_lengths)
    return 6.0 * sizes.multiplied * tokens + attention
