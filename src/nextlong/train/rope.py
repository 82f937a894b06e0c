"""RoPE: the base that was asked for is the one that the model computes with, is saved with, and is loaded with.

transformers 5 keeps it in `config.rope_parameters["rope_theta"]` and ignores `config.rope_theta = …` and
`from_pretrained(rope_theta=…)` in silence; so it is set there before the model is made, and afterwards the model's own
`inv_freq` is compared with it.
"""

from __future__ import annotations

from typing import Any, Literal

from nextlong.errors import RecipeError
from nextlong.plain_data import Json

Scaling = Literal["keep", "replace"]


def set_base(config: Any, *, base: float | None, max_tokens: int, scaling: Scaling) -> list[str]:
    """Set RoPE base and longest row in a config, before the model is made; return what was done, in words.

    `base=None` keeps the model's. `scaling`: keep or drop the YaRN, linear or llama3 scaling of the source model.
    Raises RecipeError for rows that the model cannot be stretched to.
    """
    parameters = getattr(config, "rope_parameters", None)
    if not isinstance(parameters, dict) or "rope_theta" not in parameters:
        return _without_rope(config, base=base, max_tokens=max_tokens)
    said = [_scaling(parameters, scaling)]
    before = parameters["rope_theta"]
    if base is None:
        said.append(f"RoPE base: {before:,.0f}, the model's own")
    else:
        parameters["rope_theta"] = float(base)
        said.append(f"RoPE base: {base:,.0f} (the model's was {before:,.0f})")
    longest = config.max_position_embeddings
    if max_tokens > longest:
        if base is None and parameters["rope_type"] == "default":
            raise RecipeError(
                f"rows have {max_tokens:,} tokens and the model was made for {longest:,}; set model.rope_base (the paper: "
                "200,000,000 for 131,072 tokens), or use shorter rows"
            )
        config.max_position_embeddings = max_tokens
        said.append(f"longest row: {max_tokens:,} tokens (the model's was {longest:,})")
    return [line for line in said if line]


def _scaling(parameters: Json, scaling: Scaling) -> str:
    kind = parameters["rope_type"]
    if kind == "default":
        return ""
    if scaling == "keep":
        return f"RoPE scaling: {kind}, kept from the source model (model.rope_scaling=replace drops it)"
    for key in [key for key in parameters if key not in ("rope_theta", "partial_rotary_factor")]:
        del parameters[key]
    parameters["rope_type"] = "default"
    return f"RoPE scaling: {kind} of the source model replaced by the base alone"


def _without_rope(config: Any, *, base: float | None, max_tokens: int) -> list[str]:
    longest = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if base is not None:
        raise RecipeError(f"model.rope_base={base:g} but {config.model_type} has no single RoPE base; leave it out")
    if longest is not None and max_tokens > longest:
        raise RecipeError(
            f"rows have {max_tokens:,} tokens, and {config.model_type} cannot be stretched beyond {longest:,}; use shorter rows or "
            "a model with rotary positions"
        )
    return [f"positions: {config.model_type}'s own"]


def check_base(model: Any) -> None:
    """Assert that the frequencies of the model are those of its config's base."""
    import torch

    parameters = getattr(model.config, "rope_parameters", None)
    rotary = getattr(model.get_decoder(), "rotary_emb", None)
    if rotary is None or not isinstance(parameters, dict) or parameters.get("rope_type") != "default":
        return
    computed, _ = rotary.compute_default_rope_parameters(model.config)
    held = rotary.inv_freq.float().cpu()
    assert torch.equal(held, computed.float().cpu()), (
        f"inv_freq is not that of base {parameters['rope_theta']}: {held[1]:.3e} against {computed[1]:.3e}"
    )
