"""Presets: sizes of a replication, and what each can and cannot show. The report repeats both, word for word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from nextlong.errors import RecipeError
from nextlong.replicate.recipe import Replication


@dataclass(frozen=True)
class Preset:
    """The keys of a recipe, and what a replication of this size can and cannot show.

    `hardware` is what its time is planned for; `carried_out` says whether this command runs it, or prints how to.
    """

    keys: Mapping[str, Any]
    shows: str
    cannot: str
    hardware: Literal["here", "H100"] = "here"
    carried_out: Literal["here", "elsewhere"] = "here"


_SMOKE: Final = Preset(
    keys={
        "data": {"max_chars": 512, "sequences": 16, "settings": {"executor": "serial"}},
        "model": {"hidden_size": 64, "intermediate_size": 160, "layers": 2, "heads": 2, "key_value_heads": 1},
        "pretrain": {
            "tokens": 256,
            "steps": 24,
            "tokens_per_step": 4096,
            "lr": 5e-3,
            "warmup_steps": 4,
            "micro_batch_rows": 4,
        },
        "extend": {
            "tokens": 2048,
            "steps": 6,
            "tokens_per_step": 4096,
            "lr": 2e-3,
            "warmup_steps": 2,
            "rope_base": 80_000.0,
            "micro_batch_rows": 2,
        },
        "precision": "fp32",
        "granularity": [256, 512, 1024],
        "corpus": {"held_out_chars": 400_000},
        "measure": {
            "tasks": ["needle", "json_kv", "niah_single_1", "key_values", "copying", "attention"],
            "lengths": [1024, 2048],
            "samples": 3,
            "sequences": 4,
        },
    },
    shows="that every part works: data, training, measuring, resuming and reporting, with the numbers of this very run.",
    cannot="which method is better. A model of some 0.4 million parameters that has read 0.1 million tokens answers no question; "
    "differences between its rows are noise, whichever way they point.",
)

_CPU_NIGHT: Final = Preset(
    keys={
        "data": {"max_chars": 1024, "sequences": 768},
        "model": {"hidden_size": 256, "intermediate_size": 688, "layers": 4, "heads": 4, "key_value_heads": 2},
        "pretrain": {
            "tokens": 512,
            "steps": 500,
            "tokens_per_step": 16_384,
            "lr": 2e-3,
            "warmup_steps": 50,
            "micro_batch_rows": 4,
        },
        "extend": {
            "tokens": 4096,
            "steps": 192,
            "tokens_per_step": 16_384,
            "lr": 1e-3,
            "warmup_steps": 20,
            "rope_base": 200_000.0,
        },
        "granularity": [256, 512, 1024, 2048, 4096],
        "measure": {"lengths": [1024, 2048, 4096], "samples": 40, "sequences": 40},
    },
    shows="whether the order of the methods shows in what such models can do at all: the loss of meta-chunks by the distance to "
    "the one before, copying a passage from far back, and choosing a value by its key.",
    cannot="anything of the benchmarks' questions: models of four million parameters are too small for needles, JSON KV and RULER, "
    "and rows of zeros there say nothing of the data. Nor does it say that an order found here holds at 8 "
    "billion parameters and 128K tokens.",
)

_ONE_GPU: Final = Preset(
    keys={
        "data": {"vocabulary": 16_384, "max_chars": 1024, "sequences": 1024},
        "model": {"hidden_size": 512, "intermediate_size": 1408, "layers": 8, "heads": 8, "key_value_heads": 4},
        "pretrain": {
            "tokens": 1024,
            "steps": 600,
            "tokens_per_step": 65_536,
            "lr": 1.5e-3,
            "warmup_steps": 60,
            "micro_batch_rows": 32,
        },
        "extend": {
            "tokens": 8192,
            "steps": 128,
            "tokens_per_step": 65_536,
            "lr": 8e-4,
            "warmup_steps": 12,
            "rope_base": 500_000.0,
            "micro_batch_rows": 4,
        },
        "granularity": [512, 1024, 2048, 4096, 8192],
        "measure": {"lengths": [2048, 4096, 8192], "samples": 50, "sequences": 50, "batch_tokens": 262_144},
    },
    shows="the order of the methods on copying, on choosing a value by its key and on the loss by distance, at 8K tokens; whether "
    "needles and RULER's simplest tasks rise above 0 in models of this size, its report says.",
    cannot="the paper's table: a model of some 30 million parameters that has read 40 million tokens has no knowledge to be asked "
    "for. It is sized for 30 minutes of one modern GPU from its count of operations, and was never run on one by those who "
    "wrote it.",
    hardware="H100",
)

_PAPER: Final = Preset(
    keys={
        "data": {"tokenizer": "meta-llama/Meta-Llama-3-8B", "max_chars": 2048, "sequences": 32_000},
        "model": {
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "layers": 32,
            "heads": 32,
            "key_value_heads": 8,
            "vocabulary": 128_256,
        },
        "pretrain": {"tokens": 8192, "steps": 1, "tokens_per_step": 8192, "warmup_steps": 0, "rope_base": 500_000.0},
        "extend": {
            "tokens": 131_072,
            "steps": 1000,
            "tokens_per_step": 4_194_304,
            "lr": 4e-5,
            "min_lr_ratio": 0.0,
            "warmup_steps": 200,
            "rope_base": 200_000_000.0,
        },
        "measure": {"lengths": [8192, 16_384, 32_768, 65_536, 131_072], "samples": 100, "sequences": 100},
    },
    shows="the paper's own comparison (Table 1), at its size.",
    cannot="be run by this command: it prints the plan, and the commands that carry it out on a cluster.",
    hardware="H100",
    carried_out="elsewhere",
)

PRESETS: Final[Mapping[str, Preset]] = {
    "smoke": _SMOKE,
    "cpu-night": _CPU_NIGHT,
    "one-gpu": _ONE_GPU,
    "paper": _PAPER,
}


def preset_of(recipe: Replication) -> Preset | None:
    """Return the preset that a recipe was made from."""
    return PRESETS.get(recipe.preset or "")


def is_only_planned(recipe: Replication) -> bool:
    """Say whether this command only prints how to carry it out."""
    preset = preset_of(recipe)
    return preset is not None and preset.carried_out == "elsewhere"


def preset(name: str) -> Preset:
    """Return a preset. Raises RecipeError for a name that is none."""
    if name not in PRESETS:
        raise RecipeError(f"--preset {name!r} is not known; choose from {', '.join(PRESETS)}, mechanism")
    return PRESETS[name]


def recipe_from(name: str, *, out: str, sources: Sequence[str] = (), overrides: Sequence[str] = ()) -> Replication:
    """Return the recipe of a preset over the user's files (none: Python's own documentation)."""
    keys = {**preset(name).keys, "out": out, "preset": name}
    corpus = {**keys.get("corpus", {}), "sources": [{"path": path} for path in sources]}
    return Replication.from_dict({**keys, "corpus": corpus}, overrides=overrides, origin=f"--preset {name}")
