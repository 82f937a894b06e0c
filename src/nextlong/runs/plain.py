"""Plain: short documents as they are, as a source of a mix: replay of short text beside long sequences.

In:  a finished run, and files of documents. Out: a run beside it, whose sequences are these documents one after the other (method
`standard`), cut into rows of `tokens` tokens by the first run's tokenizer.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from nextlong.recipe import Recipe
from nextlong.runs.opened import Run

TOKENS: Final = 8192  # of a row, at most: the context that Llama 3 was pretrained on


def recipe_of(first: Run, documents: Path, *, tokens: int | None = None) -> Recipe:
    """Return the recipe of the plain run of some documents. Raises RecipeError for what no recipe allows."""
    like = first.recipe
    tokenizer = {
        **like.tokenizer.model_dump(mode="json", include={"bos", "eos", "engine"}),
        "source": str(first.steps["tokenizer"].file(".tokenizer.json").absolute()),
    }
    export = like.export.model_dump(mode="json", include={"formats"})
    name = re.sub(r"[^\w.-]+", "-", documents.name)
    plain = {
        "run_dir": str(first.path.with_name(f"{first.path.name}-short-{name}")),
        "seed": like.seed,
        "workers": like.workers,
        "executor": like.executor,
        "ingest": {"sources": [{"path": str(documents)}]},
        "tokenizer": tokenizer,
        "compose": {
            "method": "standard",
            "sequences": "all",
            "target_tokens": tokens or min(TOKENS, like.compose.target_tokens),
        },
        "export": export,
    }
    return Recipe.from_dict(plain, origin=f"short documents of {documents}")
