"""Left out, as a step: beside the corpus, for people to look at; no other step reads it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from nextlong.corpus.left_out import Looks, gather_left_out
from nextlong.corpus.parts import Splits
from nextlong.corpus.steps import compared_hashes
from nextlong.engine.estimate import Estimate
from nextlong.engine.step import Finished, Step, Task
from nextlong.recipe import Recipe
from nextlong.results import ContaminatedResult, IngestResult, LeftOutResult, NearDuplicatesResult, SelectResult


def left_out_step(recipe: Recipe, splits: Splits, ingest: Step, select: Step, others: Sequence[Step]) -> Step:
    """What every filter left out, with examples; `others` are the steps that leave out near-duplicates and contaminated text."""
    reads = tuple(step for step in others if step.name in ("near_duplicates", "contaminated"))
    sources = [place for place, of_source in enumerate(splits) for _ in of_source]

    def tasks(done: Finished) -> list[Task]:
        ingest_done, parts = done["ingest"], done["ingest"].results(IngestResult)
        looks = Looks(
            documents=tuple(ingest_done.files(".documents.arrow")),
            hashes=tuple(ingest_done.files(".hashes.npy")),
            compared=tuple(ingest_done.files(compared_hashes(recipe))),
            source_of=[place for place, part in zip(sources, parts, strict=True) for _ in range(part.shards)],
            rejects=tuple(ingest_done.files(".rejects.arrow") if any(part.rejects for part in parts) else ()),
            keep=tuple(done["select"].files(".keep.npy")),
            stay=tuple(done["near_duplicates" if "near_duplicates" in done else "select"].files(".keep.npy")),
            ingested=parts,
            labels=[recipe.ingest.sources[place].label for place in sources],
            selected=done["select"].result(SelectResult),
            near=done["near_duplicates"].result(NearDuplicatesResult) if "near_duplicates" in done else None,
            contaminated=done["contaminated"].results(ContaminatedResult) if "contaminated" in done else (),
        )
        return [partial(gather_left_out, looks=looks)]

    estimate = Estimate(
        work=lambda amounts: amounts.documents, seconds=1e-6, memory=lambda amounts: 16 * amounts.documents
    )
    return Step("left_out", 4, {}, (ingest, select, *reads), tasks, LeftOutResult, estimate=estimate)
