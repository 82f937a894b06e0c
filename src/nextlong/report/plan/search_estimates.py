"""Estimates of embedding, shortlists, indexes and search, which multiply vectors.

Products are counted as multiply-adds of two values. `measure` times them in the trial,
under the rate "products".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from nextlong.methods import partition as partitioned
from nextlong.recipe import Encoder, Recipe
from nextlong.recipe.keys import EXACT, blocks, queries_of_task
from nextlong.report.plan.amounts import TRIED, Amount, Amounts, Estimate
from nextlong.retrieval import mine
from nextlong.retrieval.embed import MIN_SLICES
from nextlong.retrieval.encoders.base import SLICE_CHUNKS, SLICE_S, kind_of
from nextlong.retrieval.encoders.lsa import LsaOptions
from nextlong.retrieval.index import (
    FOUND_S,
    PRODUCT_S,
    build_seconds,
    count_parts,
    count_tune_tasks,
)
from nextlong.retrieval.indexes import exact_cpu, ivf
from nextlong.retrieval.indexes.base import index_kind
from nextlong.retrieval.shortlist import QUERY_WORDS, SAMPLED_CHUNKS

# Heaps' law: distinct terms grow as text ** 0.6; the other is its constant for English.
_TERM_GROWTH: Final = 0.6
_TERMS_PER_CHUNK: Final = 150

_FOUND_PRODUCTS: Final = FOUND_S / PRODUCT_S  # keeping a neighbour, as multiply-adds

_of_products = partial(Estimate, seconds=PRODUCT_S, rate="products")


# ---- vectors ----


def preparation(recipe: Recipe) -> Estimate:
    """Return the estimate of the step that prepares the encoder."""
    encoder = recipe.encoder
    estimate = _PREPARATIONS.get(encoder.section)
    if estimate is not None:
        return estimate(encoder)
    # Of a plug-in, the trial tells what its preparation takes.
    if kind_of(encoder).is_tried:
        return Estimate(work="chunks", seconds=0.0, disk="chunks")
    return Estimate(work=1, seconds=0.0, rate="")


def _fitting(encoder: Encoder) -> Estimate:
    options = encoder.options_as(LsaOptions)

    def sample(amounts: Amounts) -> float:
        return min(amounts.chunks, options.fit_chunks)

    def values(amounts: Amounts) -> float:
        terms = _TERMS_PER_CHUNK * math.pow(sample(amounts), _TERM_GROWTH)
        return min(float(options.max_terms), terms) * (amounts.dimensions + 4)

    return Estimate(
        work=sample,
        seconds=6e-4,
        disk=values,
        bytes=4.0,
        memory=lambda amounts: 12e3 * sample(amounts),
    )


def _trying(_: Encoder) -> Estimate:
    """Return the estimate of loading a model and trying it."""
    return Estimate(work=1, seconds=20.0, rate="")


# By the section of the recipe that has an encoder's options.
_PREPARATIONS: Final[Mapping[str, Callable[[Encoder], Estimate]]] = {
    "lsa": _fitting,
    "sentence_transformers": _trying,
}


def embedding(recipe: Recipe) -> Estimate:
    """Return the estimate of embedding the chunks."""
    kind = kind_of(recipe.encoder)
    tasks: Amount = "shards"
    task_s = 0.0
    if kind.embeds == "slices":
        tasks = _slices
        task_s = SLICE_S
    return Estimate(
        work="embedded",
        seconds=6e-5,
        # One value per dimension, in half precision.
        disk=_chunk_values,
        bytes=2,
        tasks=tasks,
        task_s=task_s,
        rate=TRIED if kind.is_tried else "encoder",
    )


def _slices(amounts: Amounts) -> float:
    return max(MIN_SLICES, amounts.embedded / SLICE_CHUNKS)


def _chunk_values(amounts: Amounts) -> float:
    return amounts.chunks * amounts.dimensions


# ---- the shortlist ----


def _sampled_chunks(amounts: Amounts) -> float:
    return min(amounts.chunks, SAMPLED_CHUNKS)


def _marking_work(amounts: Amounts) -> float:
    # Marking a shard, and looking up the queries' words: about 1 of 250 chunks has a
    # given word.
    found = amounts.queries * QUERY_WORDS * amounts.chunks / 250
    return amounts.chunks + found / 1e4


def _marking_memory(amounts: Amounts) -> float:
    return 4e3 * amounts.chunks / max(1.0, amounts.shards) + 400e6


# ---- clusters of documents ----


def clusters(recipe: Recipe) -> Estimate:
    """Return the estimate of training the clusters that partition documents."""
    count = partial(_cluster_count, recipe.documents.partition_size)

    def sample_values(amounts: Amounts) -> float:
        return partitioned.SAMPLE_PER_CLUSTER * count(amounts) * amounts.dimensions

    return _of_products(
        # Each iteration compares every sampled vector with every centre.
        work=lambda amounts: (
            partitioned.ITERATIONS * count(amounts) * sample_values(amounts)
        ),
        disk=lambda amounts: count(amounts) * amounts.dimensions,
        bytes=4,
        memory=lambda amounts: 6.0 * sample_values(amounts),
    )


def partition(recipe: Recipe) -> Estimate:
    """Return the estimate of assigning documents to clusters."""
    count = partial(_cluster_count, recipe.documents.partition_size)
    if_clustered = partial(_only_if, count)
    return _of_products(
        work=lambda amounts: count(amounts) * amounts.vectors * amounts.dimensions,
        # The number of its cluster, of two bytes.
        disk=if_clustered(lambda amounts: amounts.vectors),
        bytes=2,
        tasks="shards",
        memory=if_clustered(
            lambda amounts: 4.0 * partitioned.HELD_VECTORS * amounts.dimensions
        ),
    )


def _cluster_count(partition_size: int, amounts: Amounts) -> float:
    parts = partitioned.count_parts(partition_size, amounts.all_neighbours)
    if parts == 1:
        return 0.0
    return min(partitioned.CLUSTERS_PER_PART * parts, amounts.vectors)


def _only_if(
    condition: Callable[[Amounts], float], amount: Callable[[Amounts], float]
) -> Callable[[Amounts], float]:
    """Return an amount that is 0 where the condition does not hold."""
    return lambda amounts: amount(amounts) if condition(amounts) else 0.0


# ---- the index: exact search trains, fills and tunes nothing ----


def _is_built(amounts: Amounts) -> bool:
    return index_kind(amounts.index).is_built


_if_built = partial(_only_if, _is_built)


def _training_products(amounts: Amounts) -> float:
    train_s, _ = build_seconds(amounts.search)
    return train_s / PRODUCT_S


def _filling_products(amounts: Amounts) -> float:
    _, fill_s = build_seconds(amounts.search)
    return fill_s / PRODUCT_S


def _index_clusters(amounts: Amounts) -> int:
    factory = ivf.fitted(amounts.index, vectors=round(amounts.vectors))
    return ivf.clusters_of(factory)


def _training_values(amounts: Amounts) -> float:
    return amounts.dimensions * ivf.sample_of(_index_clusters(amounts))


def _list_bytes(amounts: Amounts) -> float:
    """Return the bytes of the codes and ids of all vectors."""
    code = amounts.index.rpartition(",")[2]
    if code.startswith("PQ"):
        code_bytes = float(code[2:])
    else:
        value_bytes = {"SQ4": 0.5, "SQ8": 1.0}.get(code, 2.0)
        code_bytes = amounts.dimensions * value_bytes
    return amounts.vectors * (code_bytes + 8)


def _stored_bytes(amounts: Amounts) -> float:
    """Return the bytes of all vectors in half precision."""
    return 2 * amounts.vectors * amounts.dimensions


def _index_parts(amounts: Amounts) -> int:
    return count_parts(amounts.vectors, round(amounts.shards))


def _tune_tasks(amounts: Amounts) -> int:
    return count_tune_tasks(amounts.vectors, _index_parts(amounts))


def _tuning_products(amounts: Amounts) -> float:
    # One exact search for the sample of queries, and for lossy codes a second one by
    # codes.
    searches = 1 if amounts.index.endswith("Flat") else 2
    queries = min(ivf.SAMPLE, amounts.queries)
    return searches * queries * amounts.vectors * amounts.dimensions


# ---- the search ----


def block_count(amounts: Amounts) -> float:
    """Return the blocks in which exact search reads a large corpus; 0: in one piece."""
    count = _stored_bytes(amounts) / mine.BLOCK_BYTES
    if amounts.index != EXACT or count <= 1:
        return 0.0
    return max(1.0, min(amounts.shards, count))


_if_blocks = partial(_only_if, block_count)


def _scanned(amounts: Amounts) -> float:
    """Return how many neighbours the blocks keep: those that reach the bounds.

    They are at most k of each query in each block.
    """
    k = min(amounts.neighbours, amounts.vectors)
    if not k or not block_count(amounts):
        return 0.0
    sample = mine.sample_size(k, amounts.vectors)
    rank = exact_cpu.sampled_rank(k, amounts.vectors, sample=sample)
    # Without a rank, the sample has no bound, and all vectors reach it.
    reaching = amounts.vectors * (rank / sample if rank else 1.0)
    return amounts.queries * min(reaching, k * block_count(amounts))


def read_bytes(amounts: Amounts) -> float:
    """Return the bytes of vectors that a search reads.

    It reads all vectors for each range of queries, or once, block by block.
    """
    vector_bytes = _stored_bytes(amounts)
    if block_count(amounts):
        # The task of each block reads the queries' own vectors.
        query_bytes = 2 * amounts.queries * amounts.dimensions
        return vector_bytes + query_bytes * block_count(amounts)
    return vector_bytes * amounts.visited_share * _mine_tasks(amounts)


def _search_products(amounts: Amounts) -> float:
    """Return a search in multiply-adds, with the time that keeping neighbours takes."""
    # An index compares a query with a part of the vectors only.
    visited = amounts.vectors * amounts.dimensions * amounts.visited_share
    return amounts.queries * visited + amounts.all_neighbours * _FOUND_PRODUCTS


def _mine_products(amounts: Amounts) -> float:
    if block_count(amounts):
        return _scanned(amounts) * _FOUND_PRODUCTS
    return _search_products(amounts)


def _mine_reads(amounts: Amounts) -> float:
    if block_count(amounts):
        return 12 * _scanned(amounts)
    return read_bytes(amounts)


def _search_memory(amounts: Amounts) -> float:
    """Return the peak memory of a task.

    It has the best neighbours so far (at most what `Best` holds), scores and
    candidates.
    """
    queries = min(amounts.queries, queries_of_task(amounts.neighbours))
    neighbours = amounts.neighbours * queries
    return min(36 * neighbours, 200e6) + 12 * neighbours + 64e6


def _mine_tasks(amounts: Amounts) -> float:
    return blocks(amounts.queries, amounts.queries, neighbours=amounts.neighbours)


def _least_scores_tasks(amounts: Amounts) -> float:
    return max(_mine_tasks(amounts), amounts.queries / mine.LEAST_SCORES_QUERIES)


def _least_scores_reads(amounts: Amounts) -> float:
    # Each task reads the whole sample.
    sample_bytes = 2 * mine.MAX_SAMPLE * amounts.dimensions
    return sample_bytes * _least_scores_tasks(amounts)


_MINE: Final = _of_products(
    work=_mine_products,
    # An id of 8 bytes and a score of 4 for each neighbour.
    disk="all_neighbours",
    bytes=12,
    tasks=_mine_tasks,
    memory=_search_memory,
    reads=_mine_reads,
)

# By step, as far as they do not depend on the recipe.
ESTIMATES: Final[Mapping[str, Estimate]] = {
    "document_vectors": Estimate(
        work=_chunk_values,
        seconds=2e-9,
        disk=lambda amounts: amounts.kept_documents * (amounts.dimensions + 8),
        bytes=2,
        tasks="shards",
    ),
    "shortlist_words": Estimate(
        work=_sampled_chunks,
        seconds=1e-4,
        disk=_sampled_chunks,
        bytes=1200,
        memory=lambda amounts: 12e3 * _sampled_chunks(amounts),
    ),
    "shortlist_queries": Estimate(
        work=lambda amounts: amounts.queries * (1 + _sampled_chunks(amounts) / 5_000),
        seconds=2e-4,
        disk="queries",
        bytes=8 * QUERY_WORDS + 12,
        tasks=lambda amounts: blocks(amounts.drafts, amounts.queries),
        memory=lambda amounts: 2400 * _sampled_chunks(amounts) + 400e6,
    ),
    "shortlist": Estimate(
        work=_marking_work,
        seconds=1e-4,
        # A byte of marks for each chunk.
        disk="chunks",
        bytes=1,
        tasks="shards",
        memory=_marking_memory,
    ),
    "index": _of_products(
        work=_if_built(_training_products),
        disk=_if_built(
            lambda amounts: 4 * _index_clusters(amounts) * amounts.dimensions
        ),
        bytes=1,
        # As float32, and a copy.
        memory=_if_built(lambda amounts: 8 * _training_values(amounts)),
        reads=_if_built(lambda amounts: 2 * _training_values(amounts)),
    ),
    "index_shards": _of_products(
        work=_if_built(_filling_products),
        disk=_if_built(_list_bytes),
        bytes=1,
        tasks=_index_parts,
        # Codes, and a copy by cluster.
        memory=_if_built(
            lambda amounts: 2 * _list_bytes(amounts) / _index_parts(amounts)
        ),
        reads=_if_built(_stored_bytes),
    ),
    "tune": _of_products(
        work=_if_built(_tuning_products),
        tasks=_tune_tasks,
        memory=_if_built(
            lambda amounts: 250e6 + 32 * amounts.vectors / _tune_tasks(amounts)
        ),
        reads=_if_built(lambda amounts: _stored_bytes(amounts) + _list_bytes(amounts)),
    ),
    "least_scores": _of_products(
        work=_if_blocks(
            lambda amounts: mine.MAX_SAMPLE * amounts.queries * amounts.dimensions
        ),
        # A bound of 4 bytes for each query.
        disk=_if_blocks(lambda amounts: amounts.queries),
        bytes=4,
        tasks=_least_scores_tasks,
        memory=_if_blocks(lambda amounts: 6.0 * mine.MAX_SAMPLE * amounts.dimensions),
        reads=_if_blocks(_least_scores_reads),
    ),
    "scan": _of_products(
        work=_if_blocks(_search_products),
        disk=_scanned,
        bytes=12,
        tasks=lambda amounts: max(1.0, block_count(amounts)),
        memory=_if_blocks(lambda amounts: _search_memory(amounts) + mine.BLOCK_BYTES),
        reads=_if_blocks(read_bytes),
    ),
    "mine": _MINE,
    "neighbours": _MINE,
}
