"""Rounds: make the data of a run again as another checkpoint of a model sees it.

In:  a finished run whose recipe scores texts by a model, and a checkpoint.
Out: the recipe of the next round, a variant of the run.

PolicyLong (arXiv 2604.07809) selects contexts again with the model that is being
trained, because what a fixed model gains from drifts away from what the current one
lacks. Only its abstract is known here. Ours: each round is a variant, `round-2` and so
on (the run itself is the first), and everything that does not depend on the model is
reused. With `ingest.long_filter`, the model chooses the documents, so that only reading
them is reused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from nextlong.artifacts import variant_records
from nextlong.errors import RunError
from nextlong.methods.base import Need, method_of
from nextlong.recipe import Recipe
from nextlong.runs.run import Run


def next_round(run: Run, model: str, *, overrides: Sequence[str] = ()) -> Recipe:
    """Return the recipe of the next round of a run, with a checkpoint as its scorer.

    Raises RunError if its data depend on no model.
    """
    names = variant_records.names(run.path)
    number = 2
    while f"round-{number}" in names:
        number += 1
    changes = (
        f"name=round-{number}",
        f"scorer.model={json.dumps(model)}",
        "scorer.revision=null",
    )
    recipe = Recipe.load(run.variant.recipe_file, overrides=[*changes, *overrides])
    finds_contexts = Need.CONTEXTS in method_of(recipe).needs
    filters = recipe.ingest.long_filter, recipe.compose.verify_dependence
    if not finds_contexts and filters == (None, None):
        raise RunError(
            where=run,
            problem="its sequences depend on no model, so a checkpoint changes nothing",
            fix="use compose.method=entropy, or set compose.verify_dependence or "
            "ingest.long_filter",
        )
    return recipe
