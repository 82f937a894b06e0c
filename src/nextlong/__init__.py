"""nextlong: short documents in, token-exact long sequences out.

The method is NExtLong (arXiv 2501.12766).

    import nextlong

    run = nextlong.synthesize(
        texts, tokenizer="tokenizer.json", seq_len=32_768, num_sequences=100
    )
    rows = run.to_datasets()

    run = nextlong.run(nextlong.Recipe.load("my.yaml"))
    for sequence in run.sequences():
        print(sequence.id, len(sequence.input_ids), sequence.spans[0])

`chunk_text` and `compose` are the two algorithms on plain strings and lists, for a
notebook.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pathlib import Path

    from nextlong.corpus.chunk import chunk_text
    from nextlong.engine.progress import Reporter
    from nextlong.errors import NextlongError
    from nextlong.recipe import Recipe
    from nextlong.runs.run import Run
    from nextlong.runs.synthesize import synthesize
    from nextlong.sequences.fit import Composed, Dropped, compose

__version__ = "0.2.0"
__all__ = [
    "Composed",
    "Dropped",
    "NextlongError",
    "Recipe",
    "chunk_text",
    "compose",
    "open",
    "run",
    "synthesize",
]


def run(
    recipe: Recipe,
    *,
    reporter: Reporter | None = None,
    changed_inputs: Literal["refuse", "accept"] = "refuse",
) -> Run:
    """Run or resume a recipe in its run directory, and open the result.

    Finished steps are reused. `reporter` shows progress. `changed_inputs="accept"`
    ingests input files again that have changed since an earlier run. In a script, call
    this function under `if __name__ == "__main__":`, because its worker processes
    import the script. Raises NextlongError for every mistake that a user can fix.
    """
    from nextlong import arguments
    from nextlong.engine.progress import Reporter
    from nextlong.recipe import Recipe
    from nextlong.runs import export

    if not isinstance(recipe, Recipe):
        fix = "give nextlong.Recipe.load('my.yaml')"
        raise arguments.wrong("recipe", recipe, "is not a Recipe", fix=fix)
    if not isinstance(reporter, Reporter | None):
        fix = "leave it out, or give a Reporter"
        raise arguments.wrong("reporter", reporter, "is not a Reporter", fix=fix)
    arguments.word(changed_inputs, "changed_inputs", ("refuse", "accept"))
    (finished,) = export.run(
        recipe, reporter=reporter, changed_inputs=changed_inputs
    ).runs
    return finished


def open(run_dir: str | Path) -> Run:  # noqa: A001 - nextlong.open reads as it should
    """Open a finished run directory.

    Raises RunError if there is no finished run, or its files were altered.
    """
    from nextlong.runs.run import Run

    return Run(run_dir)


# Imported at first use, because `import nextlong` and `nextlong --help` must be fast.

_LAZY = {
    "Composed": "nextlong.sequences.fit",
    "Dropped": "nextlong.sequences.fit",
    "NextlongError": "nextlong.errors",
    "Recipe": "nextlong.recipe",
    "chunk_text": "nextlong.corpus.chunk",
    "compose": "nextlong.sequences.fit",
    "synthesize": "nextlong.runs.synthesize",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'nextlong' has no attribute {name!r}")
