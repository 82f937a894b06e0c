"""Search an inverted-file (IVF) index: only the vectors of the nearest clusters.

In:  a random sample of all vectors → one trained template (FAISS, any factory string
     with inverted lists). Shards of vectors → their codes, ordered by cluster, one set
     of files for a run of shards.
Out: the k nearest vectors in the visited clusters, with the exact cosines of the stored
     vectors.

The search iterates over clusters, not over queries: the codes of a cluster are decoded
once and multiplied with all queries that visit it. Slightly more than k are retrieved
by rough scores; exact scores order them (docs/decisions/0008-search.md).

`tune` finds the number of clusters that a query must visit for the required recall (the
share of its k nearest that the index returns), measured against exact search on some of
the recipe's own queries. The mean exceeds the target by two standard errors.

Shapes: N vectors, D dimensions, Q queries, P clusters that a query visits (probes).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.arrays import AnyArray, Doubles, Floats, Ints
from nextlong.artifacts import corpus_files
from nextlong.engine.step import TaskResult
from nextlong.retrieval.indexes import kmeans
from nextlong.retrieval.indexes.base import (
    IndexFiles,
    IndexKind,
    Neighbours,
    VectorShards,
)
from nextlong.retrieval.indexes.best import Best, cells
from nextlong.retrieval.indexes.exact_cpu import (
    Exact,
    exact_cosines,
    exclude_ranges,
    rounding_error,
)
from nextlong.retrieval.sample import read_queries
from nextlong.rng import rng_for

_Rows = Floats
_Ids = Ints

# Vectors to train a cluster on; FAISS warns below 39.
_SAMPLE_PER_CLUSTER = 40
_MAX_SAMPLED = 1 << 20
# Vectors, at most, to train a value of a product quantizer on.
_POINTS_PER_CODE = 64
# Values of one part of a code, unless the quantizer has other ones.
_CODE_VALUES = 256
# Of k-means; more hardly improve recall.
ITERATIONS = 8
# From this many clusters on, the nearest are found by a graph (HNSW), not by comparing
# with all.
GRAPH_FROM = 1 << 16
# Scores and ids of the best held at a time: 200 MB.
_CELLS_AT_ONCE = 1 << 24
_ENCODED_ROWS = 65_536
_DECODED_ROWS = 8_192
# A query visits the nearest eighth of its clusters first.
_FIRST_SHARE = 8

_CLUSTERS = re.compile(r"(?<![A-Za-z])IVF(\d*)")


class TuneResult(TaskResult):
    """The settings of a search and its measured recall.

    A task that measures one block only reports `sample`.
    """

    probes: int = 0
    spare: float = 0  # as a share of the `k` neighbours
    recall: float = 0  # guaranteed
    recall_measured: float = 0  # mean recall@k of the sampled queries …
    recall_p5: float = 0  # … the 5th percentile …
    recall_worst: float = 0  # … and the lowest
    # Mean recall of the `nearest` nearest, from which the first negatives of a gap are
    # taken.
    recall_nearest: float = 0
    nearest: int = 0
    sample: int = 0  # queries
    k: int = 0


def clusters_for(vectors: int) -> int:
    """Return a suitable number of clusters.

    About twice the square root, a power of two, each with 40 vectors to train on.
    """
    exponent: int = round(np.log2(max(1.0, 2 * vectors**0.5)))
    trainable = vectors // _SAMPLE_PER_CLUSTER
    return max(1, min(1 << exponent, trainable))


def sample_of(clusters: int) -> int:
    """Return the number of vectors on which an index of `clusters` clusters is trained.

    If the corpus has as many.
    """
    return min(_MAX_SAMPLED, _SAMPLE_PER_CLUSTER * clusters)


def fitted(factory: str, *, vectors: int) -> str:
    """Return the factory string with its number of clusters fitted to the corpus.

    A missing number is filled in; a given one is limited.
    """
    match = _CLUSTERS.search(factory)
    if match is None:
        raise ValueError(f"{factory!r} names no inverted lists (IVF)")
    clusters = clusters_for(vectors)
    if match[1]:
        max_clusters = min(vectors, _MAX_SAMPLED) // _SAMPLE_PER_CLUSTER
        clusters = min(int(match[1]), max(1, max_clusters))
    needs_graph = clusters >= GRAPH_FROM and "_HNSW" not in factory
    graph = "_HNSW32" if needs_graph else ""
    return f"{factory[: match.start()]}IVF{clusters}{graph}{factory[match.end() :]}"


def train(out: Path, *, vectors: Sequence[Path], factory: str, seed: int) -> int:
    """Train the template on a random sample of all shards.

    Writes `{out}.template.faiss` and returns its number of clusters.
    """
    import faiss

    for_clusters = _SAMPLE_PER_CLUSTER * clusters_of(factory)
    for_codes = _CODE_VALUES * _POINTS_PER_CODE if "PQ" in factory else 0
    sample_count = min(_MAX_SAMPLED, max(for_clusters, for_codes))
    sample_ND = draw_sample(vectors, count=sample_count, seed=seed)
    index = faiss.index_factory(sample_ND.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
    lists: Any = faiss.downcast_index(faiss.extract_index_ivf(index))
    has_product_codes = hasattr(lists, "pq")
    values = 1 << int(lists.pq.nbits) if has_product_codes else _CODE_VALUES
    code_rows = values * _POINTS_PER_CODE
    for rotation in _rotations_of(index):
        _train_rotation(rotation, sample_ND[:code_rows], values=values, seed=seed)
        sample_ND = rotation.apply(sample_ND)
    centres_CD = kmeans.train_centres(
        sample_ND[:for_clusters], count=lists.nlist, iterations=ITERATIONS, seed=seed
    )
    lists.quantizer.add(centres_CD)
    if has_product_codes:
        rows_ND = sample_ND[:code_rows]
        _train_product_codes(lists, rows_ND, centres_CD, values=values, seed=seed)
    else:
        # Trains the scalar codes; the clusters are set already and stay.
        lists.train(sample_ND)
    index.is_trained = True
    faiss.write_index(index, f"{out}.template.faiss")
    return int(lists.nlist)


def _train_rotation(rotation: Any, rows_ND: _Rows, *, values: int, seed: int) -> None:
    """Train the rotation before a product quantizer."""
    import faiss

    if rows_ND.shape[1] % rotation.M:
        raise RuntimeError(f"the dimension should be a multiple of {rotation.M}")
    rotation_DD = kmeans.train_rotation(
        rows_ND, parts=rotation.M, values=values, seed=seed
    )
    faiss.copy_array_to_vector(rotation_DD.ravel(), rotation.A)
    rotation.is_trained = True
    rotation.is_orthonormal = True


def _train_product_codes(
    lists: Any, rows_ND: _Rows, centres_CD: _Rows, *, values: int, seed: int
) -> None:
    """Train the product quantizer on residuals: each row minus its nearest centre."""
    import faiss

    nearest_N = kmeans.nearest_centres(rows_ND, centres_CD, count=1)[:, 0]
    residuals_ND = rows_ND - centres_CD[nearest_N]
    books = kmeans.first_codebooks(
        residuals_ND, parts=int(lists.pq.M), values=values, seed=seed
    )
    books = kmeans.train_codebooks(residuals_ND, books)
    faiss.copy_array_to_vector(books.ravel(), lists.pq.centroids)
    lists.is_trained = True


def _rotations_of(index: Any) -> list[Any]:
    import faiss

    chain: Any = getattr(index, "chain", None)
    if chain is None:
        return []
    transforms = [chain.at(number) for number in range(chain.size())]
    return [faiss.downcast_VectorTransform(transform) for transform in transforms]


def clusters_of(factory: str) -> int:
    """Return the number of clusters that a fitted factory string names."""
    match = _CLUSTERS.search(factory)
    assert match is not None
    return int(match[1])


def draw_sample(vectors: Sequence[Path], *, count: int, seed: int) -> _Rows:
    """Return up to `count` vectors, float32 (n, dim), in random order.

    They are sampled evenly from all shards.
    """
    shards = VectorShards(vectors)
    total = sum(shards.rows)
    draw = rng_for(seed, "index.sample")
    positions = draw.choice(total, min(count, total), replace=False)
    positions.sort()
    sample_ND = shards.take(shards.ids_at(positions))
    # In random order, so that any prefix is a random sample.
    shuffle = rng_for(seed, "index.order")
    order = shuffle.permutation(len(sample_ND))
    return sample_ND.astype(np.float32)[order]


def fill(
    out: Path, *, template: Path, vectors: Sequence[Path], first_shard: int
) -> TaskResult:
    """Encode the vectors of the shards from `first_shard` on, ordered by cluster.

    Writes the files of a `_Part`.
    """
    index = _Template(template)
    counts = [np.load(path, mmap_mode="r").shape[0] for path in vectors]
    total = sum(counts)
    codes = np.empty((total, index.code_bytes), np.uint8)
    cluster = np.empty(total, np.int64)
    ids = np.empty(total, np.int64)
    start = 0  # of the next block, among the vectors of all shards
    for shard, path in enumerate(vectors, first_shard):
        stored_ND = np.load(path, mmap_mode="r")
        for first in range(0, len(stored_ND), _ENCODED_ROWS):
            block_ND = stored_ND[first : first + _ENCODED_ROWS].astype(np.float32)
            block_ND = index.rotated(block_ND)
            rows = slice(start, start + len(block_ND))
            cluster[rows] = index.nearest_clusters(block_ND, 1)[:, 0]
            codes[rows] = index.encode(block_ND, cluster[rows])
            shard_rows = np.arange(first, first + len(block_ND))
            ids[rows] = schemas.pack_ids(shard, shard_rows)
            start += len(block_ND)
    order = np.argsort(cluster, kind="stable")
    bounds = np.searchsorted(cluster[order], np.arange(index.clusters + 1))
    np.save(f"{out}.codes.npy", codes[order])
    np.save(f"{out}.members.npy", ids[order])
    np.save(f"{out}.bounds.npy", bounds)
    return TaskResult()


class Ivf:
    """A trained template and its filled parts, searched cluster by cluster."""

    def __init__(self, files: IndexFiles) -> None:
        self.recall = files.recall
        self._files = files
        self._vectors = VectorShards(files.vectors)
        self._template = _Template(files.template)
        self._parts = [_Part(stem) for stem in files.lists]

    def search(self, queries_QD: _Rows, k: int, *, exclude: _Ids) -> Neighbours:
        """See `Index.search`; only vectors in the visited clusters are found."""
        ids: list[_Ids] = []
        scores: list[_Rows] = []
        total = sum(len(part.members) for part in self._parts)
        width = min(_retrieved(k, self._files.spare), total)
        if not width:
            return ids, scores
        at_once = max(1, _CELLS_AT_ONCE // cells(width))
        for first in range(0, len(queries_QD), at_once):
            some = slice(first, first + at_once)
            best = self._best(queries_QD[some], width, exclude[some])
            for neighbours, cosines in best.finish():
                ids.append(neighbours[:k])
                scores.append(cosines[:k])
        return ids, scores

    def _best(self, queries_QD: _Rows, width: int, exclude_Q2: _Ids) -> Best:
        """Compare each query with the vectors of its clusters, cluster by cluster."""
        if self._template.is_lossless:
            best = Best(len(queries_QD), k=width, error=0.0, exact=None)
        else:
            best = Best(
                len(queries_QD),
                k=width,
                error=rounding_error(queries_QD.shape[1]),
                exact=partial(exact_cosines, queries_QD, self._vectors),
            )
        rotated_QD = self._template.rotated(queries_QD)
        clusters_QP = self._template.nearest_clusters(rotated_QD, self._files.probes)
        # The nearest clusters are visited first, because they raise the bar that
        # entries of the others must reach.
        first_probes = -(-clusters_QP.shape[1] // _FIRST_SHARE)
        for visited_QP in (
            clusters_QP[:, :first_probes],
            clusters_QP[:, first_probes:],
        ):
            for cluster, queries in _visits(visited_QP):
                ids, codes = self._cluster(cluster)
                if not len(ids):
                    continue
                vectors_ND = self._template.decode(codes, np.full(len(ids), cluster))
                scores_QN = rotated_QD[queries] @ vectors_ND.T
                exclude_ranges(scores_QN, ids, exclude_Q2[queries])
                best.add(scores_QN, ids, queries)
        return best

    def _cluster(self, cluster: int) -> tuple[_Ids, NDArray[np.uint8]]:
        """Return the ids and codes of a cluster's vectors, from all parts."""
        ids = []
        codes = []
        for part in self._parts:
            first, last = part.bounds[cluster : cluster + 2].tolist()
            ids.append(part.members[first:last])
            codes.append(part.codes[first:last])
        return np.concatenate(ids), np.concatenate(codes)


