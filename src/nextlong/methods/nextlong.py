"""NExtLong: the chunks of a document, separated by similar chunks of other documents.

The negatives are the chunks of other documents that are most similar (arXiv
2501.12766). This module holds what other code needs to read a recipe; `extend.py`
drafts.
"""

from __future__ import annotations

from nextlong.engine.step import Step
from nextlong.methods.base import NEXTLONG, ChunkMethod, Need
from nextlong.recipe import Recipe, Section
from nextlong.schemas import Layout


class _Nextlong(ChunkMethod[Section]):
    """Negative Document Extension.

    Its options are the sections `mine` and `compose` of the recipe.
    """

    name = "nextlong"
    layout = Layout.EXTENDED
    needs = frozenset({Need.CHUNK_NEIGHBOURS})
    scores = "their meta-chunk"
    citation = NEXTLONG

    def steps(
        self,
        recipe: Recipe,
        ingest: Step,
        chunk: Step,
        tokenizer: Step,
        *,
        attempt: int,
    ) -> list[Step]:
        # Not imported just to read a recipe.
        from nextlong.methods.extend import extension_steps

        return extension_steps(recipe, ingest, chunk, tokenizer, attempt=attempt)


METHOD = _Nextlong()
