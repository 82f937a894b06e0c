"""Embed, as steps: chunks → vectors, and vectors of whole documents."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from nextlong.artefacts.finished import chunks_of
from nextlong.embed.base import embedding_lanes
from nextlong.embed.chunks import embed_shard, fit_encoder
from nextlong.embed.documents import average_shard
from nextlong.engine.step import Finished, Step, Task
from nextlong.recipe import Recipe

# Keys that say how to compute, not what: changing them must not throw vectors away.
_OPERATIONAL = {
    "batch_size",
    "device",
    "concurrency",
    "requests_per_minute",
    "max_attempts",
    "timeout_s",
    "api_key_env",
}


def encoder_step(recipe: Recipe, ingest: Step, chunk: Step) -> Step:
    """A sample of the chunks → the fitted encoder; nothing for encoders that come fitted."""

    def tasks(done: Finished) -> list[Task]:
        if recipe.encoder.kind != "lsa":
            return []
        return [
            partial(
                fit_encoder,
                documents=done["ingest"].files(".documents.arrow"),
                chunks=chunks_of(done).files(".chunks.arrow"),
                encoder=recipe.encoder,
                seed=recipe.seed,
            )
        ]

    options = recipe.encoder.model_dump()[recipe.encoder.kind.replace("-", "_")]
    config: dict[str, Any] = {"model": recipe.encoder.model} | {
        key: value for key, value in options.items() if key not in _OPERATIONAL
    }
    if recipe.encoder.kind == "lsa":
        config["seed"] = recipe.seed
    elif Path(recipe.encoder.name).expanduser().is_dir():
        config["files"] = _identity(Path(recipe.encoder.name).expanduser())
    return Step("encoder", 1, config, (ingest, chunk), tasks)


def embed_step(recipe: Recipe, ingest: Step, chunk: Step, encoder: Step) -> Step:
    """CHUNKS → VECTORS."""

    def tasks(done: Finished) -> list[Task]:
        fitted = done["encoder"].stem() if recipe.encoder.kind == "lsa" else None
        shards = zip(done["ingest"].files(".documents.arrow"), chunks_of(done).files(".chunks.arrow"), strict=True)
        return [
            partial(embed_shard, documents=documents, chunks=chunks, shard=shard, encoder=recipe.encoder, fitted=fitted)
            for shard, (documents, chunks) in enumerate(shards)
        ]

    return Step("embed", 1, {}, (ingest, chunk, encoder), tasks, lanes=partial(embedding_lanes, recipe.encoder))


def _identity(folder: Path) -> list[list[Any]]:
    """Return what tells a model folder from another: name, size and time of change of every file."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    stats = [(path.relative_to(folder).as_posix(), path.stat()) for path in files]
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]


def docvectors_step(recipe: Recipe, chunk: Step, embed: Step) -> Step:
    """VECTORS → one vector a document."""
    config: dict[str, Any] = {"of": recipe.documents.vector}

    def tasks(done: Finished) -> list[Task]:
        shards = zip(chunks_of(done).files(".chunks.arrow"), done["embed"].files(".vectors.npy"), strict=True)
        return [partial(average_shard, chunks=chunks, vectors=vectors, **config) for chunks, vectors in shards]

    return Step("docvectors", 1, config, (chunk, embed), tasks)
