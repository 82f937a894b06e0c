"""The configuration of a Llama of 8 billion parameters, as its folder holds it; no weights."""

LLAMA = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14_336, "num_attention_heads": 32,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "tie_word_embeddings": False,
    "vocab_size": 128_256,
}  # fmt: skip


def llama_3_8b():
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        tie_word_embeddings=False,
    )
