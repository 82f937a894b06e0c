"""What an index takes, for plans: to train it, to fill it, to measure its recall.

The rates are those by which `choose` weighs it against exact search; plan measures the products of this machine.
"""

from __future__ import annotations

import math

from nextlong.engine.estimate import Estimate
from nextlong.engine.memory import memory_bytes
from nextlong.recipe.amounts import Amounts
from nextlong.search import choose, ivf, tune
from nextlong.search.index import index_kind

_PARTS = 32  # files, so that a cluster is found in a few of them, …
_PART_VECTORS = 1 << 21  # … but of no more vectors each, so that very large indexes are filled by many tasks


def parts(vectors: float, shards: int) -> int:
    """Return in how many files, each by one task, an index over so many vectors and shards of them is filled."""
    return max(1, min(shards, max(_PARTS, math.ceil(vectors / _PART_VECTORS))))


def load_of(amounts: Amounts, *, has_gpu: bool = False) -> choose.Load:
    """Return what is to be searched, as `choose` weighs it."""
    return choose.Load(
        vectors=round(amounts.vectors),
        queries=round(amounts.queries),
        dimensions=max(1, round(amounts.dimensions)),
        k=round(min(amounts.neighbours, amounts.vectors)),
        memory_bytes=memory_bytes(),
        has_gpu=has_gpu,
    )


def _training(amounts: Amounts) -> float:
    """Return the multiplications that training takes."""
    return choose.build_seconds(load_of(amounts))[0] / choose.PRODUCT_S if index_kind(amounts.index).is_built else 0.0


def _filling(amounts: Amounts) -> float:
    return choose.build_seconds(load_of(amounts))[1] / choose.PRODUCT_S if index_kind(amounts.index).is_built else 0.0


def _tuning(amounts: Amounts) -> float:
    """Return those of an exact search for the sample that recall is measured on, and of the settings tried."""
    if not index_kind(amounts.index).is_built:
        return 0.0
    sample = min(tune.SAMPLE, amounts.queries) * amounts.vectors * amounts.dimensions
    return sample * (1 + 2 * amounts.looked_into)  # each trial looks into twice as many clusters as the one before


def _clusters(amounts: Amounts) -> int:
    return ivf.clusters_of(ivf.fitted(amounts.index, vectors=round(amounts.vectors)))


def _template_bytes(amounts: Amounts) -> float:
    return 4 * _clusters(amounts) * amounts.dimensions if index_kind(amounts.index).is_built else 0.0


def _sample_bytes(amounts: Amounts) -> float:
    """Return what training holds: its sample as float32, and a copy."""
    return 8 * amounts.dimensions * ivf.sample_of(_clusters(amounts)) if index_kind(amounts.index).is_built else 0.0


def _list_bytes(amounts: Amounts) -> float:
    if not index_kind(amounts.index).is_built:
        return 0.0
    return amounts.vectors * (choose.code_bytes(amounts.index, round(amounts.dimensions)) + 8)


def _parts(amounts: Amounts) -> float:
    return parts(amounts.vectors, round(amounts.shards))


def _filling_bytes(amounts: Amounts) -> float:
    """Return what a task holds: its codes, and the same in the order of clusters."""
    return 2 * _list_bytes(amounts) / _parts(amounts)


TRAIN = Estimate(
    work=_training, seconds=choose.PRODUCT_S, disk=_template_bytes, bytes=1, memory=_sample_bytes, rate="products"
)
FILL = Estimate(
    work=_filling,
    seconds=choose.PRODUCT_S,
    disk=_list_bytes,
    bytes=1,
    tasks=_parts,
    memory=_filling_bytes,
    rate="products",
)
TUNE = Estimate(work=_tuning, seconds=choose.PRODUCT_S, rate="products")
