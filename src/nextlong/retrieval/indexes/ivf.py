"""Search an inverted-file (IVF) index: compare a query only with the vectors of the clusters nearest to it.

In:  a random sample of all vectors → one trained template (FAISS, any factory string with inverted lists).
     Shards of vectors → their codes, ordered by cluster, one set of files for a run of shards.
Out: the k nearest vectors in the visited clusters, with the exact cosines of the stored vectors.

The search iterates over clusters, not over queries: the codes of a cluster are decoded once and multiplied with all queries
that visit it. Slightly more than k are retrieved by rough scores; exact scores order them (docs/decisions/0008-search.md).

`tune` finds the number of clusters that a query must visit for the required recall (the share of its k nearest that the index
returns), measured against exact search on some of the recipe's own queries. The mean exceeds the target by two standard errors.

Shapes: N vectors, D dimensions, Q queries, P clusters that a query visits (probes).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts import lookup
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

_Rows = NDArray[np.float32]
_Ids = NDArray[np.int64]

_SAMPLE_PER_CLUSTER = 40  # vectors to train a cluster on; FAISS warns below 39
_MOST_SAMPLED = 1 << 20
_POINTS_PER_CODE = 64  # vectors, at most, to train a value of a product quantizer on
ITERATIONS = 8  # of k-means; more hardly improve recall
GRAPH_FROM = (
    1 << 16
)  # from this many clusters on, the nearest are found by a graph (HNSW), not by comparing with all
_HELD = 1 << 24  # scores and ids of the best held at a time: 200 MB
_ENCODED_ROWS = 65_536
_DECODED_ROWS = 8_192
_FIRST_SHARE = 8  # a query visits the nearest eighth of its clusters first

_CLUSTERS = re.compile(r"(?<![A-Za-z])IVF(\d*)")


class TuneResult(TaskResult):
    """The settings of a search and its measured recall; a task that measures one block only reports `sample`."""

    probes: int = 0
    spare: float = 0  # as a share of the `k` neighbours
    recall: float = 0  # guaranteed
    recall_measured: float = 0  # mean recall@k of the sampled queries …
    recall_p5: float = 0  # … the 5th percentile …
    recall_worst: float = 0  # … and the lowest
    recall_nearest: float = 0  # mean recall of the `nearest` nearest, from which the first negatives of a gap are taken
    nearest: int = 0
    sample: int = 0  # queries
    k: int = 0


def clusters_for(vectors: int) -> int:
    """Return a suitable number of clusters: about twice the square root, a power of two, each with 40 vectors to train on."""
    fitting = 2 ** round(np.log2(max(1.0, 2 * vectors**0.5)))
    return int(max(1, min(fitting, vectors // _SAMPLE_PER_CLUSTER)))


def sample_of(clusters: int) -> int:
    """Return the number of vectors on which an index of `clusters` clusters is trained, if the corpus has as many."""
    return min(_MOST_SAMPLED, _SAMPLE_PER_CLUSTER * clusters)


def fitted(factory: str, *, vectors: int) -> str:
    """Return the factory string with its number of clusters fitted to the corpus: filled in if missing, else limited."""
    match = _CLUSTERS.search(factory)
    if match is None:
        raise ValueError(f"{factory!r} names no inverted lists (IVF)")
    most = max(1, min(vectors, _MOST_SAMPLED) // _SAMPLE_PER_CLUSTER)
    clusters = min(int(match[1]), most) if match[1] else clusters_for(vectors)
    graph = "_HNSW32" if clusters >= GRAPH_FROM and "_HNSW" not in factory else ""
    return f"{factory[: match.start()]}IVF{clusters}{graph}{factory[match.end() :]}"


def train(out: Path, *, vectors: Sequence[Path], factory: str, seed: int) -> int:
    """Train the template on a random sample of all shards, write `{out}.template.faiss`, and return its number of clusters."""
    import faiss

    for_clusters = _SAMPLE_PER_CLUSTER * clusters_of(factory)
    for_codes = 256 * _POINTS_PER_CODE if "PQ" in factory else 0
    sample_ND = draw_sample(
        vectors, most=_MOST_SAMPLED, per=max(for_clusters, for_codes), seed=seed
    )
    index = faiss.index_factory(sample_ND.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
    lists: Any = faiss.downcast_index(faiss.extract_index_ivf(index))
    values = (
        1 << int(lists.pq.nbits) if hasattr(lists, "pq") else 256
    )  # values of one part of a code
    for rotation in _rotations_of(index):
        if sample_ND.shape[1] % rotation.M:
            raise RuntimeError(f"the dimension should be a multiple of {rotation.M}")
        rows_ND = sample_ND[: values * _POINTS_PER_CODE]
        rotation_DD = kmeans.train_rotation(
            rows_ND, parts=rotation.M, values=values, seed=seed
        )
        faiss.copy_array_to_vector(rotation_DD.ravel(), rotation.A)
        rotation.is_trained = rotation.is_orthonormal = True
        sample_ND = rotation.apply(sample_ND)
    centres_CD = kmeans.train_centres(
        sample_ND[:for_clusters], count=lists.nlist, iterations=ITERATIONS, seed=seed
    )
    lists.quantizer.add(centres_CD)
    if hasattr(
        lists, "pq"
    ):  # trained on the residuals: each row minus its nearest centre
        rows_ND = sample_ND[: values * _POINTS_PER_CODE]
        residuals_ND = (
            rows_ND
            - centres_CD[kmeans.nearest_centres(rows_ND, centres_CD, count=1)[:, 0]]
        )
        books = kmeans.first_codebooks(
            residuals_ND, parts=int(lists.pq.M), values=values, seed=seed
        )
        faiss.copy_array_to_vector(
            kmeans.train_codebooks(residuals_ND, books).ravel(), lists.pq.centroids
        )
        lists.is_trained = True
    else:
        lists.train(
            sample_ND
        )  # trains the scalar codes; the clusters are set already and stay
    index.is_trained = True
    faiss.write_index(index, f"{out}.template.faiss")
    return int(lists.nlist)


def _rotations_of(index: Any) -> list[Any]:
    import faiss

    chain: Any = getattr(index, "chain", None)
    return (
        []
        if chain is None
        else [
            faiss.downcast_VectorTransform(chain.at(place))
            for place in range(chain.size())
        ]
    )


def clusters_of(factory: str) -> int:
    """Return the number of clusters that a fitted factory string names."""
    match = _CLUSTERS.search(factory)
    assert match is not None
    return int(match[1])


def draw_sample(vectors: Sequence[Path], *, most: int, per: int, seed: int) -> _Rows:
    """Return up to min(most, per) vectors, float32 (n, dim), sampled evenly from all shards, in random order."""
    shards = VectorShards(vectors)
    total = sum(shards.rows)
    places = np.sort(
        rng_for(seed, "index.sample").choice(
            total, min(most, per, total), replace=False
        )
    )
    sample_ND = shards.take(shards.ids_at(places)).astype(np.float32)
    return sample_ND[
        rng_for(seed, "index.order").permutation(len(sample_ND))
    ]  # so that any prefix is a random sample


def fill(
    out: Path, *, template: Path, vectors: Sequence[Path], first_shard: int
) -> TaskResult:
    """Encode the vectors of the shards from `first_shard` on, ordered by cluster; write the files of a `_Part`."""
    index = _Template(template)
    counts = [np.load(path, mmap_mode="r").shape[0] for path in vectors]
    codes = np.empty((sum(counts), index.code_bytes), np.uint8)
    cluster, ids = np.empty(len(codes), np.int64), np.empty(len(codes), np.int64)
    for place, (shard, path) in enumerate(enumerate(vectors, first_shard)):
        rows_ND, above = np.load(path, mmap_mode="r"), sum(counts[:place])
        for first in range(0, len(rows_ND), _ENCODED_ROWS):
            block = index.rotated(
                rows_ND[first : first + _ENCODED_ROWS].astype(np.float32)
            )
            rows = slice(above + first, above + first + len(block))
            cluster[rows] = index.nearest_clusters(block, 1)[:, 0]
            codes[rows] = index.encode(block, cluster[rows])
            ids[rows] = schemas.pack_ids(shard, np.arange(first, first + len(block)))
    order = np.argsort(cluster, kind="stable")
    np.save(f"{out}.codes.npy", codes[order])
    np.save(f"{out}.members.npy", ids[order])
    np.save(
        f"{out}.bounds.npy",
        np.searchsorted(cluster[order], np.arange(index.clusters + 1)),
    )
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
        wide = min(
            _kept(k, self._files.spare), sum(len(part.members) for part in self._parts)
        )
        most = max(1, _HELD // cells(wide))
        for part in (
            slice(first, first + most)
            for first in range(0, len(queries_QD) if wide else 0, most)
        ):
            for neighbours, cosines in self._best(
                queries_QD[part], wide, exclude[part]
            ).finish():
                ids.append(neighbours[:k])
                scores.append(cosines[:k])
        return ids, scores

    def _best(self, queries_QD: _Rows, wide: int, exclude_Q2: _Ids) -> Best:
        """Compare each query with the vectors of its clusters, cluster by cluster."""
        is_lossless = self._template.is_lossless
        error = 0.0 if is_lossless else rounding_error(queries_QD.shape[1])
        exact = (
            None if is_lossless else partial(exact_cosines, queries_QD, self._vectors)
        )
        best = Best(len(queries_QD), k=wide, error=error, exact=exact)
        rotated_QD = self._template.rotated(queries_QD)
        clusters_QP = self._template.nearest_clusters(rotated_QD, self._files.probes)
        # The nearest clusters are visited first, because they raise the bar that entries of the others must reach.
        first = -(-clusters_QP.shape[1] // _FIRST_SHARE)
        for visited_QP in (clusters_QP[:, :first], clusters_QP[:, first:]):
            # The visits, flat positions in `visited_QP`, sorted by cluster; -1 is no cluster. `queries` are those of one cluster.
            order = np.argsort(visited_QP, axis=None, kind="stable")
            order = order[visited_QP.ravel()[order] >= 0]
            clusters, firsts = np.unique(visited_QP.ravel()[order], return_index=True)
            for cluster, visits in zip(
                clusters.tolist(), np.split(order, firsts)[1:], strict=True
            ):
                queries = visits // visited_QP.shape[1]
                pieces = [
                    (part, slice(*part.bounds[cluster : cluster + 2].tolist()))
                    for part in self._parts
                ]
                ids = np.concatenate([part.members[rows] for part, rows in pieces])
                if len(ids):
                    codes = np.concatenate([part.codes[rows] for part, rows in pieces])
                    vectors_ND = self._template.decode(
                        codes, np.full(len(ids), cluster)
                    )
                    scores_QN = rotated_QD[queries] @ vectors_ND.T
                    exclude_ranges(scores_QN, ids, exclude_Q2[queries])
                    best.add(scores_QN, ids, queries)
        return best


class _Part:
    """The files that `fill` wrote, memory-mapped: codes uint8 (n, code bytes), and the ids of each cluster, ascending."""

    def __init__(self, stem: Path) -> None:
        """Open `codes`, `members` (ids, int64 (n,)) and `bounds`, int64 (clusters + 1,), the first row of each cluster."""
        opened = (
            np.asarray(np.load(f"{stem}.{name}.npy", mmap_mode="r"))
            for name in ("codes", "members", "bounds")
        )
        self.codes, self.members, self.bounds = opened


class _Template:
    """A trained FAISS index without vectors: the centres of the clusters, and the coding of vectors."""

    def __init__(self, path: Path | None) -> None:
        import faiss

        assert path is not None  # the files of a built index have one

        self._swig_ptr: Any = faiss.swig_ptr
        self._index: Any = faiss.read_index(str(path))  # owns the memory of `lists`
        lists: Any = faiss.downcast_index(faiss.extract_index_ivf(self._index))
        self._lists, self._rotations = lists, _rotations_of(self._index)
        self.clusters = int(lists.nlist)
        quantizer = faiss.downcast_index(lists.quantizer)
        self._graph: Any = quantizer if hasattr(quantizer, "hnsw") else None
        if self._graph is None:
            self._centres_CD: _Rows = quantizer.reconstruct_n(0, self.clusters)
        self.is_lossless = (
            isinstance(lists, faiss.IndexIVFFlat) and not self._rotations
        )  # codes are the stored vectors
        self.code_bytes = 2 * int(lists.d) if self.is_lossless else int(lists.code_size)

    def rotated(self, rows_ND: _Rows) -> _Rows:
        """Return the rows as the index stores them: rotated or projected if the factory string says so."""
        for rotation in self._rotations:
            rows_ND = rotation.apply(np.ascontiguousarray(rows_ND))
        return np.ascontiguousarray(rows_ND)

    def nearest_clusters(self, rows_ND: _Rows, count: int) -> _Ids:
        """Return the `count` clusters nearest to each row, shape (n, min(count, clusters)); -1 where a graph finds fewer."""
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
        pointer = self._swig_ptr
        self._lists.encode_vectors(
            len(rows_ND), pointer(rows_ND), pointer(clusters), pointer(codes)
        )
        return codes

    def decode(self, codes: NDArray[np.uint8], clusters: _Ids) -> _Rows:
        """Return the vectors, shape (n, dim), decoded from the codes of rows in the given clusters."""
        if self.is_lossless:
            return codes.view(np.float16).astype(np.float32)
        rows_ND = np.empty((len(codes), self._lists.d), np.float32)
        codes, pointer = np.ascontiguousarray(codes), self._swig_ptr
        self._lists.decode_vectors(
            len(codes), pointer(codes), pointer(clusters), pointer(rows_ND)
        )
        return rows_ND


_NEAREST = 100  # of the k neighbours: negatives are taken from these first
_HALVINGS = 3  # of the last doubling: probes are at most an eighth more than necessary
SAMPLE = 256  # queries; at k = 1,000 the standard error of their mean recall is about half a percent
_SPARES = (
    0.1,
    0.5,
    2.0,
    6.0,
)  # for lossy codes: how many more than k, as a share, rough scores retrieve


class _Tuned(NamedTuple):
    """The mean recall of a search with given probes and spare; `sure` is two standard errors below the mean."""

    probes: int
    spare: float
    recall: float
    sure: float


_SCORED = np.dtype(
    [("query", "<i4"), ("id", "<i8"), ("score", "<f4"), ("cluster", "<i4")]
)  # one neighbour of a query


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
    """Search some shards, coded by `files.lists[lists]`, for the sampled `queries`: exactly, and by rough scores.

    Writes _SCORED rows by query: `{out}.truth.npy`, the k nearest, and `{out}.rough.npy`, as many as the largest spare gets.
    """
    template, parts = (
        _Template(files.template),
        [_Part(stem) for stem in files.lists[lists]],
    )
    queries_QD, exclude_Q2 = _sample_queries(queries, files.vectors, seed=seed)
    truth = Exact(VectorShards(files.vectors, shards, is_held=False)).search(
        queries_QD, k, exclude=exclude_Q2
    )
    members = np.concatenate([part.members for part in parts])
    clusters = np.concatenate(
        [
            np.repeat(np.arange(template.clusters), np.diff(part.bounds))
            for part in parts
        ]
    )
    rough = truth
    if len(members) and not template.is_lossless:
        rotated_QD, before = template.rotated(queries_QD), 0
        best = Best(
            len(queries_QD),
            k=min(len(members), _kept(k, _SPARES[-1])),
            error=0.0,
            exact=None,
        )
        for part in parts:
            for first in range(0, len(part.members), _DECODED_ROWS):
                rows = first + np.argsort(part.members[first : first + _DECODED_ROWS])
                scores_QN = (
                    rotated_QD
                    @ template.decode(part.codes[rows], clusters[before + rows]).T
                )
                exclude_ranges(scores_QN, part.members[rows], exclude_Q2)
                best.add(scores_QN, part.members[rows])
            before += len(part.members)
        results = [*best.finish()]
        rough = [ids for ids, _ in results], [scores for _, scores in results]
    by_id = np.argsort(members)
    for name, (ids_of, scores_of) in (("truth", truth), ("rough", rough)):
        counts = [*map(len, ids_of)]
        scored = np.empty(sum(counts), _SCORED)
        scored["query"] = np.repeat(np.arange(len(counts)), counts)
        if len(scored):
            scored["id"], scored["score"] = (
                np.concatenate(ids_of),
                np.concatenate(scores_of),
            )
            scored["cluster"] = clusters[
                by_id[np.searchsorted(members, scored["id"], sorter=by_id)]
            ]
        np.save(f"{out}.{name}.npy", scored)
    return TuneResult(sample=len(queries_QD))


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
    """Return the cheapest of the tried settings that reaches `target`, or the best one, from what `measure_block` wrote."""
    # A search compares a query with all vectors of the visited clusters, so the result of any setting follows from the
    # clusters of the query's nearest by exact and by rough scores. A true neighbour beyond the largest spare counts as missed.
    template = _Template(files.template)
    queries_QD, _ = _sample_queries(queries, files.vectors, seed=seed)
    rotated_QD = template.rotated(queries_QD)
    stems = [out.parent.parent / f"part-{number:05d}" for number in range(blocks)]
    exact = _best_of_blocks(
        [Path(f"{stem}.truth.npy") for stem in stems], queries=len(queries_QD), k=k
    )
    widest = _kept(k, 0.0 if template.is_lossless else _SPARES[-1])
    rough = _best_of_blocks(
        [Path(f"{stem}.rough.npy") for stem in stems], queries=len(queries_QD), k=widest
    )

    def recalls(probes: int, spare: float, *, nearest: int) -> NDArray[np.float64]:
        """Return the share of the `nearest` neighbours that each query finds."""
        shares = []
        for true, scored, visited in zip(
            exact, rough, template.nearest_clusters(rotated_QD, probes), strict=True
        ):
            retrieved = scored["id"][np.isin(scored["cluster"], visited)][
                : _kept(k, spare)
            ]
            shares.append(
                float(np.isin(true["id"][:nearest], retrieved).mean())
                if len(true)
                else 1.0
            )
        return np.array(shares or [1.0])

    def measured(probes: int, spare: float) -> _Tuned:
        recalls_of_queries = recalls(probes, spare, nearest=k)
        mean, error = (
            float(recalls_of_queries.mean()),
            float(recalls_of_queries.std() / len(recalls_of_queries) ** 0.5),
        )
        return _Tuned(probes, spare, mean, mean - 2 * error)

    tuned = _search(
        measured,
        (0.0,) if template.is_lossless else _SPARES,
        clusters=template.clusters,
        target=target,
    )
    recalls_of_queries = recalls(tuned.probes, tuned.spare, nearest=k)
    return TuneResult(
        probes=tuned.probes,
        spare=tuned.spare,
        recall=min(target, tuned.recall),
        recall_measured=round(tuned.recall, 4),
        recall_p5=round(float(np.percentile(recalls_of_queries, 5)), 4),
        recall_worst=round(float(recalls_of_queries.min()), 4),
        recall_nearest=round(
            float(recalls(tuned.probes, tuned.spare, nearest=_NEAREST).mean()), 4
        ),
        nearest=min(_NEAREST, k),
        sample=len(queries_QD),
        k=k,
    )


def _sample_queries(
    queries: Path, vectors: Sequence[Path], *, seed: int
) -> tuple[_Rows, _Ids]:
    """Return the vectors of the queries on which recall is measured, and the range of ids that each excludes."""
    ids, exclude, _ = read_queries(queries)
    sample = np.sort(
        rng_for(seed, "index.tune").choice(
            len(ids), min(SAMPLE, len(ids)), replace=False
        )
    )
    return lookup.vectors(ids[sample], vectors), exclude[sample]


def _kept(k: int, spare: float) -> int:
    return k + math.ceil(k * spare)


def _best_of_blocks(
    paths: Sequence[Path], *, queries: int, k: int
) -> list[NDArray[Any]]:
    """Return the best `k` of each query, _SCORED rows descending by score, from files ordered by query."""
    blocks = [np.load(path) for path in paths]
    ends = [np.searchsorted(block["query"], np.arange(queries + 1)) for block in blocks]
    best = []
    for query in range(queries):
        rows = np.concatenate(
            [
                block[end[query] : end[query + 1]]
                for block, end in zip(blocks, ends, strict=True)
            ]
        )
        best.append(rows[np.lexsort((rows["id"], -rows["score"]))[:k]])
    return best


def _search(
    measured: Callable[[int, float], _Tuned],
    spares: Sequence[float],
    *,
    clusters: int,
    target: float,
) -> _Tuned:
    """Double the probes until the target is reached, then bisect the last doubling; try larger spares for lossy codes."""
    best = _Tuned(1, 0.0, -1.0, -1.0)
    for spare in spares:
        probes = 1
        while (tried := measured(probes, spare)).sure < target and probes < clusters:
            probes = min(2 * probes, clusters)
        best = max(best, tried, key=lambda setting: setting.recall)
        if tried.sure >= target:
            enough, too_few = (
                tried,
                tried.probes // 2,
            )  # half of these probes were too few: bisect between the two
            for _ in range(_HALVINGS):
                if (probes := (too_few + enough.probes) // 2) == too_few:
                    break
                if (tried := measured(probes, spare)).sure >= target:
                    enough = tried
                else:
                    too_few = probes
            return enough
    return best


_TAKES = r"(OPQ\d+,)?IVF\d*(_HNSW\d*)?,(Flat|SQ4|SQ8|PQ\d+)"
_USAGE = (
    "a FAISS factory string with inverted lists and plain codes, such as IVF,Flat, IVF4096,SQ8 or OPQ64,IVF,PQ64 (a number after "
    "IVF is the number of clusters; none: fitted)"
)
INDEX = IndexKind(name="ivf", takes=_TAKES, usage=_USAGE, open=Ivf, is_built=True)
