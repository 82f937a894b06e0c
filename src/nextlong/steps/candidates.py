"""Candidates: chunks → vectors → the neighbours of each meta-chunk, as steps."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

from nextlong.encoders import embedding_lanes
from nextlong.engine import store
from nextlong.engine.step import Done, Finished, Step, Task
from nextlong.errors import CorpusError
from nextlong.recipe import Recipe
from nextlong.stages.document_vectors import average_shard
from nextlong.stages.draft_documents import extract_keywords, list_documents
from nextlong.stages.embed import embed_shard, fit_encoder
from nextlong.stages.mine import draw_metas, mine_block, mine_documents
from nextlong.steps.finished import chunks_of

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

_LEAST_FETCH = (
    1024  # covers target_tokens up to 131,072 at 2,048 characters a chunk, so shorter targets mine nothing anew
)
_TYPICAL_CHARS_PER_TOKEN = 4.5  # of English; only bounds how many neighbours may be needed
_BLOCKS = 16  # tasks over meta-documents: enough that small data sets parallelise …
_MOST_QUERIES_PER_BLOCK = 8_192  # of documents: one vector each
_DOCUMENT_MARGIN = 1.2
_NEAR_COPY_SPARES = 7  # beyond k, so that k neighbours remain where near-copies fall out
_MOST_METAS_PER_BLOCK = 256  # … and few enough documents in each to stay within memory


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
        config["files"] = store.hash_folder(Path(recipe.encoder.name).expanduser())
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


def draws(recipe: Recipe, attempt: int = 0) -> int | None:
    """Return how many documents to draw: a quarter more than sequences at first, for those that turn out not to fit."""
    count = recipe.compose.sequences
    return None if count == "all" else (count + count // 4 + 8) << attempt


def metas_step(recipe: Recipe, ingest: Step, chunk: Step, *, attempt: int) -> Step:
    """CHUNKS → the drawn meta-documents."""
    config: dict[str, Any] = {
        "draws": draws(recipe, attempt),
        "min_meta_chunks": recipe.compose.min_meta_chunks,
        "seed": recipe.compose_seed,
    }

    def tasks(done: Finished) -> list[Task]:
        chunks = chunks_of(done).files(".chunks.arrow")
        hashes, chars = (done["ingest"].files(suffix) for suffix in (".hashes.npy", ".chars.npy"))
        return [partial(draw_metas, chunks=chunks, hashes=hashes, chars=chars, **config)]

    def check(done: Done) -> None:
        (counts,) = done.counts
        if not counts["drawn"]:
            raise CorpusError(
                f"none of the {counts['documents']:,} documents has compose.min_meta_chunks="
                f"{recipe.compose.min_meta_chunks} chunks of at most chunk.max_chars={recipe.chunk.max_chars} characters; "
                "lower either, or add longer documents"
            )

    return Step("metas", 1, config, (ingest, chunk), tasks, check=check)


def blocks(count: int, *, most: int = _MOST_METAS_PER_BLOCK) -> list[tuple[int, int]]:
    """Return the ranges of meta-documents that one task takes; they depend on their number alone."""
    size = min(max(1, math.ceil(count / _BLOCKS)), most)
    return [(first, min(first + size, count)) for first in range(0, count, size)]


def fetch_of(recipe: Recipe) -> int:
    """Return how many candidates each meta-chunk gets.

    One meta-chunk may need as many as the whole sequence holds. `auto` doubles the paper's count for chunks that are
    shorter than s, as most are, and rounds to a power of two.
    """
    if recipe.mine.fetch != "auto":
        return recipe.mine.fetch
    drafted_chars = recipe.compose.target_tokens * _TYPICAL_CHARS_PER_TOKEN * recipe.compose.draft_factor
    return max(_LEAST_FETCH, 2 << math.ceil(math.log2(max(1.0, drafted_chars / recipe.chunk.max_chars))))


def mine_step(recipe: Recipe, embed: Step, metas: Step) -> Step:
    """VECTORS of the meta-chunks → CANDIDATES."""
    fetch = fetch_of(recipe)

    def tasks(done: Finished) -> list[Task]:
        path, vectors = done["metas"].file(".metas.npy"), done["embed"].files(".vectors.npy")
        return [
            partial(mine_block, metas=path, first=first, last=last, vectors=vectors, fetch=fetch)
            for first, last in blocks(done["metas"].total("drawn"))
        ]

    return Step("mine", 1, {"fetch": fetch}, (embed, metas), tasks)


# the same for whole documents


def sequence_limit(recipe: Recipe, attempt: int = 0) -> int | None:
    """Return how many drafts to make: a few spares for those that do not reach T after all; None for as many as there are."""
    count = recipe.compose.sequences
    return None if count == "all" else (count + count // 16 + 4) << attempt


def document_chars(recipe: Recipe, chars_per_token: float) -> float:
    """Return how much text a draft of whole documents takes: T·E and a margin, because E is a mean of the corpus."""
    return recipe.sequence_tokens * chars_per_token * _DOCUMENT_MARGIN


def documents_step(recipe: Recipe, ingest: Step, chunk: Step) -> Step:
    """CHUNKS → DOCS: every document that has chunks, and those whose neighbours a method wants."""
    seeds = draws(recipe) if recipe.compose.method == "knn" else None
    config: dict[str, Any] = {"seeds": seeds, "seed": recipe.compose_seed}

    def tasks(done: Finished) -> list[Task]:
        chunks, hashes = chunks_of(done).files(".chunks.arrow"), done["ingest"].files(".hashes.npy")
        return [partial(list_documents, chunks=chunks, hashes=hashes, **config)]

    return Step("documents", 1, config, (ingest, chunk), tasks)


def docvectors_step(recipe: Recipe, chunk: Step, embed: Step) -> Step:
    """VECTORS → one vector a document."""
    config: dict[str, Any] = {"of": recipe.documents.vector}

    def tasks(done: Finished) -> list[Task]:
        shards = zip(chunks_of(done).files(".chunks.arrow"), done["embed"].files(".vectors.npy"), strict=True)
        return [partial(average_shard, chunks=chunks, vectors=vectors, **config) for chunks, vectors in shards]

    return Step("docvectors", 1, config, (chunk, embed), tasks)


def neighbours_step(recipe: Recipe, documents: Step, docvectors: Step) -> Step:
    """Document vectors → the nearest documents of each query."""
    method = recipe.compose.method
    config: dict[str, Any] = {"method": method}
    if method == "iclm":
        config["fetch"] = recipe.iclm.neighbours + _NEAR_COPY_SPARES
    else:
        config["target_tokens"] = recipe.compose.target_tokens

    def tasks(done: Finished) -> list[Task]:
        (counts,) = done["documents"].counts
        fetch = config.get("fetch")
        if fetch is None:  # neighbours of a short document are short too: four times the mean number
            mean_chars = counts["chars"] / max(1, counts["documents"])
            fetch = math.ceil(4 * document_chars(recipe, _TYPICAL_CHARS_PER_TOKEN) / max(1.0, mean_chars))
        vectors, queries = done["docvectors"].files(".docvectors.npy"), done["documents"].file(".queries.npy")
        return [
            partial(mine_documents, queries=queries, first=first, last=last, vectors=vectors, fetch=fetch)
            for first, last in blocks(counts["drawn"], most=_MOST_QUERIES_PER_BLOCK)
        ]

    return Step("neighbours", 1, config, (documents, docvectors), tasks)


def keywords_step(recipe: Recipe, ingest: Step, chunk: Step) -> Step:
    """Documents → the keywords of their queries."""
    reading = {"queries", "min_keyword_score", "min_keyword_chars"}

    def tasks(done: Finished) -> list[Task]:
        shards = zip(done["ingest"].files(".documents.arrow"), chunks_of(done).files(".chunks.arrow"), strict=True)
        return [
            partial(extract_keywords, documents=documents, chunks=chunks, options=recipe.quest)
            for documents, chunks in shards
        ]

    return Step("keywords", 1, recipe.quest.model_dump(include=reading), (ingest, chunk), tasks)
