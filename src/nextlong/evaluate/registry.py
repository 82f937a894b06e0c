"""Registry: every task and probe by name, and those that the user chose."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from nextlong.errors import EvaluateError
from nextlong.evaluate.probe import Probe
from nextlong.evaluate.task import Task
from nextlong.plugins import TASKS


@cache
def registered() -> dict[str, Task | Probe]:
    """Return every task and probe by name, those of other distributions last.

    Raises PluginError for an invalid one.
    """
    return TASKS.declarations(Task, Probe)


def all_tasks() -> dict[str, Task]:
    """Return the tasks, without the probes, by name."""
    return {name: task for name, task in registered().items() if isinstance(task, Task)}


def all_probes() -> list[Probe]:
    """Return the probes, without the tasks."""
    return [probe for probe in registered().values() if isinstance(probe, Probe)]


def chosen(suites: Sequence[str], names: Sequence[str]) -> list[Task | Probe]:
    """Return the tasks and probes of some suites, or the named ones.

    Raises EvaluateError for an unknown suite or name.
    """
    known_suites = {measurement.suite for measurement in registered().values()}
    for suite in suites:
        if suite not in known_suites:
            raise _unknown("--suite", suite, sorted(known_suites))

    choices = [
        measurement
        for measurement in registered().values()
        if not suites or measurement.suite in suites
    ]
    known_names = [measurement.name for measurement in choices]
    for name in names:
        if name not in known_names:
            raise _unknown("--tasks", name, known_names)
    return [
        measurement for measurement in choices if not names or measurement.name in names
    ]


def _unknown(option: str, name: str, known: Sequence[str]) -> EvaluateError:
    noun = "suite" if option == "--suite" else "task"
    return EvaluateError(
        where=f"{option} {name}",
        problem=f"unknown {noun}",
        fix=f"choose from {', '.join(known)}",
    )
