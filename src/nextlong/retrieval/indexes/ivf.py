"""IVF: vectors in clusters, and every query against the clusters nearest to it alone.

In:  a random sample of all vectors → one trained template (FAISS, any factory string with inverted lists).
     Shards of vectors → their codes, ordered by cluster, one set of files for a run of shards.
Out: the k nearest among the clusters that are looked into, with the exact cosines of the stored vectors.

Centres are trained and looked up by `kmeans.py`; FAISS trains scalar codes and graphs, encodes and decodes. The search goes through
the clusters, not through the queries: a cluster's codes are decoded once and multiplied with all queries that look into it,
which a processor does ten times as fast as it compares codes one query at a time. What is found is a little more than k, by
rough scores; the exact ones order it.

`tune` finds how many clusters a query must look into for the recall that the recipe asks for, against brute force for some of the
recipe's own queries. The recall of a query is the share of its k nearest that the index finds; equal cosines count whichever of
them is found. What is promised is `target`; what is measured lies above it by two standard errors of the sample.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts import lookup
from nextlong.artifacts.results import TuneResult
from nextlong.engine.step import TaskResult
from nextlong.retrieval.indexes.base import IndexFiles, IndexKind, Neighbours, VectorShards
from nextlong.retrieval.indexes.exact import Best, Exact, cells, exact_cosines, exclude_ranges, rounding_error
from nextlong.retrieval.indexes.kmeans import (
    first_codebooks,
    nearest_centres,
    train_centres,
    train_codebooks,
    train_rotation,
)
from nextlong.retrieval.sample import read_queries
from nextlong.rng import rng_for

_SAMPLE_PER_CLUSTER = 40  # vectors that FAISS wants at least to place a cluster; it warns below 39
_MOST_SAMPLED = 1 << 20
_POINTS_PER_CODE = 64  # vectors that a value of a product quantizer is trained on at most
ITERATIONS = 8  # of k-means; recall hardly grows with more
GRAPH_FROM = 1 << 16  # clusters from which their graph is searched, not their list
GRAPH_AS_DEAR = 50_000  # measured: searching a graph takes as long as comparing with so many
_HELD = 1 << 24  # scores and ids of the best held at a time: 200 MB
_ENCODED_ROWS = 65_536
_FIRST_SHARE = 8  # one eighth of its clusters, the nearest, are what a query first looks into

_CLUSTERS = re.compile(r"(?<![A-Za-z])IVF(\d*)")


def clusters_for(vectors: int) -> int:
    """Return how many clusters suit so many vectors: about twice the square root, a power of two, each with 40 to train on."""
    fitting = 2 ** round(np.log2(max(1.0, 2 * vectors**0.5)))
    return int(max(1, min(fitting, vectors // _SAMPLE_PER_CLUSTER)))


def sample_of(clusters: int) -> int:
    """Return how many vectors so many clusters are trained on, where there are as many."""
    return min(_MOST_SAMPLED, _SAMPLE_PER_CLUSTER * clusters)


def fitted(factory: str, *, vectors: int) -> str:
    """Return the factory string with its clusters fitted to the corpus: filled in where it names none, never too many."""
    match = _CLUSTERS.search(factory)
    if match is None:
        raise ValueError(f"{factory!r} names no inverted lists (IVF)")
    most = max(1, min(vectors, _MOST_SAMPLED) // _SAMPLE_PER_CLUSTER)
    clusters = min(int(match[1]), most) if match[1] else clusters_for(vectors)
    graph = "_HNSW32" if clusters >= GRAPH_FROM and "_HNSW" not in factory else ""
    return f"{factory[: match.start()]}IVF{clusters}{graph}{factory[match.end() :]}"


class _Trained(NamedTuple):
    """What an index consists of that was trained on `sample` vectors."""

    factory: str
    clusters: int
    sample: int
    code_bytes: int  # of a vector


def train(out: Path, *, vectors: Sequence[Path], factory: str, seed: int) -> _Trained:
    """Train the template on a random sample drawn across all shards; writes `{out}.template.faiss`."""
    import faiss

    for_clusters = _SAMPLE_PER_CLUSTER * clusters_of(factory)
    for_codes = 256 * _POINTS_PER_CODE if "PQ" in factory else 0
    sample_ND = draw_sample(vectors, most=_MOST_SAMPLED, per=max(for_clusters, for_codes), seed=seed)
    index = faiss.index_factory(sample_ND.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
    lists: Any = faiss.downcast_index(faiss.extract_index_ivf(index))
    values = 1 << int(lists.pq.nbits) if hasattr(lists, "pq") else 256  # of a part of a code
    for rotation in _rotations_of(index):
        if sample_ND.shape[1] % rotation.M:
            raise RuntimeError(f"the dimension should be a multiple of {rotation.M}")
        rows_ND = sample_ND[: values * _POINTS_PER_CODE]
        rotation_DD = train_rotation(rows_ND, parts=rotation.M, values=values, seed=seed)
        faiss.copy_array_to_vector(rotation_DD.ravel(), rotation.A)
        rotation.is_trained = rotation.is_orthonormal = True
        sample_ND = rotation.apply(sample_ND)
    centres_CD = train_centres(sample_ND[:for_clusters], count=lists.nlist, iterations=ITERATIONS, seed=seed)
    lists.quantizer.add(centres_CD)
    if hasattr(lists, "pq"):  # trained on what the rows differ by from the centre that they are nearest to
        rows_ND = sample_ND[: values * _POINTS_PER_CODE]
        residuals_ND = rows_ND - centres_CD[nearest_centres(rows_ND, centres_CD, count=1)[:, 0]]
        books = first_codebooks(residuals_ND, parts=int(lists.pq.M), values=values, seed=seed)
        faiss.copy_array_to_vector(train_codebooks(residuals_ND, books).ravel(), lists.pq.centroids)
        lists.is_trained = True
    else:
        lists.train(sample_ND)  # the codes: clusters that are there already stay
    index.is_trained = True
    faiss.write_index(index, f"{out}.template.faiss")
    return _Trained(factory, lists.nlist, len(sample_ND), lists.code_size)


def _rotations_of(index: Any) -> list[Any]:
    import faiss

    chain: Any = getattr(index, "chain", None)
    return [] if chain is None else [faiss.downcast_VectorTransform(chain.at(place)) for place in range(chain.size())]


def clusters_of(factory: str) -> int:
    """Return how many clusters a fitted factory string names."""
    match = _CLUSTERS.search(factory)
    assert match is not None
    return int(match[1])


def draw_sample(vectors: Sequence[Path], *, most: int, per: int, seed: int) -> NDArray[np.float32]:
    """Return up to min(most, per) vectors, shape (n, dim), drawn from all shards alike, in random order, as float32."""
    shards = VectorShards(vectors)
    total = sum(shards.rows)
    places = np.sort(rng_for(seed, "index.sample").choice(total, min(most, per, total), replace=False))
    sample_ND = shards.take(shards.ids_at(places)).astype(np.float32)
    return sample_ND[rng_for(seed, "index.order").permutation(len(sample_ND))]  # any head of it is a fair sample


def fill(out: Path, *, template: Path, vectors: Sequence[Path], first_shard: int) -> TaskResult:
    """Encode the vectors of the shards from `first_shard` on, ordered by cluster.

    Writes `{out}.codes.npy` uint8 (n, code bytes), `{out}.members.npy` int64 ids (n,), ascending within a cluster, and
    `{out}.bounds.npy` int64 (clusters + 1,): where each cluster begins.
    """
    index = _Template(template)
    counts = [np.load(path, mmap_mode="r").shape[0] for path in vectors]
    codes = np.empty((sum(counts), index.code_bytes), np.uint8)
    cluster, ids = np.empty(len(codes), np.int64), np.empty(len(codes), np.int64)
    for place, (shard, path) in enumerate(enumerate(vectors, first_shard)):
        rows_ND, above = np.load(path, mmap_mode="r"), sum(counts[:place])
        for first in range(0, len(rows_ND), _ENCODED_ROWS):
            block = index.rotated(rows_ND[first : first + _ENCODED_ROWS].astype(np.float32))
            here = slice(above + first, above + first + len(block))
            cluster[here] = index.nearest_clusters(block, 1)[:, 0]
            codes[here] = index.encode(block, cluster[here])
            ids[here] = schemas.pack_ids(shard, np.arange(first, first + len(block)))
    order = np.argsort(cluster, kind="stable")
    np.save(f"{out}.codes.npy", codes[order])
    np.save(f"{out}.members.npy", ids[order])
    np.save(f"{out}.bounds.npy", np.searchsorted(cluster[order], np.arange(index.clusters + 1)))
    return TaskResult()


class Ivf:
    """A trained template and its filled parts, searched cluster by cluster."""

    def __init__(self, files: IndexFiles) -> None:
        assert files.template is not None
        self.recall = files.recall
        self._files = files
        self._vectors = VectorShards(files.vectors)
        self._template = _Template(files.template)
        self._parts = [_Part(stem) for stem in files.lists]
        self.is_lossless, self.clusters = self._template.is_lossless, self._template.clusters

    def search(self, queries_QD: NDArray[np.float32], k: int, *, exclude: NDArray[np.int64]) -> Neighbours:
        """See `Index.search`; the exact cosines are of what the nearest clusters hold."""
        ids: list[NDArray[np.int64]] = []
        scores: list[NDArray[np.float32]] = []
        wide = min(k + int(np.ceil(k * self._files.spare)), sum(len(part.members) for part in self._parts))
        most = max(1, _HELD // cells(wide))
        for first in range(0, len(queries_QD) if wide else 0, most):
            for neighbours, cosines in self._pass(
                queries_QD[first : first + most], wide, exclude[first : first + most]
            ):
                ids.append(neighbours[:k])
                scores.append(cosines[:k])
        return ids, scores

    def _pass(
        self, queries_QD: NDArray[np.float32], wide: int, exclude_Q2: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        def exact(queries: NDArray[np.int64], ids: Sequence[NDArray[np.int64]]) -> list[NDArray[np.float32]]:
            return exact_cosines(queries_QD[queries], ids, self._vectors)

        is_lossless = self._template.is_lossless
        error = 0.0 if is_lossless else rounding_error(queries_QD.shape[1])
        best = Best(len(queries_QD), k=wide, error=error, exact=None if is_lossless else exact)
        rotated_QD = self._template.rotated(queries_QD)
        clusters_QP = self._template.nearest_clusters(rotated_QD, self._files.probes)
        first = -(
            -clusters_QP.shape[1] // _FIRST_SHARE
        )  # the nearest raise the bar, so that little of the others counts
        for clusters in (clusters_QP[:, :first], clusters_QP[:, first:]):
            for cluster, queries in _visits(clusters):
                ids, vectors_ND = self._cluster(cluster)
                if len(ids):
                    scores_QN = rotated_QD[queries] @ vectors_ND.T
                    exclude_ranges(scores_QN, ids, exclude_Q2[queries])
                    best.add(scores_QN, ids, queries)
        return best.finish()

    def _cluster(self, cluster: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the ids of a cluster, ascending, and their decoded vectors."""
        pieces = [(part, *part.bounds[cluster : cluster + 2].tolist()) for part in self._parts]
        ids = np.concatenate([part.members[low:high] for part, low, high in pieces])
        return ids, self._template.decode(np.concatenate([part.codes[low:high] for part, low, high in pieces]), cluster)


