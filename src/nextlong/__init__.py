"""nextlong: short documents in, token-exact long sequences out (NExtLong, arXiv 2501.12766).

    import nextlong

    recipe = nextlong.Recipe.load("my.yaml")
    for sequence in nextlong.run(recipe).sequences():
        print(sequence.id, len(sequence.input_ids), sequence.spans[0])

`chunk_text` and `compose` are the two algorithms on plain strings and lists, for a notebook.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nextlong.errors import NextlongError
from nextlong.recipe import Recipe
from nextlong.stages.chunk import chunk_text
from nextlong.stages.compose import compose

if TYPE_CHECKING:
    from pathlib import Path

    from nextlong.opened import Run

__version__ = "0.1.0"
__all__ = ["NextlongError", "Recipe", "chunk_text", "compose", "open", "run"]


def run(recipe: Recipe, **options: Any) -> Run:
    """Carry out a recipe in its run directory, keeping what is there, and open the result.

    Options are those of `nextlong.pipeline.run`. In a script, call it under `if __name__ == "__main__":`, because its
    worker processes import the script. Raises NextlongError for every mistake that a user can mend.
    """
    from nextlong import pipeline

    pipeline.run(recipe, **options)
    return open(pipeline.run_dir_of(recipe))


def open(run_dir: str | Path) -> Run:  # noqa: A001 - nextlong.open reads as it should
    """Open a finished run directory. Raises RunError if there is none, or its files were altered."""
    from nextlong.opened import Run

    return Run(run_dir)
