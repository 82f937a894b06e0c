"""Small models of each RoPE type, and their logits."""

from pathlib import Path

LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [1, 1.5, 2, 3, 4, 4, 4, 4],
    "original_max_position_embeddings": 32,
}
SCALED = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0},
    "yarn without a factor": {
        "rope_type": "yarn",
        "factor": None,
        "original_max_position_embeddings": 32,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "longrope": LONGROPE,
    "longrope with a factor": {**LONGROPE, "factor": 2.0},
    "longrope with an attention factor": {**LONGROPE, "attention_factor": 1.5},
}


def scaled_model(name, folder):
    """Save a model for 128 tokens that has a RoPE scaling; return its folder."""
    import torch
    import transformers

    kind = "Phi3" if name.startswith("longrope") else "Llama"
    own = {"original_max_position_embeddings": 32} if kind == "Phi3" else {}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        rope_parameters={"rope_theta": 1e4, **SCALED[name]},
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        **own,
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for one in model.parameters():
            one.mul_(4)  # so that positions are seen in the logits
    model.save_pretrained(folder)
    return Path(folder)


def logits(folder, ids):
    """Return the logits of one document by a model that has seen no other."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        return model(input_ids=ids).logits
