"""Build the search index: choose and train it, fill it, and tune it.

In:  VECTORS, the queries, and the number of neighbours that each query gets.
Out: a trained template, the filled parts, and the number of clusters to visit for the
     required recall, which is measured on the recipe's own queries.

A recipe that sets `exact` has none of these steps. Under `auto`, the estimated costs of
exact search and of an index choose: one multiplication per query, vector and dimension,
against building an index of which a query visits a small part. All rates are for one
core (`bench/search.py` measures them), so both sides scale alike with cores. If `auto`
chooses exact search, `index` records why; the other steps are empty.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nextlong.engine.executor import memory_bytes
from nextlong.engine.step import (
    Artifacts,
    Files,
    Join,
    OnlyFile,
    ShardFiles,
    Step,
    StepFiles,
    Task,
    TaskResult,
    Work,
)
from nextlong.errors import RecipeError
from nextlong.recipe.keys import AUTO, EXACT, Search
from nextlong.retrieval.embed import DocumentVectorsFiles, EmbedFiles
from nextlong.retrieval.indexes import ivf
from nextlong.retrieval.indexes.base import IndexFiles, index_kind
from nextlong.retrieval.indexes.kmeans import training_products
from nextlong.retrieval.sample import DocumentsFiles, DrawResult, MetaDocumentsFiles
from nextlong.text import Json, counted

_FLOP_PER_S = 6e10  # a core of 2023, matrix products in float32
PRODUCT_S = 2 / _FLOP_PER_S  # a multiplication and an addition
_GPU_FLOP_PER_S = 3e13  # matrix products in half precision, transfers included
GPU_PRODUCT_S = 2 / _GPU_FLOP_PER_S
# Per query beside the products: finding clusters and keeping the best.
_QUERY_S = 1.5e-4
FOUND_S = 8e-7  # per neighbour
# Measured: searching the graph takes as long as comparing with this many centres.
_GRAPH_CENTRES = 50_000
# Measured on 300,000 LSA vectors: a quarter of them visited for k = 1,088, an eighth
# for k = 200.
_SPREAD = 4.0
# An approximate search must take less than half of the time of an exact one.
_WORTH = 0.5
# Below this, exact search takes seconds.
_MIN_VECTORS = 100_000
# Files of an index at least, so that each cluster is read from few files, and vectors
# of one file at most, so that many tasks fill a very large index.
_PARTS = 32
_PART_VECTORS = 1 << 21
# Bounds of tuning tasks, so that merging their results takes seconds.
_TUNE_TASKS = 64
_TUNE_VECTORS = 1 << 20
# Vectors to train product codes on: 39 for each of the 256 values of a quantizer.
_MIN_TRAINED_CODES = 10_000

# The neighbours of a query: {"neighbours": n}, or {"chars": c}, as many documents as
# hold c characters in this corpus.
NeighbourCount = Mapping[str, float]


class SearchLoad(NamedTuple):
    """What a search compares."""

    vectors: float
    dimensions: float
    queries: float
    neighbours: float  # of each query

    @property
    def all_neighbours(self) -> float:
        return self.queries * min(self.neighbours, self.vectors)


def choose(load: SearchLoad, *, has_gpu: bool = False) -> tuple[str, str]:
    """Return `exact` or a factory string, and the reason in a sentence."""
    exact_s, approximate_s = seconds(load, has_gpu=has_gpu)
    vectors = round(load.vectors)
    dimensions = max(1, round(load.dimensions))
    unit = "seconds on the GPU" if has_gpu else "core-seconds"
    if vectors < _MIN_VECTORS:
        return EXACT, f"{vectors:,} vectors, about {exact_s:,.1f} {unit}"
    search = (
        f"{counted(round(load.queries), 'query')} over {vectors:,} vectors of "
        f"{dimensions} dimensions: exact search"
    )
    exact_time = f"about {exact_s:,.0f} {unit}"
    index_time = f"{approximate_s:,.0f} core-seconds"
    if approximate_s > _WORTH * exact_s:
        reason = (
            f"{search} takes {exact_time}, building and searching an index would take "
            f"{index_time}"
        )
        return EXACT, reason
    reason = (
        f"{search} would take {exact_time}, building and searching an index "
        f"{index_time}"
    )
    return _largest_fitting(vectors * dimensions, dimensions), reason


def _largest_fitting(values: int, dimensions: int) -> str:
    """Return the index of the largest codes that fit into memory.

    Codes of a value have 2 bytes (as stored), 1 byte, or a quarter of a byte.
    """
    memory = memory_bytes()
    if 2 * values <= memory // 2:
        return "IVF,Flat"
    if values <= memory * 2 // 3 or dimensions % 4:
        return "IVF,SQ8"
    code_parts = dimensions // 4
    return f"OPQ{code_parts},IVF,PQ{code_parts}"


def seconds(load: SearchLoad, *, has_gpu: bool = False) -> tuple[float, float]:
    """Return the estimated seconds of exact search, and those of an index.

    The index is built and searched.
    """
    flop = 2 * load.queries * load.vectors * max(1.0, load.dimensions)
    keeping = load.all_neighbours * FOUND_S
    exact_s = flop / (_GPU_FLOP_PER_S if has_gpu else _FLOP_PER_S)
    search_s = flop / _FLOP_PER_S * visited_share(load) + load.queries * _QUERY_S
    return exact_s + keeping, sum(build_seconds(load)) + search_s + keeping


def visited_share(load: SearchLoad) -> float:
    """Return the estimated share of the vectors that a query is compared with.

    At a recall of 0.95; it grows with k.
    """
    neighbours = min(load.neighbours, load.vectors)
    found_share = neighbours / max(1.0, load.vectors)
    return min(1.0, _SPREAD * math.sqrt(found_share))


def build_seconds(load: SearchLoad) -> tuple[float, float]:
    """Return the estimated seconds of training an index and of filling it."""
    clusters = ivf.clusters_for(round(load.vectors))
    # K-means and assigning are products of vectors.
    product_s = PRODUCT_S * max(1.0, load.dimensions)
    sample = ivf.sample_of(clusters)
    products = training_products(sample, clusters, iterations=ivf.ITERATIONS)
    compared = _GRAPH_CENTRES if clusters >= ivf.GRAPH_FROM else clusters
    return product_s * products, product_s * load.vectors * compared


def has_driver() -> bool:
    """Return whether the driver of an NVIDIA GPU is loaded, without importing torch."""
    return Path("/dev/nvidiactl").exists()


def has_gpu(search: Search) -> bool:
    """Return whether exact search will run on a GPU.

    It needs torch, a driver, and a recipe that permits it.
    """
    if search.device == "cpu" or not has_driver():
        return False
    return importlib.util.find_spec("torch") is not None


def count_parts(vectors: float, shards: int) -> int:
    """Return the number of files of an index over `vectors` vectors; a task fills each.

    The vectors are in `shards` shards.
    """
    wanted = max(_PARTS, math.ceil(vectors / _PART_VECTORS))
    return max(1, min(shards, wanted))


def count_tune_tasks(vectors: float, parts: int) -> int:
    """Return the number of tasks that measure the recall of an index.

    It is over `vectors` vectors in `parts` files.
    """
    return max(1, min(parts, _TUNE_TASKS, math.ceil(vectors / _TUNE_VECTORS)))


class _IndexResult(TaskResult):
    """The chosen index, and the reason."""

    index: str  # exact, or a FAISS factory string
    why: str
    vectors: int
    clusters: int = 0


def count_neighbours(neighbours: NeighbourCount, done: Artifacts) -> int:
    """Return the number of neighbours of each query in this corpus."""
    if "neighbours" in neighbours:
        return int(neighbours["neighbours"])
    documents = done["documents"].result(DrawResult)
    mean_chars = max(1.0, documents.chars / max(1, documents.documents))
    return math.ceil(neighbours["chars"] / mean_chars)


def vectors_of(done: Artifacts) -> Files:
    """Return the files of the searched vectors.

    They are of documents if the method searches for documents, else of chunks.
    """
    if "document_vectors" in done:
        return DocumentVectorsFiles.of(done).vectors
    return EmbedFiles.of(done).vectors


def queries_of(done: Artifacts) -> Path:
    """Return the file of queries, for `read_queries`."""
    if "documents" in done:
        return DocumentsFiles.of(done).queries
    return MetaDocumentsFiles.of(done).meta_documents


class IndexTemplateFiles(StepFiles):
    """The trained index without vectors."""

    step = "index"
    template = OnlyFile(".template.faiss")


class IndexShardsFiles(StepFiles):
    """Where the lists of the index begin, of every shard."""

    step = "index_shards"
    bounds = ShardFiles(".bounds.npy")


def index_steps(
    search: Search,
    vectors: Step,
    queries: Step,
    neighbours: NeighbourCount,
    *,
    seed: int,
) -> list[Step]:
    """Return the steps that build an index over `vectors`; none for exact search.

    It is tuned for the queries of the step `queries`.
    """
    is_auto = search.index == AUTO
    if not is_auto and not index_kind(search.index).is_built:
        return []

    def train(done: Artifacts) -> list[Task]:
        task = partial(
            _choose_and_train, vectors=vectors_of(done), search=search, seed=seed
        )
        if not is_auto:
            return [partial(task, queries=0, k=0)]
        listing = "documents" if "documents" in done else "meta_documents"
        drawn = done[listing].result(DrawResult)
        k = count_neighbours(neighbours, done)
        return [partial(task, queries=drawn.meta_chunks or drawn.drawn, k=k)]

    def part_bounds(done: Artifacts) -> list[int]:
        # The first shard of each part of the index, and the end of the last part.
        shards = len(vectors_of(done))
        parts = count_parts(_index_result(done).vectors, shards)
        return _even_bounds(shards, parts)

    def fill(done: Artifacts) -> list[Task]:
        if is_exact(done):
            return []
        paths = vectors_of(done)
        task = partial(ivf.fill, template=IndexTemplateFiles.of(done).template)
        return [
            partial(task, vectors=paths[first:last], first_shard=first)
            for first, last in pairwise(part_bounds(done))
        ]

    def measure(done: Artifacts) -> Work:
        if is_exact(done):
            return Work([])
        files = index_files(done)
        shard_bounds = part_bounds(done)
        shared: dict[str, Any] = {
            "files": files,
            "queries": queries_of(done),
            "seed": seed,
            "k": count_neighbours(neighbours, done),
        }
        parts = len(files.lists)
        count = count_tune_tasks(_index_result(done).vectors, parts)
        tasks: list[Task] = []
        for first, last in pairwise(_even_bounds(parts, count)):
            task = partial(
                ivf.measure_block,
                lists=slice(first, last),
                shards=range(shard_bounds[first], shard_bounds[last]),
                **shared,
            )
            tasks.append(task)
        tune = partial(ivf.tune, blocks=count, target=search.recall, **shared)
        return Work(tasks, [Join(range(count), lambda _: tune, replaces=True)])

    config: Json = {"index": search.index, "seed": seed}
    inputs: tuple[Step, ...] = (vectors,)
    if is_auto:
        config["neighbours"] = dict(neighbours)
        inputs = (vectors, queries)
    index = Step(
        name="index",
        phase="search",
        version=3,
        config=config,
        inputs=inputs,
        tasks=train,
        result=_IndexResult,
    )
    shards = Step(
        name="index_shards",
        phase="search",
        version=1,
        config={},
        inputs=(vectors, index),
        tasks=fill,
    )
    tune = Step(
        name="tune",
        phase="search",
        version=3,
        config={
            "recall": search.recall,
            "neighbours": dict(neighbours),
            "seed": seed,
        },
        inputs=(vectors, queries, index, shards),
        tasks=measure,
        result=ivf.TuneResult,
    )
    return [index, shards, tune]


def _even_bounds(total: int, parts: int) -> list[int]:
    """Return the bounds of `parts` parts of about equal size, (parts + 1,)."""
    bounds = np.linspace(0, total, parts + 1)
    return [int(bound) for bound in bounds]


def _index_result(done: Artifacts) -> _IndexResult:
    return done["index"].result(_IndexResult)


def is_exact(done: Artifacts) -> bool:
    """Return whether a run searches exactly.

    Its recipe sets `exact`, or `auto` chose it.
    """
    if "index" not in done:
        return True
    return not index_kind(_index_result(done).index).is_built


def index_files(done: Artifacts) -> IndexFiles:
    """Return the files that mining opens.

    They are the index, tuned once `tune` is done, or the vectors themselves.
    """
    vectors = vectors_of(done)
    if is_exact(done):
        return IndexFiles(EXACT, vectors)
    suffix = IndexShardsFiles.bounds.suffix
    bounds = IndexShardsFiles.of(done).bounds
    stems = [path.with_name(path.name.removesuffix(suffix)) for path in bounds]
    files = IndexFiles(
        index=_index_result(done).index,
        vectors=vectors,
        template=IndexTemplateFiles.of(done).template,
        lists=tuple(stems),
    )
    if "tune" not in done:
        return files
    tuned = done["tune"].result(ivf.TuneResult)
    return replace(files, probes=tuned.probes, spare=tuned.spare, recall=tuned.recall)


def describe_choice(done: Artifacts) -> str:
    """Return the search that a finished run chose and the reason.

    Empty where the recipe left no choice.
    """
    if "index" not in done:
        return ""
    return f"{describe_recall(done) or EXACT}; {_index_result(done).why}"


def describe_recall(done: Artifacts) -> str:
    """Return the approximate index of a finished run and its measured recall.

    Empty if the search is exact.
    """
    if is_exact(done):
        return ""
    built = _index_result(done)
    tuned = done["tune"].result(ivf.TuneResult)
    is_reached = tuned.recall >= done["tune"].manifest["config"]["recall"]
    shortfall = "" if is_reached else ", the highest it reaches"
    visited = min(tuned.probes, built.clusters)
    return (
        f"{built.index}, {visited:,} of {built.clusters:,} clusters visited: "
        f"recall@{tuned.k:,} {tuned.recall_measured:.1%} on average and "
        f"recall@{tuned.nearest:,} {tuned.recall_nearest:.1%}; "
        f"5th percentile {tuned.recall_p5:.1%}, worst {tuned.recall_worst:.1%} "
        f"(measured on {counted(tuned.sample, 'query')}{shortfall})"
    )


def _choose_and_train(
    out: Path, *, vectors: list[Path], search: Search, queries: int, k: int, seed: int
) -> _IndexResult:
    """Choose exact search or an index under `auto`, and train the index.

    Writes `{out}.template.faiss`. Raises RecipeError if none fits.
    """
    shapes = [np.load(path, mmap_mode="r").shape for path in vectors]
    count = sum(rows for rows, _ in shapes)
    dimensions = max((width for _, width in shapes), default=0)
    factory = search.index
    why = "set by search.index"
    if factory == AUTO:
        load = SearchLoad(
            vectors=count, dimensions=dimensions, queries=queries, neighbours=k
        )
        factory, why = choose(load, has_gpu=has_gpu(search))
    has_plain_codes = factory.endswith(("Flat", "SQ8"))
    min_vectors = 2 if has_plain_codes else _MIN_TRAINED_CODES
    if index_kind(factory).is_built and count < min_vectors:
        why = f"{count:,} vectors are too few to train {factory} on"
        factory = EXACT
    if not index_kind(factory).is_built:
        return _IndexResult(index=factory, why=why, vectors=count)
    factory = ivf.fitted(factory, vectors=count)
    try:
        clusters = ivf.train(out, vectors=vectors, factory=factory, seed=seed)
    except RuntimeError as error:  # FAISS raises no other class
        _, _, reported = str(error).rpartition(": ")
        raise RecipeError(
            where="search.index",
            value=repr(search.index),
            problem=(
                f"does not fit {count:,} vectors of {dimensions} dimensions: FAISS "
                f"reports {reported!r}"
            ),
            fix="choose another index, or auto",
        ) from None
    return _IndexResult(index=factory, why=why, vectors=count, clusters=clusters)
