"""Registry: every task and probe by name, and those that the user chose."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from functools import cache

from nextlong.errors import EvaluateError
from nextlong.evaluate.probe import Probe
from nextlong.evaluate.task import ImportedTask, Task
from nextlong.plugins import TASKS


@cache
def registered() -> dict[str, Task | Probe | ImportedTask]:
    """Return every task and probe by name, those of other distributions last.

    Raises PluginError for an invalid one.
    """
    return TASKS.declarations(Task, Probe, ImportedTask)


def all_tasks() -> dict[str, Task]:
    """Return the tasks that are measured here, without the probes, by name."""
    return {name: task for name, task in registered().items() if isinstance(task, Task)}


def scored_tasks() -> dict[str, Task | ImportedTask]:
    """Return the tasks that tables have columns for: measured here, or imported."""
    return {
        name: task for name, task in registered().items() if not isinstance(task, Probe)
    }


def all_probes() -> list[Probe]:
    """Return the probes, without the tasks."""
    return [probe for probe in registered().values() if isinstance(probe, Probe)]


def chosen(suites: Sequence[str], names: Sequence[str]) -> list[Task | Probe]:
    """Return the tasks and probes of some suites, or the named ones.

    Raises EvaluateError for an unknown suite or name.
    """
    measured: list[Task | Probe] = []
    # What other programs measure, by the names of its suites and tasks.
    program_of: dict[str, str] = {}
    for known in registered().values():
        if isinstance(known, ImportedTask):
            program_of |= dict.fromkeys((known.suite, known.name), known.program)
        else:
            measured.append(known)
    known_suites = sorted({known.suite for known in measured})
    _check_known("--suite", suites, known_suites, program_of)
    in_suites = [known for known in measured if not suites or known.suite in suites]
    _check_known("--tasks", names, [known.name for known in in_suites], program_of)
    return [known for known in in_suites if not names or known.name in names]


def _check_known(
    option: str,
    names: Sequence[str],
    known: Sequence[str],
    program_of: Mapping[str, str],
) -> None:
    for name in names:
        if name in known:
            continue
        if name in program_of:
            raise EvaluateError(
                where=f"{option} {name}",
                problem=f"nextlong reads its results, but {program_of[name]} measures "
                "it",
                fix="docs/evaluate/import.md has the commands",
            )
        noun = "suite" if option == "--suite" else "task"
        fix = f"choose from {', '.join(known)}"
        near = difflib.get_close_matches(name, known, n=1)
        if near:
            fix = f"did you mean {near[0]!r}? Or {fix}"
        raise EvaluateError(
            where=f"{option} {name}", problem=f"unknown {noun}", fix=fix
        )
