"""Shingles: documents → how rare each run of words is, as steps; the measure of near-copies weighs by it."""

from __future__ import annotations

from functools import partial

from nextlong.engine.step import Finished, Step, Task
from nextlong.recipe import Recipe
from nextlong.stages.near_copies import SAMPLED_CHARS, count_shingles, weigh_shingles
from nextlong.steps.finished import chunks_of


def shingles_step(recipe: Recipe, ingest: Step, keep: Step, chunk: Step) -> Step:
    """Kept documents → in how many of a sample of them each shingle stands; `keep` is the step that says which are kept."""

    def tasks(done: Finished) -> list[Task]:
        share = min(1.0, SAMPLED_CHARS / max(1, chunks_of(done).total("chars")))
        shards = zip(done["ingest"].files(".documents.arrow"), done[keep.name].files(".keep.npy"), strict=True)
        return [
            partial(count_shingles, documents=documents, keep=keep, share=share, seed=recipe.seed)
            for documents, keep in shards
        ]

    return Step("shingles", 1, {"sampled_chars": SAMPLED_CHARS, "seed": recipe.seed}, (ingest, keep, chunk), tasks)


def weights_step(shingles: Step) -> Step:
    """Counts of shingles → their weights."""

    def tasks(done: Finished) -> list[Task]:
        counted = done["shingles"]
        return [partial(weigh_shingles, counted=counted.files(".stock.npy"), sampled=counted.total("sampled"))]

    return Step("weights", 1, {}, (shingles,), tasks)
