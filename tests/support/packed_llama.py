"""A small Llama with an attention of one's choice, and rows of several documents for it."""

from itertools import pairwise

BOUNDS = [0, 130, 131, 300, 520]


def llama(kernel, **sizes):
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    from nextlong.train.attention import register_attention

    config = LlamaConfig(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        use_cache=False,
        **sizes,
    )
    torch.manual_seed(0)
    name = register_attention(kernel) if kernel != "stock" else "sdpa"
    return AutoModelForCausalLM.from_config(config, attn_implementation=name)


def packed(bounds, seed=1):
    import torch

    torch.manual_seed(seed)
    ids = torch.randint(97, (1, bounds[-1]))
    positions = torch.cat(
        [torch.arange(last - first) for first, last in pairwise(bounds)]
    )[None]
    return {
        "input_ids": ids,
        "position_ids": positions,
        "cu_seq_lens_q": torch.tensor(bounds, dtype=torch.int32),
    }


def alone(first, last, ids):
    import torch

    return {
        "input_ids": ids[:, first:last],
        "position_ids": torch.arange(last - first)[None],
    }
