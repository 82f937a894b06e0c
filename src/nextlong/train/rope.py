"""RoPE: set the base for the rows of a training, and write it for all readers.

In:  a config of transformers, a recipe, the tokens of the longest document; a folder.
Out: the config changed, and notes on it; config.json with the keys of transformers 4.

transformers 5 keeps the base in `config.rope_parameters["rope_theta"]` and silently
ignores `config.rope_theta = …` and `from_pretrained(rope_theta=…)`. So the base is set
there before the model is made: the base of the recipe is the one that the model
computes with, is saved with, and is loaded with.
"""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from nextlong.engine import store
from nextlong.errors import RecipeError
from nextlong.train.recipe import TrainRecipe


def set_rope_base(
    config: PretrainedConfig, recipe: TrainRecipe, *, max_tokens: int
) -> list[str]:
    """Set RoPE base and longest document in a config, and return notes.

    Raises RecipeError where the model cannot be extended.
    """
    base = recipe.model.rope_base
    parameters = getattr(config, "rope_parameters", None)
    if not isinstance(parameters, dict) or "rope_theta" not in parameters:
        _check_own_positions(config, base=base, max_tokens=max_tokens)
        return [f"positions: {config.model_type}'s own"]
    notes = []
    kind = parameters["rope_type"]
    own_base = parameters["rope_theta"]
    if kind != "default" and recipe.model.rope_scaling == "replace":
        # The factors of the scaling that is replaced.
        for key in parameters.keys() - {"rope_theta", "partial_rotary_factor"}:
            del parameters[key]
        parameters["rope_type"] = "default"
        notes.append(
            f"RoPE scaling: {kind} of the source model replaced by the base alone"
        )
    elif kind != "default":
        notes.append(
            f"RoPE scaling: {kind}, kept from the source model "
            "(model.rope_scaling=replace drops it)"
        )
    if base is None:
        notes.append(f"RoPE base: {own_base:,.0f}, the model's own")
    else:
        parameters["rope_theta"] = float(base)
        notes.append(f"RoPE base: {base:,.0f} (the model's was {own_base:,.0f})")
    notes += _raise_longest(config, base=base, max_tokens=max_tokens)
    return notes


def _check_own_positions(
    config: PretrainedConfig, *, base: float | None, max_tokens: int
) -> None:
    """Raise RecipeError where a model without one RoPE base would need another."""
    if base is not None:
        raise RecipeError(
            where="model.rope_base",
            value=f"{base:g}",
            problem=f"cannot be set: {config.model_type} has no single RoPE base",
            fix="leave it out",
        )
    longest = getattr(config, "max_position_embeddings", None)
    longest = longest or getattr(config, "n_positions", None)
    if longest is not None and max_tokens > longest:
        raise RecipeError(
            where="model.path",
            problem=f"rows have {max_tokens:,} tokens, and {config.model_type} cannot "
            f"be extended beyond {longest:,}",
            fix="use shorter rows or a model with rotary positions",
        )


def _raise_longest(
    config: PretrainedConfig, *, base: float | None, max_tokens: int
) -> list[str]:
    """Make a config allow rows of `max_tokens`, and return notes.

    Raises RecipeError.
    """
    longest = config.max_position_embeddings
    kind = config.rope_parameters["rope_type"]
    if max_tokens <= longest:
        return []
    if base is None and kind == "default":
        raise RecipeError(
            where="model.rope_base",
            problem=f"it is not set, rows have {max_tokens:,} tokens and the model was "
            f"made for {longest:,}",
            fix="set model.rope_base (the paper: 200,000,000 for 131,072 tokens), or "
            "use shorter rows",
        )
    if _is_scaled_by_longest(config, max_tokens=max_tokens):
        return [
            f"longest row: {max_tokens:,} tokens; max_position_embeddings stays "
            f"{longest:,}, which RoPE scaling {kind} computes with"
        ]
    config.max_position_embeddings = max_tokens
    return [f"longest row: {max_tokens:,} tokens (the model's was {longest:,})"]


def _is_scaled_by_longest(config: PretrainedConfig, *, max_tokens: int) -> bool:
    """Return whether another `max_position_embeddings` would change the RoPE.

    `dynamic` stretches from it; `longrope` and `yarn` without a factor derive theirs.
    """
    kind = config.rope_parameters["rope_type"]
    if kind == "default":
        return False
    frequencies_of = ROPE_INIT_FUNCTIONS.get(kind)
    if frequencies_of is None:  # a model's own scaling
        return True
    raised = copy.deepcopy(config)
    raised.max_position_embeddings = max_tokens
    own, own_factor = frequencies_of(config, seq_len=max_tokens)
    other, other_factor = frequencies_of(raised, seq_len=max_tokens)
    return own_factor != other_factor or not torch.equal(own, other)


def write_rope_keys(folder: Path) -> None:
    """Add the RoPE keys of transformers 4 to a folder's config.json, if it has one.

    transformers 5 writes `rope_parameters` alone. Version 4, and servers that follow
    it, ignore that key: they would silently compute with a base of 10,000.
    """
    path = folder / "config.json"
    # Adapters alone have none.
    if not path.exists():
        return
    config = store.read_json(path)
    parameters = config.get("rope_parameters")
    if not isinstance(parameters, dict) or "rope_theta" not in parameters:
        return
    scaling = dict(parameters)
    config["rope_theta"] = scaling.pop("rope_theta")
    if "partial_rotary_factor" in scaling:
        config["partial_rotary_factor"] = scaling.pop("partial_rotary_factor")
    kind = scaling.pop("rope_type")
    if config.get("original_max_position_embeddings") is not None:
        # Phi-3's, beside which version 4 refuses it among the parameters.
        scaling.pop("original_max_position_embeddings", None)
    # Version 4 names the type of longrope by its older key, and reads no other.
    scaling["type" if kind == "longrope" else "rope_type"] = kind
    config["rope_scaling"] = None if kind == "default" else scaling
    store.write_json(path, config)
