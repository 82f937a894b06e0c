"""Costs: parameters and floating-point operations of a training, from its config alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

# Dense bf16 peak, TFLOP/s, and memory, GB: NVIDIA's data sheets.
DEVICES: Final = {"A100": (312.0, 80), "H100": (989.0, 80), "H200": (989.0, 141), "B200": (2250.0, 192)}


@dataclass(frozen=True)
class Sizes:
    """What a config says: all parameters, those that multiply each token, those of a layer, layers, widths, vocabulary."""

    parameters: int
    multiplied: int
    layer_parameters: int
    layers: int
    width: int
    attention_width: int
    vocabulary: int


def sizes_of(config: Any) -> Sizes:
    """Return the sizes of a config; the model is made without memory."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    parameters = sum(tensor.numel() for tensor in model.parameters())
    embedding = model.get_input_embeddings().weight
    is_tied = model.get_output_embeddings().weight is embedding
    heads = config.num_attention_heads
    return Sizes(
        parameters=parameters,
        multiplied=parameters - (0 if is_tied else embedding.numel()),
        layer_parameters=(parameters - embedding.numel() * (1 if is_tied else 2)) // config.num_hidden_layers,
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        attention_width=heads * (getattr(config, "head_dim", None) or config.hidden_size // heads),
        vocabulary=config.vocab_size,
    )


def flops(sizes: Sizes, document_lengths: list[int]) -> float:
    """Return the operations of training on one row: 6 a parameter and token, and causal attention within each document."""
    attention = sum(6.0 * length * length * sizes.attention_width * sizes.layers for length in document_lengths)
    return 6.0 * sizes.multiplied * sum(document_lengths) + attention
