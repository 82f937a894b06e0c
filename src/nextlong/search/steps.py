"""Search, as steps: drawn documents, the candidates of their chunks, the neighbours of documents."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from nextlong.artefacts.finished import chunks_of
from nextlong.engine.estimate import Estimate
from nextlong.engine.step import Config, Done, Finished, Step, Task, Work
from nextlong.errors import CorpusError
from nextlong.recipe import Recipe
from nextlong.recipe.amounts import (
    BLOCKS,
    MOST_QUERIES,
    TYPICAL_CHARS_PER_TOKEN,
    Amounts,
    blocks,
    document_chars,
    draws,
    fetch_of,
)
from nextlong.results import DocumentsResult, MetaDocumentsResult, MineResult
from nextlong.search import choose
from nextlong.search.draw import draw_meta_documents, list_documents
from nextlong.search.index import gpu_use
from nextlong.search.index_steps import exact_resources, index_files
from nextlong.search.mine import mine_block, mine_documents

_MOST_DOCUMENTS = 256  # documents drafted at a time


def _products(amounts: Amounts) -> float:
    """Return the multiplications of a search, and what takes as long as so many: keeping what is found."""
    products = amounts.queries * amounts.vectors * amounts.dimensions * amounts.looked_into
    return products + amounts.all_neighbours * choose.FOUND_S / choose.PRODUCT_S


def _search_memory(amounts: Amounts) -> float:
    """Return the bytes that a task holds: its best so far, at most `Best` of so many queries, its scores, its candidates."""
    queries = min(amounts.queries, MOST_QUERIES)
    return min(36 * amounts.neighbours * queries, 200e6) + 12 * amounts.neighbours * queries + 64e6


_SEARCH = Estimate(
    work=_products,
    seconds=choose.PRODUCT_S,
    disk=lambda amounts: amounts.all_neighbours,
    bytes=12,
    tasks=lambda amounts: blocks(amounts.queries, amounts.queries),
    memory=_search_memory,
    rate="products",
)


def meta_documents_step(recipe: Recipe, ingest: Step, chunk: Step, *, attempt: int) -> Step:
    """CHUNKS → the drawn meta-documents."""
    config: Config = {
        "draws": draws(recipe, attempt),
        "min_meta_chunks": recipe.compose.min_meta_chunks,
        "seed": recipe.compose_seed,
    }

    def tasks(done: Finished) -> list[Task]:
        chunks = chunks_of(done).files(".chunks.arrow")
        hashes, chars = (done["ingest"].files(suffix) for suffix in (".hashes.npy", ".chars.npy"))
        return [partial(draw_meta_documents, chunks=chunks, hashes=hashes, chars=chars, **config)]

    def check(done: Done) -> None:
        draw = done.result(MetaDocumentsResult)
        if not draw.drawn:
            raise CorpusError(none_long_enough(recipe, f"{draw.documents:,} documents"))

    estimate = Estimate(
        work=lambda amounts: amounts.chunks, seconds=6e-8, disk=lambda amounts: amounts.drafts, bytes=40
    )
    return Step(
        "meta_documents", 1, config, (ingest, chunk), tasks, MetaDocumentsResult, check=check, estimate=estimate
    )


def none_long_enough(recipe: Recipe, documents: str) -> str:
    """Say that none of the documents has the chunks that extending takes."""
    return (
        f"none of the {documents} has compose.min_meta_chunks={recipe.compose.min_meta_chunks} chunks of at most "
        f"chunk.max_chars={recipe.chunk.max_chars} characters; lower either, or add longer documents"
    )


def meta_blocks(meta_documents: Path) -> list[tuple[int, int]]:
    """Return the ranges of drawn documents that one task takes, of about as many chunks each; they depend on these alone."""
    ends = np.cumsum(np.load(meta_documents)["chunks"])
    total = int(ends[-1]) if len(ends) else 0
    most = min(max(1, math.ceil(total / BLOCKS)), MOST_QUERIES)
    ranges, first = [], 0
    while first < len(ends):
        begun = int(ends[first - 1]) if first else 0
        last = int(np.searchsorted(ends, begun + most, side="right"))
        ranges.append((first, min(max(last, first + 1), first + _MOST_DOCUMENTS)))  # one document is never divided
        first = ranges[-1][1]
    return ranges


def document_blocks(count: int) -> list[tuple[int, int]]:
    """Return the ranges of documents whose neighbours one task finds."""
    size = min(max(1, math.ceil(count / BLOCKS)), MOST_QUERIES)
    return [(first, min(first + size, count)) for first in range(0, count, size)]


def mine_step(recipe: Recipe, embed: Step, meta_documents: Step, index: Sequence[Step]) -> Step:
    """VECTORS of the meta-chunks → CANDIDATES, by the index that the steps `index` built, or exactly."""
    fetch = fetch_of(recipe)

    def work(done: Finished) -> Work:
        path, files = (
            done["meta_documents"].file(".meta_documents.npy"),
            index_files(done, done["embed"].files(".vectors.npy")),
        )
        each = [
            partial(mine_block, meta_documents=path, first=first, last=last, index=files, fetch=fetch)
            for first, last in meta_blocks(path)
        ]
        return Work(each, gpu=gpu_use(files))

    inputs = (embed, meta_documents, *index)
    resources = partial(exact_resources, recipe)
    return Step("mine", 3, {"fetch": fetch}, inputs, work, MineResult, resources=resources, estimate=_SEARCH)


def documents_step(recipe: Recipe, ingest: Step, chunk: Step, *, queries: int | None) -> Step:
    """CHUNKS → DOCS: every document that has chunks, and so many (None: all) whose neighbours a method wants."""
    config: Config = {"seeds": queries, "seed": recipe.compose_seed}

    def tasks(done: Finished) -> list[Task]:
        chunks, hashes = chunks_of(done).files(".chunks.arrow"), done["ingest"].files(".hashes.npy")
        return [partial(list_documents, chunks=chunks, hashes=hashes, **config)]

    estimate = Estimate(
        work=lambda amounts: amounts.chunks,
        seconds=6e-8,
        disk=lambda amounts: amounts.kept_documents,
        bytes=48,
        memory=lambda amounts: 100 * amounts.kept_documents,
    )
    return Step("documents", 2, config, (ingest, chunk), tasks, DocumentsResult, estimate=estimate)


def neighbours_step(
    recipe: Recipe, documents: Step, document_vectors: Step, index: Sequence[Step], *, wanted: Mapping[str, float]
) -> Step:
    """Document vectors → the nearest documents of each query, by the index that the steps `index` built, or exactly."""

    def work(done: Finished) -> Work:
        files = index_files(done, done["document_vectors"].files(".document_vectors.npy"))
        queries, fetch = done["documents"].file(".queries.npy"), neighbours_fetch(wanted, done)
        each = [
            partial(mine_documents, queries=queries, first=first, last=last, index=files, fetch=fetch)
            for first, last in document_blocks(done["documents"].result(DocumentsResult).drawn)
        ]
        return Work(each, gpu=gpu_use(files))

    inputs = (documents, document_vectors, *index)
    resources = partial(exact_resources, recipe)
    return Step("neighbours", 3, dict(wanted), inputs, work, MineResult, resources=resources, estimate=_SEARCH)


def wanted_neighbours(recipe: Recipe, *, fetch: int | None, attempt: int) -> dict[str, float]:
    """Return what sets how many neighbours a document gets: a number, or (None) how many characters they shall hold.

    Short documents' neighbours are short too. Each further `attempt` wants twice as many characters: those before it ran
    out of neighbours.
    """
    if fetch is not None:
        return {"fetch": fetch}
    return {"chars": 4 * document_chars(recipe, TYPICAL_CHARS_PER_TOKEN) * 2**attempt}


def neighbours_fetch(wanted: Mapping[str, float], done: Finished) -> int:
    """Return how many neighbours a document gets, from `wanted_neighbours` and the corpus's mean length."""
    if "fetch" in wanted:
        return int(wanted["fetch"])
    documents = done["documents"].result(DocumentsResult)
    mean_chars = documents.chars / max(1, documents.documents)
    return math.ceil(wanted["chars"] / max(1.0, mean_chars))
