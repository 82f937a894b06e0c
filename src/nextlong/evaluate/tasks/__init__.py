"""Tasks: a file or folder a family; each registers its tasks when it is loaded."""

from __future__ import annotations

import importlib

FAMILIES = ("ruler", "needle", "helmet", "longbench")


def load() -> None:
    """Import every family, so that its tasks are registered."""
    for family in FAMILIES:
        importlib.import_module(f"{__name__}.{family}")
