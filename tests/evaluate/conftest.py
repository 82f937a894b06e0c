"""A tiny Llama with a tokenizer, on disk, and data of every benchmark, made up."""

import pytest

from evaluation_data import bpe_tokenizer, write_data


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A folder with a random Llama of 4,096 tokens; read-only."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe_tokenizer(), bos_token="<bos>", eos_token="<eos>")
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=1,
        initializer_range=0.3,  # sharp enough that the greedy choice is no tie
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory):
    """A folder with every file that the tasks read, but HELMET's own; read-only."""
    return write_data(tmp_path_factory.mktemp("data"))
