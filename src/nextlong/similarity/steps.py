"""Shingles: chunks → their runs of words, and how rare each is, as steps; near-copies are measured with both."""

from __future__ import annotations

from functools import partial

from nextlong.artefacts.finished import chunks_of
from nextlong.engine.estimate import Estimate, one, per_shard
from nextlong.engine.step import Finished, Step, Task
from nextlong.recipe import Recipe
from nextlong.results import ChunkResult, ShinglesResult, WeightsResult
from nextlong.similarity.shingles import SAMPLED_CHARS, ShingleStore, shingle_shard, weigh_shingles


def shingles_step(ingest: Step, chunk: Step) -> Step:
    """DOCUMENTS and CHUNKS → SHINGLES of every chunk."""

    def tasks(done: Finished) -> list[Task]:
        shards = zip(done["ingest"].files(".documents.arrow"), chunks_of(done).files(".chunks.arrow"), strict=True)
        return [partial(shingle_shard, documents=documents, chunks=chunks) for documents, chunks in shards]

    estimate = Estimate(
        work=lambda amounts: amounts.kept_chars,
        seconds=2e-8,
        disk=lambda amounts: amounts.kept_chars,
        bytes=0.66,
        tasks=per_shard,
    )
    return Step("shingles", 3, {}, (ingest, chunk), tasks, ShinglesResult, estimate=estimate)


def weights_step(recipe: Recipe, ingest: Step, chunk: Step, shingles: Step) -> Step:
    """SHINGLES → their weights, by how many of a sample of the documents hold them."""

    def tasks(done: Finished) -> list[Task]:
        chunked = chunks_of(done)
        return [
            partial(
                weigh_shingles,
                store=shingle_store(done),
                chunks=chunked.files(".chunks.arrow"),
                hashes=done["ingest"].files(".hashes.npy"),
                share=min(1.0, SAMPLED_CHARS / max(1, sum(shard.chars for shard in chunked.results(ChunkResult)))),
                seed=recipe.seed,
            )
        ]

    config = {"sampled_chars": SAMPLED_CHARS, "seed": recipe.seed}
    estimate = Estimate(
        work=lambda amounts: min(amounts.kept_chars, SAMPLED_CHARS), seconds=6e-9, disk=one, bytes=8.4e6
    )
    return Step("weights", 3, config, (ingest, chunk, shingles), tasks, WeightsResult, estimate=estimate)


def shingle_store(done: Finished) -> ShingleStore:
    """Return the shingles of every chunk."""
    shingles = done["shingles"]
    return ShingleStore(hashes=shingles.files(".shingles.npy"), offsets=shingles.files(".offsets.npy"))
