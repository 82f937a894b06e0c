"""Plan: models, tokens, hours and disk of a replication, before anything runs.

Hours of a GPU are counted from operations, at the share of its peak that the paper's two trainings had
(`nextlong.train.plan`); hours here are measured, on one and two layers of the model and a row of each length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from rich.console import Console

from nextlong.plain_data import Json
from nextlong.replicate import measure
from nextlong.replicate.data import HELD_OUT_NEGATIVES
from nextlong.replicate.presets import is_only_planned, preset_of
from nextlong.replicate.recipe import KEYS, Phase, Replication
from nextlong.report import tables
from nextlong.train import costs, machines, presets
from nextlong.train import plan as train_plan
from nextlong.train.recipe import TrainRecipe

_READ_COST: Final = 1 / 3  # of reading a token against training on it: without the backward pass
_TOKEN_BYTES: Final = 4
_COPIES_OF_TOKENS: Final = 3  # tokens, rows, the exported files
_STATE_BYTES: Final = 12  # of a weight in a checkpoint: itself and Adam's two moments, float32
_FINAL_BYTES: Final = {"bf16": 2, "fp32": 4}


@dataclass(frozen=True)
class _Plan:
    """What a replication takes."""

    sizes: costs.Sizes
    models: int
    pretrained_tokens: int
    extended_tokens: int
    measured_tokens: int
    seconds: float
    disk_bytes: float
    basis: str


def show(recipe: Replication, console: Console) -> None:
    """Print the plan; for a preset that is carried out elsewhere, also the commands for that.

    Raises RecipeError for a task that is none.
    """
    measure.check(recipe)
    if not is_only_planned(recipe):
        tables.show_facts([*_small(recipe, _plan(recipe))], console)
        return
    tables.show_facts([*_paper(recipe)], console)
    for line in _commands(recipe):
        tables.say(line, console)


def as_json(recipe: Replication) -> Json:
    """Return the plan as plain dictionaries and lists. Raises RecipeError for a task that is none."""
    measure.check(recipe)
    if is_only_planned(recipe):
        return {"preset": recipe.preset, "facts": dict(_paper(recipe)), "commands": list(_commands(recipe))}
    plan = _plan(recipe)
    return {"preset": recipe.preset, **asdict(plan), "facts": dict(_small(recipe, plan))}


def _small(recipe: Replication, planned: _Plan) -> Iterator[tuple[str, str]]:
    bases, extended = len(recipe.seeds), planned.models - len(recipe.seeds)
    yield "models", f"{planned.sizes.parameters:,} parameters; {bases} pretrained, {extended} extended, each measured"
    yield (
        "training",
        (
            f"{planned.pretrained_tokens:,} tokens in rows of {recipe.pretrain.tokens:,}, "
            f"{planned.extended_tokens:,} in rows of "
            f"{recipe.extend.tokens:,}, {planned.pretrained_tokens + planned.extended_tokens:,} in all"
        ),
    )
    lengths = ", ".join(f"{length:,}" for length in recipe.measure.lengths)
    yield (
        "measuring",
        f"{', '.join(recipe.measure.tasks)}, dependency; at {lengths} tokens, {planned.measured_tokens:,} tokens read",
    )
    yield (
        "data",
        f"{recipe.data.sequences:,} sequences of {recipe.extend.tokens:,} tokens for each of {_arms(recipe)} runs",
    )
    yield "time", f"at least {_duration(planned.seconds)} ({planned.basis}); answers, data and reports come on top"
    yield "disk", f"{planned.disk_bytes / 2**30:.2f} GiB and the corpus"
    if preset := preset_of(recipe):
        yield "shows", preset.shows
        yield "cannot", preset.cannot


def _paper(recipe: Replication) -> Iterator[tuple[str, str]]:
    """Yield the plan of the paper's own training: per model from its table, by operations, and in all."""
    training = _paper_training()
    config = _config(recipe, tied=False)
    made = train_plan.plan(training, config, [[recipe.extend.tokens]] * 32)
    gpus, extended = training.hardware.count, _arms(recipe) * len(recipe.seeds)
    hours = made.seconds / 3600
    sequence_bytes = recipe.data.sequences * recipe.extend.tokens * _TOKEN_BYTES * _COPIES_OF_TOKENS
    checkpoint = made.sizes.parameters * _STATE_BYTES
    steps = recipe.extend.steps
    yield (
        "model",
        (
            f"Meta-Llama-3-8B ({made.sizes.parameters:,} parameters), {steps:,} steps of "
            f"{recipe.extend.tokens_per_step:,} tokens, "
            f"rows of {recipe.extend.tokens:,}, lr {recipe.extend.lr:g}, {recipe.extend.warmup_steps} steps of warm-up, "
            f"RoPE base {recipe.extend.rope_base:,.0f} ({presets.TABLE_128K})"
        ),
    )
    yield "runs", f"{recipe.data.sequences:,} sequences for each of {_arms(recipe)}: {', '.join(_arm_names(recipe))}"
    yield "trainings", f"{extended} ({_arms(recipe)} runs × {len(recipe.seeds)} seeds; the paper: one seed)"
    yield (
        "time",
        (
            f"{hours:.1f} h each on {gpus} {training.hardware.device} (the paper: 15 h); {hours * extended:,.0f} h in all, "
            f"{hours * extended * gpus:,.0f} GPU-hours, {made.flops * extended:.2e} FLOPs"
        ),
    )
    yield (
        "memory",
        (
            f"{made.memory.total / 1e9:.0f} GB a GPU under FSDP2; disk: "
            f"{sequence_bytes / 2**30:,.0f} GiB of sequences a run, "
            f"{checkpoint / 2**30:,.0f} GiB a checkpoint, {made.sizes.parameters * 2 / 2**30:,.0f} GiB a finished model"
        ),
    )
    reading = _measured_tokens(recipe)
    per_gpu = costs.DEVICES[training.hardware.device][0] * 1e12 * machines.UTILISATION
    flops = costs.flops(made.sizes, [recipe.extend.tokens]) / recipe.extend.tokens * _READ_COST * reading
    yield (
        "measuring",
        f"{reading:,} tokens read a model, some {flops / per_gpu / 3600:.0f} GPU-hours, longest rows assumed",
    )


