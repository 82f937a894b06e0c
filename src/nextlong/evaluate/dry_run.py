"""Dry run: what an evaluation would read, what it lacks, and the memory it takes.

In:  settings. Out: a plan, without a model and without the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rich.console import Console

from nextlong.evaluate import engines, memory, required, results
from nextlong.evaluate.probe import Probe
from nextlong.evaluate.settings import EvaluationSettings
from nextlong.evaluate.task import ALL_SAMPLES, Task, short
from nextlong.report import tables
from nextlong.text import Json

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

# Parameters, and layers times width, of Llama 3 8B, for a model that is elsewhere.
_LLAMA_3_8B: Final = (8_030_261_248, 32 * 4096)
# Of an H100 in bfloat16 without sparsity, and the share that prefilling reaches.
_H100_OPERATIONS_PER_S: Final = 989e12
_MFU: Final = 0.45


def planned(settings: EvaluationSettings) -> tuple[Json, int | None]:
    """Return the plan of an evaluation, and the context of its model where it is known.

    For each task and length: its samples (None: all), its state, and at most how many
    tokens remain to be read; the H100-hours that they take, by an 8B model where the
    model is not known; and a description of the memory that the greediest length takes,
    None for a server. Nothing is downloaded.
    """
    options = settings.model
    is_local = options.url is None
    config = engines.local_config(options) if is_local else None
    context = engines.context_of(config, options)
    tasks = [
        _planned_task(settings, task, length, context=context)
        for task, length in settings.pairs()
    ]
    plan = {
        "model": options.name,
        "tasks": tasks,
        "tokens": sum(task["tokens"] for task in tasks),
        "h100_hours": _h100_hours(config, tasks),
        "memory": None,
    }
    if is_local:
        plan["memory"] = memory.describe(config, options, settings.lengths)
    return plan, context


def _h100_hours(config: PreTrainedConfig | None, tasks: Sequence[Json]) -> float:
    """Return the hours of one H100 in which a model reads the prompts of some tasks."""
    parameters, width = _LLAMA_3_8B
    if config is not None:
        # Without memory: only the shapes are made.
        with required("torch").device("meta"):
            automatic = required("transformers").AutoModelForCausalLM
            parameters = automatic.from_config(config).num_parameters()
        width = config.num_hidden_layers * config.hidden_size
    operations = 0.0
    for task in tasks:
        # A token takes two operations for each parameter. It attends to half of the
        # length on average, each key and value with two operations for each dimension.
        per_token = 2 * parameters + 2 * width * (task["length"] or 0)
        operations += task["tokens"] * per_token
    return operations / (_H100_OPERATIONS_PER_S * _MFU) / 3600


def _planned_task(
    settings: EvaluationSettings,
    task: Task | Probe,
    length: int | None,
    *,
    context: int | None,
) -> Json:
    samples = settings.samples or task.samples
    state = _state(settings, task, length, context=context)
    tokens = samples * (length or 0) // settings.shard.count
    if state == "done" or samples == ALL_SAMPLES:
        tokens = 0
    return {
        "task": task.name,
        "length": length,
        "samples": None if samples == ALL_SAMPLES else samples,
        "state": state,
        "tokens": tokens,
    }


def _state(
    settings: EvaluationSettings,
    task: Task | Probe,
    length: int | None,
    *,
    context: int | None,
) -> str:
    """Return whether a task is done, is to do, or what stands in its way."""
    if results.path_of(settings.out, task.name, length).is_file():
        return "done"
    if task.reads == "run" and settings.run is None:
        return "missing: --run RUN"
    if context is not None and (length or 0) > context:
        return f"too long: the model's context is {context:,}"
    missing = settings.missing_files(task, length)
    return f"missing: {', '.join(missing)}" if missing else "to do"


def show(plan: Json, console: Console) -> None:
    """Print the tasks with their samples and tokens, and the memory."""
    table = tables.table()
    table.add_column("task", overflow="fold")
    for heading in ("length", "samples", "tokens to read"):
        table.add_column(heading, justify="right", overflow="fold")
    table.add_column("state", overflow="fold")
    for task in plan["tasks"]:
        table.add_row(
            task["task"],
            short(task["length"]),
            "all" if task["samples"] is None else f"{task['samples']:,}",
            f"{task['tokens']:,}" if task["length"] else "–",
            tables.cell(task["state"]),
        )
    tables.show(table, console)
    total = (
        f"to read: {plan['tokens']:,} tokens at most, about {plan['h100_hours']:.2g}"
    )
    total += f" H100-hours at {_MFU:.0%} MFU"
    tables.say(f"{total}; shared prefixes are read once", console)
    if plan["memory"]:
        tables.say(plan["memory"], console)
