"""Plan: parameters, memory of a GPU, operations and hours of a training, before anything is loaded.

In:  a training recipe and the lengths of its rows; no weights.
Out: what `nextlong train RECIPE --dry-run` prints.

Hours, of a GPU by its data sheet: every step waits for the rank whose rows take longest (with rows of 512K tokens beside rows
of eight 64K sequences nearly every step has a long one somewhere), at a share of the peak that was fitted once, to both times
that the paper gives; of this machine: measured, on one and two layers of the model and rows of the recipe.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console

from nextlong.errors import RecipeError
from nextlong.plain_data import Json
from nextlong.plural import counted
from nextlong.report import tables
from nextlong.rng import rng_for
from nextlong.train import costs, machines, memory
from nextlong.train.batches import plan_batches
from nextlong.train.recipe import TrainRecipe

_DRAWN_STEPS: Final = 200
_PROBE_SECONDS: Final = 20.0
_MOST_PASSES: Final = 4  # as good as new data: Muennighoff et al. 2023, Scaling Data-Constrained Language Models


@dataclass(frozen=True)
class Plan:
    """What a training will take, and what the seconds are based on."""

    sizes: costs.Sizes
    memory: memory.Memory  # of each device
    flops: float  # of the whole training
    seconds: float
    basis: str


def plan(recipe: TrainRecipe, config: Any, documents: Sequence[Sequence[int]]) -> Plan:
    """Plan for rows whose documents have these lengths, each row as likely as the other.

    Raises RecipeError if a step cannot be shared by the ranks.
    """
    sizes, hardware = costs.sizes_of(config), recipe.hardware
    row_tokens = max(sum(lengths) for lengths in documents)
    rows_per_step = max(1, recipe.training.tokens_per_step // row_tokens)
    groups, rest = divmod(hardware.count, hardware.ranks_per_row)
    if rest or rows_per_step % groups:
        raise RecipeError(
            f"hardware: {hardware.count} devices, {hardware.ranks_per_row} a row, cannot share {rows_per_step} rows a step evenly; "
            "change hardware.count, hardware.ranks_per_row or training.tokens_per_step"
        )
    of_rows = [costs.flops(sizes, list(lengths)) for lengths in documents]
    total = sum(of_rows) / len(of_rows) * rows_per_step * recipe.training.steps
    if hardware.device == "this":
        seconds = measure_step(recipe, config, documents, rows_per_step) * recipe.training.steps
        basis = "measured here, on one and two of its layers"
    else:
        waited_for = _slowest(of_rows, groups=groups, rows=rows_per_step // groups, seed=recipe.seed)
        peak = costs.DEVICES[hardware.device][0] * 1e12
        seconds = waited_for / hardware.ranks_per_row / (peak * machines.UTILISATION) * recipe.training.steps
        basis = f"{machines.UTILISATION:.1%} of their peak, as the paper's two trainings had; steps wait for the longest row"
    return Plan(sizes, _memory(recipe, config, sizes, documents), total, seconds, basis)


def _memory(recipe: TrainRecipe, config: Any, sizes: costs.Sizes, documents: Sequence[Sequence[int]]) -> memory.Memory:
    """Return the peak memory of each device: of the longest row on one, of its share under torchtitan on several."""
    hardware, longest = recipe.hardware, max(documents, key=sum)
    if hardware.count == 1:
        return memory.forecast(recipe, config, longest)
    split = machines.split_forecast(recipe, config, sum(longest) // hardware.ranks_per_row)
    return machines.sharded(split, sizes, hardware.count)


def _slowest(of_rows: Sequence[float], *, groups: int, rows: int, seed: int) -> float:
    """Return the operations that a step waits for, on average: those of the group of ranks with the most."""
    drawn = rng_for(seed, "plan").choice(of_rows, size=(_DRAWN_STEPS, groups, rows))
    return float(drawn.sum(axis=2).max(axis=1).mean())


def measure_step(recipe: TrainRecipe, config: Any, documents: Sequence[Sequence[int]], rows_per_step: int) -> float:
    """Return the seconds of a step on this machine: one and two layers with random weights train on a row; the rest is a line."""
    lengths = list(documents[0])
    one, two = (_seconds_of_row(recipe, config, lengths, layers=layers) for layers in (1, 2))
    layers: int = config.num_hidden_layers
    return (one + max(two - one, 0.0) * (layers - 1)) * rows_per_step


def _seconds_of_row(recipe: TrainRecipe, config: Any, lengths: list[int], *, layers: int) -> float:
    import copy

    import torch
    from transformers import AutoModelForCausalLM

    from nextlong.train import attention
    from nextlong.train.model import install_loss

    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    smaller = copy.deepcopy(config)
    smaller.num_hidden_layers, smaller.use_cache = layers, False
    model = AutoModelForCausalLM.from_config(
        smaller, attn_implementation=attention.register(recipe.attention_kernel)
    ).to(device)
    install_loss(recipe, model, device=device)
    if recipe.memory.checkpointing != "none":
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    ids = torch.randint(config.vocab_size, (1, sum(lengths)), device=device)
    given = {
        "input_ids": ids,
        "labels": ids,
        "position_ids": torch.cat([torch.arange(length) for length in lengths])[None].to(device),
        "cu_seq_lens_q": torch.tensor([0, *lengths]).cumsum(0).to(torch.int32),
    }
    times: list[float] = []
    while not times or (sum(times) < _PROBE_SECONDS / 2 and len(times) < 4):
        started = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=recipe.training.precision == "bf16"):
            out = model(**given).loss
        out.backward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return sorted(times[1:] or times)[len(times[1:] or times) // 2]  # the first warms up


@dataclass(frozen=True)
class Planned:
    """A plan, the rows that it is for, and what was decided on the way, in words."""

    recipe: TrainRecipe
    config: Any
    plan: Plan
    rows: int
    row_tokens: int
    passes: float
    said: Sequence[str]

    @property
    def warning(self) -> str:
        """What to think of before this is trained; "" for nothing."""
        if self.passes <= _MOST_PASSES:
            return ""
        return (
            f"the data are read {self.passes:g} times; above {_MOST_PASSES} passes, it helps a model less and less. "
            "Make more sequences, or lower training.steps"
        )

    def machines(self) -> list[machines.Case]:
        """Return the cases of the table of machines and row lengths."""
        return list(machines.cases(self.recipe, self.config))

    def as_json(self) -> Json:
        """Return everything as plain dictionaries and lists; memory is that of one GPU, in bytes."""
        plan, training = self.plan, self.recipe.training
        return {
            "parameters": plan.sizes.parameters,
            "rows": self.rows,
            "row_tokens": self.row_tokens,
            "passes": self.passes,
            "steps": training.steps,
            "tokens": training.tokens_per_step * training.steps,
            "memory_bytes": machines.parts_of(plan.memory),
            "layer_bytes": dict(plan.memory.kinds),
            "machines": [case.as_json() for case in self.machines()],
            "flops": plan.flops,
            "seconds": plan.seconds,
            "basis": plan.basis,
            "notes": [*self.said, *filter(None, [self.warning])],
        }


def planned(recipe: TrainRecipe) -> Planned:
    """Return the plan of a recipe; reads the runs' index and the model's config, and no weights.

    Raises RecipeError or CorpusError for steps that training would refuse.
    """
    from nextlong.train import model, rope
    from nextlong.train.prepare import run_tokenizer_of, vocabulary_of
    from nextlong.train.rows import TrainingRows, source_of

    run_tokenizer = run_tokenizer_of(recipe.data)
    config = model.config_of(recipe, vocabulary=vocabulary_of(run_tokenizer))
    tokenizer = model.tokenizer_of(recipe, run_tokenizer=run_tokenizer) if recipe.data.chat else None
    rows = TrainingRows(source_of(recipe.data, split="train", tokenizer=tokenizer), attention=recipe.attention)
    batches = plan_batches(
        rows=len(rows),
        row_tokens=recipe.data.pack or rows.source.row_tokens,
        tokens_per_step=recipe.training.tokens_per_step,
        micro_batch_rows=recipe.training.micro_batch_rows,
        seed=recipe.seed,
    )
    said = rope.set_base(
        config, base=recipe.model.rope_base, max_tokens=rows.longest_document, scaling=recipe.model.rope_scaling
    )
    documents = [rows[row].bounds.diff().tolist() for row in range(min(len(rows), 64))]
    row_tokens = max(sum(lengths) for lengths in documents)
    passes = math.ceil(batches.epoch(recipe.training.steps) * 100) / 100
    return Planned(recipe, config, plan(recipe, config, documents), len(rows), row_tokens, passes, said)


def show(recipe: TrainRecipe, console: Console) -> None:
    """Print the plan of a recipe."""
    plan = planned(recipe)
    for line in plan.said:
        tables.say(line, console)
    tables.show_facts(facts(plan), console)
    machines.show(plan.machines(), recipe, console)


def facts(whole_plan: Planned) -> list[tuple[str, str]]:
    """Return the plan in words, as (name, value)."""
    recipe, plan = whole_plan.recipe, whole_plan.plan
    held, hardware, training = plan.memory, recipe.hardware, recipe.training
    tokens = training.tokens_per_step * training.steps
    hours = plan.seconds / 3600
    where = "this machine" if hardware.device == "this" else f"{hardware.count} {hardware.device}"
    shown = [
        ("parameters", f"{plan.sizes.parameters:,}"),
        (
            "rows",
            f"{whole_plan.rows:,} of up to {whole_plan.row_tokens:,} tokens; {tokens:,} tokens in "
            f"{counted(training.steps, 'step')}, {counted(training.tokens_per_step // whole_plan.row_tokens, 'row')} each; "
            f"the data are read {whole_plan.passes:g} times",
        ),
        (
            "memory",
            f"{held.total / 1e9:.1f} GB a device: {held.weights / 1e9:.1f} weights, {held.gradients / 1e9:.1f} gradients, "
            f"{held.states / 1e9:.1f} optimizer states, {held.activations / 1e9:.1f} activations",
        ),
        (
            "one layer",
            ", ".join(f"{kind} {size / 1e9:.2f} GB" for kind, size in held.kinds.items())
            + " while it is differentiated",
        ),
        ("operations", f"{plan.flops:.2e} FLOPs, {plan.flops / tokens:.2e} a token"),
        ("time", f"{f'{hours:.1f} h' if hours >= 1 else f'{plan.seconds:.0f} s'} on {where} ({plan.basis})"),
    ]
    if hardware.device != "this" and held.total > (have := costs.DEVICES[hardware.device][1] * 1e9):
        from nextlong.train.device import memory_knob

        shown.append(("too large", f"{hardware.device} has {have / 1e9:.0f} GB; {memory_knob(recipe)}"))
    if whole_plan.warning:
        shown.append(("warning", whole_plan.warning))
    return shown
