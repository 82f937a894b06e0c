"""Dry run: what an evaluation would read, what it lacks, and the memory it takes.

In:  settings. Out: a plan, without a model and without the network.
"""

from __future__ import annotations

from rich.console import Console

from nextlong.evaluate import engines, memory, results
from nextlong.evaluate.probe import Probe
from nextlong.evaluate.settings import EvaluationSettings
from nextlong.evaluate.task import ALL_SAMPLES, Task, short
from nextlong.report import tables
from nextlong.text import Json


def planned(settings: EvaluationSettings) -> tuple[Json, int | None]:
    """Return the plan of an evaluation, and the context of its model where it is known.

    For each task and length: its samples (None: all), its state, and at most how many
    tokens remain to be read; and a description of the memory that the greediest length
    takes, None for a server. Nothing is downloaded.
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
        "memory": None,
    }
    if is_local:
        plan["memory"] = memory.describe(config, options, settings.lengths)
    return plan, context


def _planned_task(
    settings: EvaluationSettings,
    task: Task | Probe,
    length: int | None,
    *,
    context: int | None,
) -> Json:
    samples = settings.samples or task.samples
    state = _state(settings, task, length, context=context)
    tokens = samples * (length or 0)
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
    total = f"to read: {plan['tokens']:,} tokens at most"
    tables.say(f"{total}; shared prefixes are read once", console)
    if plan["memory"]:
        tables.say(plan["memory"], console)
