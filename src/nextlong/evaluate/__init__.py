"""Evaluate: measure what a long-context model can do, by task and by length.

In:  a model (Hugging Face, or an OpenAI-compatible server), and the user's data
files. Out: one JSON file per task and length with every answer; tables and figures as
in the paper (§4 and §5, arXiv 2501.12766).

    task.py             Task, Sample, TaskRequest, and lengths as people write them
    probe.py            Probe: a measurement inside a local model
    registry.py         every task and probe by name, those that the user chose
    tasks/              one file per family of tasks or probes
    data.py             the user's files, their shapes; downloads
    prompts.py          options of a model; sample → prompt
    engines.py          a model of transformers
    server.py           a model on a server
    settings.py         what is measured, checked before anything is measured
    run.py              tasks × lengths → results; resumes
    answers.py          the samples of a task: made, answered, scored
    progress.py         the moving line, and the time left
    dry_run.py          what a run would read, and what it lacks
    memory.py           what a model takes, and what its device has
    results.py          result files, intervals, paired tests
    judge.py            answers rated by another model
    importing/          results that other programs wrote
    tables.py           results → tables, with the paper's columns
    report.py           tables and figures, on the console or as files

torch, transformers and matplotlib come with the extra `nextlong[evaluate]`, lm-eval
with `nextlong[short-text]`; they are imported where they are used.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Final

from nextlong.errors import EvaluateError

# The extra of pyproject.toml that installs a package, where it is not `evaluate`.
_EXTRAS: Final = {"lm_eval": "short-text"}


def required(name: str) -> ModuleType:
    """Import a module of an optional dependency.

    Raises EvaluateError if its package is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        extra = _EXTRAS.get(missing, "evaluate")
        raise EvaluateError(
            where=missing,
            problem="the package is not installed",
            fix=f"run: pip install 'nextlong[{extra}]'",
        ) from None
