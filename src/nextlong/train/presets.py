"""Presets: the published training settings as keys of a recipe, each with its source, and the YAML file that shows both.

`paper-…` are the paper's tables, `authors-…` the authors' released scripts, which differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import yaml
from pydantic import BaseModel

from nextlong.errors import RecipeError
from nextlong.train.recipe import TrainRecipe

TABLE_128K: Final = "paper, table of the 128K training setting"
_TABLE_512K: Final = "paper, table of the 512K training setting"
_SECTION_4: Final = "paper, section 4.2"
_APPENDIX: Final = "paper, appendix C.2"
SCRIPT: Final = "the authors' released script for 512K"
_PROLONG: Final = "ProLong's train_sft.sh, which the paper follows (section 5.2)"
_DEMO: Final = "ours: two minutes on two cores"
_COMMENT_COLUMN: Final = 46


class Sourced(NamedTuple):
    """A value and its source."""

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
    "training.tokens_per_step": Sourced(4_194_304, f"{_SECTION_4}: 4M tokens, 32 rows of 131,072"),
    "attention": Sourced("sequence", "ours: each sequence fills a row, as appendix C.2 does at 512K"),
    "data.validation": Sourced(0.0, f"{_SECTION_4}: all 32,000 sequences are trained on, once"),
    "hardware.device": Sourced("H100", TABLE_128K),
    "hardware.count": Sourced(64, TABLE_128K),
    "hardware.ranks_per_row": Sourced(2, "ours: 64 GPUs for 32 rows per step"),
}
_512K: Final = {
    **_common(_TABLE_512K),
    "model.rope_base": Sourced(128_000_000.0, _TABLE_512K),
    "training.lr": Sourced(1e-5, _TABLE_512K),
    "training.min_lr_ratio": Sourced(0.0, "the paper names none"),
    "training.steps": Sourced(500, _TABLE_512K),
    "training.warmup_steps": Sourced(50, _TABLE_512K),
    "training.tokens_per_step": Sourced(8_388_608, f"{SCRIPT}; the paper names none for 512K"),
    "attention": Sourced("sequence", f"{_APPENDIX}: eight 64K sequences a row, each attends to itself alone"),
    "data.pack": Sourced(524_288, f"{_TABLE_512K}: seq-length"),
    "data.mix": Sourced((1.0, 2.0), f"{_APPENDIX}: 512K : 64K = 1 : 2"),
    "data.by": Sourced("tokens", f"{_APPENDIX}: of training samples, which all have 524,288 tokens"),
    "data.validation": Sourced(0.0, "the paper names none"),
    "hardware.device": Sourced("H100", _TABLE_512K),
    "hardware.count": Sourced(128, _TABLE_512K),
    "hardware.ranks_per_row": Sourced(8, f"{SCRIPT}: seq_parallel_size"),
}
_SFT: Final = {
    **_common(_PROLONG),
    "training.lr": Sourced(2e-5, _PROLONG),
    "training.min_lr_ratio": Sourced(0.1, _PROLONG),
    "training.steps": Sourced(250, _PROLONG),
    "training.warmup_steps": Sourced(13, f"{_PROLONG}: 5 % of 250"),
    "training.tokens_per_step": Sourced(4_194_304, f"{_PROLONG}: 64 rows of 65,536"),
    "attention": Sourced("sequence", f"{_PROLONG}: a conversation attends to itself alone"),
    "data.pack": Sourced(65_536, _PROLONG),
    "data.validation": Sourced(0.0, _PROLONG),
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
        "model.rope_base": Sourced(10_000.0, _DEMO),
        "model.scratch": Sourced(
            {"hidden_size": 96, "intermediate_size": 256, "layers": 2, "heads": 3, "key_value_heads": 1}, _DEMO
        ),
        "training.lr": Sourced(1.5e-3, _DEMO),
        "training.steps": Sourced(60, _DEMO),
        "training.warmup_steps": Sourced(4, _DEMO),
        "training.tokens_per_step": Sourced(8_192, _DEMO),
        "training.precision": Sourced("fp32", _DEMO),
        "data.validation": Sourced(0.15, _DEMO),
        "memory.checkpointing": Sourced("none", _DEMO),
        "checkpoints.every_steps": Sourced(20, _DEMO),
        "held_out.every_steps": Sourced(15, _DEMO),
        "held_out.rows": Sourced(4, _DEMO),
    },
}


def preset(name: str) -> Mapping[str, Sourced]:
    """Return the keys of a preset. Raises RecipeError for a name that is none."""
    if name not in PRESETS:
        raise RecipeError(f"--preset {name!r} is not known; choose from {', '.join(PRESETS)}")
    return PRESETS[name]


def recipe_from(
    name: str | None, *, out: str, data: Mapping[str, Any], model: str | None, overrides: tuple[str, ...] = ()
) -> TrainRecipe:
    """Return the recipe of a preset, or of the defaults, over the user's data and model."""
    unused = {"data.mix", "data.by"} if len(data.get("runs", ())) == 1 else set()
    unused |= {"model.scratch"} if model is not None else set()
    keys = preset(name) if name else {}
    of_preset = [f"{key}={_yaml(sourced.value)}" for key, sourced in keys.items() if key not in unused]
    plain = {"out": out, "data": data, **({} if model is None else {"model": {"path": model}})}
    return TrainRecipe.from_dict(plain, overrides=[*of_preset, *overrides])


def commented_yaml(recipe: BaseModel, *, sources: Mapping[str, Sourced], heading: str) -> str:
    """Return a recipe as YAML with a comment at every key: what it means, and the source of values that a preset set."""
    lines = [*(f"# {line}".rstrip() for line in heading.splitlines()), ""]
    return "\n".join([*lines, *_commented_section(recipe, sources, above="", indent="")]) + "\n"


def _commented_section(section: BaseModel, sources: Mapping[str, Sourced], *, above: str, indent: str) -> Iterator[str]:
    for name, field in type(section).model_fields.items():
        value, key = getattr(section, name), f"{above}{name}"
        if isinstance(value, BaseModel):
            meaning = (type(value).__doc__ or "").strip().splitlines()
            yield f"{indent}{name}:" + (f"  # {meaning[0]}" if meaning and not meaning[0].startswith("!") else "")
            yield from _commented_section(value, sources, above=f"{key}.", indent=f"{indent}  ")
            continue
        comment = field.description or ""
        if key in sources and sources[key].value == value:
            comment = "; ".join(filter(None, [f"[{sources[key].source}]", comment]))
        line = f"{indent}{name}: {_yaml(value)}"
        yield f"{line:<{_COMMENT_COLUMN}}  # {comment}" if comment else line


def _yaml(value: Any) -> str:
    if isinstance(value, tuple):
        plain = [one.model_dump(mode="json") if isinstance(one, BaseModel) else one for one in value]
        return json.dumps(plain, ensure_ascii=False)
    if isinstance(value, float):
        return yaml.safe_dump(value).splitlines()[0]  # 1.0e-05: what JSON writes, 1e-05, is a word in YAML
    return json.dumps(value, ensure_ascii=False)
