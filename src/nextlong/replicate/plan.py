"""Plan: models, tokens, hours and disk of a replication, before anything runs.

Hours on a GPU are counted from operations, at the share of its peak that the paper's two trainings had
(`nextlong.train.forecast`); hours here are measured, on one and two layers of the model and a row of each length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from rich.console import Console

from nextlong.replicate.data import HELD_OUT_NEGATIVES
from nextlong.replicate.recipe import KEYS, Phase, Replication, is_only_planned, preset_of
from nextlong.replicate.run import check_tasks
from nextlong.report import tables
from nextlong.text import Json
from nextlong.train import costs, forecast, presets
from nextlong.train.recipe import TrainRecipe

if TYPE_CHECKING:
    from transformers import LlamaConfig

_READ_COST: Final = 1 / 3  # of reading a token against training on it: without the backward pass
_TOKEN_BYTES: Final = 4
_COPIES_OF_TOKENS: Final = 3  # tokens, rows, the exported files
_STATE_BYTES: Final = 12  # of a weight in a checkpoint: itself and Adam's two moments, float32
_FINAL_BYTES: Final = {"bf16": 2, "fp32": 4}


@dataclass(frozen=True)
class _Plan:
    """The cost of a replication on one device."""

    sizes: costs.Sizes
    models: int
    pretrained_tokens: int
    extended_tokens: int
    measured_tokens: int
    seconds: float
    disk_bytes: float
    basis: str


def show(recipe: Replication, console: Console) -> None:
    """Print the plan, and for a preset that is only planned the commands to run it. Raises RecipeError for an unknown task."""
    check_tasks(recipe)
    is_plan = is_only_planned(recipe)
    tables.show_facts([*(_paper_facts(recipe) if is_plan else _facts(recipe, _plan(recipe)))], console)
    for line in _commands(recipe) if is_plan else ():
        tables.say(line, console)


def as_json(recipe: Replication) -> Json:
    """Return the plan as plain dictionaries and lists. Raises RecipeError for an unknown task."""
    check_tasks(recipe)
    if is_only_planned(recipe):
        return {"preset": recipe.preset, "facts": dict(_paper_facts(recipe)), "commands": list(_commands(recipe))}
    plan = _plan(recipe)
    return {"preset": recipe.preset, **asdict(plan), "facts": dict(_facts(recipe, plan))}


def _plan(recipe: Replication) -> _Plan:
    config = _config(recipe, tied=True)
    sizes, preset = costs.sizes_of(config), preset_of(recipe)
    bases, arms = len(recipe.seeds), len(_arm_names(recipe))
    extended = bases * arms
    on_gpu = preset is not None and preset.hardware == "H100"
    training = TrainRecipe.from_dict(
        {
            "out": "none",
            "data": {"runs": ["none"]},
            "model": {"scratch": recipe.model.model_dump()},
            "training": {"precision": recipe.precision},
            "memory": {"checkpointing": "none"},
        }
    )

    def seconds_per_token(phase: Phase) -> float:
        if on_gpu:
            return costs.flops(sizes, [phase.tokens]) / phase.tokens / _flops_per_second("H100")
        return forecast.measure_row(training, config, [phase.tokens]) / phase.tokens

    short, long = seconds_per_token(recipe.pretrain), seconds_per_token(recipe.extend)
    pretrained, trained = bases * recipe.pretrain.trained_tokens, extended * recipe.extend.trained_tokens
    read = _measured_tokens(recipe) * (bases + extended)
    tokens = (arms + 1) * recipe.data.sequences * recipe.extend.tokens + recipe.pretrain.trained_tokens
    disk = tokens * _TOKEN_BYTES * _COPIES_OF_TOKENS
    disk += sizes.parameters * (_STATE_BYTES + (bases + extended) * _FINAL_BYTES[recipe.precision])
    basis = (
        "one H100, by operations; small models use less of a GPU" if on_gpu else "measured here, on one and two layers"
    )
    seconds = pretrained * short + trained * long + read * long * _READ_COST
    return _Plan(sizes, bases + extended, pretrained, trained, read, seconds, disk, basis)


def _facts(recipe: Replication, plan: _Plan) -> Iterator[tuple[str, str]]:
    bases, rows = len(recipe.seeds), (recipe.pretrain.tokens, recipe.extend.tokens)
    yield (
        "models",
        f"{plan.sizes.parameters:,} parameters; {bases} pretrained, {plan.models - bases} extended, each measured",
    )
    yield (
        "training",
        f"{plan.pretrained_tokens:,} tokens in rows of {rows[0]:,}, {plan.extended_tokens:,} in rows of {rows[1]:,}, "
        f"{plan.pretrained_tokens + plan.extended_tokens:,} in all",
    )
    lengths = ", ".join(f"{length:,}" for length in recipe.measure.lengths)
    tasks = ", ".join(recipe.measure.tasks)
    yield "measuring", f"{tasks}, dependency; at {lengths} tokens, {plan.measured_tokens:,} tokens read"
    arms = len(_arm_names(recipe))
    yield "data", f"{recipe.data.sequences:,} sequences of {rows[1]:,} tokens for each of {arms} runs"
    hours, minutes = plan.seconds / 3600, plan.seconds / 60
    time = f"{hours:.1f} h" if hours >= 1 else f"{minutes:.0f} min" if minutes >= 1 else f"{plan.seconds:.0f} s"
    yield "time", f"at least {time} ({plan.basis}); answers, data and reports come on top"
    yield "disk", f"{plan.disk_bytes / 2**30:.2f} GiB and the corpus"
    if preset := preset_of(recipe):
        yield "shows", preset.shows
        yield "cannot", preset.cannot


def _paper_facts(recipe: Replication) -> Iterator[tuple[str, str]]:
    """Yield the plan of the paper's own training: per model from its table, by operations, and in all."""
    training, extend = _paper_training(), recipe.extend
    made = forecast.estimate(training, _config(recipe, tied=False), [[extend.tokens]] * 32)
    arms, gpus = _arm_names(recipe), training.hardware.count
    parameters, extended = made.sizes.parameters, len(arms) * len(recipe.seeds)
    hours = made.seconds / 3600
    yield (
        "model",
        f"Meta-Llama-3-8B ({parameters:,} parameters), {extend.steps:,} steps of {extend.tokens_per_step:,} tokens, "
        f"rows of {extend.tokens:,}, lr {extend.lr:g}, {extend.warmup_steps} steps of warm-up, "
        f"RoPE base {extend.rope_base:,.0f} ({presets.TABLE_128K})",
    )
    yield "runs", f"{recipe.data.sequences:,} sequences for each of {len(arms)}: {', '.join(arms)}"
    yield "trainings", f"{extended} ({len(arms)} runs × {len(recipe.seeds)} seeds; the paper: one seed)"
    yield (
        "time",
        f"{hours:.1f} h each on {gpus} {training.hardware.device} (the paper: 15 h); {hours * extended:,.0f} h in all, "
        f"{hours * extended * gpus:,.0f} GPU-hours, {made.flops * extended:.2e} FLOPs",
    )
    sequence_bytes = recipe.data.sequences * extend.tokens * _TOKEN_BYTES * _COPIES_OF_TOKENS
    sequences, checkpoint, final = (
        f"{size / 2**30:,.0f} GiB" for size in (sequence_bytes, parameters * _STATE_BYTES, parameters * 2)
    )
    yield (
        "memory",
        f"{made.memory.total / 1e9:.0f} GB per GPU under FSDP2; disk: {sequences} of sequences per run, {checkpoint} per "
        f"checkpoint, {final} per finished model",
    )
    read = _measured_tokens(recipe)
    flops = costs.flops(made.sizes, [extend.tokens]) / extend.tokens * _READ_COST * read
    gpu_hours = flops / _flops_per_second(training.hardware.device) / 3600
    yield "measuring", f"{read:,} tokens read per model, about {gpu_hours:.0f} GPU-hours if all rows are the longest"


def _commands(recipe: Replication) -> Iterator[str]:
    nodes = math.ceil(_paper_training().hardware.count / 8)
    yield "This preset only prints its plan. To run it, name your corpus and tokenizer in data.yaml, then:"
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


def _config(recipe: Replication, *, tied: bool) -> LlamaConfig:
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


def _flops_per_second(gpu: str) -> float:
    return costs.DEVICES[gpu][0] * 1e12 * forecast.UTILISATION


def _arm_names(recipe: Replication) -> list[str]:
    """Return what is compared, each once: every ablation includes nextlong with its default settings."""
    names: dict[str, None] = {}
    for experiment in recipe.experiments:
        for value in recipe.values(experiment):
            is_default = value == recipe.usual_value(experiment)
            names[recipe.usual_value("methods") if is_default else str(value)] = None
    return list(names)


def _measured_tokens(recipe: Replication) -> int:
    tasks = len(recipe.measure.tasks) * sum(recipe.measure.lengths) * recipe.measure.samples
    return tasks + 2 * len(HELD_OUT_NEGATIVES) * recipe.measure.sequences * recipe.extend.tokens
