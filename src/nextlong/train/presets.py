"""Presets: the published training settings as keys of a recipe, each number with where it stands.

`paper-…` are the paper's tables, `authors-…` what the authors' released scripts say instead; they differ, so both are here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from nextlong.errors import RecipeError
from nextlong.plain_data import Json
from nextlong.train.recipe import TrainRecipe

TABLE_128K: Final = "paper, table of the 128K training setting"
TABLE_512K: Final = "paper, table of the 512K training setting"
SECTION_4: Final = "paper, section 4.2"
APPENDIX: Final = "paper, appendix C.2"
SCRIPT: Final = "the authors' released script for 512K"
PROLONG: Final = "ProLong's train_sft.sh, which the paper follows (section 5.2)"
OURS: Final = "ours: what the engine needs"
DEMO: Final = "ours: two minutes on two cores"


class Sourced(NamedTuple):
    """A value and where it stands."""

    value: Any
    source: str


_ADAMW: Final = {"training.beta1": 0.9, "training.beta2": 0.95, "training.clip": 1.0, "training.weight_decay": 0.1}


def _common(source: str) -> dict[str, Sourced]:
    words = {"training.precision": "bf16", "training.schedule": "cosine"}
    return {key: Sourced(value, source) for key, value in {**_ADAMW, **words}.items()}


_128K: Final = {
    **_common(TABLE_128K),
    "model.rope_base": Sourced(200_000_000.0, TABLE_128K),
    "training.lr": Sourced(4e-5, TABLE_128K),
    "training.min_lr_ratio": Sourced(0.0, "GPT-NeoX's default min_lr; the paper names none"),
    "training.steps": Sourced(1000, TABLE_128K),
    "training.warmup_steps": Sourced(200, TABLE_128K),
    "training.tokens_per_step": Sourced(4_194_304, f"{SECTION_4}: 4M tokens, 32 rows of 131,072"),
    "attention": Sourced("sequence", "ours: each sequence fills a row, as appendix C.2 does at 512K"),
    "data.validation": Sourced(0.0, f"{SECTION_4}: all 32,000 sequences are trained on, once"),
    "hardware.device": Sourced("H100", TABLE_128K),
    "hardware.count": Sourced(64, TABLE_128K),
    "hardware.ranks_per_row": Sourced(2, "ours: 64 GPUs for 32 rows a step"),
}
_512K: Final = {
    **_common(TABLE_512K),
    "model.rope_base": Sourced(128_000_000.0, TABLE_512K),
    "training.lr": Sourced(1e-5, TABLE_512K),
    "training.min_lr_ratio": Sourced(0.0, "the paper names none"),
    "training.steps": Sourced(500, TABLE_512K),
    "training.warmup_steps": Sourced(50, TABLE_512K),
    "training.tokens_per_step": Sourced(8_388_608, f"{SCRIPT}; the paper names none for 512K"),
    "attention": Sourced("sequence", f"{APPENDIX}: eight 64K sequences a row, each sees itself alone"),
    "data.pack": Sourced(524_288, f"{TABLE_512K}: seq-length"),
    "data.mix": Sourced((1.0, 2.0), f"{APPENDIX}: 512K : 64K = 1 : 2"),
    "data.by": Sourced("tokens", f"{APPENDIX}: of training samples, which all have 524,288 tokens"),
    "data.validation": Sourced(0.0, "the paper names none"),
    "hardware.device": Sourced("H100", TABLE_512K),
    "hardware.count": Sourced(128, TABLE_512K),
    "hardware.ranks_per_row": Sourced(8, f"{SCRIPT}: seq_parallel_size"),
}
_SFT: Final = {
    **_common(PROLONG),
    "training.lr": Sourced(2e-5, PROLONG),
    "training.min_lr_ratio": Sourced(0.1, PROLONG),
    "training.steps": Sourced(250, PROLONG),
    "training.warmup_steps": Sourced(13, f"{PROLONG}: 5 % of 250"),
    "training.tokens_per_step": Sourced(4_194_304, f"{PROLONG}: 64 rows of 65,536"),
    "attention": Sourced("sequence", f"{PROLONG}: a conversation sees itself alone"),
    "data.pack": Sourced(65_536, PROLONG),
    "data.validation": Sourced(0.0, PROLONG),
}

PRESETS: Final[Mapping[str, Mapping[str, Sourced]]] = {
    "paper-128k": _128K,
    "paper-512k": _512K,
    "paper-sft": _SFT,
    "authors-512k": {
        **_512K,
        "training.lr": Sourced(5e-6, SCRIPT),
        "training.min_lr_ratio": Sourced(0.1, SCRIPT),
        "data.mix": Sourced((33.33, 66.67), SCRIPT),
    },
    "tiny": {
        "model.rope_base": Sourced(10_000.0, DEMO),
        "model.scratch": Sourced(
            {"hidden_size": 96, "intermediate_size": 256, "layers": 2, "heads": 3, "key_value_heads": 1}, DEMO
        ),
        "training.lr": Sourced(1.5e-3, DEMO),
        "training.steps": Sourced(60, DEMO),
        "training.warmup_steps": Sourced(4, DEMO),
        "training.tokens_per_step": Sourced(8_192, DEMO),
        "training.precision": Sourced("fp32", DEMO),
        "data.validation": Sourced(0.15, DEMO),
        "memory.checkpointing": Sourced("none", DEMO),
        "checkpoints.every_steps": Sourced(20, DEMO),
        "held_out.every_steps": Sourced(15, DEMO),
        "held_out.rows": Sourced(4, DEMO),
    },
}


def preset(name: str) -> Mapping[str, Sourced]:
    """Return the keys of a preset. Raises RecipeError for a name that is none."""
    if name not in PRESETS:
        raise RecipeError(f"--preset {name!r} is not known; choose from {', '.join(PRESETS)}")
    return PRESETS[name]


def filled(keys: Mapping[str, Sourced]) -> Json:
    """Return the keys of a preset as nested sections, for `TrainRecipe.from_dict`."""
    sections: Json = {}
    for key, sourced in keys.items():
        *above, last = key.split(".")
        section = sections
        for part in above:
            section = section.setdefault(part, {})
        section[last] = sourced.value
    return sections


def recipe_from(
    name: str | None, *, out: str, data: Mapping[str, Any], model: str | None, overrides: tuple[str, ...] = ()
) -> TrainRecipe:
    """Return the recipe of a preset, or of the defaults, over the user's data and model."""
    sections = filled(preset(name) if name else {})
    if len(data.get("runs", ())) == 1:
        sections.get("data", {}).pop("mix", None)
        sections.get("data", {}).pop("by", None)
    sections["data"] = {**sections.get("data", {}), **data}
    if model is not None:
        sections["model"] = {key: value for key, value in sections.get("model", {}).items() if key != "scratch"}
        sections["model"] |= {"path": model}
    return TrainRecipe.from_dict({"out": out, **sections}, overrides=overrides)
