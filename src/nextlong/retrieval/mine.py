"""Mine candidates: the nearest chunks of each meta-chunk, or documents of a document.

In:  META_DOCUMENTS or ids of documents; VECTORS, of unit length, so that the inner
     product is the cosine; an index.
Out: CANDIDATES, descending by cosine. A query's own document, which would be nearest,
     is excluded (paper §3.1.2).

In a small corpus, a task searches all vectors for a range of queries. Exact search of a
large corpus reads the vectors once, block by block, for all queries
(docs/decisions/0008-search.md): `_find_least_scores`, `_scan_block`, `_mine_block`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts import corpus_files
from nextlong.engine.executor import Resources
from nextlong.engine.step import (
    Artifacts,
    ShardFiles,
    Step,
    StepFiles,
    Task,
    TaskResult,
    Work,
)
from nextlong.recipe.keys import AUTO, EXACT, Search, queries_of_task
from nextlong.retrieval.index import (
    NeighbourCount,
    count_neighbours,
    index_files,
    is_exact,
    queries_of,
    vectors_of,
)
from nextlong.retrieval.indexes import exact_cpu
from nextlong.retrieval.indexes.base import (
    Index,
    IndexFiles,
    Neighbours,
    VectorShards,
    index_kind,
)
from nextlong.retrieval.indexes.exact import open_exact
from nextlong.retrieval.sample import query_ranges, read_queries
from nextlong.retrieval.shortlist import MineResult, ShortlistFiles, judge_shortlist

# Queries searched for at a time, which bounds memory for a document of a million
# chunks.
_BATCH = 8192
# Vectors that a task of a large exact search holds in memory.
BLOCK_BYTES = 1 << 31
MIN_SAMPLE = 1 << 14
MAX_SAMPLE = 1 << 20
# Expected in a sample of a query's k nearest: with a margin of 6 standard deviations,
# about 4 k vectors reach the bound. For more than MAX_SAMPLE / 8 · k vectors the sample
# has fewer of the k, and the margin is larger.
_SAMPLED_NEIGHBOURS = 8
# Queries of a `least_scores` task, which reads the whole sample (2 GB at 1,024
# dimensions) and multiplies it for a minute. With MOST_QUERIES per task, it took 31 %
# of the time at 10^8 chunks on 64 nodes (bench/simulate.py).
LEAST_SCORES_QUERIES = 2048

_Paths = Sequence[Path]
# A file of queries, and the first and last of its rows.
_Queries = tuple[Path, int, int]


class _Scans(NamedTuple):
    """What a large exact search found, block by block."""

    min_scores: _Paths  # files of `_find_least_scores`, in the order of queries
    blocks: _Paths  # stems of `_scan_block`


def _corpus_blocks(vectors: _Paths) -> list[range]:
    """Return the shards of each block of the corpus; none where one holds all."""
    sizes = [path.stat().st_size for path in vectors]
    bounds = corpus_files.runs_within(sizes, BLOCK_BYTES)
    blocks = [range(first, last) for first, last in bounds]
    return blocks if len(blocks) > 1 else []


def sample_size(k: float, total: float) -> int:
    """Return how many of all vectors are sampled to bound a query's k-th best."""
    size = np.clip(_SAMPLED_NEIGHBOURS * total // k, MIN_SAMPLE, MAX_SAMPLE)
    return int(size)


def _find_least_scores(
    out: Path, queries: _Queries, *, vectors: _Paths, k: int
) -> TaskResult:
    """Write `{out}.least.npy`, float32 (queries,).

    A cosine that somewhat more than `k` vectors reach, for each query.
    """
    shards = VectorShards(vectors)
    ids, exclude, _ = read_queries(*queries)
    min_scores_Q = exact_cpu.guess_kth(
        corpus_files.vectors(ids, vectors),
        shards,
        k=k,
        exclude_Q2=exclude,
        sample=sample_size(k, sum(shards.rows)),
    )
    if min_scores_Q is None:
        min_scores_Q = np.full(len(ids), -np.inf, np.float32)
    np.save(f"{out}.least.npy", min_scores_Q)
    return TaskResult()


def _scan_block(
    out: Path, *, queries: Path, least: _Paths, vectors: _Paths, block: range, k: int
) -> MineResult:
    """Search one block of the corpus, which is read into memory once, for all queries.

    Writes `{out}.ids.npy` and `{out}.scores.npy`, of all queries; those of query q are
    [ends[q], ends[q + 1]) (`{out}.ends.npy`).
    """
    index = open_exact(IndexFiles(EXACT, vectors), block=block)
    query_ids, exclude, _ = read_queries(queries)
    min_scores_Q = _read_min_scores(least)
    ids = [np.empty(0, np.int64)]
    scores = [np.empty(0, np.float32)]
    for low in range(0, len(query_ids), _BATCH):
        part = slice(low, low + _BATCH)
        part_ids, part_scores = index.search(
            corpus_files.vectors(query_ids[part], vectors),
            k,
            exclude=exclude[part],
            min_scores_Q=min_scores_Q[part],
        )
        ids += part_ids
        scores += part_scores
    # (queries + 1,): `ids` begins with an empty array, so these begin with 0.
    ends = np.cumsum([len(row) for row in ids])
    np.save(f"{out}.ids.npy", np.concatenate(ids))
    np.save(f"{out}.scores.npy", np.concatenate(scores))
    np.save(f"{out}.ends.npy", ends)
    return MineResult(queries=len(query_ids), candidates=int(ends[-1]))


def _read_min_scores(paths: _Paths) -> NDArray[np.float32]:
    return np.concatenate([np.load(path) for path in paths])


def _mine_block(
    out: Path,
    queries: _Queries,
    index: IndexFiles,
    *,
    k: int,
    scans: _Scans | None = None,
    shortlist: _Paths = (),
) -> MineResult:
    """Find the candidates of `queries`, or merge those of `scans`.

    Writes `{out}.candidates.arrow`.
    """
    ids, exclude, before = read_queries(*queries)
    opened_index = index_kind(index.index).open(index)
    candidates = judged = shortlisted = 0
    with (
        pa.OSFile(f"{out}.candidates.arrow", "wb") as sink,
        pa.ipc.new_file(sink, schemas.CANDIDATES) as writer,
    ):
        for low in range(0, len(ids), _BATCH):
            part = slice(low, low + _BATCH)
            queries_QD = corpus_files.vectors(ids[part], index.vectors)
            if scans is None:
                found = opened_index.search(queries_QD, k, exclude=exclude[part])
            else:
                found = _merge(
                    scans,
                    before + low,
                    queries_QD,
                    k,
                    index=opened_index,
                    exclude=exclude[part],
                )
            if shortlist:
                found = _with_positive_cosine(found)
                part_judged, part_shortlisted = judge_shortlist(found[0], shortlist)
                judged += part_judged
                shortlisted += part_shortlisted
            writer.write_batch(_candidate_rows(ids[part], found))
            candidates += sum(len(row) for row in found[0])
    return MineResult(
        queries=len(ids), candidates=candidates, judged=judged, shortlisted=shortlisted
    )


def _with_positive_cosine(found: Neighbours) -> Neighbours:
    """Return the neighbours with a positive cosine.

    Chunks that were not embedded have zero vectors, so they are no candidates.
    """
    neighbours = []
    scores = []
    for row_ids, row_scores in zip(*found, strict=True):
        count = int(np.count_nonzero(row_scores > 0))  # descending
        neighbours.append(row_ids[:count])
        scores.append(row_scores[:count])
    return neighbours, scores


def _candidate_rows(query_ids: NDArray[np.int64], found: Neighbours) -> pa.RecordBatch:
    """Return CANDIDATES: the neighbours and cosines of each query."""
    neighbours, scores = found
    counts = [len(row) for row in neighbours]
    ends = pa.array(np.cumsum([0, *counts]), pa.int32())
    values = pa.array(np.concatenate(neighbours))
    cosines = pa.array(np.concatenate(scores))
    columns = [
        pa.array(query_ids),
        pa.ListArray.from_arrays(ends, values),
        pa.ListArray.from_arrays(ends, cosines),
    ]
    return pa.record_batch(columns, schema=schemas.CANDIDATES)


class _BlockNeighbours(NamedTuple):
    """What one block of the corpus has of q queries."""

    ends: NDArray[np.int64]  # (q + 1,): query i has the rows [ends[i], ends[i + 1])
    ids: NDArray[np.int64]
    scores: NDArray[np.float32]

    @classmethod
    def read(cls, stem: Path, first: int, count: int) -> _BlockNeighbours:
        """Read those of `count` queries from `first` on."""
        all_ends = np.load(f"{stem}.ends.npy", mmap_mode="r")
        ends = all_ends[first : first + count + 1]
        rows = slice(ends[0], ends[-1])
        ids = corpus_files.opened(Path(f"{stem}.ids.npy"))
        scores = corpus_files.opened(Path(f"{stem}.scores.npy"))
        return cls(ends - ends[0], ids[rows], scores[rows])

    def of_query(self, query: int) -> slice:
        return slice(self.ends[query], self.ends[query + 1])


def _merge(
    scans: _Scans,
    first: int,
    queries_QD: NDArray[np.float32],
    k: int,
    *,
    index: Index,
    exclude: NDArray[np.int64],
) -> Neighbours:
    """Return the k best of the queries from `first` on over all blocks."""
    count, dimensions = queries_QD.shape
    min_scores_Q = _read_min_scores(scans.min_scores)[first : first + count]
    parts = [_BlockNeighbours.read(stem, first, count) for stem in scans.blocks]
    # Blocks compare rough scores with the bound, so only neighbours above it by more
    # than the rounding error are certain.
    error = exact_cpu.ROUNDING * exact_cpu.rounding_error(dimensions)
    neighbours = []
    cosines = []
    uncertain = []
    for query in range(count):
        ids = np.concatenate([part.ids[part.of_query(query)] for part in parts])
        scores = np.concatenate([part.scores[part.of_query(query)] for part in parts])
        best = np.lexsort((ids, -scores))[:k]
        neighbours.append(ids[best])
        cosines.append(scores[best])
        kth = scores[best[-1]] if len(best) == k else -np.inf
        has_bound = min_scores_Q[query] > -np.inf
        if has_bound and kth - error < min_scores_Q[query]:
            uncertain.append(query)

    # The bound was too high for these queries, about one in a billion.
    again = np.array(uncertain, np.int64)
    searched_again = index.search(queries_QD[again], k, exclude=exclude[again])
    for query, row_ids, row_scores in zip(uncertain, *searched_again, strict=True):
        neighbours[query] = row_ids
        cosines[query] = row_scores
    return neighbours, cosines


class LeastScoresFiles(StepFiles):
    """The score that a neighbour needs at least, of each query of a task."""

    step = "least_scores"
    min_scores = ShardFiles(".least.npy")


class ScanFiles(StepFiles):
    """Where the neighbours of each query end, of every block of the corpus."""

    step = "scan"
    ends = ShardFiles(".ends.npy")


class MineFiles(StepFiles):
    """The CANDIDATES of every task."""

    step = "mine"
    candidates = ShardFiles(".candidates.arrow")


def mine_steps(
    search: Search,
    name: str,
    vectors: Step,
    queries: Step,
    before: Sequence[Step],
    neighbours: NeighbourCount,
) -> list[Step]:
    """Return the steps from VECTORS to CANDIDATES of the queries; the last is `name`.

    `before` built an index or a shortlist. The other steps search by blocks of the
    corpus; they have no tasks where one block holds all vectors.
    """
    shared = (vectors, queries, *before)
    config: dict[str, Any] = dict(neighbours)
    # An index of another package, which reads the stored vectors directly.
    unbuilt = None
    if search.index not in (AUTO, EXACT):
        kind = index_kind(search.index)
        if not kind.is_built:
            unbuilt = search.index
            config |= {"index": unbuilt, "version": kind.version}

    def least_tasks(done: Artifacts) -> Work:
        find = partial(
            _find_least_scores,
            vectors=vectors_of(done),
            k=count_neighbours(neighbours, done),
        )
        tasks: list[Task] = []
        if is_exact(done) and _corpus_blocks(vectors_of(done)):
            path = queries_of(done)
            for rows in query_ranges(path, max_queries=LEAST_SCORES_QUERIES):
                tasks.append(partial(find, queries=(path, *rows)))
        return Work(tasks, gpu="unused")

    def scan_tasks(done: Artifacts) -> list[Task]:
        least = LeastScoresFiles.of(done).min_scores
        if not least:
            return []
        scan = partial(
            _scan_block,
            queries=queries_of(done),
            least=least,
            vectors=vectors_of(done),
            k=count_neighbours(neighbours, done),
        )
        return [
            partial(scan, block=block) for block in _corpus_blocks(vectors_of(done))
        ]

    def tasks(done: Artifacts) -> Work:
        files = index_files(done)
        if unbuilt is not None:
            files = replace(files, index=unbuilt)
        scans = _scans_of(done)
        k = count_neighbours(neighbours, done)
        mine = partial(
            _mine_block,
            index=files,
            k=k,
            scans=scans,
            shortlist=_shortlist_of(done),
        )
        path = queries_of(done)
        ranges = query_ranges(path, max_queries=queries_of_task(k))
        searches = [partial(mine, queries=(path, *rows)) for rows in ranges]
        # FAISS searches on the CPU, and merging needs no GPU.
        needs_no_gpu = index_kind(files.index).is_built or scans is not None
        return Work(searches, gpu="unused" if needs_no_gpu else None)

    resources = Resources(gpu="unused" if search.device == "cpu" else "optional")
    scanning: list[Step] = []
    if search.index in (AUTO, EXACT):
        least_scores = Step(
            name="least_scores",
            version=2,
            config=config,
            inputs=shared,
            tasks=least_tasks,
        )
        scan = Step(
            name="scan",
            version=1,
            config=config,
            inputs=(*shared, least_scores),
            tasks=scan_tasks,
            result=MineResult,
            resources=resources,
        )
        scanning = [least_scores, scan]
    mine = Step(
        name=name,
        version=5,
        config=config,
        inputs=(*shared, *scanning),
        tasks=tasks,
        result=MineResult,
        resources=resources,
    )
    return [*scanning, mine]


def _scans_of(done: Artifacts) -> _Scans | None:
    """Return what the blocks of the corpus have; None where they were not searched."""
    if "scan" not in done:
        return None
    suffix = ScanFiles.ends.suffix
    ends = ScanFiles.of(done).ends
    if not ends:
        return None
    stems = [path.with_name(path.name.removesuffix(suffix)) for path in ends]
    return _Scans(LeastScoresFiles.of(done).min_scores, stems)


def _shortlist_of(done: Artifacts) -> _Paths:
    if "shortlist" not in done:
        return ()
    return ShortlistFiles.of(done).marks
