"""Costs: parameters, floating-point operations and memory of a training, from its config alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from nextlong.train.recipe import TrainRecipe

# Dense bf16 peak, TFLOP/s, and memory, GB: NVIDIA's data sheets.
DEVICES: Final = {"A100": (312.0, 80), "H100": (989.0, 80), "H200": (989.0, 141), "B200": (2250.0, 192)}


@dataclass(frozen=True)
class Sizes:
    """What a config says: all parameters, those that multiply each token, layers, width, width of all heads, vocabulary."""

    parameters: int
    multiplied: int
    layers: int
    width: int
    attention_width: int
    feed_forward: int
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
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        attention_width=heads * (getattr(config, "head_dim", None) or config.hidden_size // heads),
        feed_forward=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        vocabulary=config.vocab_size,
    )


def flops(sizes: Sizes, document_lengths: list[int]) -> float:
    """Return the operations of training on one row: 6 a parameter and token, and causal attention within each document."""
    attention = sum(6.0 * length * length * sizes.attention_width * sizes.layers for length in document_lengths)
    return 6.0 * sizes.multiplied * sum(document_lengths) + attention


@dataclass(frozen=True)
class Memory:
    """Bytes on each GPU."""

    weights_and_states: float
    layer_inputs: float
    one_layer: float
    loss_block: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.weights_and_states + self.layer_inputs + self.one_layer + self.loss_block


def memory(sizes: Sizes, recipe: TrainRecipe, *, row_tokens: int, ranks: int) -> Memory:
    """Estimate the memory of each of `ranks` GPUs; activations as transformers keeps them with the recipe's checkpointing."""
    number = 2 if recipe.training.precision == "bf16" else 4
    sharers = ranks
    states = 2.0 if recipe.memory.optimizer == "adamw-8bit" else 8.0
    resting = sizes.parameters * (4.0 + 4.0 + states) / sharers
    trained_here = resting if recipe.model.lora_rank is None else sizes.parameters * number / sharers
    tokens = row_tokens * recipe.training.micro_batch_rows / recipe.hardware.ranks_per_row
    inputs = sizes.layers * tokens * sizes.width * number
    # A layer's own: norms and residuals (4 widths), queries to output (4), the feed-forward part (3), kept for its backward pass.
    one = tokens * number * (4 * sizes.width + 4 * sizes.attention_width + 3 * sizes.feed_forward)
    kept = {"layers": inputs, "offload": 0.0, "none": one * sizes.layers}[recipe.memory.checkpointing]
    block = 3.0 * 4 * min(tokens, recipe.memory.loss_block_tokens) * sizes.vocabulary
    return Memory(trained_here, kept, one, block)