def _visits(visited_QP: _Ids) -> Iterator[tuple[int, _Ids]]:
    """Yield each visited cluster and the queries that visit it.

    `visited_QP` has the clusters of each query; -1 is no cluster.
    """
    # The visits, flat positions in `visited_QP`, sorted by cluster.
    flat = visited_QP.ravel()
    order = np.argsort(flat, kind="stable")
    order = order[flat[order] >= 0]
    clusters, firsts = np.unique(flat[order], return_index=True)
    groups = np.split(order, firsts)[1:]
    for cluster, visits in zip(clusters.tolist(), groups, strict=True):
        yield cluster, visits // visited_QP.shape[1]


class _Part:
    """The files that `fill` wrote, memory-mapped.

    codes:   uint8 (n, code bytes)
    members: int64 (n,), the ids of each cluster, ascending
    bounds:  int64 (clusters + 1,), the first row of each cluster
    """

    def __init__(self, stem: Path) -> None:
        self.codes = _mapped(stem, "codes")
        self.members = _mapped(stem, "members")
        self.bounds = _mapped(stem, "bounds")


def _mapped(stem: Path, name: str) -> AnyArray:
    return np.asarray(np.load(f"{stem}.{name}.npy", mmap_mode="r"))


class _Template:
    """A trained FAISS index without vectors: its clusters, and how it codes."""

    def __init__(self, path: Path | None) -> None:
        import faiss

        assert path is not None  # the files of a built index have one

        self._swig_ptr: Any = faiss.swig_ptr
        self._index: Any = faiss.read_index(str(path))  # owns the memory of `lists`
        lists: Any = faiss.downcast_index(faiss.extract_index_ivf(self._index))
        self._lists = lists
        self._rotations = _rotations_of(self._index)
        self.clusters = int(lists.nlist)
        quantizer = faiss.downcast_index(lists.quantizer)
        self._graph: Any = quantizer if hasattr(quantizer, "hnsw") else None
        if self._graph is None:
            self._centres_CD: _Rows = quantizer.reconstruct_n(0, self.clusters)
        # Whether the codes are the stored vectors.
        is_flat = isinstance(lists, faiss.IndexIVFFlat)
        self.is_lossless = is_flat and not self._rotations
        self.code_bytes = 2 * int(lists.d) if self.is_lossless else int(lists.code_size)

    def rotated(self, rows_ND: _Rows) -> _Rows:
        """Return the rows as the index stores them.

        They are rotated or projected if the factory string says so.
        """
        for rotation in self._rotations:
            rows_ND = rotation.apply(np.ascontiguousarray(rows_ND))
        return np.ascontiguousarray(rows_ND)

    def nearest_clusters(self, rows_ND: _Rows, count: int) -> _Ids:
        """Return the `count` clusters nearest to each row, (n, min(count, clusters)).

        -1 where a graph finds fewer.
        """
        if self._graph is None:
            return kmeans.nearest_centres(rows_ND, self._centres_CD, count=count)
        self._graph.hnsw.efSearch = max(64, 2 * count)
        clusters: _Ids = self._graph.search(rows_ND, min(count, self.clusters))[1]
        return clusters

    def encode(self, rows_ND: _Rows, clusters: _Ids) -> NDArray[np.uint8]:
        """Return the codes, shape (n, code bytes), of rows in the given clusters."""
        if self.is_lossless:
            return rows_ND.astype(np.float16).view(np.uint8)
        codes = np.empty((len(rows_ND), self.code_bytes), np.uint8)
        pointers = [self._swig_ptr(array) for array in (rows_ND, clusters, codes)]
        self._lists.encode_vectors(len(rows_ND), *pointers)
        return codes

    def decode(self, codes: NDArray[np.uint8], clusters: _Ids) -> _Rows:
        """Return the vectors, (n, dim), decoded from codes in the given clusters."""
        if self.is_lossless:
            return codes.view(np.float16).astype(np.float32)
        rows_ND = np.empty((len(codes), self._lists.d), np.float32)
        codes = np.ascontiguousarray(codes)
        pointers = [self._swig_ptr(array) for array in (codes, clusters, rows_ND)]
        self._lists.decode_vectors(len(codes), *pointers)
        return rows_ND


