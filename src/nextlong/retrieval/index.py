"""Build the search index: choose and train it, fill it shard by shard, and tune it on the recipe's own queries.

In:  VECTORS, the queries, and the number of neighbours that each query gets.
Out: a trained template, the filled parts, and the number of clusters to visit for the required recall, which is measured.

A recipe that sets `exact` has none of these steps. Under `auto`, the estimated costs of exact search and of an index choose: one
multiplication a query, vector and dimension, against building an index of which a query visits a small part. All rates are for
one core (`bench/search.py` measures them), so both sides scale alike with cores. If `auto` chooses exact search, `index`
records why; the other steps are empty.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
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
_QUERY_S = (
    1.5e-4  # per query beside the products: finding clusters and keeping the best
)
FOUND_S = 8e-7  # per neighbour, …
_GRAPH_AS_DEAR = 50_000  # measured: searching the graph takes as long as comparing with this many centres
_SPREAD = 4.0  # measured on 300,000 LSA vectors: a quarter of them visited for k = 1,088, an eighth for k = 200
_WORTH = (
    0.5  # an approximate search must take less than half of the time of an exact one
)
_LEAST_VECTORS = 100_000  # below this, exact search takes seconds
_PARTS = 32  # files of an index at least, so that each cluster is read from few files …
_TUNE_TASKS, _TUNE_VECTORS = (
    64,
    1 << 20,
)  # bounds of tuning tasks, so that merging their results takes seconds
_PART_VECTORS = (
    1 << 21
)  # … and vectors of one file at most, so that many tasks fill a very large index
_TRAINED_CODES_NEED = (
    10_000  # vectors: 39 for each of the 256 values of a product quantizer
)

# The neighbours of a query: {"neighbours": n}, or {"chars": c}, as many documents as hold c characters in this corpus.
NeighbourCount = Mapping[str, float]


class SearchLoad(NamedTuple):
    """What a search compares: vectors, their dimensions, queries, and neighbours of each query."""

    vectors: float
    dimensions: float
    queries: float
    neighbours: float

    @property
    def all_neighbours(self) -> float:
        return self.queries * min(self.neighbours, self.vectors)


def choose(load: SearchLoad, *, has_gpu: bool = False) -> tuple[str, str]:
    """Return `exact` or a factory string, and the reason in a sentence."""
    exact_s, approximate_s = seconds(load, has_gpu=has_gpu)
    vectors, dimensions = round(load.vectors), max(1, round(load.dimensions))
    unit = "seconds on the GPU" if has_gpu else "core-seconds"
    if vectors < _LEAST_VECTORS:
        return EXACT, f"{vectors:,} vectors, about {exact_s:,.1f} {unit}"
    queries = counted(round(load.queries), "query")
    search = (
        f"{queries} over {vectors:,} vectors of {dimensions} dimensions: exact search"
    )
    exact, built = f"about {exact_s:,.0f} {unit}", f"{approximate_s:,.0f} core-seconds"
    if approximate_s > _WORTH * exact_s:
        return (
            EXACT,
            f"{search} takes {exact}, building and searching an index would take {built}",
        )
    # Choose the largest codes that fit into memory: 2 bytes a value (as stored), 1 byte, or a quarter of a byte.
    values, quarter, memory = vectors * dimensions, dimensions // 4, memory_bytes()
    factory = f"OPQ{quarter},IVF,PQ{quarter}"
    if 2 * values <= memory // 2:
        factory = "IVF,Flat"
    elif values <= memory * 2 // 3 or dimensions % 4:
        factory = "IVF,SQ8"
    return (
        factory,
        f"{search} would take {exact}, building and searching an index {built}",
    )


def seconds(load: SearchLoad, *, has_gpu: bool = False) -> tuple[float, float]:
    """Return the estimated seconds of exact search, and of building and searching an index."""
    flop = 2 * load.queries * load.vectors * max(1.0, load.dimensions)
    keeping = load.all_neighbours * FOUND_S
    exact_s = flop / (_GPU_FLOP_PER_S if has_gpu else _FLOP_PER_S)
    search_s = flop / _FLOP_PER_S * visited_share(load) + load.queries * _QUERY_S
    return exact_s + keeping, sum(build_seconds(load)) + search_s + keeping


def visited_share(load: SearchLoad) -> float:
    """Return the estimated share of the vectors that a query is compared with at a recall of 0.95; it grows with k."""
    return min(
        1.0,
        _SPREAD
        * math.sqrt(min(load.neighbours, load.vectors) / max(1.0, load.vectors)),
    )


def build_seconds(load: SearchLoad) -> tuple[float, float]:
    """Return the estimated seconds of training an index and of filling it."""
    clusters = ivf.clusters_for(round(load.vectors))
    product = PRODUCT_S * max(
        1.0, load.dimensions
    )  # k-means and assigning are such products
    train = product * training_products(
        ivf.sample_of(clusters), clusters, iterations=ivf.ITERATIONS
    )
    return train, product * load.vectors * (
        _GRAPH_AS_DEAR if clusters >= ivf.GRAPH_FROM else clusters
    )


def has_driver() -> bool:
    """Return whether the driver of an NVIDIA GPU is loaded, without importing torch."""
    return Path("/dev/nvidiactl").exists()


def has_gpu(search: Search) -> bool:
    """Return whether exact search will run on a GPU: torch, a driver, and a recipe that permits it."""
    return (
        search.device != "cpu"
        and has_driver()
        and importlib.util.find_spec("torch") is not None
    )


def count_parts(vectors: float, shards: int) -> int:
    """Return the number of files of an index over `vectors` vectors in `shards` shards; a task fills each."""
    return max(1, min(shards, max(_PARTS, math.ceil(vectors / _PART_VECTORS))))


def count_tune_tasks(vectors: float, parts: int) -> int:
    """Return the number of tasks that measure the recall of an index over `vectors` vectors in `parts` files."""
    return max(1, min(parts, _TUNE_TASKS, math.ceil(vectors / _TUNE_VECTORS)))


class _IndexResult(TaskResult):
    """The chosen index, `exact` or a FAISS factory string, the reason, and the number of its clusters."""

    index: str
    why: str
    vectors: int
    clusters: int = 0


def count_neighbours(neighbours: NeighbourCount, done: Artifacts) -> int:
    """Return the number of neighbours of each query in this corpus."""
    if "neighbours" in neighbours:
        return int(neighbours["neighbours"])
    documents = done["documents"].result(DrawResult)
    return math.ceil(
        neighbours["chars"] / max(1.0, documents.chars / max(1, documents.documents))
    )


def vectors_of(done: Artifacts) -> Files:
    """Return the files of the searched vectors: of documents if the method searches for documents, else of chunks."""
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
    """Return the steps that build an index over `vectors` for the queries of the step `queries`; none for exact search."""
    if search.index != AUTO and not index_kind(search.index).is_built:
        return []
    is_auto = search.index == AUTO

    def train(done: Artifacts) -> list[Task]:
        load: dict[str, Any] = {"queries": 0, "k": 0}
        if is_auto:
            drawn = done[
                "documents" if "documents" in done else "meta_documents"
            ].result(DrawResult)
            load = {
                "queries": drawn.meta_chunks or drawn.drawn,
                "k": count_neighbours(neighbours, done),
            }
        return [
            partial(
                _choose_and_train,
                vectors=vectors_of(done),
                search=search,
                seed=seed,
                **load,
            )
        ]

    def part_bounds(done: Artifacts) -> list[int]:
        # The first shard of each part of the index, and the end of the last part.
        shards = len(vectors_of(done))
        parts = count_parts(done["index"].result(_IndexResult).vectors, shards)
        return list(map(int, np.linspace(0, shards, parts + 1)))

    def fill(done: Artifacts) -> list[Task]:
        if is_exact(done):
            return []
        paths, template = vectors_of(done), IndexTemplateFiles.of(done).template
        each = partial(ivf.fill, template=template)
        return [
            partial(each, vectors=paths[low:high], first_shard=low)
            for low, high in pairwise(part_bounds(done))
        ]

    def measure(done: Artifacts) -> Work:
        if is_exact(done):
            return Work([])
        files, bounds, k = (
            index_files(done),
            part_bounds(done),
            count_neighbours(neighbours, done),
        )
        common: dict[str, Any] = {
            "files": files,
            "queries": queries_of(done),
            "seed": seed,
            "k": k,
        }
        count = count_tune_tasks(
            done["index"].result(_IndexResult).vectors, len(files.lists)
        )
        tasks_of_blocks = [
            partial(
                ivf.measure_block,
                lists=slice(low, high),
                shards=range(bounds[low], bounds[high]),
                **common,
            )
            for low, high in pairwise(
                np.linspace(0, len(files.lists), count + 1).astype(int).tolist()
            )
        ]
        tune = partial(ivf.tune, blocks=count, target=search.recall, **common)
        return Work(
            tasks_of_blocks, [Join(range(count), lambda _: tune, replaces=True)]
        )

    config: Json = {"index": search.index, "seed": seed} | (
        {"neighbours": dict(neighbours)} if is_auto else {}
    )
    inputs: tuple[Step, ...] = (vectors, queries) if is_auto else (vectors,)
    index = Step("index", 3, config, inputs, train, _IndexResult)
    shards = Step("index_shards", 1, {}, (vectors, index), fill)
    config = {"recall": search.recall, "neighbours": dict(neighbours), "seed": seed}
    inputs = (vectors, queries, index, shards)
    return [
        index,
        shards,
        Step("tune", 3, config, inputs, measure, ivf.TuneResult),
    ]


def is_exact(done: Artifacts) -> bool:
    """Return whether a run searches exactly: its recipe sets `exact`, or `auto` chose it."""
    return (
        "index" not in done
        or not index_kind(done["index"].result(_IndexResult).index).is_built
    )


def index_files(done: Artifacts) -> IndexFiles:
    """Return the files that mining opens: the index, tuned once `tune` is done, or the vectors themselves."""
    vectors = vectors_of(done)
    if is_exact(done):
        return IndexFiles(EXACT, vectors)
    bounds = IndexShardsFiles.of(done).bounds
    stems = [path.with_name(path.name.removesuffix(".bounds.npy")) for path in bounds]
    tuned = (
        done["tune"]
        .result(ivf.TuneResult)
        .model_dump(include={"probes", "spare", "recall"})
        if "tune" in done
        else {}
    )
    template = IndexTemplateFiles.of(done).template
    return IndexFiles(
        done["index"].result(_IndexResult).index,
        vectors,
        template,
        tuple(stems),
        **tuned,
    )


def describe_choice(done: Artifacts) -> str:
    """Return the search that a finished run chose and the reason; empty where the recipe left no choice."""
    return (
        f"{describe_recall(done) or EXACT}; {done['index'].result(_IndexResult).why}"
        if "index" in done
        else ""
    )


def describe_recall(done: Artifacts) -> str:
    """Return the approximate index of a finished run and its measured recall; empty if the search is exact."""
    if is_exact(done):
        return ""
    built, tuned = (
        done["index"].result(_IndexResult),
        done["tune"].result(ivf.TuneResult),
    )
    short = (
        ""
        if tuned.recall >= done["tune"].manifest["config"]["recall"]
        else ", the highest it reaches"
    )
    return (
        f"{built.index}, {min(tuned.probes, built.clusters):,} of {built.clusters:,} clusters visited: recall@{tuned.k:,} "
        f"{tuned.recall_measured:.1%} on average and recall@{tuned.nearest:,} {tuned.recall_nearest:.1%}; 5th percentile "
        f"{tuned.recall_p5:.1%}, worst {tuned.recall_worst:.1%} (measured on {counted(tuned.sample, 'query')}{short})"
    )


def _choose_and_train(
    out: Path, *, vectors: list[Path], search: Search, queries: int, k: int, seed: int
) -> _IndexResult:
    """Choose exact search or an index under `auto`; train an index, `{out}.template.faiss`. Raises RecipeError if none fits."""
    shapes = [np.load(path, mmap_mode="r").shape for path in vectors]
    count, dimensions = (
        sum(shape[0] for shape in shapes),
        max((shape[1] for shape in shapes), default=0),
    )
    factory, why = search.index, "set by search.index"
    if factory == AUTO:
        load = SearchLoad(
            vectors=count, dimensions=dimensions, queries=queries, neighbours=k
        )
        factory, why = choose(load, has_gpu=has_gpu(search))
    if index_kind(factory).is_built and count < (
        2 if factory.endswith(("Flat", "SQ8")) else _TRAINED_CODES_NEED
    ):
        factory, why = EXACT, f"{count:,} vectors are too few to train {factory} on"
    if not index_kind(factory).is_built:
        return _IndexResult(index=factory, why=why, vectors=count)
    factory = ivf.fitted(factory, vectors=count)
    try:
        clusters = ivf.train(out, vectors=vectors, factory=factory, seed=seed)
    except RuntimeError as error:  # FAISS raises no other class
        raise RecipeError(
            f"search.index={search.index!r} does not fit {count:,} vectors of {dimensions} dimensions: FAISS reports "
            f"{str(error).rpartition(': ')[2]!r}; choose another index, or auto"
        ) from None
    return _IndexResult(index=factory, why=why, vectors=count, clusters=clusters)
