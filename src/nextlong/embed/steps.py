"""Embed, as steps: chunks → vectors, and vectors of whole documents."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from nextlong.artefacts.finished import chunks_of
from nextlong.embed.base import embedding_resources
from nextlong.embed.choose import Execution
from nextlong.embed.chunks import count_chunks, embed_shard, fit_encoder
from nextlong.embed.documents import average_shard
from nextlong.embed.slices import embed_slice, join_slices, slices_of, try_model
from nextlong.engine import store
from nextlong.engine.estimate import TRIED, Estimate, per_shard
from nextlong.engine.executor import Capacity, Resources
from nextlong.engine.step import Finished, Step, Task
from nextlong.recipe import Recipe
from nextlong.recipe.amounts import Amounts
from nextlong.recipe.keys import HOW_TO_ENCODE
from nextlong.recipe.keys import Lsa as LsaOptions
from nextlong.results import DocumentVectorsResult, EmbedResult, ExecutionResult, FitResult

_SLICE_CHUNKS = 1024  # that a task encodes by a transformer, about
_TERM_GROWTH = 0.6  # Heaps' law: distinct terms grow as text ** 0.6
_TERMS_OF_A_CHUNK = 150  # in that law, of English


def _terms(amounts: Amounts, lsa: LsaOptions) -> float:
    """Return about how many terms LSA finds in its sample."""
    sample: float = min(amounts.chunks, lsa.fit_chunks)
    return min(float(lsa.max_terms), _TERMS_OF_A_CHUNK * math.pow(sample, _TERM_GROWTH))


def encoder_step(recipe: Recipe, ingest: Step, chunk: Step) -> Step:
    """A sample of the chunks → the fitted encoder, or how a model is to run; nothing for a server."""
    kind = recipe.encoder.kind

    def tasks(done: Finished) -> list[Task]:
        corpus: dict[str, Any] = {
            "documents": done["ingest"].files(".documents.arrow"),
            "chunks": chunks_of(done).files(".chunks.arrow"),
            "encoder": recipe.encoder,
        }
        if kind == "lsa":
            return [partial(fit_encoder, **corpus, seed=recipe.seed)]
        return [partial(try_model, **corpus)] if kind == "sentence-transformers" else []

    options = recipe.encoder.model_dump()[kind.replace("-", "_")]
    config: dict[str, Any] = {"model": recipe.encoder.model} | {
        key: value for key, value in options.items() if key not in HOW_TO_ENCODE
    }
    if kind == "lsa":
        config["seed"] = recipe.seed
    elif kind == "sentence-transformers" and Path(recipe.encoder.name).expanduser().is_dir():
        config["files"] = store.hash_folder(Path(recipe.encoder.name).expanduser())
    version = 2 if kind == "sentence-transformers" else 1
    resources = partial(embedding_resources, recipe.encoder)
    result = FitResult if kind == "lsa" else ExecutionResult
    estimate = Estimate(
        work=lambda amounts: min(amounts.chunks, recipe.encoder.lsa.fit_chunks) if kind == "lsa" else 1.0,
        seconds=6e-4 if kind == "lsa" else 20.0,  # a model is loaded and tried
        disk=lambda amounts: _terms(amounts, recipe.encoder.lsa) * (amounts.dimensions + 4),
        bytes=4.0 if kind == "lsa" else 0.0,
        memory=lambda amounts: 12e3 * min(amounts.chunks, recipe.encoder.lsa.fit_chunks) if kind == "lsa" else 0.0,
        rate=TRIED if kind == "lsa" else "",
    )
    return Step("encoder", version, config, (ingest, chunk), tasks, result, resources=resources, estimate=estimate)


def embed_step(recipe: Recipe, ingest: Step, chunk: Step, encoder: Step) -> Step:
    """CHUNKS → VECTORS: by shards, or by slices of them where a transformer encodes."""
    if recipe.encoder.kind == "sentence-transformers":
        return _embed_slices_step(recipe, ingest, chunk, encoder)

    def tasks(done: Finished) -> list[Task]:
        fitted = done["encoder"].stem() if recipe.encoder.kind == "lsa" else None
        return [
            partial(embed_shard, documents=documents, chunks=chunks, shard=shard, encoder=recipe.encoder, fitted=fitted)
            for shard, (documents, chunks) in enumerate(_shards(done))
        ]

    resources = partial(embedding_resources, recipe.encoder)
    estimate = _vectors(rate=TRIED if recipe.encoder.kind == "lsa" else "encoder")
    return Step("embed", 1, {}, (ingest, chunk, encoder), tasks, EmbedResult, resources=resources, estimate=estimate)


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
    known: dict[str, Any] = {}  # what is known once the inputs are done

    def tasks(done: Finished) -> list[Task]:
        chosen = done["encoder"].result(ExecutionResult)
        execution = Execution(*(getattr(chosen, name) for name in Execution._fields))
        shards = list(_shards(done))
        known.update(threads=execution.threads, shards=len(shards), dimensions=chosen.dimensions)
        return [
            partial(
                embed_slice,
                documents=shards[shard][0],
                chunks=shards[shard][1],
                shard=shard,
                first=first,
                last=last,
                encoder=recipe.encoder,
                execution=execution,
            )
            for shard, first, last in slices_of([count_chunks(chunks) for _, chunks in shards], execution)
        ]

    def resources(capacity: Capacity) -> Resources:
        needs = embedding_resources(recipe.encoder, capacity)
        threads = known.get("threads", 1)
        return needs if threads == 1 else replace(needs, cpus=threads, at_once=max(1, capacity.cpus // threads))

    def close(slices: Sequence[EmbedResult]) -> Task:
        return partial(join_slices, slices=slices, shards=known["shards"], dimensions=known["dimensions"])

    # A shard is many slices.
    estimate = replace(_vectors(rate="encoder"), tasks=lambda amounts: amounts.chunks / _SLICE_CHUNKS)
    return Step(
        "embed",
        2,
        {},
        (ingest, chunk, encoder),
        tasks,
        EmbedResult,
        resources=resources,
        close=close,
        estimate=estimate,
    )


def _shards(done: Finished) -> Iterator[tuple[Path, Path]]:
    return zip(done["ingest"].files(".documents.arrow"), chunks_of(done).files(".chunks.arrow"), strict=True)


def document_vectors_step(recipe: Recipe, chunk: Step, embed: Step) -> Step:
    """VECTORS → one vector a document."""
    config: dict[str, Any] = {"of": recipe.documents.vector}

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