# Of the k neighbours: negatives are taken from these first.
_NEAREST = 100
# Of the last doubling: probes are at most an eighth more than necessary.
_HALVINGS = 3
# Queries; at k = 1,000 the standard error of their mean recall is about half a percent.
SAMPLE = 256
# For lossy codes: how many more than k, as a share, rough scores retrieve.
_SPARES = (0.1, 0.5, 2.0, 6.0)
# One neighbour of a query.
_SCORED = np.dtype(
    [("query", "<i4"), ("id", "<i8"), ("score", "<f4"), ("cluster", "<i4")]
)


class _Tuned(NamedTuple):
    """The mean recall of a search with given probes and spare.

    `sure` is two standard errors below the mean.
    """

    probes: int
    spare: float
    recall: float
    sure: float


def measure_block(
    out: Path,
    *,
    files: IndexFiles,
    queries: Path,
    lists: slice,
    shards: range,
    k: int,
    seed: int,
) -> TuneResult:
    """Search some shards for the sampled `queries`: exactly, and by rough scores.

    `files.lists[lists]` has the codes of the shards. Writes _SCORED rows by query:
    `{out}.truth.npy`, the k nearest, and `{out}.rough.npy`, as many as the largest
    spare gets.
    """
    template = _Template(files.template)
    parts = [_Part(stem) for stem in files.lists[lists]]
    queries_QD, exclude_Q2 = _sample_queries(queries, files.vectors, seed=seed)
    vectors = VectorShards(files.vectors, shards, is_held=False)
    truth = Exact(vectors).search(queries_QD, k, exclude=exclude_Q2)

    # (n,) the vectors of all parts, and their clusters.
    members = np.concatenate([part.members for part in parts])
    sizes = np.concatenate([np.diff(part.bounds) for part in parts])
    clusters_of_parts = np.tile(np.arange(template.clusters), len(parts))
    clusters = np.repeat(clusters_of_parts, sizes)
    rough = truth
    if len(members) and not template.is_lossless:
        width = min(len(members), _retrieved(k, _SPARES[-1]))
        rotated_QD = template.rotated(queries_QD)
        rough = _rough_neighbours(
            template, parts, rotated_QD, clusters, width=width, exclude_Q2=exclude_Q2
        )
    by_id = np.argsort(members)
    for name, (ids, scores) in (("truth", truth), ("rough", rough)):
        counts = [len(row) for row in ids]
        scored = np.empty(sum(counts), _SCORED)
        query_numbers = np.arange(len(counts))
        scored["query"] = np.repeat(query_numbers, counts)
        if len(scored):
            scored["id"] = np.concatenate(ids)
            scored["score"] = np.concatenate(scores)
            rows = np.searchsorted(members, scored["id"], sorter=by_id)
            scored["cluster"] = clusters[by_id[rows]]
        np.save(f"{out}.{name}.npy", scored)
    return TuneResult(sample=len(queries_QD))


