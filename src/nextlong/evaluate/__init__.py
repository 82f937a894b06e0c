"""Evaluate: measure what a long-context model can do, by task and by length.

In:  a model (Hugging Face, vLLM, or an OpenAI-compatible server), and the user's data files. Out: one JSON file per task and
length with every answer; tables and figures as in the paper (§4 and §5, arXiv 2501.12766).

    task.py       Task, Probe, Sample, TaskRequest and the registry    tasks/       one file per family of tasks or probes
    data.py       the user's files, their shapes; downloads        prompts.py   options of a model; sample → prompt
    engines.py    transformers, vLLM, servers                      run.py       tasks × lengths → results; resumes; dry run
    results.py    result files, intervals, paired tests            judge.py     answers rated by another model
    tables.py, report.py    results → tables and figures

torch, transformers and matplotlib come with the extra `nextlong[evaluate]`, lm-eval with `nextlong[short-text]`, vLLM with
`nextlong[vllm]`; they are imported where they are used.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from nextlong.errors import EvaluateError


def required(name: str) -> ModuleType:
    """Import a module of an optional dependency. Raises EvaluateError if its package is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        extra = {"lm_eval": "short-text", "vllm": "vllm"}.get(missing, "evaluate")
        raise EvaluateError(
            f"{missing} is not installed; run: pip install 'nextlong[{extra}]'"
        ) from None
