"""Build the search index: choose and train it, fill it shard by shard, and tune it on the recipe's own queries.

In:  VECTORS, the queries, and the number of neighbours that each query gets.
Out: a trained template, the filled parts, and the number of clusters to visit for the required recall, which is measured.

A recipe that sets `exact` has none of these steps. If `auto` chooses exact search, `index` records why; the others are empty.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from nextlong.engine.step import Amounts, Artifacts, Files, Join, Step, Task, TaskResult, Work
from nextlong.errors import RecipeError
from nextlong.recipe.keys import AUTO, EXACT, Search
from nextlong.retrieval.indexes import costs, ivf
from nextlong.retrieval.indexes.base import IndexFiles, index_kind
from nextlong.retrieval.indexes.ivf import TuneResult
from nextlong.retrieval.sample import DrawResult
from nextlong.text import Json, counted

_TRAINED_CODES_NEED = 10_000  # vectors: 39 for each of the 256 values of a product quantizer

# The neighbours of a query: {"neighbours": n}, or {"chars": c}, as many documents as hold c characters in this corpus.
NeighbourCount = Mapping[str, float]


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
    return math.ceil(neighbours["chars"] / max(1.0, documents.chars / max(1, documents.documents)))


def vectors_of(done: Artifacts) -> Files:
    """Return the files of the searched vectors: of documents if the method searches for documents, else of chunks."""
    return done["document_vectors" if "document_vectors" in done else "embed"].files("vectors.npy")


def queries_of(done: Artifacts) -> Path:
    """Return the file of queries, for `read_queries`."""
    if "documents" in done:
        return done["documents"].file(".queries.npy")
    return done["meta_documents"].file(".meta_documents.npy")


def index_steps(search: Search, vectors: Step, queries: Step, neighbours: NeighbourCount, *, seed: int) -> list[Step]:
    """Return the steps that build an index over `vectors` for the queries of the step `queries`; none for exact search."""
    if search.index != AUTO and not index_kind(search.index).is_built:
        return []
    is_auto = search.index == AUTO

    def train(done: Artifacts) -> list[Task]:
        load: dict[str, Any] = {"queries": 0, "k": 0}
        if is_auto:
            drawn = done["documents" if "documents" in done else "meta_documents"].result(DrawResult)
            load = {"queries": drawn.meta_chunks or drawn.drawn, "k": count_neighbours(neighbours, done)}
        return [partial(_choose_and_train, vectors=vectors_of(done), search=search, seed=seed, **load)]

    def part_bounds(done: Artifacts) -> list[int]:
        # The first shard of each part of the index, and the end of the last part.
        shards = len(vectors_of(done))
        parts = costs.parts(done["index"].result(_IndexResult).vectors, shards)
        return list(map(int, np.linspace(0, shards, parts + 1)))

    def fill(done: Artifacts) -> list[Task]:
        if is_exact(done):
            return []
        paths, template = vectors_of(done), done["index"].file(".template.faiss")
        each = partial(ivf.fill, template=template)
        return [partial(each, vectors=paths[low:high], first_shard=low) for low, high in pairwise(part_bounds(done))]

    def measure(done: Artifacts) -> Work:
        if is_exact(done):
            return Work([])
        files, bounds, k = index_files(done), part_bounds(done), count_neighbours(neighbours, done)
        common: dict[str, Any] = {"files": files, "queries": queries_of(done), "seed": seed, "k": k}
        count = costs.tune_tasks(done["index"].result(_IndexResult).vectors, len(files.lists))
        tasks_of_blocks = [
            partial(ivf.measure_block, lists=slice(low, high), shards=range(bounds[low], bounds[high]), **common)
            for low, high in pairwise(np.linspace(0, len(files.lists), count + 1).astype(int).tolist())
        ]
        tune = partial(ivf.tune, blocks=count, target=search.recall, **common)
        return Work(tasks_of_blocks, [Join(range(count), lambda _: tune, replaces=True)])

    config: Json = {"index": search.index, "seed": seed} | ({"neighbours": dict(neighbours)} if is_auto else {})
    inputs: tuple[Step, ...] = (vectors, queries) if is_auto else (vectors,)
    index = Step("index", 3, config, inputs, train, _IndexResult, estimate=costs.TRAIN)
    shards = Step("index_shards", 1, {}, (vectors, index), fill, estimate=costs.FILL)
    config = {"recall": search.recall, "neighbours": dict(neighbours), "seed": seed}
    inputs = (vectors, queries, index, shards)
    return [index, shards, Step("tune", 3, config, inputs, measure, TuneResult, estimate=costs.TUNE)]


def is_exact(done: Artifacts) -> bool:
    """Return whether a run searches exactly: its recipe sets `exact`, or `auto` chose it."""
    return "index" not in done or not index_kind(done["index"].result(_IndexResult).index).is_built


def index_files(done: Artifacts) -> IndexFiles:
    """Return the files that mining opens: the index, tuned once `tune` is done, or the vectors themselves."""
    vectors = vectors_of(done)
    if is_exact(done):
        return IndexFiles(EXACT, vectors)
    bounds = done["index_shards"].files(".bounds.npy")
    stems = [path.with_name(path.name.removesuffix(".bounds.npy")) for path in bounds]
    tuned = done["tune"].result(TuneResult).model_dump(include={"probes", "spare", "recall"}) if "tune" in done else {}
    template = done["index"].file(".template.faiss")
    return IndexFiles(done["index"].result(_IndexResult).index, vectors, template, tuple(stems), **tuned)


def describe_choice(done: Artifacts) -> str:
    """Return the search that a finished run chose and the reason; empty where the recipe left no choice."""
    return f"{describe_recall(done) or EXACT}; {done['index'].result(_IndexResult).why}" if "index" in done else ""


def describe_recall(done: Artifacts) -> str:
    """Return the approximate index of a finished run and its measured recall; empty if the search is exact."""
    if is_exact(done):
        return ""
    built, tuned = done["index"].result(_IndexResult), done["tune"].result(TuneResult)
    short = "" if tuned.recall >= done["tune"].manifest["config"]["recall"] else ", the highest it reaches"
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
    count, dimensions = sum(shape[0] for shape in shapes), max((shape[1] for shape in shapes), default=0)
    factory, why = search.index, "set by search.index"
    if factory == AUTO:
        amounts = Amounts(vectors=count, queries=queries, dimensions=dimensions, neighbours=k)
        factory, why = costs.choose(amounts, has_gpu=costs.has_gpu(search))
    if index_kind(factory).is_built and count < (2 if factory.endswith(("Flat", "SQ8")) else _TRAINED_CODES_NEED):
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
