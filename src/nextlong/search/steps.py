"""Search, as steps: drawn documents, the candidates of their chunks, the neighbours of documents."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from nextlong.artefacts.finished import chunks_of
from nextlong.engine.step import Done, Finished, Step, Task
from nextlong.errors import CorpusError
from nextlong.recipe import Recipe
from nextlong.recipe.amounts import _TYPICAL_CHARS_PER_TOKEN, document_chars, draws, fetch_of
from nextlong.search.metas import draw_metas, list_documents
from nextlong.search.mine import mine_block, mine_documents

_BLOCKS = 16  # tasks over meta-documents: enough that small data sets parallelise …
_MOST_QUERIES_PER_BLOCK = 8_192  # of documents: one vector each
_NEAR_COPY_SPARES = 7  # beyond k, so that k neighbours remain where near-copies fall out
_MOST_METAS_PER_BLOCK = 256  # … and few enough documents in each to stay within memory


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


def documents_step(recipe: Recipe, ingest: Step, chunk: Step) -> Step:
    """CHUNKS → DOCS: every document that has chunks, and those whose neighbours a method wants."""
    seeds = draws(recipe) if recipe.compose.method == "knn" else None
    config: dict[str, Any] = {"seeds": seeds, "seed": recipe.compose_seed}

    def tasks(done: Finished) -> list[Task]:
        chunks, hashes = chunks_of(done).files(".chunks.arrow"), done["ingest"].files(".hashes.npy")
        return [partial(list_documents, chunks=chunks, hashes=hashes, **config)]

    return Step("documents", 1, config, (ingest, chunk), tasks)


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
