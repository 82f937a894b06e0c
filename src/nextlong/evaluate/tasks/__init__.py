"""Tasks: a file or folder a family; each registers its tasks when it is loaded."""

from __future__ import annotations

import importlib

FAMILIES = (
    "ruler.niah",
    "ruler.variables",
    "ruler.common_words",
    "ruler.frequent_words",
    "ruler.qa",
    "needle",
    "helmet.recall",
    "helmet.rag",
    "helmet.icl",
    "helmet.rerank",
    "helmet.longqa",
    "longbench",
)


def load() -> None:
    """Import every family in the order of the reports, so that its tasks are registered."""
    for family in FAMILIES:
        importlib.import_module(f"{__name__}.{family}")
