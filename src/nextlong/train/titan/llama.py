"""Llama: the model that torchtitan builds, with every size from config.json, so that models of any size can be trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from nextlong.errors import RecipeError
from nextlong.plain_data import Json
from nextlong.train.titan.versions import Interface

# What torchtitan's Llama has built in; a model that differs would be computed otherwise in silence.
_BUILT_IN: Final = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "sliding_window": None,
}
_ARCHITECTURES: Final = ("llama", "mistral")
_LLAMA3_SCALING: Final = {
    "factor": "scaling_factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_max_position_embeddings": "original_max_position_embeddings",
}


def check(config: Any, *, path: str) -> None:
    """Raise RecipeError unless torchtitan's Llama computes the same as the model of a config of transformers."""
    if config.model_type not in _ARCHITECTURES:
        raise RecipeError(
            f"model.path={path!r} is a {config.model_type}; the engine torchtitan trains {' and '.join(_ARCHITECTURES)}: train "
            "it on one device with --engine nextlong, or use --emit axolotl"
        )
    differs = {
        key: value for key, built_in in _BUILT_IN.items() if (value := getattr(config, key, built_in)) != built_in
    }
    head_dim = getattr(config, "head_dim", None)
    if head_dim not in (None, config.hidden_size // config.num_attention_heads):
        differs["head_dim"] = head_dim
    scaling = config.rope_parameters["rope_type"]
    if scaling not in ("default", "llama3"):
        differs["rope_scaling"] = scaling
    if differs:
        raise RecipeError(
            f"model.path={path!r} has {', '.join(f'{key}={value!r}' for key, value in differs.items())}, which torchtitan's Llama "
            "cannot express; "
            + ("set model.rope_scaling=replace" if "rope_scaling" in differs else "use --emit axolotl")
        )


def spec(config: Any, *, interface: Interface, row_tokens: int, float8: bool) -> Any:
    """Return torchtitan's ModelSpec of a checked config, for rows of up to `row_tokens` tokens."""
    from torchtitan.models import llama3
    from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm

    width, vocabulary, heads = config.hidden_size, config.vocab_size, config.num_attention_heads
    rope = ComplexRoPE.Config(dim=width // heads, **interface.rope(row_tokens), **_rope(config.rope_parameters))
    layers = llama3._build_llama3_layers(
        n_layers=config.num_hidden_layers,
        dim=width,
        n_heads=heads,
        n_kv_heads=config.num_key_value_heads,
        hidden_dim=config.intermediate_size,
        rope=rope,
        attn_backend="flex",
    )
    embedding_init = llama3._EMBEDDING_SKIP_INIT if config.tie_word_embeddings else llama3._EMBEDDING_INIT
    model = llama3.Llama3Model.Config(
        dim=width,
        vocab_size=vocabulary,
        enable_weight_tying=config.tie_word_embeddings,
        tok_embeddings=Embedding.Config(num_embeddings=vocabulary, embedding_dim=width, param_init=embedding_init),
        norm=RMSNorm.Config(normalized_shape=width, param_init=llama3._NORM_INIT),
        lm_head=Linear.Config(in_features=width, out_features=vocabulary, param_init=llama3._output_linear_init(width)),
        layers=layers,
    )
    for _, norm, above, name in list(model.traverse(RMSNorm.Config)):
        setattr(above, str(name), replace(norm, eps=config.rms_norm_eps))
    if float8:
        from torchtitan.components.quantization import Float8LinearConverter

        model = Float8LinearConverter.Config(filter_fqns=["lm_head"]).build().convert(model)
    parts = {"parallelize_fn": llama3.parallelize_llama, "pipelining_fn": None, "post_optimizer_build_fn": None}
    adapter = llama3.Llama3StateDictAdapter
    return llama3.ModelSpec(name="llama3", flavor="config.json", model=model, state_dict_adapter=adapter, **parts)


def _rope(parameters: Json) -> Json:
    """Return RoPE's base and the scaling of Llama 3.1 and later, with the factors of the model's own config.json."""
    options: Json = {"theta": float(parameters["rope_theta"]), "scaling": "none"}
    if parameters["rope_type"] == "llama3":
        options |= {"scaling": "llama", **{ours: parameters[theirs] for theirs, ours in _LLAMA3_SCALING.items()}}
    return options