def _rough_neighbours(
    template: _Template,
    parts: Sequence[_Part],
    rotated_QD: _Rows,
    clusters: _Ids,
    *,
    width: int,
    exclude_Q2: _Ids,
) -> Neighbours:
    """Return the `width` nearest of each query by the codes of all vectors.

    `clusters`, (n,), are those of the vectors of all parts.
    """
    best = Best(len(rotated_QD), k=width, error=0.0, exact=None)
    before = 0  # vectors of earlier parts
    for part in parts:
        for first in range(0, len(part.members), _DECODED_ROWS):
            # `Best` expects ascending ids.
            rows = first + np.argsort(part.members[first : first + _DECODED_ROWS])
            ids = part.members[rows]
            vectors_ND = template.decode(part.codes[rows], clusters[before + rows])
            scores_QN = rotated_QD @ vectors_ND.T
            exclude_ranges(scores_QN, ids, exclude_Q2)
            best.add(scores_QN, ids)
        before += len(part.members)
    neighbours = list(best.finish())
    return [ids for ids, _ in neighbours], [scores for _, scores in neighbours]


class _Measured(NamedTuple):
    """What exact and rough search found for the sampled queries.

    A search compares a query with all vectors of the visited clusters, so the result of
    any setting follows from the clusters of the query's nearest by exact and by rough
    scores. A true neighbour beyond the largest spare counts as missed.
    """

    template: _Template
    rotated_queries: _Rows  # (Q, D)
    exact: Sequence[AnyArray]  # _SCORED rows of each query
    rough: Sequence[AnyArray]
    k: int

    def recalls(self, probes: int, spare: float, *, nearest: int) -> Doubles:
        """Return the share of the `nearest` neighbours that each query finds."""
        width = _retrieved(self.k, spare)
        clusters_QP = self.template.nearest_clusters(self.rotated_queries, probes)
        shares = []
        for true, scored, visited in zip(
            self.exact, self.rough, clusters_QP, strict=True
        ):
            share = 1.0
            if len(true):
                is_visited = np.isin(scored["cluster"], visited)
                retrieved = scored["id"][is_visited][:width]
                is_found = np.isin(true["id"][:nearest], retrieved)
                share = float(is_found.mean())
            shares.append(share)
        return np.array(shares or [1.0])

    def tuned(self, probes: int, spare: float) -> _Tuned:
        """Return the recall of a setting."""
        recalls = self.recalls(probes, spare, nearest=self.k)
        mean = float(recalls.mean())
        deviation = float(recalls.std())
        error = deviation / len(recalls) ** 0.5
        return _Tuned(probes, spare, mean, mean - 2 * error)


