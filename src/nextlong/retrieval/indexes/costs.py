"""Estimate the costs of exact search and of an index, for plans, and choose between them under `auto`.

In:  numbers of vectors, queries, dimensions and neighbours; memory, and whether there is a GPU.
Out: `exact` or a FAISS factory string, with the reason; the estimates of the steps that build an index.

Exact search takes one multiplication a query, vector and dimension; an index is built first, and a query then visits a small
part of it. All rates are for one core (`bench/search.py` measures them), so both sides scale alike with cores.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

from nextlong.engine.executor import memory_bytes
from nextlong.engine.step import Amounts, Estimate
from nextlong.recipe.keys import EXACT, Search
from nextlong.retrieval.indexes import ivf
from nextlong.retrieval.indexes.base import index_kind
from nextlong.retrieval.indexes.ivf import GRAPH_FROM, ITERATIONS, clusters_for, sample_of
from nextlong.retrieval.indexes.kmeans import training_products
from nextlong.text import counted

_FLOP_PER_S = 6e10  # a core of 2023, matrix products in float32
_PRODUCT_S = 2 / _FLOP_PER_S  # a multiplication and an addition
of_products = partial(Estimate, seconds=_PRODUCT_S, rate="products")  # the estimate of a step that multiplies vectors
_GPU_FLOP_PER_S = 3e13  # matrix products in half precision, transfers included
GPU_PRODUCT_S = 2 / _GPU_FLOP_PER_S
_QUERY_S = 1.5e-4  # per query beside the products: finding clusters and keeping the best
_FOUND_S = 8e-7  # per neighbour, …
FOUND_PRODUCTS = _FOUND_S / _PRODUCT_S  # … and as multiply-adds
_GRAPH_AS_DEAR = 50_000  # measured: searching the graph takes as long as comparing with this many centres
_SPREAD = 4.0  # measured on 300,000 LSA vectors: a quarter of them visited for k = 1,088, an eighth for k = 200
_WORTH = 0.5  # an approximate search must take less than half of the time of an exact one
_LEAST_VECTORS = 100_000  # below this, exact search takes seconds
_PARTS = 32  # files of an index at least, so that each cluster is read from few files …
_TUNE_TASKS, _TUNE_VECTORS = 64, 1 << 20  # bounds of tuning tasks, so that merging their results takes seconds
_PART_VECTORS = 1 << 21  # … and vectors of one file at most, so that many tasks fill a very large index


def choose(amounts: Amounts, *, has_gpu: bool = False) -> tuple[str, str]:
    """Return `exact` or a factory string, and the reason in a sentence."""
    exact_s, approximate_s = seconds(amounts, has_gpu=has_gpu)
    vectors, dimensions = round(amounts.vectors), max(1, round(amounts.dimensions))
    unit = "seconds on the GPU" if has_gpu else "core-seconds"
    if vectors < _LEAST_VECTORS:
        return EXACT, f"{vectors:,} vectors, about {exact_s:,.1f} {unit}"
    queries = counted(round(amounts.queries), "query")
    search = f"{queries} over {vectors:,} vectors of {dimensions} dimensions: exact search"
    exact, built = f"about {exact_s:,.0f} {unit}", f"{approximate_s:,.0f} core-seconds"
    if approximate_s > _WORTH * exact_s:
        return EXACT, f"{search} takes {exact}, building and searching an index would take {built}"
    # Choose the largest codes that fit into memory: 2 bytes a value (as stored), 1 byte, or a quarter of a byte.
    values, quarter, memory = vectors * dimensions, dimensions // 4, memory_bytes()
    factory = f"OPQ{quarter},IVF,PQ{quarter}"
    if 2 * values <= memory // 2:
        factory = "IVF,Flat"
    elif values <= memory * 2 // 3 or dimensions % 4:
        factory = "IVF,SQ8"
    return factory, f"{search} would take {exact}, building and searching an index {built}"


def seconds(amounts: Amounts, *, has_gpu: bool = False) -> tuple[float, float]:
    """Return the estimated seconds of exact search, and of building and searching an index."""
    flop = 2 * amounts.queries * amounts.vectors * max(1.0, amounts.dimensions)
    keeping = amounts.all_neighbours * _FOUND_S
    exact_s = flop / (_GPU_FLOP_PER_S if has_gpu else _FLOP_PER_S)
    search_s = flop / _FLOP_PER_S * visited_share(amounts) + amounts.queries * _QUERY_S
    return exact_s + keeping, sum(_build_seconds(amounts)) + search_s + keeping


def visited_share(amounts: Amounts) -> float:
    """Return the estimated share of the vectors that a query is compared with at a recall of 0.95; it grows with k."""
    return min(1.0, _SPREAD * math.sqrt(min(amounts.neighbours, amounts.vectors) / max(1.0, amounts.vectors)))


def _build_seconds(amounts: Amounts) -> tuple[float, float]:
    """Return the estimated seconds of training an index and of filling it."""
    clusters = clusters_for(round(amounts.vectors))
    product = _PRODUCT_S * max(1.0, amounts.dimensions)  # k-means and assigning are such products
    train = product * training_products(sample_of(clusters), clusters, iterations=ITERATIONS)
    return train, product * amounts.vectors * (_GRAPH_AS_DEAR if clusters >= GRAPH_FROM else clusters)


def has_driver() -> bool:
    """Return whether the driver of an NVIDIA GPU is loaded, without importing torch."""
    return Path("/dev/nvidiactl").exists()


def has_gpu(search: Search) -> bool:
    """Return whether exact search will run on a GPU: torch, a driver, and a recipe that permits it."""
    return search.device != "cpu" and has_driver() and importlib.util.find_spec("torch") is not None


def parts(vectors: float, shards: int) -> int:
    """Return the number of files of an index over `vectors` vectors in `shards` shards; a task fills each."""
    return max(1, min(shards, max(_PARTS, math.ceil(vectors / _PART_VECTORS))))


def tune_tasks(vectors: float, parts: int) -> int:
    """Return the number of tasks that measure the recall of an index over `vectors` vectors in `parts` files."""
    return max(1, min(parts, _TUNE_TASKS, math.ceil(vectors / _TUNE_VECTORS)))


def _if_built(amount: Callable[[Amounts], float]) -> Callable[[Amounts], float]:
    """Return an amount that is 0 for exact search, which trains, fills and tunes nothing."""
    return lambda amounts: amount(amounts) if index_kind(amounts.index).is_built else 0.0


def _clusters(amounts: Amounts) -> int:
    return ivf.clusters_of(ivf.fitted(amounts.index, vectors=round(amounts.vectors)))


def _list_bytes(amounts: Amounts) -> float:
    """Return the bytes of the codes and ids of all vectors."""
    code = amounts.index.rpartition(",")[2]
    values = float(code[2:]) if code.startswith("PQ") else amounts.dimensions * {"SQ4": 0.5, "SQ8": 1.0}.get(code, 2.0)
    return amounts.vectors * (values + 8)


def _parts(amounts: Amounts) -> int:
    return parts(amounts.vectors, round(amounts.shards))


def _tuning_products(amounts: Amounts) -> float:
    # One exact search for the sample of queries, and for lossy codes a second one by codes.
    searches = 1 if amounts.index.endswith("Flat") else 2
    return searches * min(ivf.SAMPLE, amounts.queries) * amounts.vectors * amounts.dimensions


TRAIN = of_products(
    work=_if_built(lambda amounts: _build_seconds(amounts)[0] / _PRODUCT_S),
    disk=_if_built(lambda amounts: 4 * _clusters(amounts) * amounts.dimensions),
    bytes=1,
    memory=_if_built(lambda amounts: 8 * amounts.dimensions * ivf.sample_of(_clusters(amounts))),  # float32, and a copy
    reads=_if_built(lambda amounts: 2 * amounts.dimensions * ivf.sample_of(_clusters(amounts))),
)
FILL = of_products(
    work=_if_built(lambda amounts: _build_seconds(amounts)[1] / _PRODUCT_S),
    disk=_if_built(_list_bytes),
    bytes=1,
    tasks=_parts,
    memory=_if_built(lambda amounts: 2 * _list_bytes(amounts) / _parts(amounts)),  # codes, and a copy by cluster
    reads=_if_built(lambda amounts: 2 * amounts.vectors * amounts.dimensions),
)
TUNE = of_products(
    work=_if_built(_tuning_products),
    tasks=lambda amounts: tune_tasks(amounts.vectors, _parts(amounts)),
    memory=_if_built(lambda amounts: 250e6 + 32 * amounts.vectors / tune_tasks(amounts.vectors, _parts(amounts))),
    reads=_if_built(lambda amounts: 2 * amounts.vectors * amounts.dimensions + _list_bytes(amounts)),
)
