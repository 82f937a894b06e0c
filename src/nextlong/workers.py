"""Workers: what the processes that carry out a recipe here have imported before their first task.

In:  a recipe. Out: names of modules, and the server that workers are forked from, started ahead of them.
Imports nothing of the pipeline itself, so that the server imports it while the process that asks does so too.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

from nextlong.engine import local
from nextlong.recipe import Recipe
from nextlong.retrieval.encoders.base import kind_of

# What every worker needs, imported once by the server that workers are forked from.
_ALL_STEPS = ("nextlong.pipeline", "faiss", "pyarrow.parquet", "scipy.sparse", "tokenizers")
EXPORT_STEPS = ("nextlong.export.steps", "pyarrow.parquet", "tokenizers", "pandas")


def preloaded(recipe: Recipe) -> list[str]:
    """Return the modules that workers of this machine have imported before their first task."""
    # Where pandas is installed, pyarrow imports it for the first array that it gives to NumPy: a quarter of a second a worker.
    return [*_ALL_STEPS, *kind_of(recipe.encoder).preload, "pandas"]


def import_preloaded(recipe: Recipe) -> None:
    """Import those modules here, as far as they are installed."""
    for module in preloaded(recipe):
        with suppress(ImportError):
            import_module(module)


def start_server(recipe: Recipe) -> None:
    """Let the server of a recipe that runs here begin its imports; it ends with this process."""
    if recipe.executor == "local":
        local.start_server(preloaded(recipe))
