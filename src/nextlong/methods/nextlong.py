"""NExtLong: a document's chunks, and between them the chunks of other documents most similar to them (arXiv 2501.12766).

`extend.py` drafts; this file says what the rest of the code must know to read a recipe.
"""

from __future__ import annotations

from nextlong.engine.step import Step
from nextlong.methods.base import Method, Need
from nextlong.recipe import Recipe, Section
from nextlong.schemas import Layout


class _Nextlong(Method[Section]):
    """Negative Document Extension. Its options are the sections `mine` and `compose` of the recipe."""

    name = "nextlong"
    layout = Layout.EXTENDED
    needs = frozenset({Need.CHUNK_NEIGHBOURS})
    scores = "their meta-chunk"

    def steps(self, recipe: Recipe, ingest: Step, chunk: Step, tokenizer: Step, *, attempt: int) -> list[Step]:
        """Return the steps from the chunks to the drafts."""
        from nextlong.methods.extend import extension_steps  # what searches is not loaded to read a recipe

        return extension_steps(recipe, ingest, chunk, tokenizer, attempt=attempt)


METHOD = _Nextlong()