def _visits(clusters_QP: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield each cluster that some query looks into, and those queries; -1 is none."""
    flat = clusters_QP.ravel()
    order = np.argsort(flat, kind="stable")
    order = order[flat[order] >= 0]
    names, firsts = np.unique(flat[order], return_index=True)
    for name, places in zip(names.tolist(), np.split(order, firsts)[1:], strict=True):
        yield name, places // clusters_QP.shape[1]


class _Part:
    """The files that `fill` wrote, memory-mapped."""

    def __init__(self, stem: Path) -> None:
        self.codes, self.members = (
            np.asarray(np.load(f"{stem}{suffix}", mmap_mode="r")) for suffix in (".codes.npy", ".members.npy")
        )
        self.bounds = np.load(f"{stem}.bounds.npy")


class _Template:
    """A trained FAISS index without vectors: where the clusters lie and how vectors are coded."""

    def __init__(self, path: Path) -> None:
        import faiss

        self._swig_ptr: Any = faiss.swig_ptr
        index: Any = faiss.read_index(str(path))
        self._index = index  # owns the lists
        self._lists: Any = faiss.downcast_index(faiss.extract_index_ivf(index))
        self._rotations = _rotations_of(index)
        lists: Any = self._lists
        self.clusters = int(lists.nlist)
        quantizer = faiss.downcast_index(lists.quantizer)
        self._graph: Any = quantizer if hasattr(quantizer, "hnsw") else None
        if self._graph is None:
            self._centres_CD: NDArray[np.float32] = quantizer.reconstruct_n(0, self.clusters)
        self.is_lossless = isinstance(lists, faiss.IndexIVFFlat) and not self._rotations  # then kept as they are stored
        self.code_bytes = 2 * int(lists.d) if self.is_lossless else int(lists.code_size)

    def rotated(self, rows_ND: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the rows as the index stores them: rotated or projected, where the factory string says so."""
        for rotation in self._rotations:
            rows_ND = rotation.apply(np.ascontiguousarray(rows_ND))
        return np.ascontiguousarray(rows_ND)

    def nearest_clusters(self, rows_ND: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        """Return the `count` clusters nearest to each row, shape (n, min(count, clusters)); -1 where a graph finds fewer."""
        if self._graph is None:
            return nearest_centres(rows_ND, self._centres_CD, count=count)
        self._graph.hnsw.efSearch = max(64, 2 * count)
        clusters: NDArray[np.int64] = self._graph.search(rows_ND, min(count, self.clusters))[1]
        return clusters

    def encode(self, rows_ND: NDArray[np.float32], clusters: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the codes, shape (n, code bytes), of rows in the given clusters."""
        if self.is_lossless:
            return rows_ND.astype(np.float16).view(np.uint8)
        codes = np.empty((len(rows_ND), self.code_bytes), np.uint8)
        pointer = self._swig_ptr
        self._lists.encode_vectors(len(rows_ND), pointer(rows_ND), pointer(clusters), pointer(codes))
        return codes

    def decode(self, codes: NDArray[np.uint8], cluster: int) -> NDArray[np.float32]:
        """Return the vectors, shape (n, dim), that the codes of a cluster stand for."""
        if self.is_lossless:
            return codes.view(np.float16).astype(np.float32)
        rows_ND = np.empty((len(codes), self._lists.d), np.float32)
        pointer = self._swig_ptr
        clusters = np.full(len(codes), cluster, np.int64)
        if len(codes):
            self._lists.decode_vectors(
                len(codes), pointer(np.ascontiguousarray(codes)), pointer(clusters), pointer(rows_ND)
            )
        return rows_ND


_NEAREST = 100  # of the k neighbours: those that negatives are taken from first
_HALVINGS = 3  # of the last doubling: probes are at most an eighth more than needed
SAMPLE = 256  # queries; at k = 1,000 the standard error of their mean recall is about half a percent
_SPARES = (0.1, 0.5, 2.0, 6.0)  # of lossy codes: rough scores find so much more than k, and exact ones choose


class _Tuned(NamedTuple):
    """What a search with so many probes and so much spare finds."""

    probes: int
    spare: float
    recall: float
    error: float  # standard error of the recall


def tune(_out: Path, *, files: IndexFiles, queries: Path, k: int, target: float, seed: int) -> TuneResult:
    """Return the cheapest of the settings tried on some `queries` that reach `target`, or the best there is; writes no file."""
    ids, exclude, _ = read_queries(queries)
    sample = np.sort(rng_for(seed, "index.tune").choice(len(ids), min(SAMPLE, len(ids)), replace=False))
    queries_QD = lookup.vectors(ids[sample], files.vectors)
    exclude = exclude[sample]
    truth = Exact(VectorShards(files.vectors)).search(queries_QD, k, exclude=exclude)
    tuned = _search(files, queries_QD, exclude, truth, k=k, target=target)
    retrieved = Ivf(replace(files, probes=tuned.probes, spare=tuned.spare)).search(queries_QD, k, exclude=exclude)
    recalls = recalls_of(retrieved, truth)
    nearest_truth = [ids[:_NEAREST] for ids in truth[0]], [scores[:_NEAREST] for scores in truth[1]]
    return TuneResult(
        probes=tuned.probes,
        spare=tuned.spare,
        recall=min(target, tuned.recall),
        recall_measured=round(tuned.recall, 4),
        recall_error=round(tuned.error, 4),
        recall_p5=round(float(np.percentile(recalls, 5)), 4),
        recall_worst=round(float(recalls.min()), 4),
        recall_nearest=round(float(recalls_of(retrieved, nearest_truth).mean()), 4),
        nearest=min(_NEAREST, k),
        sample=len(sample),
        k=k,
    )


def _search(
    files: IndexFiles,
    queries_QD: NDArray[np.float32],
    exclude: NDArray[np.int64],
    truth: Neighbours,
    *,
    k: int,
    target: float,
) -> _Tuned:
    """Double the probes until the recall is reached, then halve the step; more spare where codes are too rough."""
    index = Ivf(replace(files, probes=1))
    best = _Tuned(1, 0.0, -1.0, 0.0)
    for spare in (0.0,) if index.is_lossless else _SPARES:

        def measured(probes: int, spare: float = spare) -> _Tuned:
            ids, scores = Ivf(replace(files, probes=probes, spare=spare)).search(queries_QD, k, exclude=exclude)
            recalls = recalls_of((ids, scores), truth)
            error = float(recalls.std() / max(1, len(recalls)) ** 0.5)
            return _Tuned(probes, spare, float(recalls.mean()), error)

        probes = 1
        while (tried := measured(probes)).recall - 2 * tried.error < target and probes < index.clusters:
            probes = min(2 * probes, index.clusters)
        best = max(best, tried, key=lambda setting: setting.recall)
        if tried.recall - 2 * tried.error >= target:
            enough, too_few = tried, tried.probes // 2  # half as many were too few: halve what lies between
            for _ in range(_HALVINGS):
                probes = (too_few + enough.probes) // 2
                if probes == too_few:
                    break
                tried = measured(probes)
                if tried.recall - 2 * tried.error >= target:
                    enough = tried
                else:
                    too_few = probes
            return enough
    return best


def recalls_of(retrieved: Neighbours, truth: Neighbours) -> NDArray[np.float64]:
    """Return the recall of each query, shape (n,): found ids among the true ones, or as near as the farthest of them."""
    recalls = []
    for ids, scores, true_ids, true_scores in zip(*retrieved, *truth, strict=True):
        if len(true_ids):
            hits = np.isin(ids, true_ids) | (scores >= true_scores[-1])
            recalls.append(min(1.0, float(hits.sum()) / len(true_ids)))
    return np.array(recalls or [1.0])


INDEX = IndexKind(
    name="ivf",
    takes=r"(OPQ\d+,)?IVF\d*(_HNSW\d*)?,(Flat|SQ4|SQ8|PQ\d+)",
    usage="a FAISS factory string with inverted lists and plain codes, such as IVF,Flat, IVF4096,SQ8 or OPQ64,IVF,PQ64 "
    "(a number after IVF is the number of clusters; none: fitted)",
    open=Ivf,
    is_built=True,
)
