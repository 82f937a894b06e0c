"""Workers: what the processes that carry out a recipe here have imported before their first task.

In:  a recipe's encoder. Out: names of modules.
Imports nothing of the pipeline itself, so that the server of `engine/local.py` imports it while the process that asks does so too.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

from nextlong.recipe import Encoder
from nextlong.retrieval.encoders.base import kind_of

# What every worker needs, imported once by the server that workers are forked from.
_ALL_STEPS = ("nextlong.pipeline", "faiss", "pyarrow.parquet", "scipy.sparse", "tokenizers")
EXPORT_STEPS = ("nextlong.export.steps", "pyarrow.parquet", "tokenizers", "pandas")


def preloaded(encoder: Encoder) -> list[str]:
    """Return the modules that workers of this machine have imported before their first task."""
    # Where pandas is installed, pyarrow imports it for the first array that it gives to NumPy: a quarter of a second a worker.
    return [*_ALL_STEPS, *kind_of(encoder).preload, "pandas"]


def import_preloaded(encoder: Encoder) -> None:
    """Import those modules here, as far as they are installed."""
    for module in preloaded(encoder):
        with suppress(ImportError):
            import_module(module)