def _commands(recipe: Replication) -> Iterator[str]:
    nodes = math.ceil(_paper_training().hardware.count / 8)
    yield "This preset prints its plan and runs nothing. To carry it out, name your corpus and tokenizer in data.yaml, then:"
    yield "  nextlong init data.yaml --preset paper-128k"
    for experiment in recipe.experiments:
        yield f"  nextlong sweep data.yaml --over {KEYS[experiment]}={','.join(map(str, recipe.values(experiment)))}"
    yield "and for each VARIANT that `nextlong list RUN` shows and seed SEED (--emit: for another trainer):"
    yield "  nextlong train init t.yaml --data RUN@VARIANT --preset paper-128k \\"
    yield "    --model meta-llama/Meta-Llama-3-8B --set seed=SEED"
    yield f"  torchrun --nnodes {nodes} --nproc-per-node 8 … -m nextlong train t.yaml"
    yield "  nextlong evaluate t/final --suite ruler,needle,helmet,attention,dependency \\"
    yield "    --lengths 8k..128k --data FOLDER --run RUN@VARIANT --out results/VARIANT-SEED"
    yield "  nextlong evaluate report results/* -o table.html"


def _paper_training() -> TrainRecipe:
    return presets.recipe_from("paper-128k", out="out", data={"runs": ("RUN",)}, model="meta-llama/Meta-Llama-3-8B")


def _plan(recipe: Replication) -> _Plan:
    sizes = costs.sizes_of(_config(recipe, tied=True))
    bases, arms = len(recipe.seeds), _arms(recipe)
    extended = bases * arms
    reading = _measured_tokens(recipe) * (bases + extended)
    preset = preset_of(recipe)
    where = preset.hardware if preset else "here"
    short, long = (_seconds_a_token(recipe, phase, sizes, where=where) for phase in (recipe.pretrain, recipe.extend))
    trained = bases * recipe.pretrain.trained_tokens * short + extended * recipe.extend.trained_tokens * long
    tokens = (arms + 1) * recipe.data.sequences * recipe.extend.tokens + recipe.pretrain.trained_tokens
    disk = tokens * _TOKEN_BYTES * _COPIES_OF_TOKENS
    disk += sizes.parameters * (_STATE_BYTES + (bases + extended) * _FINAL_BYTES[recipe.precision])
    basis = (
        "measured here, on one and two layers"
        if where == "here"
        else "one H100, by operations; small models use less of a GPU"
    )
    return _Plan(
        sizes,
        bases + extended,
        bases * recipe.pretrain.trained_tokens,
        extended * recipe.extend.trained_tokens,
        reading,
        trained + reading * long * _READ_COST,
        disk,
        basis,
    )


def _seconds_a_token(recipe: Replication, phase: Phase, sizes: costs.Sizes, *, where: Literal["here", "H100"]) -> float:
    if where == "H100":
        return (
            costs.flops(sizes, [phase.tokens]) / phase.tokens / (costs.DEVICES["H100"][0] * 1e12 * machines.UTILISATION)
        )
    training = TrainRecipe.from_dict(
        {
            "out": "none",
            "data": {"runs": ["none"]},
            "model": {"scratch": recipe.model.model_dump()},
            "training": {"precision": recipe.precision},
            "memory": {"checkpointing": "none"},
        }
    )
    return train_plan.measure_step(training, _config(recipe, tied=True), [[phase.tokens]], 1) / phase.tokens


def _config(recipe: Replication, *, tied: bool) -> Any:
    from transformers import LlamaConfig

    model = recipe.model
    return LlamaConfig(
        vocab_size=model.vocabulary or recipe.data.vocabulary,
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.key_value_heads,
        max_position_embeddings=recipe.extend.tokens,
        tie_word_embeddings=tied,
    )


def _arm_names(recipe: Replication) -> list[str]:
    """Return what is compared, each once: what is nextlong as it comes stands in every ablation."""
    names: dict[str, None] = {}
    for experiment in recipe.experiments:
        for value in recipe.values(experiment):
            is_default = value == recipe.usual_value(experiment)
            names[recipe.usual_value("methods") if is_default else str(value)] = None
    return list(names)


def _arms(recipe: Replication) -> int:
    return len(_arm_names(recipe))


def _measured_tokens(recipe: Replication) -> int:
    tasks = len(recipe.measure.tasks) * sum(recipe.measure.lengths) * recipe.measure.samples
    return tasks + 2 * len(HELD_OUT_NEGATIVES) * recipe.measure.sequences * recipe.extend.tokens


def _duration(seconds: float) -> str:
    return (
        f"{seconds / 3600:.1f} h"
        if seconds >= 3600
        else f"{seconds / 60:.0f} min"
        if seconds >= 60
        else f"{seconds:.0f} s"
    )