def tune(
    out: Path,
    *,
    files: IndexFiles,
    queries: Path,
    blocks: int,
    k: int,
    target: float,
    seed: int,
) -> TuneResult:
    """Return the cheapest of the tried settings that reaches `target`, or the best one.

    Recalls follow from what `measure_block` wrote.
    """
    template = _Template(files.template)
    queries_QD, _ = _sample_queries(queries, files.vectors, seed=seed)
    spares = (0.0,) if template.is_lossless else _SPARES
    stems = [out.parent.parent / f"part-{number:05d}" for number in range(blocks)]
    measured = _Measured(
        template=template,
        rotated_queries=template.rotated(queries_QD),
        exact=_best_of_blocks(
            [Path(f"{stem}.truth.npy") for stem in stems], queries=len(queries_QD), k=k
        ),
        rough=_best_of_blocks(
            [Path(f"{stem}.rough.npy") for stem in stems],
            queries=len(queries_QD),
            k=_retrieved(k, spares[-1]),
        ),
        k=k,
    )
    tuned = _search(measured.tuned, spares, clusters=template.clusters, target=target)
    recalls = measured.recalls(tuned.probes, tuned.spare, nearest=k)
    of_nearest = measured.recalls(tuned.probes, tuned.spare, nearest=_NEAREST)
    return TuneResult(
        probes=tuned.probes,
        spare=tuned.spare,
        recall=min(target, tuned.recall),
        recall_measured=round(tuned.recall, 4),
        recall_p5=round(float(np.percentile(recalls, 5)), 4),
        recall_worst=round(float(recalls.min()), 4),
        recall_nearest=round(float(of_nearest.mean()), 4),
        nearest=min(_NEAREST, k),
        sample=len(queries_QD),
        k=k,
    )


