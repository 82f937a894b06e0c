"""Embed, as steps: chunks → vectors, and vectors of whole documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from nextlong.artefacts.finished import chunks_of
from nextlong.embed.base import kind_of
from nextlong.embed.choose import Execution
from nextlong.embed.chunks import count_chunks, embed_shard
from nextlong.embed.documents import average_shard
from nextlong.embed.slices import embed_slice, join_slices, slices_of
from nextlong.engine.estimate import Estimate, per_shard
from nextlong.engine.step import Config, Finished, Join, Step, Task, Work
from nextlong.recipe import Recipe
from nextlong.results import DocumentVectorsResult, EmbedResult, ExecutionResult

_SLICE_CHUNKS = 1024  # that a task encodes by a transformer, about


def encoder_step(recipe: Recipe, ingest: Step, chunk: Step) -> Step:
    """The chunks → whatever the encoder needs of them before the first is embedded; nothing for some."""
    kind, encoder = kind_of(recipe.encoder), recipe.encoder

    def tasks(done: Finished) -> list[Task]:
        documents, chunks = done["ingest"].files(".documents.arrow"), chunks_of(done).files(".chunks.arrow")
        return kind.prepare(encoder, documents=documents, chunks=chunks, seed=recipe.seed)

    config = {"model": encoder.model} | encoder.options.identity() | kind.depends_on(encoder, seed=recipe.seed)
    return Step(
        "encoder",
        kind.version,
        config,
        (ingest, chunk),
        tasks,
        kind.result,
        resources=partial(kind.resources, encoder),
        estimate=kind.estimate(encoder),
    )


def embed_step(recipe: Recipe, ingest: Step, chunk: Step, encoder: Step) -> Step:
    """CHUNKS → VECTORS: by shards, or by slices of them where the encoder asks for that."""
    kind = kind_of(recipe.encoder)
    if kind.embeds == "slices":
        return _embed_slices_step(recipe, ingest, chunk, encoder)

    def tasks(done: Finished) -> list[Task]:
        fitted = done["encoder"].stem() if kind.needs_fit else None
        return [
            partial(embed_shard, documents=documents, chunks=chunks, encoder=recipe.encoder, fitted=fitted)
            for documents, chunks in _shards(done)
        ]

    resources = partial(kind.resources, recipe.encoder)
    inputs, estimate = (ingest, chunk, encoder), _vectors(rate=kind.rate)
    return Step("embed", 1, {}, inputs, tasks, EmbedResult, resources=resources, estimate=estimate)


def _vectors(*, rate: str) -> Estimate:
    return Estimate(
        work=lambda amounts: amounts.chunks,
        seconds=6e-5,
        disk=lambda amounts: amounts.chunks * amounts.dimensions,
        bytes=2,
        tasks=per_shard,
        rate=rate,
    )


def _embed_slices_step(recipe: Recipe, ingest: Step, chunk: Step, encoder: Step) -> Step:
    kind = kind_of(recipe.encoder)

    def work(done: Finished) -> Work:
        chosen = done["encoder"].result(ExecutionResult)
        execution = Execution(*(getattr(chosen, name) for name in Execution._fields))
        dimensions, shards = chosen.dimensions, list(_shards(done))
        counts = [count_chunks(chunks) for _, chunks in shards]
        slices = slices_of(counts, execution)
        of_shard: list[list[int]] = [[] for _ in shards]  # task numbers
        for number, (shard, _, _) in enumerate(slices):
            of_shard[shard].append(number)
        each = [
            partial(
                embed_slice,
                documents=shards[shard][0],
                chunks=shards[shard][1],
                first=first,
                last=last,
                encoder=recipe.encoder,
                execution=execution,
            )
            for shard, first, last in slices
        ]

        def join(tasks: Sequence[int]) -> Join:
            return Join(tasks, lambda made: partial(join_slices, tasks=tasks, slices=made, dimensions=dimensions), True)

        gpu: Literal["needed", "as declared"] = "needed" if execution.device == "cuda" else "as declared"
        return Work(each, [join(tasks) for tasks in of_shard], threads=execution.threads, gpu=gpu)

    # A shard is many slices.
    estimate = replace(_vectors(rate=kind.rate), tasks=lambda amounts: amounts.chunks / _SLICE_CHUNKS)
    return Step(
        "embed",
        3,
        {},
        (ingest, chunk, encoder),
        work,
        EmbedResult,
        resources=partial(kind.resources, recipe.encoder),
        estimate=estimate,
    )


def _shards(done: Finished) -> Iterator[tuple[Path, Path]]:
    return zip(done["ingest"].files(".documents.arrow"), chunks_of(done).files(".chunks.arrow"), strict=True)


def document_vectors_step(recipe: Recipe, chunk: Step, embed: Step) -> Step:
    """VECTORS → one vector a document."""
    config: Config = {"of": recipe.documents.vector}

    def tasks(done: Finished) -> list[Task]:
        shards = zip(chunks_of(done).files(".chunks.arrow"), done["embed"].files(".vectors.npy"), strict=True)
        return [partial(average_shard, chunks=chunks, vectors=vectors, **config) for chunks, vectors in shards]

    estimate = Estimate(
        work=lambda amounts: amounts.chunks * amounts.dimensions,
        seconds=2e-9,
        disk=lambda amounts: amounts.kept_documents * (amounts.dimensions + 8),
        bytes=2,
        tasks=per_shard,
    )
    return Step("document_vectors", 2, config, (chunk, embed), tasks, DocumentVectorsResult, estimate=estimate)
