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
    every = list(registered().values())
    _check_known("--suite", suites, sorted({known.suite for known in every}))
    in_suites = [known for known in every if not suites or known.suite in suites]
    _check_known("--tasks", names, [known.name for known in in_suites])
    return [known for known in in_suites if not names or known.name in names]


def _check_known(option: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            noun = "suite" if option == "--suite" else "task"
            raise EvaluateError(
                where=f"{option} {name}",
                problem=f"unknown {noun}",
                fix=f"choose from {', '.join(known)}",
            )
