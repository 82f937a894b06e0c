"""Initial: a small Llama whose first layer looks one token back, from which retrieval forms within few steps.

Retrieval needs a head that attends to the previous token, whatever that is. Queries and keys of a Llama have no bias, so a
model of this size spends most of its training on finding such a head. Here they have biases (as Qwen 2's do), and those of one
head of the first layer start at values that make it look one token back. All other weights are random, and all are trained.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch

ROPE_BASE: Final = 10_000.0
_SHARPNESS: Final = 8.0  # of that head: it gives over 0.9 of its attention to the token before


def save(
    folder: Path,
    *,
    vocabulary: int,
    row_tokens: int,
    seed: int,
    hidden_size: int,
    intermediate_size: int,
    layers: int,
    heads: int,
) -> None:
    """Write the model into a folder that `from_pretrained` loads; `row_tokens` are those of the longest row."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        tie_word_embeddings=True,
        attention_bias=True,
        initializer_range=hidden_size**-0.5,
        max_position_embeddings=row_tokens,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_BASE},
    )
    model = LlamaForCausalLM(config)
    _look_back(model.model.layers[0].self_attn, size=hidden_size // heads)
    model.save_pretrained(folder)


@torch.no_grad()  # type: ignore[untyped-decorator]
def _look_back(attention: Any, *, size: int) -> None:
    """Give the first head biases whose product, once RoPE has turned them, is greatest one token back."""
    angles = ROPE_BASE ** (-torch.arange(0, size, 2) / size)
    attention.k_proj.bias[:size] = _SHARPNESS * torch.cat([torch.ones(size // 2), torch.zeros(size // 2)])
    attention.q_proj.bias[:size] = _SHARPNESS * torch.cat([torch.cos(angles), -torch.sin(angles)])
    for projection in (attention.q_proj, attention.k_proj):
        projection.weight[:size] *= 0.1  # contents weigh little at first