def _sample_queries(
    queries: Path, vectors: Sequence[Path], *, seed: int
) -> tuple[_Rows, _Ids]:
    """Return the vectors of the queries on which recall is measured.

    And the range of ids that each excludes.
    """
    ids, exclude, _ = read_queries(queries)
    draw = rng_for(seed, "index.tune")
    count = min(SAMPLE, len(ids))
    sample = draw.choice(len(ids), count, replace=False)
    sample.sort()
    return corpus_files.vectors(ids[sample], vectors), exclude[sample]


def _retrieved(k: int, spare: float) -> int:
    """Return how many vectors rough scores retrieve for k neighbours."""
    return k + math.ceil(k * spare)


def _best_of_blocks(paths: Sequence[Path], *, queries: int, k: int) -> list[AnyArray]:
    """Return the best `k` of each query, _SCORED rows descending by score.

    The files are ordered by query.
    """
    blocks = []
    for path in paths:
        rows = np.load(path)
        ends = np.searchsorted(rows["query"], np.arange(queries + 1))
        blocks.append((rows, ends))
    best = []
    for query in range(queries):
        parts = [rows[ends[query] : ends[query + 1]] for rows, ends in blocks]
        scored = np.concatenate(parts)
        order = np.lexsort((scored["id"], -scored["score"]))
        best.append(scored[order[:k]])
    return best


