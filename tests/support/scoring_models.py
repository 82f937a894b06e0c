"""Tiny causal models to score texts by, as folders on disk."""

from pathlib import Path

from tests.support.evaluation_data import bpe_tokenizer


def scoring_model(folder, *, begins_texts=False, context=512, seed=3):
    """Save a random Llama with a tokenizer that puts <bos> before each text, or not; return its folder."""
    import torch
    from tokenizers import processors
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    backend = bpe_tokenizer()
    if not begins_texts:
        backend.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>"
    )
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=context,
        bos_token_id=0,
        eos_token_id=1,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Path(folder)
