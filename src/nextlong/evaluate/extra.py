"""Extra: packages that come with `nextlong[evaluate]`, imported where they are used."""

from __future__ import annotations

import importlib
from types import ModuleType

from nextlong.errors import EvaluateError


def required(name: str) -> ModuleType:
    """Return a module. Raises EvaluateError if its package is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        extra = {"lm_eval": "short-text", "vllm": "vllm"}.get(missing, "evaluate")
        raise EvaluateError(f"{missing} is not installed; say: pip install 'nextlong[{extra}]'") from None