def _search(
    measured: Callable[[int, float], _Tuned],
    spares: Sequence[float],
    *,
    clusters: int,
    target: float,
) -> _Tuned:
    """Double the probes until the target is reached, then bisect the last doubling.

    Larger spares are tried for lossy codes.
    """
    best = _Tuned(1, 0.0, -1.0, -1.0)
    for spare in spares:
        tried = measured(1, spare)
        while tried.sure < target and tried.probes < clusters:
            tried = measured(min(2 * tried.probes, clusters), spare)
        best = max(best, tried, key=lambda setting: setting.recall)
        if tried.sure >= target:
            return _bisected(measured, tried, target=target)
    return best


def _bisected(
    measured: Callable[[int, float], _Tuned], enough: _Tuned, *, target: float
) -> _Tuned:
    """Return a setting that still reaches the target with fewer probes.

    Half of the probes of `enough` were too few.
    """
    too_few = enough.probes // 2
    for _ in range(_HALVINGS):
        probes = (too_few + enough.probes) // 2
        if probes == too_few:
            break
        tried = measured(probes, enough.spare)
        if tried.sure >= target:
            enough = tried
        else:
            too_few = probes
    return enough


_TAKES = r"(OPQ\d+,)?IVF\d*(_HNSW\d*)?,(Flat|SQ4|SQ8|PQ\d+)"
_USAGE = (
    "a FAISS factory string with inverted lists and plain codes, such as IVF,Flat, "
    "IVF4096,SQ8 or OPQ64,IVF,PQ64 (a number after IVF is the number of clusters; "
    "none: fitted)"
)
INDEX = IndexKind(name="ivf", takes=_TAKES, usage=_USAGE, open=Ivf, is_built=True)
