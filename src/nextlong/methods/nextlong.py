"""NExtLong: the chunks of a document, separated by the most similar chunks of other documents (arXiv 2501.12766).

This module holds what other code needs to read a recipe; `extend.py` drafts.
"""

from __future__ import annotations

from nextlong.engine.step import Step
from nextlong.methods.base import Method, Need
from nextlong.recipe import Recipe, Section
from nextlong.schemas import Layout


class _Nextlong(Method[Section]):
    """Negative Document Extension; its options are the sections `mine` and `compose` of the recipe."""

    name = "nextlong"
    layout = Layout.EXTENDED
    needs = frozenset({Need.CHUNK_NEIGHBOURS})
    scores = "their meta-chunk"

    def steps(
        self,
        recipe: Recipe,
        ingest: Step,
        chunk: Step,
        tokenizer: Step,
        *,
        attempt: int,
    ) -> list[Step]:
        from nextlong.methods.extend import (
            extension_steps,
        )  # not imported just to read a recipe

        return extension_steps(recipe, ingest, chunk, tokenizer, attempt=attempt)


METHOD = _Nextlong()
