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


def place_of(module: str) -> int:
    """Return the place of a family in the reports, by the module that its tasks come from; others stand last."""
    family = module.removeprefix(f"{__name__}.")
    return FAMILIES.index(family) if family in FAMILIES else len(FAMILIES)
