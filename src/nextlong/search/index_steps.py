"""The index, as steps: choose and train it, fill it shard by shard, tune it on the recipe's own queries.

Where exact search is named there are none of them; where it is chosen, `index` says so and why, and the others have nothing
to do. What `tune` measured and promises stands in its manifest; `verify`, reports and cards read it there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nextlong.engine.executor import Capacity, Resources
from nextlong.engine.memory import memory_bytes
from nextlong.engine.step import Config, Finished, Step, Task
from nextlong.errors import RecipeError
from nextlong.plural import counted
from nextlong.recipe import Recipe, Search
from nextlong.recipe.search import AUTO, EXACT
from nextlong.results import DocumentsResult, IndexResult, ListsResult, MetaDocumentsResult, TuneResult
from nextlong.search import choose, ivf, tune
from nextlong.search.index import IndexFiles, index_kind
from nextlong.search.index_estimates import FILL, TRAIN, TUNE, parts
from nextlong.search.mine import chunk_queries, document_queries

_TRAINED_CODES_NEED = 10_000  # vectors: 39 for each of the 256 values of a product quantizer


def index_steps(
    recipe: Recipe, vectors: Step, queries: Step, *, k_of: Callable[[Finished], int], wanted: Mapping[str, float]
) -> list[Step]:
    """Return the steps that build an index over `vectors` for `queries`, a step that drew chunks or documents; none for exact.

    `k_of` says how many neighbours a query gets, which follows from the steps before and `wanted`, the recipe's part in it.
    """
    if recipe.search.index != AUTO and not index_kind(recipe.search.index).is_built:
        return []
    index = _index_step(recipe, vectors, queries, k_of, wanted)
    lists = _lists_step(vectors, index)
    return [index, lists, _tune_step(recipe, vectors, queries, index, lists, k_of, wanted)]


def index_files(done: Finished, vectors: list[Path]) -> IndexFiles:
    """Return what mining opens: the tuned index, or the vectors themselves."""
    if "tune" not in done or is_exact(done):
        return IndexFiles(EXACT, tuple(vectors))
    tuned = done["tune"].result(TuneResult)
    return IndexFiles(
        done["index"].result(IndexResult).index,
        tuple(vectors),
        template=done["index"].file(".template.faiss"),
        lists=_stems(done),
        probes=tuned.probes,
        spare=tuned.spare,
        recall=tuned.recall,
    )


def chosen_in_words(done: Finished) -> str:
    """Return which search a finished run chose, and why; empty where it had no choice."""
    if "index" not in done:
        return ""
    why = done["index"].result(IndexResult).why
    return f"{EXACT if is_exact(done) else promise_in_words(done)}; {why}"


def promise_in_words(done: Finished) -> str:
    """Return the approximate index of a finished run, and the recall that was measured; empty if its search is exact."""
    if "tune" not in done or is_exact(done):
        return ""
    built, tuned = done["index"].result(IndexResult), done["tune"].result(TuneResult)
    short = "" if tuned.recall >= done["tune"].manifest["config"]["recall"] else ", the most it can reach"
    return (
        f"{built.index}, {min(tuned.probes, built.clusters):,} of {built.clusters:,} clusters looked into, finds "
        f"{tuned.recall_measured:.1%} of the {tuned.k:,} nearest on average and {tuned.recall_nearest:.1%} of the first "
        f"{tuned.nearest:,}; 5th percentile {tuned.recall_p5:.1%}, worst {tuned.recall_worst:.1%} (measured on "
        f"{counted(tuned.sample, 'query')}{short})"
    )


def exact_resources(recipe: Recipe, capacity: Capacity) -> Resources:
    """Return what a task that searches needs: a GPU, where there is one and the recipe does not refuse it."""
    if recipe.search.device == "cpu":
        return Resources()
    return Resources(gpus=1) if capacity.gpus else Resources()


def _stems(done: Finished) -> tuple[Path, ...]:
    return tuple(path.with_name(path.name.removesuffix(".bounds.npy")) for path in done["lists"].files(".bounds.npy"))


def _index_step(
    recipe: Recipe, vectors: Step, drawn: Step, k_of: Callable[[Finished], int], wanted: Mapping[str, float]
) -> Step:
    search = recipe.search
    is_auto = search.index == AUTO

    def tasks(done: Finished) -> list[Task]:
        paths = _vectors_of(done)
        queries, k = (_count_of(done), k_of(done)) if is_auto else (0, 0)
        return [partial(choose_and_train, vectors=paths, search=search, queries=queries, k=k, seed=recipe.seed)]

    config: Config = {"index": search.index, "seed": recipe.seed}
    if is_auto:
        config["neighbours"] = dict(wanted)
    inputs = (vectors, drawn) if is_auto else (vectors,)
    return Step("index", 3, config, inputs, tasks, IndexResult, estimate=TRAIN)


def _lists_step(vectors: Step, index: Step) -> Step:
    def tasks(done: Finished) -> list[Task]:
        if is_exact(done):
            return []
        paths, template = _vectors_of(done), done["index"].file(".template.faiss")
        bounds = (
            np.linspace(0, len(paths), parts(done["index"].result(IndexResult).vectors, len(paths)) + 1)
            .astype(int)
            .tolist()
        )
        return [
            partial(ivf.fill, template=template, vectors=paths[low:high], first_shard=low)
            for low, high in pairwise(bounds)
        ]

    return Step("lists", 2, {}, (vectors, index), tasks, ListsResult, estimate=FILL)


def _tune_step(
    recipe: Recipe,
    vectors: Step,
    queries: Step,
    index: Step,
    lists: Step,
    k_of: Callable[[Finished], int],
    wanted: Mapping[str, float],
) -> Step:
    config: Config = {"recall": recipe.search.recall, "neighbours": dict(wanted), "seed": recipe.seed}

    def tasks(done: Finished) -> list[Task]:
        if is_exact(done):
            return []
        files = IndexFiles(
            done["index"].result(IndexResult).index,
            tuple(_vectors_of(done)),
            template=done["index"].file(".template.faiss"),
            lists=_stems(done),
        )
        path, target = _queries_of(done), recipe.search.recall
        return [partial(tune_index, files=files, queries=path, k=k_of(done), target=target, seed=recipe.seed)]

    return Step("tune", 3, config, (vectors, queries, index, lists), tasks, TuneResult, estimate=TUNE)


def is_exact(done: Finished) -> bool:
    """Say whether exact search was chosen."""
    return not index_kind(done["index"].result(IndexResult).index).is_built


def choose_and_train(out: Path, *, vectors: list[Path], search: Search, queries: int, k: int, seed: int) -> IndexResult:
    """Choose between exact search and an index, if the recipe leaves it open, and train the index.

    Writes `{out}.template.faiss` unless exact search is chosen. Raises RecipeError for an index that vectors like these
    cannot have.
    """
    shapes = [np.load(path, mmap_mode="r").shape for path in vectors]
    count, dimensions = sum(shape[0] for shape in shapes), max((shape[1] for shape in shapes), default=0)
    factory, why = search.index, "the recipe names it"
    if factory == AUTO:
        factory, why = choose.choose(choose.Load(count, queries, dimensions, k, memory_bytes(), choose.has_gpu(search)))
    if index_kind(factory).is_built and count < (2 if factory.endswith(("Flat", "SQ8")) else _TRAINED_CODES_NEED):
        factory, why = EXACT, f"{count:,} vectors are too few to train {factory} on"
    if not index_kind(factory).is_built:
        return IndexResult(index=factory, why=why, vectors=count)
    factory = ivf.fitted(factory, vectors=count)
    try:
        trained = ivf.train(out, vectors=vectors, factory=factory, seed=seed)
    except RuntimeError as error:  # FAISS's only kind
        raise RecipeError(
            f"search.index={search.index!r} does not fit {count:,} vectors of {dimensions} dimensions: FAISS says "
            f"{str(error).rpartition(': ')[2]!r}; name another, or auto"
        ) from None
    return IndexResult(index=factory, why=why, vectors=count, **trained._asdict())


def tune_index(out: Path, *, files: IndexFiles, queries: Path, k: int, target: float, seed: int) -> TuneResult:
    """Tune a filled index on the queries of META_DOCUMENTS or of documents; writes no file."""
    del out
    ids, exclude = _read_queries(queries)
    return tune.tune(files, ids=ids, exclude=exclude, k=k, target=target, seed=seed)


def _read_queries(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    drawn = np.load(path)
    return document_queries(drawn) if drawn.dtype == np.int64 else chunk_queries(drawn)


def _vectors_of(done: Finished) -> list[Path]:
    return (
        done["document_vectors"].files(".document_vectors.npy")
        if "document_vectors" in done
        else done["embed"].files(".vectors.npy")
    )


def _queries_of(done: Finished) -> Path:
    return (
        done["documents"].file(".queries.npy")
        if "documents" in done
        else done["meta_documents"].file(".meta_documents.npy")
    )


def _count_of(done: Finished) -> int:
    if "documents" in done:
        return done["documents"].result(DocumentsResult).drawn
    return done["meta_documents"].result(MetaDocumentsResult).meta_chunks
