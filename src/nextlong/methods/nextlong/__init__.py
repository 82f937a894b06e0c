"""NExtLong: a document's chunks, and between them the chunks of other documents most similar to them (arXiv 2501.12766).

Here it is as a method; `rules` has the paper's formulas, `draft` their use, `candidates` and `filter` what may stand in a draft.
"""

from __future__ import annotations

from nextlong.engine.step import Step
from nextlong.methods.base import Need, Upstream
from nextlong.recipe import Recipe, Section
from nextlong.schemas import Layout


class Nextlong:
    """Negative Document Extension. Its options are the sections `mine` and `compose` of the recipe."""

    name = "nextlong"
    Options: type[Section] = Section
    layout = Layout.EXTENDED
    needs = frozenset({Need.CHUNK_NEIGHBOURS})
    scores = "their meta-chunk"

    def describe(self, options: Section) -> str:  # noqa: ARG002
        """Return the name."""
        return self.name

    def repeats_documents(self, options: Section) -> bool:  # noqa: ARG002
        """Say that each meta-document makes one sequence."""
        return False

    def steps(self, recipe: Recipe, upstream: Upstream, *, attempt: int) -> list[Step]:
        """Return the steps from the chunks to the drafts."""
        from nextlong.methods.steps import extension_steps  # what searches is not loaded to read a recipe

        return extension_steps(recipe, upstream, attempt=attempt)


METHOD = Nextlong()
