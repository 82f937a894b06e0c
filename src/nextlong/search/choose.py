"""Choose: exact or approximate search, and which, by what each would take.

In:  numbers of vectors, queries, dimensions and neighbours; memory, and whether there is a GPU.
Out: `exact`, or a FAISS factory string; and the reason, for the manifest and whoever reads it.

Exact search takes one multiplication a query, vector and dimension; an approximate one is built first, then looks at a
small part. The rates are those of one core (`bench/search.py` measures them), so both sides shrink alike with more.
"""

from __future__ import annotations

import importlib.util
import math
import re
from dataclasses import dataclass
from pathlib import Path

from nextlong.plural import counted
from nextlong.recipe import Search
from nextlong.recipe.search import EXACT
from nextlong.search.ivf import GRAPH_AS_DEAR, GRAPH_FROM, ITERATIONS, clusters_for, sample_of

_FLOP_PER_S = 6e10  # a core of 2023, matrix products in float32
PRODUCT_S = 2 / _FLOP_PER_S  # a multiplication and an addition
_GPU_FLOP_PER_S = 3e13  # matrix products in half precision, with the transfers
GPU_PRODUCT_S = 2 / _GPU_FLOP_PER_S
_BUILD = 1.0  # k-means and assigning take no longer than such products, since theirs are of the fastest kind
_QUERY_S = 1.5e-4  # beside the products: finding clusters, keeping the best …
FOUND_S = 8e-7  # … and each neighbour
_SPREAD = 4.0  # of 300,000 LSA vectors a quarter for k = 1,088, an eighth for k = 200
_WORTH = 0.5  # an approximation must take less than half, since it is one
_LEAST_VECTORS = 100_000  # below, exact search is a matter of seconds


@dataclass(frozen=True)
class Load:
    """What is to be searched, and on what."""

    vectors: int
    queries: int
    dimensions: int
    k: int
    memory_bytes: int
    has_gpu: bool = False


def choose(load: Load) -> tuple[str, str]:
    """Return `exact` or a factory string, and why in a sentence."""
    exact_s, approximate_s = seconds(load)
    where = "on the GPU" if load.has_gpu else "a core"
    asked = f"{counted(load.queries, 'query')} over {load.vectors:,} vectors of {load.dimensions} dimensions"
    if load.vectors < _LEAST_VECTORS:
        return EXACT, f"{load.vectors:,} vectors are few: exact search takes about {exact_s:,.1f} s {where}"
    if approximate_s > _WORTH * exact_s:
        return EXACT, (
            f"{asked}: exact search takes about {exact_s:,.0f} s {where}, "
            f"an index would take {approximate_s:,.0f} s a core to build and search"
        )
    return factory_for(load), (
        f"{asked}: exact search would take about {exact_s:,.0f} s {where}, "
        f"an index {approximate_s:,.0f} s a core to build and search"
    )


def seconds(load: Load) -> tuple[float, float]:
    """Return about how long exact search takes, and to build and search an index."""
    pairs = float(load.queries) * load.vectors * 2 * load.dimensions
    keeping = load.queries * load.k * FOUND_S
    exact = pairs / (_GPU_FLOP_PER_S if load.has_gpu else _FLOP_PER_S) + keeping
    train, fill = build_seconds(load)
    search = pairs / _FLOP_PER_S * looked_into(load) + load.queries * _QUERY_S + keeping
    return exact, train + fill + search


def looked_into(load: Load) -> float:
    """Return about which share of the vectors a query meets at a recall of 0.95: the more it wants of them, the more."""
    return min(1.0, _SPREAD * math.sqrt(load.k / max(1, load.vectors)))


def build_seconds(load: Load) -> tuple[float, float]:
    """Return about how long it takes to train an index and to fill it."""
    clusters = clusters_for(load.vectors)
    product = _BUILD * 2.0 * load.dimensions / _FLOP_PER_S
    train = product * ITERATIONS * sample_of(clusters) * clusters
    return train, product * load.vectors * (GRAPH_AS_DEAR if clusters >= GRAPH_FROM else clusters)


def factory_for(load: Load) -> str:
    """Return the codes that fit the memory, so that what is looked into stays in it: as stored, a byte, a quarter of one."""
    values = load.vectors * load.dimensions
    if 2 * values <= load.memory_bytes // 2:
        return "IVF,Flat"
    if values <= load.memory_bytes * 2 // 3 or load.dimensions % 4:
        return "IVF,SQ8"
    return f"OPQ{load.dimensions // 4},IVF,PQ{load.dimensions // 4}"


def code_bytes(factory: str, dimensions: int) -> float:
    """Return the bytes of a vector's code, its id left out."""
    coded = re.search(r"PQ(\d+)(?:x(\d+))?$", factory)
    if coded is not None:
        return int(coded[1]) * int(coded[2] or 8) / 8
    bits = {"SQ4": 4, "SQ6": 6, "SQ8": 8}.get(factory.rpartition(",")[2], 16)
    return dimensions * bits / 8


def has_driver() -> bool:
    """Say whether the driver of an NVIDIA GPU is loaded; nothing is imported for it."""
    return Path("/dev/nvidiactl").exists()


def has_gpu(search: Search) -> bool:
    """Say whether exact search will run on a GPU: torch, a driver, and a recipe that does not refuse it."""
    return search.device != "cpu" and has_driver() and importlib.util.find_spec("torch") is not None
